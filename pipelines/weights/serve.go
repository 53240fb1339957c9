package weights

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"speedmatrix/experiments/plan"
)

// Serve hands the files of a snapshot out of a folder, in the form in which [Fetch] asks
// for a snapshot without revision, until ctx ends. What else lies in the folder is not
// there. Links are followed, as they are when a plan is locked.
func Serve(ctx context.Context, l net.Listener, dir string, s plan.Snapshot) error {
	server := &http.Server{Handler: handler(dir, s), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func handler(dir string, s plan.Snapshot) http.Handler {
	files := map[string]bool{}
	for _, f := range s.Files {
		files[f.Path] = true
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		if r.Method != http.MethodGet && r.Method != http.MethodHead || !files[name] || !filepath.IsLocal(filepath.FromSlash(name)) {
			http.NotFound(w, r)
			return
		}
		// Asked before it is opened: opening a pipe would wait for its other end.
		file := filepath.Join(dir, filepath.FromSlash(name))
		fi, err := os.Stat(file)
		if err != nil || !fi.Mode().IsRegular() {
			http.NotFound(w, r)
			return
		}
		f, err := os.Open(file)
		if err != nil {
			http.NotFound(w, r)
			return
		}
		defer f.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", fi.ModTime(), f)
	})
}

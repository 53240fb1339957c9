package weights

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
)

// lay writes files below a folder.
func lay(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCheck(t *testing.T) {
	files := map[string]string{"config.json": "{}", "model.safetensors": "weights", "sub/a.txt": "a", "b.txt": "b"}
	s := snapshot("./dir", "", files)
	tests := []struct {
		name   string
		change func(dir string) error
		want   []string // lines of the error between the first and the last
	}{
		{"same", func(string) error { return nil }, nil},
		{"what others keep", func(dir string) error {
			lay(t, dir, map[string]string{".git/HEAD": "x", ".cache/huggingface/x": "x", "sub/.cache/y": "y", ours + "/lock": "", markerName(s): "{}"})
			return nil
		}, nil},
		{"all at once", func(dir string) error {
			lay(t, dir, map[string]string{"config.json": "[]", "b.txt": "bb", "sub/new\nline": "", ".hidden": ""})
			return os.Remove(filepath.Join(dir, "model.safetensors"))
		}, []string{
			`".hidden" is not in the plan`,
			`"sub/new\nline" is not in the plan`,
			"b.txt has 2 bytes, the plan says 1",
			"config.json has the hash 0637a088a01e8ddab3bf3fa98dbe804cbde1a0dc, the plan says 9e26dfeeb6e641a33dae4961196235bdb965b21b",
			"model.safetensors is missing",
		}},
		{"links are followed", func(dir string) error {
			file := filepath.Join(dir, "config.json")
			elsewhere := filepath.Join(t.TempDir(), "blob")
			return errors.Join(os.Rename(file, elsewhere), os.Symlink(elsewhere, file))
		}, nil},
		{"a folder for a file", func(dir string) error {
			file := filepath.Join(dir, "b.txt")
			return errors.Join(os.Remove(file), os.Mkdir(file, 0o755))
		}, []string{"b.txt is no regular file"}},
		{"no end of them", func(dir string) error {
			extra := map[string]string{}
			for i := range 25 {
				extra[fmt.Sprintf("x%02d", i)] = ""
			}
			lay(t, dir, extra)
			return nil
		}, func() (want []string) {
			for i := range 20 {
				want = append(want, fmt.Sprintf(`"x%02d" is not in the plan`, i))
			}
			return append(want, "and 5 more")
		}()},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := lay(t, t.TempDir(), files)
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			// By a link, as a folder of models may be.
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(dir, link); err != nil {
				t.Fatal(err)
			}
			err := Check(t.Context(), link, s, nil)
			var got []string
			if err != nil {
				lines := strings.Split(err.Error(), "\n  ")
				got = lines[1:]
				got[len(got)-1] = strings.Split(got[len(got)-1], "\n")[0]
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
	if err := Check(t.Context(), filepath.Join(t.TempDir(), "none"), s, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: error %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if err := Check(ctx, lay(t, t.TempDir(), files), s, nil); !errors.Is(err, stop) {
		t.Errorf("cancelled: error %v", err)
	}
}

func TestCached(t *testing.T) {
	files := map[string]string{"config.json": "{}", "model.safetensors": "weights", "pytorch_model.bin": "weights", "README.md": "#", ".gitattributes": "", "original/consolidated.pth": "x"}
	s := snapshot(model, revision, files)
	cache := t.TempDir()
	err := Cached(t.Context(), cache, s, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "hf download org/name --revision "+revision) {
		t.Errorf("empty cache: %v", err)
	}
	// As a client of the hub lays it out, without what the engine does not need.
	folder := filepath.Join(cache, HubFolder(model))
	lay(t, folder, map[string]string{"blobs/1": "{}", "blobs/2": "weights", "refs/main": revision, "snapshots/" + revision + "/x": ""})
	in := filepath.Join(folder, "snapshots", revision)
	if err := errors.Join(os.Remove(filepath.Join(in, "x")), os.Symlink("../../blobs/1", filepath.Join(in, "config.json")), os.Symlink("../../blobs/2", filepath.Join(in, "model.safetensors"))); err != nil {
		t.Fatal(err)
	}
	if err := Cached(t.Context(), cache, s, []string{"main"}, nil); err != nil {
		t.Error(err)
	}
	lay(t, folder, map[string]string{"refs/main": strings.Repeat("f", 40)})
	if err := os.Remove(filepath.Join(in, "config.json")); err != nil {
		t.Fatal(err)
	}
	err = Cached(t.Context(), cache, s, []string{"main", "v1"}, nil)
	for _, want := range []string{"config.json is missing", `revision main is "ffff`, "revision v1 is not known there"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v lacks %q", err, want)
		}
	}
	if err := Cached(t.Context(), cache, s, []string{"../x"}, nil); err == nil {
		t.Error("a name that leads away is taken")
	}
	if err := Cached(t.Context(), cache, snapshot("./dir", "", files), nil, nil); err == nil {
		t.Error("a folder is taken")
	}
}

// A folder of one machine is handed to another one.
func TestServe(t *testing.T) {
	files := content()
	dir := lay(t, t.TempDir(), files)
	s := snapshot(dir, "", files)
	lay(t, dir, map[string]string{"secret.txt": "not in the plan"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error)
	go func() { ended <- Serve(ctx, l, dir, s) }()
	source := "http://" + l.Addr().String()
	to := t.TempDir()
	if err := Fetch(t.Context(), Options{Dir: to, Snapshot: s, Source: source}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, tree(t, to)); diff != "" {
		t.Error("another content")
	}
	if err := Check(t.Context(), to, s, nil); err != nil {
		t.Error(err)
	}
	client := http.Client{Timeout: time.Minute}
	defer client.CloseIdleConnections()
	for _, tt := range []struct {
		method, path, ranged string
		want                 int
	}{
		{"GET", "/config.json", "", 200},
		{"HEAD", "/config.json", "", 200},
		{"GET", "/config.json", "bytes=1-", 206},
		{"POST", "/config.json", "", 404},
		{"GET", "/", "", 404},
		{"GET", "/sub%20dir", "", 404},
		{"GET", "/secret.txt", "", 404},
		{"GET", "/sub%20dir/../secret.txt", "", 404},
		{"GET", "//config.json", "", 404},
		{"GET", "/..%2fconfig.json", "", 404},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, source+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.ranged != "" {
			req.Header.Set("Range", tt.ranged)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.want {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.path, resp.StatusCode, tt.want)
		}
	}
	cancel(nil)
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v", err)
	}
}

func TestKey(t *testing.T) {
	hub := snapshot(model, revision, map[string]string{"a": "1"})
	if got, want := Key(hub), "models--org--name-"+revision; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
	seen := map[string]string{}
	for name, s := range map[string]plan.Snapshot{
		"one":          snapshot("./x", "", map[string]string{"a": "1"}),
		"another text": snapshot("./x", "", map[string]string{"a": "2"}),
		"another name": snapshot("./x", "", map[string]string{"b": "1"}),
		"one more":     snapshot("./x", "", map[string]string{"a": "1", "b": "1"}),
	} {
		if other, ok := seen[Key(s)]; ok {
			t.Errorf("%s has the key of %s", name, other)
		}
		seen[Key(s)] = name
	}
	if a, b := Key(snapshot("./x", "", map[string]string{"a": "1"})), Key(snapshot("/y", "", map[string]string{"a": "1"})); a != b {
		t.Errorf("one content at two places has the keys %s and %s", a, b)
	}
}

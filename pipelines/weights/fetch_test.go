package weights

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
)

const revision = "0123456789abcdef0123456789abcdef01234567"

// content of the model in these tests: a large file (by SHA-256), small ones (by git's
// hash), two of one content in one folder, an empty one, and a name that must be escaped.
func content() map[string]string {
	return map[string]string{
		"model.safetensors":  strings.Repeat("0123456789abcdef", 300_000), // 4.8 MB
		"config.json":        "{}\n",
		"twin.json":          "{}\n",
		"empty.txt":          "",
		"sub dir/a#b?c%.txt": "odd name",
	}
}

func snapshot(id, revision string, files map[string]string) plan.Snapshot {
	s := plan.Snapshot{ID: id, Revision: revision}
	for name, text := range files {
		f := plan.File{Path: name, Bytes: int64(len(text))}
		if strings.HasSuffix(name, ".safetensors") {
			sum := sha256.Sum256([]byte(text))
			f.SHA256 = hex.EncodeToString(sum[:])
		} else {
			sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
			f.Git = hex.EncodeToString(sum[:])
		}
		s.Files, s.Bytes = append(s.Files, f), s.Bytes+f.Bytes
	}
	s.Files = sorted(s.Files)
	return s
}

// hub is a server in memory. All hosts lead to it, so that a handler sees which one was
// asked, and time in a bubble of synctest goes on while it is waited for.
type hub struct {
	http.Transport
	mu   sync.Mutex
	seen []string // "GET host/path Range", in order
	auth []string // host: value of Authorization
}

// startHub serves the files in the hub's form; first may answer instead, by returning true.
// It is called for several files at once.
func startHub(t *testing.T, id string, files map[string]string, first func(w http.ResponseWriter, r *http.Request) bool) *hub {
	h := &hub{}
	connections := make(listener)
	server := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.seen = append(h.seen, strings.TrimSpace(r.Host+r.URL.EscapedPath()+" "+r.Header.Get("Range")))
		h.auth = append(h.auth, r.Host+": "+r.Header.Get("Authorization"))
		h.mu.Unlock()
		if first != nil && first(w, r) {
			return
		}
		name, ok := strings.CutPrefix(r.URL.Path, "/"+id+"/resolve/"+revision+"/")
		text, there := files[name]
		if !ok || !there {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	})}
	go server.Serve(connections)
	h.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case connections <- theirs:
			return ours, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	t.Cleanup(func() {
		h.CloseIdleConnections()
		server.Close()
	})
	return h
}

func (h *hub) asked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.seen)
}

type listener chan net.Conn

func (l listener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l listener) Close() error   { close(l); return nil }
func (l listener) Addr() net.Addr { return &net.UnixAddr{} }

const model = "org/name"

func options(t *testing.T, h *hub) Options {
	return Options{
		Dir:       filepath.Join(t.TempDir(), HubFolder(model)),
		Snapshot:  snapshot(model, revision, content()),
		Refs:      []string{"main", "refs/pr/1"},
		Source:    "http://hub.test",
		Transport: h,
	}
}

// tree is all files below a folder, without what is ours.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		if !d.Type().IsRegular() {
			t.Errorf("%s is %v", rel, d.Type())
		}
		b, err := os.ReadFile(p)
		if !strings.HasPrefix(rel, ours) {
			got[filepath.ToSlash(rel)] = string(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantTree() map[string]string {
	want := map[string]string{"refs/main": revision, "refs/refs/pr/1": revision}
	for name, text := range content() {
		want["snapshots/"+revision+"/"+name] = text
	}
	return want
}

func TestFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHub(t, model, content(), nil)
		o := options(t, h)
		var last [2]int64
		o.Progress = func(done, total int64) { last = [2]int64{done, total} }
		if err := Fetch(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
			t.Error(diff)
		}
		if want := [2]int64{o.Snapshot.Bytes, o.Snapshot.Bytes}; last != want {
			t.Errorf("progress ends with %d, want %d", last, want)
		}
		if left, _ := filepath.Glob(filepath.Join(o.Dir, ours, "*.partial")); left != nil {
			t.Errorf("left: %q", left)
		}
		if err := Cached(t.Context(), filepath.Dir(o.Dir), o.Snapshot, o.Refs, nil); err != nil {
			t.Error(err)
		}
		asked := h.asked()
		if want := "hub.test/org/name/resolve/" + revision + "/sub%20dir/a%23b%3Fc%25.txt"; !slices.Contains(asked, want) {
			t.Errorf("asked for %q, not for %q", asked, want)
		}

		// The marker says that it is complete: nothing is asked for.
		if err := Fetch(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := h.asked(); len(got) != len(asked) {
			t.Errorf("with a marker, asked for %q", got[len(asked):])
		}

		// A file of another size is seen, one of another content when asked to verify.
		config := filepath.Join(o.Dir, "snapshots", revision, "config.json")
		for _, damage := range []struct {
			text   string
			verify bool
		}{{"longer than before", false}, {"{!\n", true}} {
			if err := os.WriteFile(config, []byte(damage.text), 0o644); err != nil {
				t.Fatal(err)
			}
			o.Verify = damage.verify
			before := len(h.asked())
			if err := Fetch(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if got := h.asked()[before:]; len(got) != 1 || !strings.HasSuffix(got[0], "/config.json") {
				t.Errorf("after %q: asked for %q", damage.text, got)
			}
			if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
				t.Error(diff)
			}
		}
	})
}

// Each way in which a server can give something else. Nothing of it may lie there.
func TestFetchRefuses(t *testing.T) {
	large := content()["model.safetensors"]
	isLarge := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/model.safetensors") }
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			if isLarge(r) {
				w.WriteHeader(code)
			}
			return isLarge(r)
		}
	}
	send := func(text string, length bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !isLarge(r) {
				return false
			}
			if length {
				w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			}
			io.WriteString(w, text)
			return true
		}
	}
	tests := []struct {
		name  string
		first func(http.ResponseWriter, *http.Request) bool
		token string
		want  []string
		tries int
	}{
		{"wrong content", send("X"+large[1:], false), "", []string{"model.safetensors has the hash", "the plan says " + snapshot("", "", content()).Files[2].SHA256}, 1},
		{"too long", send(large+"x", false), "", []string{"longer than the 4800000 bytes"}, 1},
		{"too long, said", send(large+"x", true), "", []string{"it has 4800001 bytes, the plan says 4800000"}, 1},
		{"too short", send(large[1:], false), "", []string{"it ended after 4799999 of 4800000 bytes"}, 6},
		{"too short, said", send(large[1:], true), "", []string{"it has 4799999 bytes, the plan says 4800000"}, 1},
		{"private", status(401), "", []string{"hub answers 401", "org/name is private, gated or not there", "set MY_TOKEN"}, 1},
		{"gated", status(403, "X-Error-Code", "GatedRepo"), "secret", []string{"hub answers 403", "org/name is gated", "the token in MY_TOKEN has no right", "accept the model's terms"}, 1},
		{"vanished", status(404), "", []string{"404", "gone", "lock the plan again"}, 1},
		{"refused", status(400), "", []string{"400"}, 1},
		{"down", status(503), "", []string{"503", "after 6 attempts"}, 6},
		{"a part unasked", status(206), "", []string{"206"}, 1},
		{"endless redirects", status(302, "Location", "/org/name/resolve/"+revision+"/model.safetensors"), "", []string{"more than 5 redirects"}, 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := startHub(t, model, content(), tt.first)
				o := options(t, h)
				o.Token, o.TokenVariable = tt.token, "MY_TOKEN"
				err := Fetch(t.Context(), o)
				if err == nil {
					t.Fatal("no error")
				}
				for _, want := range append(tt.want, "hub.test/org/name/resolve/"+revision+"/model.safetensors") {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error %q lacks %q", err, want)
					}
				}
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the token is in %q", err)
				}
				n := 0
				for _, asked := range h.asked() {
					if strings.Contains(asked, "/model.safetensors") {
						n++
					}
				}
				if n != tt.tries {
					t.Errorf("asked %d times, want %d: %q", n, tt.tries, h.asked())
				}
				for name := range tree(t, o.Dir) {
					if strings.HasSuffix(name, "model.safetensors") || strings.HasPrefix(name, "refs") {
						t.Errorf("%s lies there", name)
					}
				}
				if _, err := os.Stat(filepath.Join(o.Dir, markerName(o.Snapshot))); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("marker: %v", err)
				}
			})
		})
	}
}

// A line that breaks after some bytes, again and again.
func TestFetchResumes(t *testing.T) {
	large := content()["model.safetensors"]
	for _, ranges := range []bool{true, false} {
		t.Run(fmt.Sprintf("ranges %v", ranges), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				breaks := 7 // more than attempts: each of them brings 0.6 MB
				h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/model.safetensors") {
						return false
					}
					if !ranges {
						r.Header.Del("Range")
						breaks = min(breaks, 3)
					}
					if breaks == 0 {
						return false
					}
					breaks--
					var from int
					fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
					w.Header().Set("Content-Length", fmt.Sprint(len(large)-from))
					if from > 0 {
						w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(large)-1, len(large)))
						w.WriteHeader(http.StatusPartialContent)
					}
					io.WriteString(w, large[from:from+600_000])
					w.(http.Flusher).Flush()
					panic(http.ErrAbortHandler)
				})
				o := options(t, h)
				start := time.Now()
				if err := Fetch(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
					t.Error("another content")
				}
				if took := time.Since(start); took < firstPause {
					t.Errorf("it was tried again at once: %v", took)
				}
				if want := "hub.test/org/name/resolve/" + revision + "/model.safetensors bytes=600000-"; !slices.Contains(h.asked(), want) {
					t.Errorf("not asked for %q: %q", want, h.asked())
				}
			})
		})
	}
}

// What an earlier call left is gone on with; if it is damaged, the file is brought again.
func TestFetchAfterInterruption(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		t.Run(fmt.Sprintf("damaged %v", damaged), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				stop := errors.New("somebody pressed a key")
				large := content()["model.safetensors"]
				h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
					if ctx.Err() != nil || !strings.HasSuffix(r.URL.Path, "/model.safetensors") {
						return false
					}
					w.Header().Set("Content-Length", fmt.Sprint(len(large)))
					io.WriteString(w, large[:2_000_000])
					w.(http.Flusher).Flush()
					cancel(stop)
					panic(http.ErrAbortHandler)
				})
				o := options(t, h)
				if err := Fetch(ctx, o); !errors.Is(err, stop) {
					t.Fatalf("error %v", err)
				}
				parts, _ := filepath.Glob(filepath.Join(o.Dir, ours, "*-"+o.Snapshot.Files[2].SHA256+".partial"))
				if len(parts) != 1 {
					t.Fatalf("partial files: %q", parts)
				}
				b, err := os.ReadFile(parts[0])
				if err != nil || len(b) == 0 || !bytes.HasPrefix([]byte(large), b) {
					t.Fatalf("%d bytes of the partial file are not those that came: %v", len(b), err)
				}
				if damaged {
					b[0] = 'X'
					if err := os.WriteFile(parts[0], b, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				before := len(h.asked())
				var last int64
				o.Progress = func(done, _ int64) { last = done }
				if err := Fetch(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				if last != o.Snapshot.Bytes {
					t.Errorf("progress ends with %d of %d", last, o.Snapshot.Bytes)
				}
				if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
					t.Error("another content")
				}
				url := "hub.test/org/name/resolve/" + revision + "/model.safetensors"
				var got []string
				for _, asked := range h.asked()[before:] {
					if strings.HasPrefix(asked, url) {
						got = append(got, strings.TrimPrefix(asked, url))
					}
				}
				want := []string{fmt.Sprintf(" bytes=%d-", len(b))}
				if damaged {
					want = append(want, "")
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestFetchWaitsAsAsked(t *testing.T) {
	tests := []struct {
		after     string
		low, high time.Duration
	}{
		{"90", 90 * time.Second, 92 * time.Second},
		{"date", 59 * time.Second, 62 * time.Second},
		{"999999999999", longestAsked, longestAsked + 2*time.Second},
		{"soon", firstPause, firstPause + time.Second},
		{"-5", firstPause, firstPause + time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.after, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := false
				h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/config.json") || refused {
						return false
					}
					refused = true
					after := tt.after
					if after == "date" {
						after = time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
					}
					w.Header().Set("Retry-After", after)
					w.WriteHeader(http.StatusTooManyRequests)
					return true
				})
				start := time.Now()
				if err := Fetch(t.Context(), options(t, h)); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took < tt.low || took > tt.high {
					t.Errorf("it took %v, want %v to %v", took, tt.low, tt.high)
				}
			})
		})
	}
}

// A server that says nothing more, with its connection open.
func TestFetchIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := false
		h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/model.safetensors") || hung {
				return false
			}
			hung = true
			w.Header().Set("Content-Length", "4800000")
			io.WriteString(w, content()["model.safetensors"][:1_000_000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		})
		start := time.Now()
		if err := Fetch(t.Context(), options(t, h)); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < idleTimeout || took > idleTimeout+5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestFetchRedirects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		expired := false
		h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
			switch {
			case r.Host == "hub.test" && strings.HasSuffix(r.URL.Path, "/model.safetensors"):
				http.Redirect(w, r, "http://cdn.hub.test"+r.URL.Path+"?signature=abc", http.StatusFound)
				return true
			case r.Host == "cdn.hub.test" && !expired:
				expired = true
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			return false
		})
		o := options(t, h)
		o.Token = "secret"
		if err := Fetch(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
			t.Error("another content")
		}
		if !expired {
			t.Error("the other host was not asked")
		}
		for _, a := range h.auth {
			if want := "hub.test: Bearer secret"; a != want && a != "cdn.hub.test: " {
				t.Errorf("sent %q", a)
			}
		}
	})
}

// What cannot be reached is told without the signature of the address that it was sent to.
func TestFetchUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHub(t, model, content(), func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://cdn.test/x?signature=abc", http.StatusFound)
			return true
		})
		dial := h.DialContext
		h.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == "cdn.test:80" {
				return nil, syscall.ECONNREFUSED
			}
			return dial(ctx, network, addr)
		}
		err := Fetch(t.Context(), options(t, h))
		if err == nil || !strings.Contains(err.Error(), "sent on to cdn.test") || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "signature") {
			t.Errorf("error %v", err)
		}
	})
}

func TestFetchUnknownAuthority(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	o := options(t, nil)
	o.Transport, o.Source = nil, server.URL
	if err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("error %v", err)
	}
}

type fullDisk struct{ http.RoundTripper }

func (f fullDisk) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := f.RoundTripper.RoundTrip(r)
	if err == nil && strings.HasSuffix(r.URL.Path, "/model.safetensors") {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(resp.Body, 1_000_000), failing{&fs.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}}), resp.Body}
	}
	return resp, err
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestFetchDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHub(t, model, content(), nil)
		o := options(t, h)
		o.Transport, o.Parallel = fullDisk{h}, 1
		err := Fetch(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "is full: 4.8 MB of the model's 4.8 MB are still to come") {
			t.Errorf("error %v", err)
		}
	})
}

// Two at once, in one process or in two: the lock is of the open file.
func TestFetchTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHub(t, model, content(), nil)
		o := options(t, h)
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := Fetch(t.Context(), o); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
			t.Error("another content")
		}
		// All but the empty file, whose content is known, and each of them once.
		if got := h.asked(); len(got) != len(content())-1 {
			t.Errorf("asked for %q", got)
		}
		// One that is locked by somebody who never ends can be left.
		unlock, err := lockDir(t, o.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := Fetch(ctx, o); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func lockDir(t *testing.T, dir string) (func(), error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { root.Close() })
	return (&fetcher{root: root}).lock(t.Context())
}

func TestFetchHostileSnapshot(t *testing.T) {
	good := strings.Repeat("0", 64)
	file := func(path string) plan.Snapshot {
		return plan.Snapshot{ID: model, Revision: revision, Files: []plan.File{{Path: path, Bytes: 1, SHA256: good}}}
	}
	with := func(change func(*plan.Snapshot)) plan.Snapshot {
		s := file("a")
		change(&s)
		return s
	}
	tests := map[string]plan.Snapshot{
		"parent":          file("../a"),
		"parent inside":   file("a/../../b"),
		"absolute":        file("/etc/passwd"),
		"not clean":       file("a//b"),
		"dot":             file("."),
		"empty":           file(""),
		"backslash":       file(`a\b`),
		"NUL":             file("a\x00b"),
		"ours":            file(ours + "/lock"),
		"marker":          file(ours + "-" + revision + ".json"),
		"no files":        with(func(s *plan.Snapshot) { s.Files = nil }),
		"no hash":         with(func(s *plan.Snapshot) { s.Files[0].SHA256 = "" }),
		"hash leads away": with(func(s *plan.Snapshot) { s.Files[0].SHA256 = "../../../x" + strings.Repeat("0", 54) }),
		"negative":        with(func(s *plan.Snapshot) { s.Files[0].Bytes = -1 }),
		"twice":           with(func(s *plan.Snapshot) { s.Files = append(s.Files, s.Files[0]) }),
		"file and folder": with(func(s *plan.Snapshot) { s.Files = append(s.Files, file("a/b").Files...) }),
		"revision":        with(func(s *plan.Snapshot) { s.Revision = "../../x" }),
	}
	for name, s := range tests {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: filepath.Join(t.TempDir(), "dir"), Snapshot: s, Source: "http://127.0.0.1:1"}
			if err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), model) {
				t.Errorf("error %v", err)
			}
			if _, err := os.Stat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("something was written: %v", err)
			}
			if err := Check(t.Context(), t.TempDir(), s, nil); err == nil {
				t.Error("Check takes it")
			}
		})
	}
	for _, ref := range []string{"", "../x", "a/../../x", "/x", ".speedmatrix"} {
		o := Options{Dir: filepath.Join(t.TempDir(), "dir"), Snapshot: file("a"), Source: "http://127.0.0.1:1", Refs: []string{ref}}
		if err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no name of a revision") {
			t.Errorf("ref %q: error %v", ref, err)
		}
	}
	for _, source := range []string{"", "hub.test", "ftp://hub.test", "http://", "https://user:pw@hub.test", "https://hub.test/?x"} {
		o := Options{Dir: filepath.Join(t.TempDir(), "dir"), Snapshot: file("a"), Source: source}
		if err := Fetch(t.Context(), o); err == nil || !strings.Contains(err.Error(), "must be an address") || strings.Contains(err.Error(), "pw") {
			t.Errorf("source %q: error %v", source, err)
		}
	}
}

// Links that lie in a volume: one in place of a file is replaced, one that leads out of the
// folder is not followed.
func TestFetchLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startHub(t, model, content(), nil)
		o := options(t, h)
		outside := t.TempDir()
		victim := filepath.Join(outside, "victim")
		files := filepath.Join(o.Dir, "snapshots", revision)
		if err := errors.Join(os.MkdirAll(files, 0o755), os.WriteFile(victim, []byte("{}\n"), 0o644),
			os.Symlink(victim, filepath.Join(files, "config.json"))); err != nil {
			t.Fatal(err)
		}
		if err := Fetch(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantTree(), tree(t, o.Dir)); diff != "" {
			t.Error("another content")
		}
		folder := filepath.Join(files, "sub dir")
		if err := errors.Join(os.RemoveAll(folder), os.Symlink(outside, folder)); err != nil {
			t.Fatal(err)
		}
		if err := Fetch(t.Context(), o); err == nil {
			t.Error("a folder that leads away is taken")
		}
		if got := tree(t, outside); len(got) != 1 || got["victim"] != "{}\n" {
			t.Errorf("outside: %q", got)
		}
	})
}

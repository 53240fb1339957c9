//go:build linux

package host

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
)

// A locked plan's model is what the engine finds, whatever lies on the machine.
func TestSnapshots(t *testing.T) {
	config := []byte(`{"model_type":"made-up"}`)
	sum := sha256.Sum256(config)
	file := plan.File{Path: "config.json", Bytes: int64(len(config)), SHA256: hex.EncodeToString(sum[:])}
	revision := strings.Repeat("1", 40)
	asked := 0
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/org/m/resolve/"+revision+"/config.json" {
			http.NotFound(w, r)
			return
		}
		w.Write(config)
	}))
	t.Cleanup(hub.Close)
	dir := t.TempDir()
	newJob := func(argv []string, s plan.Snapshot) *job {
		p := &plan.Plan{}
		p.Identity.Engine.Argv = argv
		p.Identity.Model = plan.Model{ID: s.ID, Snapshots: []plan.Snapshot{s}}
		return &job{
			Job: pipelines.Job{Plan: p, CacheDir: filepath.Join(dir, "ours")}, dir: dir, hub: hub.URL,
			environ: []string{"HOME=" + filepath.Join(dir, "home")}, sink: &lockedSink{sink: &sink{}},
		}
	}
	s := plan.Snapshot{ID: "org/m", Revision: revision, Files: []plan.File{file}, Bytes: file.Bytes}

	// Not on this machine: fetched into our own cache, once.
	for range 2 {
		env, settings, err := newJob([]string{"vllm", "serve", "org/m", "--revision", "v1"}, s).snapshots(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"HF_HUB_CACHE=" + filepath.Join(dir, "ours", "hub"), "HF_HUB_OFFLINE=1"}; !slices.Equal(env, want) || len(settings) != 1 {
			t.Errorf("%q, %v", env, settings)
		}
	}
	if asked != 1 {
		t.Errorf("the hub was asked %d times", asked)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "ours", "hub", "models--org--m", "refs", "v1")); string(b) != revision {
		t.Errorf("refs/v1 is %q, %v", b, err)
	}

	// In the person's own cache, under the name that the command asks for: used as it is.
	theirs := filepath.Join(dir, "home", ".cache", "huggingface", "hub")
	put(t, filepath.Join(theirs, "models--org--m", "snapshots", revision, "config.json"), config)
	put(t, filepath.Join(theirs, "models--org--m", "refs", "main"), []byte(revision))
	env, _, err := newJob([]string{"vllm", "serve", "org/m"}, s).snapshots(t.Context())
	if err != nil || !slices.Contains(env, "HF_HUB_CACHE="+theirs) {
		t.Errorf("%q, %v", env, err)
	}
	// It means something else there by now.
	put(t, filepath.Join(theirs, "models--org--m", "refs", "main"), []byte(strings.Repeat("2", 40)))
	if env, _, err = newJob([]string{"vllm", "serve", "org/m"}, s).snapshots(t.Context()); err != nil || slices.Contains(env, "HF_HUB_CACHE="+theirs) {
		t.Errorf("%q, %v", env, err)
	}

	// A folder has to hold what was locked, no more and no less.
	folder := plan.Snapshot{ID: "./m", Files: []plan.File{file}, Bytes: file.Bytes}
	put(t, filepath.Join(dir, "m", "config.json"), config)
	if env, _, err := newJob([]string{"vllm", "serve", "./m"}, folder).snapshots(t.Context()); err != nil || env != nil {
		t.Errorf("%q, %v", env, err)
	}
	put(t, filepath.Join(dir, "m", "config.json"), []byte(`{"model_type":"another"}`))
	if _, _, err := newJob([]string{"vllm", "serve", "./m"}, folder).snapshots(t.Context()); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("a changed file: %v", err)
	}
}

func put(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
}

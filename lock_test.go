package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
)

// call is one use of the program.
func call(t *testing.T, env map[string]string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), process{
		args: args, stdin: strings.NewReader(""), stdout: &out, stderr: &errs,
		getenv:  func(name string) string { return env[name] },
		environ: func() []string { return nil },
		self:    os.Args[0],
		leave:   func() {},
	})
	return status, out.String(), errs.String()
}

// TestPlanLock locks an experiment against a registry and a hub of its own, takes both
// away, and uses the plan.
func TestPlanLock(t *testing.T) {
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer images.Close()
	image := strings.TrimPrefix(images.URL, "http://") + "/vllm/vllm-openai:nightly"
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config.OS, config.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	const revision = "0123456789abcdef0123456789abcdef01234567"
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/models/org/m/revision/main" || r.Header.Get("Authorization") != "Bearer hf_madeup" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, `{"sha":%q,"siblings":[{"rfilename":"config.json","size":2,"blobId":%q}]}`, revision, revision)
	}))
	defer hub.Close()

	dir := t.TempDir()
	file := filepath.Join(dir, "e.yaml")
	write := func(image string) {
		t.Helper()
		text := `name: e
engine:
  source: {image: "` + image + `"}
  command: vllm serve org/m --api-key sk-madeup
model: {revision: main}
matrix:
  contexts: [1K]
  concurrency: [1]
`
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(image)
	env := map[string]string{"HF_ENDPOINT": hub.URL, "HF_TOKEN": "hf_madeup"}
	want := func(step string, wantStatus, status int, text string, parts ...string) {
		t.Helper()
		if status != wantStatus {
			t.Errorf("%s: status %d, want %d\n%s", step, status, wantStatus, text)
		}
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in:\n%s", step, part, text)
			}
		}
	}

	status, stdout, _ := call(t, env, "plan", file)
	want("not locked", exitOK, status, stdout, "unpinned: engine.source.image", "unpinned: model.revision")
	status, _, stderr := call(t, env, "plan", "--lock", file)
	want("no token", exitWrong, status, stderr, "model.revision", "--hub-token-env")
	status, _, stderr = call(t, env, "plan", "--lock", file, "--hub-token-env", "NOT_SET")
	want("no such variable", exitUsage, status, stderr, "NOT_SET is not set")
	status, _, stderr = call(t, env, "plan", file, "--platform", "linux/arm64")
	want("without --lock", exitUsage, status, stderr, "--platform goes with --lock")
	status, _, stderr = call(t, env, "plan", "--lock", file, "--hub-token-env", "HF_TOKEN", "--platform", "linux/arm64")
	want("another platform", exitWrong, status, stderr, "is for linux/amd64")

	status, _, stderr = call(t, env, "plan", "--lock", file, "-o", file, "--hub-token-env", "HF_TOKEN")
	want("over the experiment", exitUsage, status, stderr, "is the experiment itself")

	if err := os.Mkdir(filepath.Join(dir, "locks"), 0o755); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(dir, "locks", "e.json")
	status, stdout, stderr = call(t, env, "plan", "--lock", file, "-o", lock, "--hub-token-env", "HF_TOKEN", "--set", "matrix.repeats=2")
	want("locked", exitOK, status, stdout+stderr, "everything is pinned", "is "+digest.String(), "org/m@main is "+revision, "locked: "+lock)
	b, err := os.ReadFile(lock)
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{"hf_madeup", "sk-madeup", dir} {
		if strings.Contains(string(b), no) {
			t.Errorf("%q stands in the locked plan", no)
		}
	}
	p, err := plan.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.Text.Experiment != "../e.yaml" || len(p.Identity.Steps) != 2 || p.Identity.Engine.Locked.Manifest != digest.String() {
		t.Errorf("plan %+v", p)
	}
	if files, err := os.ReadDir(filepath.Join(dir, "locks")); err != nil || len(files) != 1 {
		t.Errorf("left beside the plan: %v, %v", files, err)
	}

	fields := fmt.Sprint(planFields(&p.Identity, p.Digest))
	for _, part := range []string{digest.String() + " for linux/amd64", "org/m at " + revision + ", 1 files, 2 bytes"} {
		if !strings.Contains(fields, part) {
			t.Errorf("no %q on the page: %s", part, fields)
		}
	}

	// From here on nobody can be asked.
	images.Close()
	hub.Close()
	status, _, stderr = call(t, env, "plan", "--lock", file, "--hub-token-env", "HF_TOKEN")
	want("offline", exitWrong, status, stderr, "engine.source.image", "cannot be reached")
	status, stdout, _ = call(t, nil, "plan", lock)
	want("plan of the plan", exitOK, status, stdout, p.Digest, "everything is pinned", "nothing is resolved anew")
	status, _, stderr = call(t, nil, "plan", lock, "--set", "matrix.repeats=1")
	want("changing a locked plan", exitUsage, status, stderr, "not changed by --set")
	status, _, stderr = call(t, nil, "plan", "--lock", lock)
	want("locking a locked plan", exitUsage, status, stderr, "this plan is locked")

	write(image + "ly")
	status, _, stderr = call(t, nil, "plan", lock)
	want("another tag", exitUsage, status, stderr, "the experiment changed since the plan was locked")
	write(image)
	if err := os.WriteFile(lock, bytes.Replace(b, []byte(revision), []byte(strings.Repeat("9", 40)), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	status, _, stderr = call(t, nil, "plan", lock)
	want("changed by hand", exitUsage, status, stderr, "changed by hand")
	if err := os.WriteFile(lock, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	status, _, stderr = call(t, nil, "plan", lock)
	want("without the experiment", exitUsage, status, stderr, "a plan needs its experiment", "no such file")
}

// TestResumeLocked: a run of a locked plan goes on without asking anybody, though its
// experiment has names.
func TestResumeLocked(t *testing.T) {
	dir := t.TempDir()
	yaml := []byte(`name: e
engine:
  source: {wheel: {lock: lock.txt, python: "3.12"}}
  command: vllm serve ./model
matrix:
  contexts: [1K]
  concurrency: [1]
`)
	for name, content := range map[string]string{"e.yaml": string(yaml), "lock.txt": "vllm==1", "model/config.json": "{}"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if status, _, stderr := call(t, nil, "plan", "--lock", filepath.Join(dir, "e.yaml")); status != exitOK {
		t.Fatal(stderr)
	}
	// The files are hashed in the plan; whether they are still there is not asked again.
	if err := os.RemoveAll(filepath.Join(dir, "model")); err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(dir, "e.plan.json"))
	if err != nil {
		t.Fatal(err)
	}
	p := process{getenv: func(string) string { return "" }, environ: func() []string { return nil }}
	var s session
	if err := s.reload(t.Context(), p, record.Run{ExperimentDir: dir}, stored, yaml, dir, runOptions{}, ""); err != nil {
		t.Fatal(err)
	}
	if files := s.resolved.Plan.Identity.Model.Snapshots[0].Files; len(files) != 1 || files[0].Path != "config.json" {
		t.Errorf("got %+v", files)
	}
	changed := bytes.Replace(yaml, []byte("./model"), []byte("./other"), 1)
	if err := s.reload(t.Context(), p, record.Run{ExperimentDir: dir}, stored, changed, dir, runOptions{}, ""); err == nil || !strings.Contains(err.Error(), "changed since") {
		t.Errorf("another model: %v", err)
	}
}

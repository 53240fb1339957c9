package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"speedmatrix/pipelines/dagger"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

// testRegistry is where TestDagger serves images. The engine must be allowed to ask it
// without TLS, in its engine.json:
//
//	{"registries": {"127.0.0.1:5000": {"http": true}}}
const testRegistry = "127.0.0.1:5000"

// TestDagger runs the program as people do on a real engine: the one that the environment
// names, or with SPEEDMATRIX_DAGGER=1 the one that the CLI starts.
func TestDagger(t *testing.T) {
	if os.Getenv("SPEEDMATRIX_DAGGER") == "" && os.Getenv(dagger.RunnerVariable) == "" {
		t.Skip("no Dagger engine: SPEEDMATRIX_DAGGER=1 starts one, " + dagger.RunnerVariable + " names one")
	}
	d := newDaggerTest(t)
	l, err := net.Listen("tcp", testRegistry)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })

	image := d.image(t, "0.30.1rc1.dev452+g"+strings.Repeat("a", 9))
	ref, err := name.ParseReference(testRegistry + "/vllm:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, image); err != nil {
		t.Fatal(err)
	}
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}

	t.Run("simulator", func(t *testing.T) {
		run := d.run(t, d.experiment(t, "{simulator: default}", "", ""), "--executor", "dagger")
		d.valid(t, run, 3)
		if !strings.HasSuffix(run.Again, " --executor dagger") {
			t.Errorf("again with %q", run.Again)
		}
		if run.Kind != record.Simulated {
			t.Errorf("kind %s", run.Kind)
		}
	})

	t.Run("image by tag, then the locked plan", func(t *testing.T) {
		file := d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "vllm serve org/m --max-model-len 4096 --port 9000 --api-key topsecret", "")
		first := d.run(t, file)
		d.valid(t, first, 3)
		if got := setting(first, "Image"); !strings.Contains(got, "/vllm@"+digest.String()) {
			t.Errorf("image %q", got)
		}
		argv := strings.Join(first.Launches[0].Argv, " ")
		if !strings.HasPrefix(argv, "vllm serve org/m --max-model-len 4096 --host 0.0.0.0 --port 8000") || strings.Contains(argv, "topsecret") {
			t.Errorf("executed as %q", argv)
		}
		d.noSecret(t, "topsecret")

		d.cli(t, 0, "plan", "--lock", "--hub", d.hub, file)
		began := time.Now()
		second := d.run(t, strings.TrimSuffix(file, ".yaml")+".plan.json")
		d.valid(t, second, 3)
		took := time.Since(began)
		if first.PlanDigest != second.PlanDigest {
			t.Errorf("plans %s and %s", first.PlanDigest, second.PlanDigest)
		}
		d.cli(t, 0, "rerun", d.last, "--yes", "--results", d.results, "--hub", d.hub)
		again := d.newest(t)
		d.valid(t, again, 3)
		if again.RerunOf != second.ID || setting(again, "Image") != setting(second, "Image") {
			t.Errorf("again of %q, image %q", again.RerunOf, setting(again, "Image"))
		}
		t.Logf("second run: %v in all", took.Round(time.Second/10))
	})

	t.Run("archive, with a path of another machine", func(t *testing.T) {
		file := d.experiment(t, `{image: "oci-archive:vllm.tar"}`, "$HOME/venv/bin/vllm serve org/m --max-model-len 4096", "")
		d.cli(t, 0, "build", "--hub", d.hub, d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "vllm serve org/m", ""), "--output", filepath.Join(filepath.Dir(file), "vllm.tar"))
		run := d.run(t, file)
		d.valid(t, run, 3)
		if got := setting(run, "Program"); !strings.Contains(got, "the image's own vllm") {
			t.Errorf("program %q", got)
		}
	})

	t.Run("built, published, run by the digest that was printed", func(t *testing.T) {
		out := d.cli(t, 0, "build", "--hub", d.hub, d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "vllm serve org/m", ""), "--publish", testRegistry+"/mine:v1")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		ref := lines[len(lines)-1]
		if !strings.HasPrefix(ref, testRegistry+"/mine") || !strings.Contains(ref, "@sha256:") {
			t.Fatalf("it printed %q", ref)
		}
		d.valid(t, d.run(t, d.experiment(t, `{image: "`+ref+`"}`, "vllm serve org/m --max-model-len 4096", "")), 3)
	})

	t.Run("a tag that is gone", func(t *testing.T) {
		file := d.experiment(t, `{image: "`+testRegistry+`/vllm:v9"}`, "vllm serve org/m", "")
		if out := d.cli(t, 1, "run", "--results", d.results, "--hub", d.hub, file); !strings.Contains(out, "has no tag \"v9\"") || !strings.Contains(out, "engine.source.commit") {
			t.Errorf("it said %s", out)
		}
	})

	t.Run("commit, by its Dockerfile and a patch", func(t *testing.T) {
		repo, commit := d.repository(t)
		patch := "diff --git a/LABEL b/LABEL\n--- a/LABEL\n+++ b/LABEL\n@@ -1 +1 @@\n-before\n+after\n"
		build := fmt.Sprintf("{way: dockerfile, dockerfile: docker/Dockerfile, target: vllm-openai, args: [%q, %q], patches: [a.patch]}",
			"BASE="+testRegistry+"/vllm@"+digest.String(), "VERSION=0.30.1rc1.dev452+g"+commit[:9])
		file := d.experiment(t, "{commit: main, repo: \""+repo+"\", build: "+build+"}", "vllm serve org/m --max-model-len 4096", "")
		if err := os.WriteFile(filepath.Join(filepath.Dir(file), "a.patch"), []byte(patch), 0o644); err != nil {
			t.Fatal(err)
		}
		run := d.run(t, file)
		d.valid(t, run, 3)
		if got := setting(run, "Image"); !strings.Contains(got, commit) || !strings.Contains(got, "patch a.patch (sha256:") {
			t.Errorf("image %q", got)
		}
		packages, err := os.ReadFile(filepath.Join(d.last, "logs", "packages-1.txt"))
		if err != nil || !strings.Contains(string(packages), "vllm==0.30.1rc1.dev452+g"+commit[:9]) {
			t.Errorf("packages %q, %v", packages, err)
		}
		// An image that says it was built from something else is not measured.
		wrong := d.experiment(t, "{commit: main, repo: \""+repo+"\", build: "+strings.Replace(build, "+g"+commit[:9], "+gbbbbbbbbb", 1)+"}", "vllm serve org/m --max-model-len 4096", "")
		if err := os.WriteFile(filepath.Join(filepath.Dir(wrong), "a.patch"), []byte(patch), 0o644); err != nil {
			t.Fatal(err)
		}
		if out := d.cli(t, 1, "run", "--hub", d.hub, "--results", d.results, wrong); !strings.Contains(out, "was built from commit bbbbbbbbb") {
			t.Errorf("it said %s", out)
		}
	})

	t.Run("a folder as model", func(t *testing.T) {
		file := d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "vllm serve ./models/m --max-model-len 4096", "")
		dir := filepath.Join(filepath.Dir(file), "models", "m")
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "sub"), 0o755),
			os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644),
			os.WriteFile(filepath.Join(dir, "sub", "weights.bin"), bytes.Repeat([]byte("w"), 3<<20), 0o644)); err != nil {
			t.Fatal(err)
		}
		run := d.run(t, file)
		d.valid(t, run, 3)
		if got := setting(run, "Model"); !strings.Contains(got, "2 files, 3145730 bytes") {
			t.Errorf("model %q", got)
		}
	})

	t.Run("killed, then resumed", func(t *testing.T) {
		file := d.experiment(t, "{simulator: default}", "", "")
		cmd := d.command("run", "--results", d.results, "--executor", "dagger", "--json", "--set", "matrix.repeats=3", file)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The second cell: the first one is in the volume.
		awaitLines(t, out, `"event":"cell"`, 2)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		partial, err := filepath.Glob(filepath.Join(d.results, "*.partial"))
		if err != nil || len(partial) != 1 {
			t.Fatalf("%v, %v", partial, err)
		}
		run := d.run(t, "--resume", partial[0])
		d.valid(t, run, 9)
		if len(run.Launches) != 2 || run.Launches[1].Number != 2 {
			t.Errorf("launches %+v", run.Launches)
		}
	})

	t.Run("Ctrl-C", func(t *testing.T) {
		file := d.experiment(t, "{simulator: default}", "", "")
		cmd := d.command("run", "--results", d.results, "--executor", "dagger", "--json", "--set", "matrix.repeats=3", file)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		awaitLines(t, out, `"event":"cell"`, 2)
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupted {
			t.Fatalf("it ended with %v", err)
		}
		run := d.newest(t)
		if !run.Interrupted || run.Launches[0].EndedAt == nil {
			t.Errorf("interrupted %v, launches %+v", run.Interrupted, run.Launches)
		}
	})

	t.Run("the engine ends in a cell", func(t *testing.T) {
		file := d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "SIMULATOR_FAULTS=exit-after-tokens=400 vllm serve org/m --max-model-len 4096", "")
		out := d.cli(t, exitCellsFailed, "run", "--results", d.results, "--hub", d.hub, file)
		if !strings.Contains(out, "engine: engine_exit: exit status 1") {
			t.Errorf("it said %s", out)
		}
		run := d.newest(t)
		if l := run.Launches[0]; l.ExitStatus != "exit status 1" || len(l.LogTail) == 0 {
			t.Errorf("launch %+v", l)
		}
	})

	t.Run("the engine ends at its start", func(t *testing.T) {
		file := d.experiment(t, `{image: "`+testRegistry+`/vllm:v1"}`, "SIMULATOR_FAULTS=nonsense vllm serve org/m", "")
		if out := d.cli(t, exitCellsFailed, "run", "--results", d.results, "--hub", d.hub, file); !strings.Contains(out, "before it was ready: exit status 1") || !strings.Contains(out, "nonsense") {
			t.Errorf("it said %s", out)
		}
	})

	t.Run("GPUs that the engine does not give", func(t *testing.T) {
		file := d.experiment(t, "{simulator: default}", "", "")
		if out := d.cli(t, 1, "run", "--results", d.results, "--executor", "dagger", "--gpus", "all", file); !strings.Contains(out, "started without GPU support") {
			t.Errorf("it said %s", out)
		}
	})

	t.Run("doctor", func(t *testing.T) {
		if out := d.cli(t, 0, "doctor"); !strings.Contains(out, "Dagger engine          version") {
			t.Errorf("it said %s", out)
		}
	})
}

// daggerTest is what the parts of TestDagger share.
type daggerTest struct {
	dir, self, vllm, results string
	hub                      string // address of a hub that has the model org/m
	last                     string // folder of the last run
}

func newDaggerTest(t *testing.T) *daggerTest {
	t.Helper()
	d := &daggerTest{dir: t.TempDir()}
	d.self, d.vllm, d.results = filepath.Join(d.dir, "speedmatrix"), filepath.Join(d.dir, "vllm"), filepath.Join(d.dir, "results")
	for out, pkg := range map[string]string{d.self: ".", d.vllm: "./pipelines/dagger/testdata/vllm"} {
		cmd := exec.Command("go", "build", "-o", out, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
	}
	// A hub of one model.
	config := []byte(`{"model_type":"made-up"}`)
	revision := strings.Repeat("1", 40)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/models/org/m/revision/"):
			json.NewEncoder(w).Encode(map[string]any{"id": "org/m", "sha": revision, "siblings": []any{map[string]any{
				"rfilename": "config.json", "size": len(config), "blobId": gitHash(config)}}})
		case r.URL.Path == "/org/m/resolve/"+revision+"/config.json":
			w.Write(config)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(hub.Close)
	d.hub = hub.URL
	return d
}

// image is one that holds the vllm program and the metadata of a package, and nothing else.
func (d *daggerTest) image(t *testing.T, version string) v1.Image {
	t.Helper()
	program, err := os.ReadFile(d.vllm)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		text []byte
	}{
		{"usr/local/bin/vllm", 0o755, program},
		{"usr/local/bin/python3", 0o755, nil}, // tells where packages are
		{"usr/local/lib/python3.12/site-packages/vllm-" + version + ".dist-info/METADATA", 0o644, []byte("Metadata-Version: 2.1\nName: vllm\nVersion: " + version + "\n")},
	} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), ModTime: time.Unix(0, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
	config.Config.Entrypoint = []string{"vllm", "serve"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	return image
}

// repository is one whose Dockerfile makes an image like vLLM's.
func (d *daggerTest) repository(t *testing.T) (dir, commit string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "vllm")
	dockerfile := "ARG BASE\nFROM ${BASE} AS vllm-openai\nARG VERSION\nCOPY LABEL /LABEL\nRUN [\"/usr/local/bin/vllm\", \"version\"]\nENTRYPOINT [\"vllm\", \"serve\"]\n"
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "docker"), 0o755),
		os.WriteFile(filepath.Join(dir, "docker", "Dockerfile"), []byte(dockerfile), 0o644),
		os.WriteFile(filepath.Join(dir, "LABEL"), []byte("before\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	return dir, git("rev-parse", "HEAD")
}

// experiment writes one of three short cells.
func (d *daggerTest) experiment(t *testing.T, source, command, more string) string {
	t.Helper()
	if command != "" {
		command = "\n  command: '" + command + "'"
	}
	file := filepath.Join(t.TempDir(), "e.yaml")
	text := "name: e\nengine:\n  source: " + source + command + "\nmatrix: {contexts: [0], concurrency: [1, 2], prefill: [1K], duration: 1s, settle: 200ms, max_output: 512}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func (d *daggerTest) command(args ...string) *exec.Cmd {
	cmd := exec.Command(d.self, args...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(d.dir, "cache"))
	return cmd
}

// cli runs the program and returns all that it printed.
func (d *daggerTest) cli(t *testing.T, want int, args ...string) string {
	t.Helper()
	out, err := d.command(args...).CombinedOutput()
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code, err = exit.ExitCode(), nil
	}
	if err != nil || code != want {
		t.Fatalf("speedmatrix %s: status %d, want %d, %v\n%s", strings.Join(args, " "), code, want, err, out)
	}
	return string(out)
}

// run measures and reads the run back.
func (d *daggerTest) run(t *testing.T, args ...string) record.Run {
	t.Helper()
	all := []string{"run", "--hub", d.hub}
	if !slices.Contains(args, "--resume") {
		all = append(all, "--results", d.results)
	}
	t.Log(d.cli(t, 0, append(all, args...)...))
	return d.newest(t)
}

func (d *daggerTest) newest(t *testing.T) record.Run {
	t.Helper()
	runs, err := filepath.Glob(filepath.Join(d.results, "*Z-e-*"))
	if err != nil || len(runs) == 0 {
		t.Fatalf("no run: %v", err)
	}
	runs = slices.DeleteFunc(runs, func(s string) bool { return strings.HasSuffix(s, ".partial") })
	d.last = slices.MaxFunc(runs, func(a, b string) int { return modTime(a).Compare(modTime(b)) })
	stored, err := store.Open(d.last)
	if err != nil {
		t.Fatal(err)
	}
	return stored.Record()
}

func modTime(path string) time.Time {
	fi, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return fi.ModTime()
}

// valid wants n cells, all of them valid.
func (d *daggerTest) valid(t *testing.T, r record.Run, n int) {
	t.Helper()
	stored, err := store.Open(d.last)
	if err != nil {
		t.Fatal(err)
	}
	cells := 0
	for c, err := range stored.Cells() {
		if err != nil {
			t.Fatal(err)
		}
		cells++
		if c.Status != record.Valid && c.Status != record.ClientLimited { // two cores, shared with the engine
			t.Errorf("%s: %s %s %v", c.StepID, c.Status, c.Reason, c.Warnings)
		}
	}
	if cells != n {
		t.Errorf("%d cells, want %d", cells, n)
	}
	if r.Executor != "dagger" || len(r.Launches) == 0 || r.Launches[0].Executor != "dagger" {
		t.Errorf("executor %q, launches %+v", r.Executor, r.Launches)
	}
}

// noSecret looks for a text in every file of the last run.
func (d *daggerTest) noSecret(t *testing.T, secret string) {
	t.Helper()
	err := filepath.WalkDir(d.last, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s holds %q", path, secret)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// gitHash is what git calls a blob.
func gitHash(b []byte) string {
	h := sha1.New()
	fmt.Fprintf(h, "blob %d\x00", len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// awaitLines reads until n lines hold a text, and the rest in the background.
func awaitLines(t *testing.T, r io.Reader, text string, n int) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			if n--; n == 0 {
				go io.Copy(io.Discard, r)
				return
			}
		}
	}
	t.Fatalf("the output ended, %d lines with %q are missing", n, text)
}

func setting(r record.Run, label string) string {
	for _, l := range r.Launches {
		for _, s := range l.Settings {
			if s.Label == label {
				return s.Value
			}
		}
	}
	return ""
}

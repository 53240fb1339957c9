package dagger

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "dagger.io/dagger"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

const (
	digest   = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	config   = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	commit   = "cccccccccccccccccccccccccccccccccccccccc"
	revision = "dddddddddddddddddddddddddddddddddddddddd"
)

var locked = &plan.Image{Platform: "linux/amd64", Manifest: digest, Config: config}

// static is a program that could run in any container; it is never run.
var static = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "speedmatrix-static-")
	if err != nil {
		return "", err
	}
	source, out := filepath.Join(dir, "main.go"), filepath.Join(dir, "speedmatrix")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", out, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(b))
	}
	return out, nil
})

// world is a fake engine in which what this program does in containers is done here: the
// engine is the simulator, measured over loopback.
type world struct {
	*fake
	x   Executor
	job pipelines.Job

	mu       sync.Mutex
	vllm     string // version that the image's package says
	served   []string
	launches []record.Launch
	trials   map[string]record.Trial
	previews []string
	progress []string
	onStage  map[string]func() // by stage and step, called once
	during   func()            // called when the measuring step begins
}

func newWorld(t *testing.T, engine plan.Engine) *world {
	t.Helper()
	self, err := static()
	if err != nil {
		t.Fatal(err)
	}
	seed := int64(1)
	p := &plan.Plan{Text: plan.Text{Name: "e"}, Identity: plan.Identity{
		MethodVersion: runner.MethodVersion, Engine: engine,
		Model:     plan.Model{ID: "org/m"},
		Prompts:   "shared",
		Sampling:  plan.Sampling{Seed: &seed, IgnoreEOS: true},
		MaxOutput: 256,
		WindowNs:  int64(200 * time.Millisecond), SettleNs: int64(100 * time.Millisecond),
		Capacity: plan.Capacity{Rule: "worst_case"},
		Limits:   plan.Limits{StartNs: int64(30 * time.Second), StallNs: int64(10 * time.Second), IdleNs: int64(10 * time.Second)},
		Steps: []plan.Step{
			{ID: "prefill-1k-r1", Phase: "prefill", ContextTokens: 1024, ContextLabel: "1K", Concurrency: 1, Repeat: 1},
			{ID: "decode-0-c1-r1", Phase: "decode", ContextLabel: "0", Concurrency: 1, Repeat: 1},
		},
	}}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	w := &world{fake: newFake(t), trials: map[string]record.Trial{}, onStage: map[string]func(){}}
	dir := t.TempDir()
	w.job = pipelines.Job{Plan: p, RunID: "run-1", Launch: 1, LogsDir: filepath.Join(dir, "logs"), BaseDir: dir, Done: w.has}
	w.x = Executor{Self: self, Environ: []string{"PATH=/none"}, Hub: "https://hub.example", Connect: w.connect}
	w.onExec(w.runs)
	w.onService(w.serve)
	w.replace(self, "SELF", dir, "DIR")
	w.replacePattern(`"/[^"]*/speedmatrix-\d+/`, `"TMP/`)
	w.replacePattern(`run-1-(\d+)-[A-Z0-9]{8}`, "run-1-${1}-RANDOM")
	w.answer(asks("entrypoint"), []any{"vllm", "serve"})
	w.answer(asks("platform"), "linux/amd64")
	w.answer(asks("envVariables"), []map[string]any{{"name": "PATH", "value": "/usr/bin"}, {"name": "HOME", "value": "/root"}})
	return w
}

func (w *world) has(step string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.trials[step]
	return ok && t.Status != record.Interrupted
}

func (w *world) Launched(l record.Launch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.launches = append(w.launches, l)
	return nil
}

func (w *world) Trial(t record.Trial) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trials[t.StepID] = t
	return nil
}

func (w *world) Progress(p runner.Progress) {
	w.mu.Lock()
	at := p.Stage
	if p.StepID != "" {
		at += " " + p.StepID
	}
	f := w.onStage[at]
	delete(w.onStage, at)
	w.progress = append(w.progress, p.Stage+": "+p.Text)
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

func (w *world) Preview(c record.Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.previews = append(w.previews, c.StepID)
}

func (w *world) lastLaunch() record.Launch { return w.launches[len(w.launches)-1] }

func (w *world) execute(t *testing.T) error {
	t.Helper()
	return w.x.Execute(t.Context(), w.job, w)
}

// option is the word behind a flag.
func option(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// runs is what an engine would run in a container.
func (w *world) runs(ctx context.Context, c *execCall) execResult {
	if len(c.Args) < 2 || c.Args[0] != container.Binary {
		return execResult{} // pip, a model's script: nothing of ours
	}
	var err error
	switch c.Args[1] {
	case "inspect":
		facts := container.Facts{VLLM: w.vllm, Python: "3.12.1", OS: "Test OS"}
		if w.vllm != "" {
			facts.Packages = []container.Package{{Name: "vllm", Version: w.vllm}}
		}
		if c.GPUs != nil {
			var xml []byte
			if xml, err = os.ReadFile("../nvidia/testdata/" + "550-h100.xml"); err == nil {
				facts.GPU.XML = string(xml)
			}
		}
		var b []byte
		if b, err = json.Marshal(facts); err == nil {
			err = os.WriteFile(put(c.Path(option(c.Args, "--out"))), b, 0o644)
		}
	case "collect":
		switch {
		case option(c.Args, "--prepare") != "":
			err = container.Prepare(put(c.Path(option(c.Args, "--prepare"))))
		case option(c.Args, "--drain") != "":
			err = container.AskToDrain(c.Path(option(c.Args, "--drain")))
		default:
			err = container.Collect(c.Path(option(c.Args, "--dir")), put(c.Path(option(c.Args, "--out"))))
		}
	case "measure":
		return w.measures(ctx, c)
	case "weights", "provide":
	default:
		err = errors.New("no such verb")
	}
	if err != nil {
		return execResult{Code: 1, Stderr: err.Error()}
	}
	return execResult{}
}

// put makes the folder that a file will lie in.
func put(path string) string {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		panic(err) // a folder of the test's own
	}
	return path
}

// measures is the measuring step: the real one, against the address that the engine has here.
func (w *world) measures(ctx context.Context, c *execCall) execResult {
	if w.during != nil {
		w.during()
	}
	address, err := c.Address(ctx, engineAlias)
	if err != nil {
		return execResult{Err: err}
	}
	err = container.Measure(ctx, container.MeasureOptions{
		Dir: c.Path(container.RunDir), JobFile: c.Path(container.JobFile), Stdout: c.Stdout, Stderr: c.Stderr,
		Transport: toAddress{address},
	})
	if ctx.Err() != nil {
		return execResult{Err: context.Cause(ctx)}
	}
	if err != nil {
		return execResult{Code: 1, Stderr: err.Error()}
	}
	return execResult{}
}

// toAddress sends every request to one address.
type toAddress struct{ address string }

func (a toAddress) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL = &url.URL{Scheme: "http", Host: a.address, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	return http.DefaultTransport.RoundTrip(r)
}

// serve is the engine in its container: the simulator, with the state that the keeper of
// an engine writes.
func (w *world) serve(ctx context.Context, c *serviceCall) int {
	p := simulator.DefaultProfile()
	p.Models = append(p.Models, "org/m")
	s, err := simulator.New(p, simulator.Options{})
	if err != nil {
		return 1
	}
	defer s.Close()
	at, err := s.Start(ctx, "127.0.0.1:0")
	if err != nil {
		return 1
	}
	state := filepath.Join(c.Path(option(c.Args, "--launch-dir")), "engine.json")
	say := func(e container.EngineState) {
		e.LaunchID, e.Starts, e.StartedAt = c.Env[container.LaunchVariable], 1, time.Now().UTC()
		b, err := json.Marshal(e)
		if err == nil {
			err = os.WriteFile(state+".new", b, 0o644)
		}
		if err != nil || os.Rename(state+".new", state) != nil {
			panic("the state was not written")
		}
	}
	say(container.EngineState{})
	c.Serves(strings.TrimPrefix(at, "http://"))
	w.mu.Lock()
	w.served = append(w.served, c.Env[container.LaunchVariable])
	w.mu.Unlock()
	select {
	case <-c.Term:
	case <-ctx.Done():
	}
	say(container.EngineState{Stopped: true, Gone: true})
	return 0
}

// measured sees that every step has its trial, and that it is a good one.
func (w *world) measured(t *testing.T) {
	t.Helper()
	for _, s := range w.job.Plan.Identity.Steps {
		trial, ok := w.trials[s.ID]
		if !ok || trial.Status == record.Failed || trial.Status == record.Interrupted {
			t.Errorf("%s: %v, %s %s", s.ID, ok, trial.Status, trial.Reason)
		}
	}
}

var fromImage = plan.Engine{
	Source: "image", Image: "registry.example/vllm@" + digest, Locked: locked,
	Argv: []string{"vllm", "serve", "org/m", "--max-model-len", "4096", "--port", "9000"},
	Env:  map[string]string{"VLLM_USE_V1": "1"},
}

// TestImage: everything at once that a run of a pinned image can have. The golden script
// is what the engine was asked to do.
func TestImage(t *testing.T) {
	engine := fromImage
	engine.Argv = slices.Concat(engine.Argv, []string{"--hf-token", "<redacted>"})
	engine.Env = map[string]string{"VLLM_USE_V1": "1", "MY_KEY": "<redacted>"}
	w := newWorld(t, engine)
	w.job.Plan.Identity.Model.Snapshots = []plan.Snapshot{{ID: "org/m", Revision: revision, Bytes: 2,
		Files: []plan.File{{Path: "config.json", Bytes: 2, SHA256: strings.Repeat("e", 64)}}}}
	w.job.Plan.Pins = []plan.Pin{{Field: "model.revision", Asked: "org/m@v1", Found: revision}}
	w.job.Argv = slices.Concat(engine.Argv[:len(engine.Argv)-1], []string{"wordsecret"})
	w.job.Env = map[string]string{"VLLM_USE_V1": "1", "MY_KEY": "envsecret"}
	w.job.APIKey = "keysecret"
	w.x.Environ = append(w.x.Environ, "HF_TOKEN=hubsecret", "UNRELATED=ours")
	w.x.GPUs = "0,1"
	w.x.Login = func(context.Context, string) (string, string, bool, error) { return "me", "loginsecret", true, nil }
	w.vllm = "0.32.0"
	if err := w.execute(t); err != nil {
		t.Fatal(err)
	}
	w.measured(t)
	w.golden(t, "image")
	w.noSecret(t, "wordsecret", "envsecret", "keysecret", "hubsecret", "loginsecret")
	w.fromByDigestOnly(t)
	w.noShell(t)
	w.noHostDirectory(t)

	l := w.lastLaunch()
	if argv := strings.Join(l.Argv, " "); argv != "vllm serve org/m --max-model-len 4096 --hf-token <redacted> --host 0.0.0.0 --port 8000" {
		t.Errorf("recorded as %q", argv)
	}
	if !slices.Equal(l.Env, []string{"MY_KEY=<redacted>", "VLLM_API_KEY=<redacted>", "VLLM_USE_V1=1"}) || l.EndedAt == nil || l.ReadySeconds == nil {
		t.Errorf("recorded as %+v", l)
	}
	for _, env := range w.env(serviceOf("supervise")) {
		if env["UNRELATED"] != "" || env["HF_HUB_OFFLINE"] != "1" {
			t.Errorf("the engine gets %v", env)
		}
	}
	for _, env := range w.env(execOf("measure")) {
		if !strings.HasPrefix(env[container.RunVariable], "run-1-1-") {
			t.Errorf("the measuring step could come from a cache: %v", env)
		}
	}
	if b, err := os.ReadFile(filepath.Join(w.job.LogsDir, "packages-1.txt")); err != nil || string(b) != "vllm==0.32.0\n" {
		t.Errorf("packages %q, %v", b, err)
	}
}

// TestBuilds: the ways from a commit, and wheels, to an image. No step of a build knows of
// the run, so the next run builds nothing again.
func TestBuilds(t *testing.T) {
	command := []string{"$HOME/venv/bin/vllm", "serve", "org/m"}
	for _, tt := range []struct {
		name   string
		engine plan.Engine
		vllm   string
		job    func(*pipelines.Job)
	}{
		{name: "commit-dockerfile", vllm: "0.30.1rc1.dev452+gccccccccc",
			engine: plan.Engine{Source: "commit", Commit: commit, Repo: "git.example/vllm", Argv: command, Build: &plan.Build{
				Way: "dockerfile", Platform: "linux/amd64", Dockerfile: "docker/Dockerfile.cpu", Target: "vllm-openai",
				Args: map[string]string{"max_jobs": "2", "VLLM_CPU": "1"}, Patches: []plan.Patch{{Name: "a.patch", SHA256: "sha256:aa"}, {Name: "b.patch", SHA256: "sha256:bb"}}}},
			job: func(j *pipelines.Job) { j.Patches = [][]byte{[]byte("--- a\n+++ a\n"), []byte("--- b\n+++ b\n")} }},
		{name: "commit-nightly", vllm: "0.30.1rc1.dev452+gccccccccc",
			engine: plan.Engine{Source: "commit", Commit: commit, Repo: "git.example/vllm", Argv: command, Locked: locked,
				Build: &plan.Build{Way: "nightly", Image: "registry.example/nightly@" + digest}}},
		{name: "commit-wheel", vllm: "0.30.1rc1.dev452+gccccccccc",
			engine: plan.Engine{Source: "commit", Commit: commit, Repo: "git.example/vllm", Argv: command, Build: &plan.Build{
				Way: "wheel", Base: "registry.example/base@" + digest, BaseLocked: locked, WheelURL: "https://wheels.example/" + commit + "/vllm-0.30.1rc1.dev452+gccccccccc-cp38-abi3-manylinux1_x86_64.whl", WheelSHA256: strings.Repeat("f", 64)}}},
		{name: "wheel", vllm: "0.32.0",
			engine: plan.Engine{Source: "wheel", Lock: "sha256:aa", Python: "3.12", Base: "registry.example/python@" + digest, BaseLocked: locked, Argv: []string{"vllm", "serve", "tiny"}},
			job: func(j *pipelines.Job) {
				script := filepath.Join(j.BaseDir, "make_model.py")
				if err := os.WriteFile(script, []byte("print()\n"), 0o644); err != nil {
					panic(err)
				}
				j.Wheel = &pipelines.Wheel{Lock: []byte("# provides: vllm==0.32.0+cpu\nvllm-cpu==0.32.0 --hash=sha256:00\n"), Python: "3.12", ModelScript: script}
			}},
		{name: "archive", engine: plan.Engine{Source: "image", Image: "oci-archive@" + digest, Locked: locked, Argv: command},
			job: func(j *pipelines.Job) { j.Archive = "vllm.tar" }},
		{name: "simulator", engine: plan.Engine{Source: "simulator"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.engine)
			w.vllm = tt.vllm
			if tt.job != nil {
				tt.job(&w.job)
			}
			if w.job.Archive != "" {
				if err := os.WriteFile(filepath.Join(w.job.BaseDir, w.job.Archive), []byte("tar"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.execute(t); err != nil {
				t.Fatal(err)
			}
			w.measured(t)
			w.golden(t, tt.name)
			w.fromByDigestOnly(t)
			w.noShell(t)
			w.noHostDirectory(t)
			for _, verb := range []string{"pip", "venv", "make_model.py", "provide", "inspect"} {
				for _, env := range w.env(execOf(verb)) {
					if env[container.RunVariable] != "" {
						t.Errorf("%s knows of the run: it would be done again", verb)
					}
				}
			}
		})
	}
}

// TestVersion: an image that was built from something else is not measured.
func TestVersion(t *testing.T) {
	engine := plan.Engine{Source: "commit", Commit: commit, Argv: []string{"vllm", "serve", "org/m"}, Locked: locked,
		Build: &plan.Build{Way: "nightly", Image: "registry.example/nightly@" + digest}}
	for version, want := range map[string]string{
		"0.30.1rc1.dev452+gbbbbbbbbb":           "was built from commit bbbbbbbbb",
		"0.30.1rc1.dev452+gccccccccc.d20260101": "",
		"0.30.1":                                "",
		"":                                      "holds no vllm package",
		"nonsense version":                      "the vllm package of the image",
	} {
		w := newWorld(t, engine)
		w.vllm = version
		err := w.execute(t)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", version, err, want)
		}
		if err != nil && len(w.served) > 0 {
			t.Errorf("%q: an engine was started", version)
		}
	}
}

// TestTwoLaunches: the same command twice on one engine is two launches, also where the
// engine takes services of equal content for one.
func TestTwoLaunches(t *testing.T) {
	w := newWorld(t, fromImage)
	for range 2 {
		w.trials = map[string]record.Trial{}
		w.job.RunID += "x"
		if err := w.execute(t); err != nil {
			t.Fatal(err)
		}
		w.measured(t)
	}
	if len(w.served) != 2 || w.served[0] == w.served[1] {
		t.Errorf("launches %q", w.served)
	}
	if n := w.fake.runs(execOf("measure")); n != 2 {
		t.Errorf("measured %d times", n)
	}
}

// TestResume: a session that is lost in the middle loses nothing that was measured.
func TestResume(t *testing.T) {
	w := newWorld(t, fromImage)
	first := w.job.Plan.Identity.Steps[0].ID
	w.onStage["window decode-0-c1-r1"] = func() { go w.lose() } // the log is not to wait for it
	err := w.execute(t)
	if err == nil || !strings.Contains(err.Error(), "the Dagger engine is gone") {
		t.Fatalf("got %v", err)
	}
	if !w.has(first) || !slices.Contains(w.previews, first) {
		t.Errorf("the first trial did not come home: previews %q", w.previews)
	}
	// As if the client had been killed: nothing came home, and the volume has it.
	w.trials = map[string]record.Trial{}
	w.job.Resumed, w.job.Launch = true, 2
	if err := w.execute(t); err != nil {
		t.Fatal(err)
	}
	w.measured(t)
	if w.trials[first].Launch != 1 || w.trials["decode-0-c1-r1"].Launch != 2 {
		t.Errorf("launches %d and %d", w.trials[first].Launch, w.trials["decode-0-c1-r1"].Launch)
	}
	if l := w.lastLaunch(); l.Number != 2 || l.EndedAt == nil {
		t.Errorf("%+v", l)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t, fromImage)
	drain := make(chan struct{})
	w.job.Drain = drain
	w.job.Plan.Identity.WindowNs = int64(time.Minute) // it is ended long before
	w.onStage["window decode-0-c1-r1"] = func() { close(drain) }
	if err := w.execute(t); err != nil {
		t.Fatal(err)
	}
	if got := w.trials["decode-0-c1-r1"].Status; got != record.Interrupted {
		t.Errorf("status %s", got)
	}
	if stopped, killed := w.stops(serviceOf("supervise")); stopped != 1 || killed != 0 {
		t.Errorf("stopped %d, killed %d times", stopped, killed)
	}
	if w.lastLaunch().EndedAt == nil {
		t.Error("the launch did not end")
	}
}

// TestDrainAtStart: nothing is started for somebody who does not want it any more.
func TestDrainAtStart(t *testing.T) {
	w := newWorld(t, fromImage)
	drain := make(chan struct{})
	w.job.Drain = drain
	w.onStage["build"] = func() { close(drain) }
	if err := w.execute(t); err != nil {
		t.Fatal(err)
	}
	if len(w.served) > 0 || len(w.trials) > 0 {
		t.Errorf("served %q, trials %v", w.served, w.trials)
	}
}

// TestFaults: what goes wrong in a container engine, in words that help.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name        string
		engine      plan.Engine
		set         func(*world)
		want        []string
		engineError bool
	}{
		{"the image is gone", fromImage, func(w *world) {
			w.failAlways(asks("platform"), engineError("failed to resolve image: registry.example/vllm@%s: not found", digest))
		}, []string{"get the image", "not found", "engine.source.commit"}, false},
		{"a build step fails", plan.Engine{Source: "wheel", Lock: "sha256:aa", Base: "registry.example/python@" + digest, BaseLocked: locked, Argv: []string{"vllm", "serve", "m"}}, func(w *world) {
			w.job.Wheel = &pipelines.Wheel{Lock: []byte("a==1 --hash=sha256:00\n")}
			w.failAlways(asks("platform"), execFailed([]string{"python", "-m", "pip", "install"}, 1, "", "Collecting a\nERROR: no matching distribution\n"))
		}, []string{"get the image", "python -m pip install", "exit status 1", "| ERROR: no matching distribution"}, false},
		{"the engine of no GPU", fromImage, func(w *world) {
			w.x.GPUs = "all"
			w.failAlways(every(asks("export"), through(step("experimentalWithAllGPUs"))), engineError("GPU support is not enabled, set _EXPERIMENTAL_DAGGER_GPU_SUPPORT"))
		}, []string{"look at the GPUs", "started without GPU support", "--gpus none"}, false},
		{"the container ends before it serves", fromImage, func(w *world) { w.onService(exits(3)) }, []string{"engine_exit", "its container ended: exit code: 3"}, true},
		{"the measuring step dies", fromImage, func(w *world) {
			w.onExec(func(ctx context.Context, c *execCall) execResult {
				if len(c.Args) > 1 && c.Args[1] == "measure" {
					return execResult{Code: 7, Stderr: "killed"}
				}
				return w.runs(ctx, c)
			})
		}, []string{"ended with status 7", "did not say why"}, false},
		{"a container that takes no notice of TERM", fromImage, func(w *world) {
			w.onService(func(ctx context.Context, c *serviceCall) int {
				inner := *c
				inner.Term = nil
				return w.serve(ctx, &inner)
			})
			w.x.StopWithin = 300 * time.Millisecond
		}, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.engine)
			tt.set(w)
			err := w.execute(t)
			if len(tt.want) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				w.measured(t)
				if stopped, killed := w.stops(serviceOf("supervise")); stopped != 1 || killed != 1 {
					t.Errorf("stopped %d, killed %d times", stopped, killed)
				}
				if !slices.ContainsFunc(w.lastLaunch().Settings, func(f record.Field) bool { return f.Label == "End" && strings.Contains(f.Value, "was killed") }) {
					t.Errorf("nobody is told: %+v", w.lastLaunch().Settings)
				}
				return
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "traceparent") {
				t.Errorf("not for people: %v", err)
			}
			var ended *runner.EngineError
			if errors.As(err, &ended) != tt.engineError {
				t.Errorf("an engine's end: %v, want %v", !tt.engineError, tt.engineError)
			}
		})
	}
}

// What is built takes the platform that the plan says, as what is pulled does.
func TestPlatform(t *testing.T) {
	arm := &plan.Image{Platform: "linux/arm64"}
	for _, tt := range []struct {
		engine plan.Engine
		want   sdk.Platform
	}{
		{plan.Engine{}, defaultPlatform},
		{plan.Engine{Locked: arm}, "linux/arm64"},
		{plan.Engine{BaseLocked: arm}, "linux/arm64"},
		{plan.Engine{Build: &plan.Build{Way: "wheel", BaseLocked: arm}}, "linux/arm64"},
		{plan.Engine{Build: &plan.Build{Way: "dockerfile", Platform: "linux/arm64"}}, "linux/arm64"},
		{plan.Engine{Build: &plan.Build{Way: "dockerfile"}}, defaultPlatform},
	} {
		if got := platform(&plan.Plan{Identity: plan.Identity{Engine: tt.engine}}); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.engine, got, tt.want)
		}
	}
}

func TestChooseGPUs(t *testing.T) {
	for _, tt := range []struct {
		option, claimed string
		want            []string
		none, bad       bool
	}{
		{option: "", claimed: "", none: true},
		{option: "", claimed: "RTX 3060", want: []string{}},
		{option: "none", claimed: "RTX 3060", none: true},
		{option: "all", want: []string{}},
		{option: "0,GPU-1234", want: []string{"0", "GPU-1234"}},
		{option: "MIG-GPU-12/3/0", want: []string{"MIG-GPU-12/3/0"}},
		{option: "0,,1", bad: true},
		{option: "0, 1", bad: true},
		{option: "-1", bad: true},
		{option: "ALL", bad: true},
	} {
		got, err := chooseGPUs(tt.option, tt.claimed)
		if (err != nil) != tt.bad || (got == nil) != (tt.none || tt.bad) || !slices.Equal(got, tt.want) {
			t.Errorf("%q, %q: %v, %v", tt.option, tt.claimed, got, err)
		}
	}
}

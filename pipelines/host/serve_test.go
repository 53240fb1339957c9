//go:build linux

package host

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/pipelines/supervise/familytest"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// fakeServe is a vllm program: the embedded engine behind vLLM's command line, with
// the habits that FAKE_HABITS lists.
func fakeServe(argv []string) int {
	if habits := os.Getenv("FAKE_HABITS"); habits != "" {
		for habit := range strings.SplitSeq(habits, ";") {
			switch word, value, _ := strings.Cut(habit, "="); word {
			case "die":
				fmt.Println("ValueError: not enough memory for one full context")
				return 1
			case "secrets":
				fmt.Println("key", os.Getenv("VLLM_API_KEY"), "token", os.Getenv("HF_TOKEN"))
			case "other-key":
				os.Setenv("VLLM_API_KEY", "another")
			default:
				go familytest.Fake([]string{word + "=" + value})
			}
		}
	}
	cfg, err := simulator.FromServeArgs(argv, os.Getenv)
	if err != nil {
		fmt.Println(err)
		return 2
	}
	cfg.Profile.APIKey = os.Getenv("VLLM_API_KEY")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := simulator.Serve(ctx, cfg, os.Stdout); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// sink keeps what an executor tells.
type sink struct {
	mu       sync.Mutex
	launches []record.Launch
	trials   []record.Trial
	lines    []string
	onStage  map[string]func() // called once
}

func (s *sink) Launched(l record.Launch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.launches = append(s.launches, l)
	return nil
}

func (s *sink) Trial(t record.Trial) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trials = append(s.trials, t)
	return nil
}

func (s *sink) Progress(p runner.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, p.Stage+": "+p.Text)
	if f := s.onStage[p.Stage]; f != nil {
		delete(s.onStage, p.Stage)
		f()
	}
}

func (s *sink) last() record.Launch { return s.launches[len(s.launches)-1] }

const window = 200 * time.Millisecond

// serveJob is a job of source host whose program is the test binary.
func serveJob(t *testing.T, env map[string]string) pipelines.Job {
	t.Helper()
	seed := int64(1)
	p := &plan.Plan{Identity: plan.Identity{
		MethodVersion: runner.MethodVersion,
		Engine: plan.Engine{
			Source:  "host",
			Program: self(t),
			Argv:    []string{"vllm", "serve", "m", "--served-model-name", "tiny", "--max-model-len", "4096", "--max-num-seqs", "2", "--num-gpu-blocks-override", "512"},
			Env:     env,
		},
		Model:     plan.Model{ID: "m", Served: []string{"tiny"}},
		Prompts:   "shared",
		Sampling:  plan.Sampling{Seed: &seed, IgnoreEOS: true},
		MaxOutput: 512,
		WindowNs:  int64(window),
		SettleNs:  int64(window),
		Capacity:  plan.Capacity{Rule: "worst_case"},
		Limits:    plan.Limits{StartNs: int64(30 * time.Second), StallNs: int64(10 * time.Second), IdleNs: int64(10 * time.Second)},
		Steps: []plan.Step{
			{ID: "prefill-1k-r1", Phase: "prefill", ContextTokens: 1024, ContextLabel: "1K", Concurrency: 1, Repeat: 1},
			{ID: "decode-0-c1-r1", Phase: "decode", ContextLabel: "0", Concurrency: 1, Repeat: 1},
			{ID: "decode-0-c2-r1", Phase: "decode", ContextLabel: "0", Concurrency: 2, Repeat: 1},
		},
	}}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	return pipelines.Job{
		Plan: p, RunID: "run", Launch: 1,
		LogsDir: filepath.Join(dir, "logs"), CacheDir: filepath.Join(dir, "cache"), BaseDir: dir,
	}
}

func executor(t *testing.T) Executor {
	return Executor{Self: self(t), Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, Grace: time.Second}
}

func logOf(t *testing.T, j pipelines.Job) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(j.LogsDir, fmt.Sprintf("engine-%d.log", j.Launch)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// portOf finds the port in a recorded command.
func portOf(t *testing.T, l record.Launch) string {
	t.Helper()
	i := slices.Index(l.Argv, "--port")
	if i < 0 {
		t.Fatalf("no port in %q", l.Argv)
	}
	return l.Argv[i+1]
}

func TestExecute(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	job := serveJob(t, map[string]string{"FAKE_HABITS": "secrets;child=stubborn,alive=" + a.Path})
	job.Launch = 2
	x := executor(t)
	x.Environ = append(x.Environ, "HF_TOKEN=hf_secret_1", "VLLM_ATTENTION_BACKEND=hidden")
	s := sink{onStage: map[string]func(){"window": func() { <-a.PIDs }}}
	if err := x.Execute(t.Context(), job, &s); err != nil {
		t.Fatal(err)
	}
	a.Dead(t)
	if len(s.trials) != 3 {
		t.Fatalf("%d trials", len(s.trials))
	}
	for _, tr := range s.trials {
		if tr.Status == record.Failed || tr.Status == record.Skipped || tr.Launch != 2 {
			t.Errorf("%s: launch %d, %s %s %s", tr.StepID, tr.Launch, tr.Status, tr.FailureKind, tr.Reason)
		}
	}
	if len(s.launches) != 2 {
		t.Fatalf("%d launches were told, want ready and ended", len(s.launches))
	}
	l := s.last()
	if l.Number != 2 || l.Executor != "host" || l.ReadySeconds == nil || *l.ReadySeconds <= 0 || l.EndedAt == nil || l.ExitStatus != "" || l.LogTail != nil || len(l.Settings) == 0 {
		t.Errorf("launch: %+v", l)
	}
	if got := strings.Join(l.Env, " "); !strings.Contains(got, "HF_TOKEN=<redacted>") || !strings.Contains(got, "VLLM_API_KEY=<redacted>") || strings.Contains(got, "hidden") {
		t.Errorf("recorded environment: %s", got)
	}
	log := logOf(t, job)
	if !strings.Contains(log, "key <redacted> token <redacted>") {
		t.Errorf("log: %s", log)
	}
	all := fmt.Sprintf("%s %+v %q", log, s.launches, s.lines)
	if strings.Contains(all, "hf_secret_1") {
		t.Error("the token is in what was written")
	}
	if l, err := net.Listen("tcp4", "127.0.0.1:"+portOf(t, l)); err != nil {
		t.Error(err)
	} else {
		l.Close()
	}
}

func TestExecuteFails(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	tests := []struct {
		name   string
		env    map[string]string
		change func(*pipelines.Job, *Executor)
		want   []string
		engine record.FailureKind
	}{
		{"exits before it is ready", map[string]string{"FAKE_HABITS": "die"}, nil, []string{"before it was ready", "exit status 1", "not enough memory"}, record.FailEngineExit},
		{"exits while it loads", map[string]string{"SIMULATOR_FAULTS": "exit-after=100ms,startup-delay=20s"}, nil, []string{"exit status 1"}, record.FailEngineExit},
		{"exits in a trial", map[string]string{"SIMULATOR_FAULTS": "exit-after-tokens=60"}, nil, []string{"exit status 1", "printed last"}, record.FailEngineExit},
		{"port taken", nil, func(_ *pipelines.Job, x *Executor) { x.Port = l.Addr().(*net.TCPAddr).Port }, []string{"is taken by", fmt.Sprint(os.Getpid())}, ""},
		{"program missing", nil, func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Engine.Program = "/nowhere/vllm" }, []string{"/nowhere/vllm", "use source wheel"}, ""},
		{"wrong options", nil, func(j *pipelines.Job, _ *Executor) {
			j.Plan.Identity.Engine.Argv = []string{"vllm", "serve", "m", "--max-model-len", "many"}
		}, []string{"exit status 2", "invalid value"}, record.FailEngineExit},
		{"wrong model name", nil, func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Model.Served = []string{"bench"} }, []string{`no model "bench"`, "its log is"}, ""},
		{"another key", map[string]string{"FAKE_HABITS": "other-key"}, nil, []string{"401"}, ""},
		{"never ready", map[string]string{"SIMULATOR_FAULTS": "startup-delay=1h"}, func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Limits.StartNs = 1e9 }, []string{"not ready within 1s"}, ""},
		{"container", nil, func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Engine.Source = "image" }, []string{"cannot start"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			job, x := serveJob(t, tt.env), executor(t)
			if tt.change != nil {
				tt.change(&job, &x)
			}
			var s sink
			err := x.Execute(t.Context(), job, &s)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q\nlacks %q", err, w)
				}
			}
			var engine *runner.EngineError
			if got := errors.As(err, &engine); got != (tt.engine != "") || got && engine.Kind != tt.engine {
				t.Errorf("engine error %v, want kind %q", engine, tt.engine)
			}
			if tt.engine != "" {
				if l := s.last(); l.ExitStatus == "" || len(l.LogTail) == 0 || l.EndedAt == nil {
					t.Errorf("launch: %+v", l)
				}
				// One start, however it ends (B11).
				for _, l := range s.launches {
					if l.Number != 1 {
						t.Errorf("launch %d", l.Number)
					}
				}
				if n := strings.Count(logOf(t, job), "not enough memory"); n > 1 {
					t.Errorf("it was started %d times", n)
				}
			}
		})
	}
}

func TestExecuteDrained(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stage  string
		faults string
		trials bool
	}{
		"while it starts":   {"start", "startup-delay=1h", false},
		"while it measures": {"window", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := familytest.NewAlive(t)
			job := serveJob(t, map[string]string{"SIMULATOR_FAULTS": tt.faults, "FAKE_HABITS": "child=session,alive=" + a.Path})
			drain := make(chan struct{})
			job.Drain = drain
			s := sink{onStage: map[string]func(){tt.stage: func() {
				go func() {
					<-a.PIDs
					close(drain)
				}()
			}}}
			if err := executor(t).Execute(t.Context(), job, &s); err != nil {
				t.Fatal(err)
			}
			a.Dead(t)
			if (len(s.trials) > 0) != tt.trials {
				t.Errorf("%d trials", len(s.trials))
			}
			if s.last().EndedAt == nil {
				t.Error("the launch has no end")
			}
		})
	}
}

// The second Ctrl-C: nothing is waited for.
func TestExecuteCancelled(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	job := serveJob(t, map[string]string{"FAKE_HABITS": "child=stubborn,alive=" + a.Path})
	cause := errors.New("twice")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := sink{onStage: map[string]func(){"window": func() {
		<-a.PIDs
		cancel(cause)
	}}}
	x := executor(t)
	x.Grace = time.Hour
	if err := x.Execute(ctx, job, &s); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	a.Dead(t)
}

// tinyWheel is a wheel whose program vllm runs the test binary in its place.
func tinyWheel(t *testing.T, dir string) (hash string) {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	record := ""
	for _, f := range []struct{ name, text string }{
		{"tinyvllm.py", "import os, sys\ndef main():\n    os.execv(os.environ['FAKE_VLLM'], ['vllm'] + sys.argv[1:])\n"},
		{"tinyvllm-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinyvllm\nVersion: 1.0\n"},
		{"tinyvllm-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{"tinyvllm-1.0.dist-info/entry_points.txt", "[console_scripts]\nvllm = tinyvllm:main\n"},
	} {
		record += f.name + ",,\n"
		w, err := z.Create(f.name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.text)); err != nil {
			t.Fatal(err)
		}
	}
	w, err := z.Create("tinyvllm-1.0.dist-info/RECORD")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, record, "tinyvllm-1.0.dist-info/RECORD,,\n")
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tinyvllm-1.0-py3-none-any.whl"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b.Bytes()))
}

const modelScript = `import importlib.metadata, os, sys
print(importlib.metadata.version("other-name"))
os.makedirs(sys.argv[1])
open(os.path.join(sys.argv[1], "config.json"), "w").write("{}")
open(os.environ["TMPDIR"] + "/left", "w").write("x")
`

// wheelJob is a job of source wheel; it needs a Python on this machine. Jobs with
// one cache folder have one virtual environment.
func wheelJob(t *testing.T, cache string) (pipelines.Job, Executor) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on the PATH: nothing can be made of wheels")
	}
	p, err := probe(t.Context(), python, os.Environ())
	if err != nil || !p.ensurepip {
		t.Skipf("%s cannot make a virtual environment: %v", python, err)
	}
	job, x := serveJob(t, map[string]string{"FAKE_VLLM": self(t)}), executor(t)
	job.CacheDir = cache
	wheels := t.TempDir()
	hash := tinyWheel(t, wheels)
	script := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(script, []byte(modelScript), 0o644); err != nil {
		t.Fatal(err)
	}
	job.Plan.Identity.Engine.Source, job.Plan.Identity.Engine.Program = "wheel", ""
	job.Plan.Identity.Engine.Argv[2] = "models/m"
	job.Plan.Identity.Steps = job.Plan.Identity.Steps[:1]
	job.Wheel = &pipelines.Wheel{
		Lock:        []byte("# provides: other-name==3.2+x\ntinyvllm==1.0 --hash=sha256:" + hash + "\n"),
		Python:      minor(p.version),
		ModelScript: script,
	}
	// Without uv, whose folder would have to be on the PATH.
	x.Environ = append(x.Environ, "PATH="+filepath.Dir(python)+":/usr/bin:/bin", "PIP_NO_INDEX=1", "PIP_FIND_LINKS="+wheels)
	return job, x
}

func TestExecuteWheel(t *testing.T) {
	t.Parallel()
	job, x := wheelJob(t, t.TempDir())
	// An interrupted build left this: it has no marker, so it is made anew.
	garbage := filepath.Join(job.CacheDir, "venvs", sumOf(job.Wheel.Lock)[:32]+"-py"+job.Wheel.Python, "garbage")
	if err := os.MkdirAll(garbage, 0o755); err != nil {
		t.Fatal(err)
	}
	var s sink
	if err := x.Execute(t.Context(), job, &s); err != nil {
		t.Fatal(err)
	}
	if exists(garbage) {
		t.Error("an unfinished environment was taken")
	}
	if len(s.trials) != 1 || s.trials[0].Status != record.Valid {
		t.Errorf("trials: %+v", s.trials)
	}
	l := s.last()
	if l.Argv[2] != "models/m" {
		t.Errorf("argv: %q", l.Argv)
	}
	labels := map[string]string{}
	for _, f := range l.Settings {
		labels[f.Label] = f.Value
	}
	if !strings.HasPrefix(labels["Python"], job.Wheel.Python+".") || !strings.HasPrefix(labels["Wheels"], "1 packages, lock sha256:") || !strings.HasPrefix(labels["Model files"], "sha256:") || !strings.HasPrefix(labels["Installer"], "pip ") {
		t.Errorf("settings: %q", l.Settings)
	}
	var left []string
	for _, pattern := range []string{"*/*.tmp", "*/*.partial*", "*/tmp", "models/*/tmp"} {
		m, _ := filepath.Glob(filepath.Join(job.CacheDir, pattern))
		left = append(left, m...)
	}
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}

	// The second time costs nothing: nothing could be installed now.
	x.Environ = slices.DeleteFunc(x.Environ, func(kv string) bool { return strings.HasPrefix(kv, "PIP_") || strings.HasPrefix(kv, "PATH=") })
	job.Launch = 2
	s = sink{}
	if err := x.Execute(t.Context(), job, &s); err != nil {
		t.Fatal(err)
	}
	for _, line := range s.lines {
		if strings.HasPrefix(line, "build: ") {
			t.Errorf("second time: %s", line)
		}
	}
}

func TestWheelFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*pipelines.Job, *Executor)
		want   []string
	}{
		{"wrong hash", func(j *pipelines.Job, _ *Executor) {
			j.Wheel.Lock = []byte("tinyvllm==1.0 --hash=sha256:" + strings.Repeat("0", 64))
		}, []string{"exit status 1", "DO NOT MATCH", "venv.log"}},
		{"no such python", func(j *pipelines.Job, _ *Executor) { j.Wheel.Python = "3.99" }, []string{"no Python 3.99", "found: ", "uv python install 3.99"}},
		{"no python at all", func(j *pipelines.Job, x *Executor) {
			x.Environ, j.CacheDir = []string{"PATH=/nowhere", "HOME=/nowhere"}, j.BaseDir
		}, []string{"none was found"}},
		{"no version", func(j *pipelines.Job, _ *Executor) { j.Wheel.Python = "three" }, []string{`"three" is not a version`}},
		{"not a lock", func(j *pipelines.Job, _ *Executor) { j.Wheel.Lock = []byte("tinyvllm\n") }, []string{"lock:1:"}},
		{"script fails", func(j *pipelines.Job, _ *Executor) {
			if err := os.WriteFile(j.Wheel.ModelScript, []byte("raise SystemExit('no words')"), 0o644); err != nil {
				panic(err)
			}
		}, []string{"make the model", "exit status 1", "no words"}},
		{"script writes nothing", func(j *pipelines.Job, _ *Executor) {
			if err := os.WriteFile(j.Wheel.ModelScript, nil, 0o644); err != nil {
				panic(err)
			}
		}, []string{"no config.json"}},
		{"script changed", func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Model.Files = "sha256:0" }, []string{"changed since the plan"}},
		{"model outside", func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Engine.Argv[2] = "/models/m" }, []string{"must be a relative path"}},
		{"another program", func(j *pipelines.Job, _ *Executor) { j.Plan.Identity.Engine.Argv[0] = "sglang" }, []string{`begins with "sglang"`}},
	}
	cache := t.TempDir()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			job, x := wheelJob(t, cache)
			tt.change(&job, &x)
			var s sink
			err := x.Execute(t.Context(), job, &s)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q\nlacks %q", err, w)
				}
			}
			if len(s.launches) > 0 {
				t.Error("something was launched")
			}
		})
	}
}

// Two at once make one.
func TestWheelTwice(t *testing.T) {
	t.Parallel()
	job, x := wheelJob(t, t.TempDir())
	made := make(chan *venv, 2)
	for range 2 {
		go func() {
			v, err := ensure(t, job, x)
			if err != nil {
				t.Error(err)
			}
			made <- v
		}()
	}
	c, d := <-made, <-made
	if c == nil || d == nil {
		t.FailNow()
	}
	if !c.MadeAt.Equal(d.MadeAt) {
		t.Errorf("made twice: %v and %v", c.MadeAt, d.MadeAt)
	}
	// An interpreter that was removed takes its environment with it.
	if err := os.Remove(c.bin("python")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/nowhere/python", c.bin("python")); err != nil {
		t.Fatal(err)
	}
	if _, ok := readVenv(c.dir, c.Lock); ok {
		t.Error("an environment without interpreter was taken")
	}
}

func ensure(t *testing.T, pj pipelines.Job, x Executor) (*venv, error) {
	if err := os.MkdirAll(pj.LogsDir, 0o755); err != nil {
		return nil, err
	}
	j := &job{Job: pj, self: x.Self, environ: x.Environ, sink: &lockedSink{sink: &sink{}}}
	return j.ensureVenv(t.Context())
}

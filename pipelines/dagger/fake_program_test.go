package dagger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// program plays this program inside the containers of a fake session: its steps are
// carried out in the test's process, and the engine is the embedded one. A test changes
// a field or puts a hook around exec and serve.
type program struct {
	facts   container.Facts   // of each image
	profile simulator.Profile // of the engine, where its command names none
	faults  simulator.Faults
	secrets map[string]string // variable to value, where a step needs one
}

// play makes f run a program.
func (f *fake) play() *program {
	p := &program{profile: simulator.DefaultProfile(), facts: container.Facts{Python: "3.12.11", OS: "Debian GNU/Linux 12"}}
	f.onExec(p.exec)
	f.onService(p.serve)
	return p
}

// option is the value of an option of a command.
func option(args []string, name string) string {
	if i := slices.Index(args, name); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

func (p *program) exec(ctx context.Context, c *execCall) execResult {
	if len(c.Args) < 2 || c.Args[0] != container.Binary {
		return execResult{} // of an image: pip and such
	}
	var err error
	at := func(name string) string { return c.Path(option(c.Args, name)) }
	switch verb := c.Args[1]; {
	case verb == "inspect":
		err = writeJSON(at("--out"), p.facts)
	case verb == "collect" && slices.Contains(c.Args, "--prepare"):
		err = container.Prepare(at("--prepare"))
	case verb == "collect" && slices.Contains(c.Args, "--drain"):
		err = container.AskToDrain(at("--drain"))
	case verb == "collect":
		err = container.Collect(at("--dir"), at("--out"))
	case verb == "measure":
		err = p.measure(ctx, c)
	case verb == "weights" || verb == "provide":
	default:
		err = fmt.Errorf("unknown command %q", verb)
	}
	if err != nil {
		return execResult{Code: 1, Stderr: err.Error() + "\n"}
	}
	return execResult{}
}

// measure is the step beside the engine; only the engine's address is another one here.
func (p *program) measure(ctx context.Context, c *execCall) error {
	file := c.Path(option(c.Args, "--job"))
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var job container.Job
	if err := json.Unmarshal(b, &job); err != nil {
		return err
	}
	address, err := c.Address(ctx, engineAlias)
	if err != nil {
		return err
	}
	job.EngineURL = "http://" + address
	if err := writeJSON(file, job); err != nil {
		return err
	}
	var environ []string
	for name := range c.Secrets {
		environ = append(environ, name+"="+p.secrets[name])
	}
	for name, value := range c.Env {
		environ = append(environ, name+"="+value)
	}
	return container.Measure(ctx, container.MeasureOptions{
		Dir: c.Path(option(c.Args, "--dir")), JobFile: file, Environ: environ, Stdout: c.Stdout, Stderr: c.Stderr,
	})
}

// serve is the supervisor with an engine.
func (p *program) serve(ctx context.Context, c *serviceCall) int {
	dir := c.Path(option(c.Args, "--launch-dir"))
	state := container.EngineState{LaunchID: option(c.Args, "--launch"), Starts: 1, StartedAt: time.Now().UTC(), Argv: c.Args[slices.Index(c.Args, "--")+1:]}
	if before, err := container.ReadEngine(dir); err == nil {
		state.Starts = before.Starts + 1
	}
	note := func() error { return writeJSON(filepath.Join(dir, "engine.json"), state) }
	if note() != nil {
		return 1
	}
	profile := p.profile
	if name := option(c.Args, "--profile"); name != "" {
		b, err := os.ReadFile(c.Path(name))
		if err != nil {
			return 1
		}
		if profile, err = simulator.ParseProfile(b); err != nil {
			return 1
		}
	}
	serving, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() {
		done <- simulator.Serve(serving, simulator.Config{
			Addr: "127.0.0.1:0", Profile: profile, Faults: p.faults,
			Listening: func(url string) error {
				c.Serves(strings.TrimPrefix(url, "http://"))
				return nil
			},
		}, c.Stdout)
	}()
	select {
	case err := <-done: // it died: the supervisor stays
		now := time.Now().UTC()
		state.ExitStatus, state.ExitedAt, state.Gone, state.LogTail = "exit status 1", &now, true, []string{fmt.Sprint(err)}
		if note() != nil {
			return 1
		}
		return c.Wait(ctx)
	case <-ctx.Done():
		<-done
		return 137
	case <-c.Term:
		stop(nil)
		<-done
		state.Stopped, state.Gone = true, true
		if note() != nil {
			return 1
		}
		return 0
	}
}

// writeJSON writes beside and renames, as the real program does.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	beside := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".test")
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(beside, b, 0o666), os.Rename(beside, path))
}

// keptSink keeps what a run is told.
type keptSink struct {
	launches []record.Launch
	trials   []record.Trial
	progress []runner.Progress
}

func (k *keptSink) Launched(l record.Launch) error { k.launches = append(k.launches, l); return nil }
func (k *keptSink) Trial(t record.Trial) error     { k.trials = append(k.trials, t); return nil }
func (k *keptSink) Progress(p runner.Progress)     { k.progress = append(k.progress, p) }

// fakePlan is a short plan of a source.
func fakePlan(t *testing.T, change func(*plan.Plan)) *plan.Plan {
	t.Helper()
	zero := 0.0
	p := &plan.Plan{Identity: plan.Identity{
		MethodVersion: runner.MethodVersion, Engine: plan.Engine{Source: "simulator"},
		Model: plan.Model{ID: "acme/made-up", Served: []string{"made-up"}}, Prompts: "shared",
		Sampling: plan.Sampling{Temperature: &zero, IgnoreEOS: true}, MaxOutput: 64,
		WindowNs: int64(50 * time.Millisecond), SettleNs: int64(5 * time.Millisecond),
		Capacity: plan.Capacity{Rule: "worst_case"},
		Limits:   plan.Limits{StartNs: int64(20 * time.Second), StallNs: int64(10 * time.Second), IdleNs: int64(10 * time.Second)},
		Steps: []plan.Step{
			{ID: "prefill-256-r1", Phase: record.PhasePrefill, ContextTokens: 256, ContextLabel: "256", Concurrency: 1, Repeat: 1},
			{ID: "decode-256-c2-r1", Phase: record.PhaseDecode, ContextTokens: 256, ContextLabel: "256", Concurrency: 2, Repeat: 1},
		},
	}}
	if change != nil {
		change(p)
	}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

// fakeJob is a first launch of a plan.
func fakeJob(t *testing.T, p *plan.Plan) pipelines.Job {
	t.Helper()
	return pipelines.Job{
		Plan: p, RunID: "run-7", Launch: 1, Done: func(string) bool { return false },
		LogsDir: filepath.Join(t.TempDir(), "logs"), BaseDir: t.TempDir(), APIKey: "key-of-the-api", Drain: make(chan struct{}),
	}
}

// fakeExecutor connects to f. Its own program is a file with the head of a static one.
func fakeExecutor(t *testing.T, f *fake) Executor {
	t.Helper()
	self := filepath.Join(t.TempDir(), "speedmatrix")
	if err := os.WriteFile(self, staticELF(), 0o755); err != nil {
		t.Fatal(err)
	}
	// What differs from run to run.
	f.replacePattern(`(run-7-\d+)-[A-Z2-7]{8}`, "${1}-<random>")
	f.replacePattern(`host\.file\("[^"]*/speedmatrix"\)`, `host.file("<ourselves>")`)
	f.replacePattern(`(export\(path: )"[^"]*/`, `${1}"<temporary>/`)
	return Executor{Self: self, Hub: "https://hub.example", Connect: f.connect}
}

// staticELF is the head of a program for amd64 that needs no interpreter.
func staticELF() []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	b[16], b[18], b[20] = 2, 62, 1 // executable, x86-64, version
	b[52] = 64                     // size of this head
	return b
}

func TestFakeProgram(t *testing.T) {
	f := newFake(t)
	p := f.play()
	p.secrets = map[string]string{container.KeyVariable: "key-of-the-api"}
	x, job := fakeExecutor(t, f), fakeJob(t, fakePlan(t, nil))
	var kept keptSink
	if err := x.Execute(t.Context(), job, &kept); err != nil {
		t.Fatal(err)
	}
	var steps []string
	for _, tr := range kept.trials {
		steps = append(steps, tr.StepID)
	}
	slices.Sort(steps)
	if want := []string{"decode-256-c2-r1", "prefill-256-r1"}; !slices.Equal(slices.Compact(steps), want) {
		t.Errorf("trials of %v", steps)
	}
	f.noSecret(t, "key-of-the-api")
	f.noShell(t)
	f.noHostDirectory(t)
	f.fromByDigestOnly(t)
	for _, env := range f.env(execOf("measure")) {
		if !strings.HasPrefix(env[container.RunVariable], "run-7-1-") {
			t.Errorf("the measuring step has no run id: %v", env)
		}
	}
	for _, env := range f.env(execOf("inspect")) {
		if _, ok := env[container.RunVariable]; ok {
			t.Errorf("a step that is to be cached has a run id: %v", slices.Sorted(maps.Keys(env)))
		}
	}
	if stopped, killed := f.stops(serviceOf("supervise")); stopped != 1 || killed != 0 {
		t.Errorf("stopped %d times, killed %d times", stopped, killed)
	}
	f.golden(t, "program")
}

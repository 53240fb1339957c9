package container

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

const (
	theKey    = "the-key-of-the-engine"
	theSecret = `a-"secret"-of-somebody`
	theNonce  = "n0nce"
)

// startLog is what the engine said before it was ready.
const startLog = `(APIServer pid=1) INFO 11-30 18:47:40 [api_server.py:1] vLLM API server version 0.32.0
(EngineCore pid=2) INFO 11-30 18:47:48 [kv.py:1] Available KV cache memory: 3.21 GiB
(EngineCore pid=2) INFO 11-30 18:47:49 [kv.py:2] Maximum concurrency for 32,768 tokens per request: 4.00x
`

// volume is what the two containers share, with the simulator as the engine of one.
type volume struct {
	dir     string
	job     Job
	drain   chan struct{}
	environ []string
	stderr  strings.Builder

	mu      sync.Mutex
	events  []Event
	trials  map[string]record.Trial // as they came in parts
	output  strings.Builder
	onStage map[string]func() // by stage and step, called once
}

func newVolume(t *testing.T, steps ...plan.Step) *volume {
	t.Helper()
	p := simulator.DefaultProfile()
	p.APIKey, p.BaseTTFTMs = theKey, 2
	p.Models = []string{"tiny", theSecret} // a server may say anything of itself
	p.Prefill = []simulator.PrefillPoint{{Context: 1024, TokensPerSecond: 1e6}}
	p.Decode = simulator.DecodeTable{Active: []int{1}, Rows: []simulator.DecodeRow{{Context: 1024, Ms: simulator.Millis(5)}}}
	s, err := simulator.New(p, simulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	url, err := s.Start(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	for i := range steps {
		steps[i].Repeat = 1
	}
	secrets, err := json.Marshal([]string{theSecret})
	if err != nil {
		t.Fatal(err)
	}
	v := &volume{
		dir: t.TempDir(), drain: make(chan struct{}), onStage: map[string]func(){},
		environ: []string{KeyVariable + "=" + theKey, SecretsVariable + "=" + string(secrets)},
		job: Job{
			RunID: "run-1", LaunchID: "L1", Nonce: theNonce, EngineURL: url,
			Launch: record.Launch{Number: 1, Executor: "dagger", Settings: []record.Field{{Label: "Image", Value: "told outside"}}},
			Plan: &plan.Plan{Identity: plan.Identity{
				MethodVersion: runner.MethodVersion, Model: plan.Model{ID: "tiny"}, Prompts: "shared",
				Sampling:  plan.Sampling{IgnoreEOS: true},
				MaxOutput: 2000, WindowNs: int64(time.Second), SettleNs: int64(100 * time.Millisecond),
				Capacity: plan.Capacity{Rule: "worst_case"}, Steps: steps,
				Limits: plan.Limits{StartNs: int64(30 * time.Second), StallNs: int64(15 * time.Second), IdleNs: int64(5 * time.Second)},
			}},
		},
	}
	v.launch(t)
	return v
}

// launch is what the engine's container does before it serves.
func (v *volume) launch(t *testing.T) {
	t.Helper()
	dir := LaunchDir(v.dir, v.job.Launch.Number)
	if err := Prepare(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, logFile), []byte(startLog), 0o644); err != nil {
		t.Fatal(err)
	}
	v.say(t, EngineState{Starts: 1})
}

// say writes a state of the engine as its keeper does.
func (v *volume) say(t *testing.T, s EngineState) {
	if s.LaunchID == "" {
		s.LaunchID = v.job.LaunchID
	}
	s.StartedAt = time.Now().Add(-5 * time.Second)
	if err := writeJSON(filepath.Join(LaunchDir(v.dir, v.job.Launch.Number), engineFile), s); err != nil {
		t.Error(err)
	}
}

// again is a launch with which an interrupted run goes on.
func (v *volume) again(t *testing.T) {
	v.job.Launch.Number++
	v.job.LaunchID, v.drain, v.events = "L2", make(chan struct{}), nil
	v.launch(t)
}

// measure is the measuring step. What it prints is read as it is outside.
func (v *volume) measure(t *testing.T, ctx context.Context) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "job.json")
	if err := writeJSON(file, v.job); err != nil {
		t.Fatal(err)
	}
	v.trials = map[string]record.Trial{}
	var parts Assembler
	reader := NewEventReader(func(e Event) {
		v.mu.Lock()
		v.events = append(v.events, e)
		var f func()
		if e.Progress != nil {
			at := e.Progress.Stage + " " + e.Progress.StepID
			f = v.onStage[at]
			delete(v.onStage, at)
		}
		v.mu.Unlock()
		if f != nil {
			f()
		}
		if e.Part != nil {
			trial, err := parts.Add(*e.Part)
			if err != nil {
				t.Error(err)
			} else if trial != nil {
				v.trials[trial.StepID] = *trial
			}
		}
	}, func(line string) { t.Errorf("it printed %q", line) })
	err := Measure(ctx, MeasureOptions{
		Dir: v.dir, JobFile: file, Environ: v.environ, Drain: v.drain,
		Stdout: io.MultiWriter(reader, &v.output), Stderr: &v.stderr,
	})
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
	v.noSecrets(t, err)
	return err
}

// noSecrets looks for them in whatever was written or said.
func (v *volume) noSecrets(t *testing.T, err error) {
	t.Helper()
	texts := map[string]string{"standard output": v.output.String(), "standard error": v.stderr.String()}
	if err != nil {
		texts["the error"] = err.Error()
	}
	walk := filepath.WalkDir(v.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == engineFile { // the keeper's, tested there
			return err
		}
		b, err := os.ReadFile(path)
		if strings.HasSuffix(path, trialEnd) {
			trial, bad := decodeTrial(strings.NewReader(string(b)), path, strings.TrimSuffix(d.Name(), trialEnd))
			if bad != nil {
				return bad
			}
			b, bad = json.Marshal(trial)
			err = errors.Join(err, bad)
		}
		texts[path] = string(b)
		if d.Name()[0] == '.' {
			t.Errorf("%s was left", path)
		}
		return err
	})
	if walk != nil {
		t.Error(walk)
	}
	inJSON, err := json.Marshal(theSecret)
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range texts {
		for _, secret := range []string{theKey, theSecret, strings.Trim(string(inJSON), `"`)} {
			if strings.Contains(text, secret) {
				t.Errorf("a secret is in %s", where)
			}
		}
	}
}

// open collects the volume and reads the copy.
func (v *volume) open(t *testing.T) *Collected {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	if err := Collect(v.dir, out); err != nil {
		t.Fatal(err)
	}
	c, err := Open(out, v.job.Plan)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func trialsOf(t *testing.T, c *Collected) []record.Trial {
	t.Helper()
	var out []record.Trial
	for trial, err := range c.Trials() {
		if err != nil {
			t.Error(err)
		}
		out = append(out, trial)
	}
	return out
}

// statuses are those of the trials. A machine that was busy with something else says so
// honestly; which trials there are is what is tested here.
func statuses(trials []record.Trial) string {
	var out []string
	for _, t := range trials {
		status := t.Status
		if status == record.ClientLimited {
			status = record.Valid
		}
		out = append(out, t.StepID+" "+string(status))
	}
	return strings.Join(out, ", ")
}

// steps of the tests, in the order in which they are run.
func twoSteps() []plan.Step {
	return []plan.Step{
		{ID: "prefill-1k-r1", Phase: record.PhasePrefill, ContextTokens: 1024, ContextLabel: "1K", Concurrency: 1},
		{ID: "decode-0-c2-r1", Phase: record.PhaseDecode, ContextLabel: "0", Concurrency: 2},
	}
}

func threeSteps() []plan.Step {
	return append(twoSteps(), plan.Step{ID: "decode-0-c1-r1", Phase: record.PhaseDecode, ContextLabel: "0", Concurrency: 1})
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	v := newVolume(t, twoSteps()...)
	if err := v.measure(t, t.Context()); err != nil {
		t.Fatal(err)
	}
	c := v.open(t)
	trials := trialsOf(t, c)
	if got := statuses(trials); got != "prefill-1k-r1 valid, decode-0-c2-r1 valid" {
		t.Errorf("trials %s", got)
	}
	var cells []record.Cell
	var launched []record.Launch
	for _, e := range v.events {
		if e.Nonce != theNonce {
			t.Errorf("the nonce %q", e.Nonce)
		}
		if e.Cell != nil {
			cells = append(cells, *e.Cell)
		}
		if e.Launched != nil {
			launched = append(launched, *e.Launched)
		}
	}
	for i, trial := range trials {
		if diff := cmp.Diff(v.trials[trial.StepID], trial); diff != "" {
			t.Errorf("the trial in the log and the one in the volume: %s", diff)
		}
		if i >= len(cells) {
			t.Fatalf("%d cells were told of", len(cells))
		}
		// Through JSON, as the other one came.
		var cell record.Cell
		b, err := json.Marshal(metric.Cell(&trial, 0))
		if err == nil {
			err = json.Unmarshal(b, &cell)
		}
		if diff := cmp.Diff(cells[i], cell); err != nil || diff != "" {
			t.Error(err, diff)
		}
	}
	if last := v.events[len(v.events)-1]; last.End == nil {
		t.Errorf("the last event is %+v", last)
	}
	if end, ok := c.End(1); !ok || end.Engine != nil || end.Error != "" || end.Drained {
		t.Errorf("end %+v, %v", end, ok)
	}

	launches := c.Launches()
	if len(launches) != 1 || len(launched) != 2 || launched[0].EndedAt != nil {
		t.Fatalf("launches %+v, told %+v", launches, launched)
	}
	l := launches[0]
	if diff := cmp.Diff(launched[1], l); diff != "" {
		t.Error(diff)
	}
	// The engine was ready before anybody looked: what it said is known none the less.
	if l.EndedAt == nil || l.ReadySeconds == nil || *l.ReadySeconds < 5 || *l.ReadySeconds > 60 || l.Executor != "dagger" ||
		!slices.Equal(l.Models, []string{"tiny", record.Redacted}) ||
		!slices.Contains(l.Settings, record.Field{Label: "Image", Value: "told outside"}) ||
		!slices.ContainsFunc(l.Settings, func(f record.Field) bool { return f.Value == "3.21 GiB" }) {
		t.Errorf("launch %+v", l)
	}
	if s, ok := c.Engine(1); !ok || s.LaunchID != "L1" {
		t.Errorf("engine %+v, %v", s, ok)
	}
	if b, err := os.ReadFile(c.LogPath(1)); err != nil || string(b) != startLog {
		t.Errorf("log %q, %v", b, err)
	}
	if diff := cmp.Diff([]int{1}, slices.Collect(c.numbers())); diff != "" {
		t.Error(diff)
	}
}

// A run that is ended early keeps what it has, and the next launch does the rest only.
func TestMeasureDrained(t *testing.T) {
	t.Parallel()
	for name, drain := range map[string]func(*testing.T, *volume){
		"by the file": func(t *testing.T, v *volume) {
			if err := AskToDrain(v.dir); err != nil {
				t.Error(err)
			}
		},
		"by a signal": func(_ *testing.T, v *volume) { close(v.drain) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolume(t, threeSteps()...)
			v.onStage["window decode-0-c2-r1"] = func() { drain(t, v) }
			if err := v.measure(t, t.Context()); err != nil {
				t.Fatal(err)
			}
			c := v.open(t)
			first := trialsOf(t, c)
			if got := statuses(first); got != "prefill-1k-r1 valid, decode-0-c2-r1 interrupted" {
				t.Errorf("trials %s", got)
			}
			if end, ok := c.End(1); !ok || !end.Drained || end.Engine != nil || end.Error != "" {
				t.Errorf("end %+v, %v", end, ok)
			}

			v.again(t)
			if err := v.measure(t, t.Context()); err != nil {
				t.Fatal(err)
			}
			c = v.open(t)
			trials := trialsOf(t, c)
			if got := statuses(trials); got != "prefill-1k-r1 valid, decode-0-c2-r1 valid, decode-0-c1-r1 valid" {
				t.Errorf("trials %s", got)
			}
			if diff := cmp.Diff(first[0], trials[0]); diff != "" {
				t.Errorf("a good trial was run again: %s", diff)
			}
			if trials[1].Launch != 2 || len(c.Launches()) != 2 || len(v.trials) != 2 {
				t.Errorf("launches %+v, trial %+v", c.Launches(), trials[1])
			}
			if end, ok := c.End(2); !ok || end.Drained {
				t.Errorf("end %+v, %v", end, ok)
			}
		})
	}
}

// Whatever is wrong with the engine while it is measured: the trial is kept, and why.
func TestMeasureEngineEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state EngineState
		want  []string
	}{
		"exits": {EngineState{Starts: 1, ExitStatus: "exit status 1", LogTail: []string{"CUDA error", "key " + theKey}},
			[]string{"exit status 1", "CUDA error", "key <redacted>"}},
		"starts again":  {EngineState{Starts: 2}, []string{"started again behind our back"}},
		"another's":     {EngineState{Starts: 1, LaunchID: "L9"}, []string{`another launch ("L9")`}},
		"cannot start":  {EngineState{Starts: 1, Error: "no such file"}, []string{"no such file"}},
		"ends in a row": {EngineState{Starts: 3, ExitStatus: "exit status 7"}, []string{"started again behind our back"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolume(t, threeSteps()...)
			v.onStage["window decode-0-c2-r1"] = func() { v.say(t, tt.state) }
			err := v.measure(t, t.Context())
			var ended *runner.EngineError
			if !errors.As(err, &ended) || ended.Kind != record.FailEngineExit {
				t.Fatalf("error %v", err)
			}
			c := v.open(t)
			trials := trialsOf(t, c)
			if got := statuses(trials); got != "prefill-1k-r1 valid, decode-0-c2-r1 failed, decode-0-c1-r1 skipped" {
				t.Fatalf("trials %s", got)
			}
			if trials[1].FailureKind != record.FailEngineExit || len(trials[1].Requests) == 0 {
				t.Errorf("the failed trial: %s %s, %d requests", trials[1].FailureKind, trials[1].Reason, len(trials[1].Requests))
			}
			end, ok := c.End(1)
			if !ok || end.Engine == nil || end.Engine.Kind != record.FailEngineExit || end.Error != "" {
				t.Fatalf("end %+v, %v", end, ok)
			}
			for _, want := range tt.want {
				if !strings.Contains(end.Engine.Reason, want) {
					t.Errorf("the reason %q has no %q", end.Engine.Reason, want)
				}
			}
		})
	}
}

// refuses is a network on which nobody listens.
type refuses struct{}

func (refuses) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("connection refused")
}

func TestMeasureNeverReady(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		state   *EngineState
		start   time.Duration // the plan's limit
		drain   bool
		cancel  bool
		engine  string // End.Engine's reason
		other   string // End.Error
		drained bool
		took    time.Duration
	}{
		"no keeper":   {start: time.Hour, engine: "its container did not start within 1m0s", took: time.Minute},
		"exited":      {state: &EngineState{LaunchID: "L1", Starts: 1, ExitStatus: "exit status 1"}, start: time.Hour, engine: "before it was ready: exit status 1"},
		"twice":       {state: &EngineState{LaunchID: "L1", Starts: 2}, start: time.Hour, engine: "before it was ready: its container was started again"},
		"limit":       {state: &EngineState{LaunchID: "L1", Starts: 1}, start: 3 * time.Minute, other: "not ready within 3m0s", took: 3 * time.Minute},
		"drained":     {state: &EngineState{LaunchID: "L1", Starts: 1}, start: time.Hour, drain: true, drained: true},
		"cancelled":   {state: &EngineState{LaunchID: "L1", Starts: 1}, start: time.Hour, cancel: true, other: "told to stop"},
		"quick limit": {start: time.Second, other: "not ready within 1s", took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir, began := t.TempDir(), time.Now()
				file := filepath.Join(dir, "job.json")
				job := Job{LaunchID: "L1", EngineURL: "http://engine:8000", Launch: record.Launch{Number: 1},
					Plan: &plan.Plan{Identity: plan.Identity{Model: plan.Model{ID: "tiny"}, Limits: plan.Limits{StartNs: int64(tt.start)}, Steps: twoSteps()}}}
				launchDir := LaunchDir(dir, 1)
				if err := errors.Join(Prepare(launchDir), writeJSON(file, job)); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(launchDir, logFile), []byte("loading the model\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				if tt.state != nil {
					if err := writeJSON(filepath.Join(launchDir, engineFile), tt.state); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				o := MeasureOptions{Dir: dir, JobFile: file, Stdout: io.Discard, Stderr: io.Discard, Transport: refuses{}}
				if tt.drain {
					if err := AskToDrain(dir); err != nil {
						t.Fatal(err)
					}
				}
				if tt.cancel {
					time.AfterFunc(10*time.Second, func() { cancel(errors.New("told to stop")) })
				}
				err := Measure(ctx, o)
				if (err == nil) != tt.drained {
					t.Errorf("error %v", err)
				}
				if took := time.Since(began).Round(time.Second); tt.took > 0 && took != tt.took {
					t.Errorf("it took %v", took)
				}
				c, err := Open(dir, job.Plan)
				if err != nil {
					t.Fatal(err)
				}
				end, ok := c.End(1)
				if !ok || end.Drained != tt.drained || (end.Engine != nil) != (tt.engine != "") || !strings.Contains(end.Error, tt.other) || (end.Error == "") != (tt.other == "") {
					t.Fatalf("end %+v, %v", end, ok)
				}
				if end.Engine != nil && !strings.Contains(end.Engine.Reason, tt.engine) {
					t.Errorf("reason %q", end.Engine.Reason)
				}
				if tt.took > 0 && tt.other != "" && !strings.Contains(end.Error, "loading the model") {
					t.Errorf("the log's last line is not in %q", end.Error)
				}
				if len(c.Launches()) > 0 || len(trialsOf(t, c)) > 0 {
					t.Error("there is a launch or a trial of an engine that never was ready")
				}
			})
		})
	}
}

func TestMeasureBadJob(t *testing.T) {
	t.Parallel()
	steps := twoSteps()
	steps[1].ID = "../../etc/passwd"
	bad, err := json.Marshal(Job{Launch: record.Launch{Number: 1}, EngineURL: "http://engine", Plan: &plan.Plan{Identity: plan.Identity{Steps: steps}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"unknown field": {`{"api_key": "x"}`, `unknown field "api_key"`},
		"cut":           {`{"plan": {`, "unexpected EOF"},
		"no plan":       {`{"launch": {"number": 1, "executor": "dagger"}, "engine_url": "http://engine"}`, "it has no plan"},
		"two":           {string(bad) + `{}`, "something follows the job"},
		"a step's name": {string(bad), `the step "../../etc/passwd" has a name that no file can have`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "job.json")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			err := Measure(t.Context(), MeasureOptions{Dir: dir, JobFile: file, Stdout: io.Discard, Stderr: io.Discard, Transport: refuses{}})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A line may come in pieces, and one without an end may become long.
func TestFollower(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	var lines []string
	f := follower{path: path, most: 1 << 20, line: func(s string) { lines = append(lines, s) }}
	f.read() // it is not there yet
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, piece := range []string{"one\ntw", "o\n", "", strings.Repeat("x", maxLogLine+1), "\nthree\n", strings.Repeat("y", 1<<20) + "\n", "past what is read\n"} {
		if _, err := file.WriteString(piece); err != nil {
			t.Fatal(err)
		}
		f.read()
	}
	if diff := cmp.Diff([]string{"one", "two", "", "three"}, lines); diff != "" {
		t.Error(diff)
	}
}

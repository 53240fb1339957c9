package runner_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// TestMain sees that nothing goes on after the tests: a stream or a scraper that is
// left behind would run into the next trial.
func TestMain(m *testing.M) {
	flag.Parse()
	// The tests wait for windows to pass; they need no core of their own.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 {
		// Connections end a moment after their last reader.
		deadline := time.NewTimer(5 * time.Second)
		tick := time.NewTicker(10 * time.Millisecond)
		for runtime.NumGoroutine() > before {
			select {
			case <-tick.C:
				continue
			case <-deadline.C:
			}
			buf := make([]byte, 1<<20)
			fmt.Printf("%d goroutines more than before:\n%s\n", runtime.NumGoroutine()-before, buf[:runtime.Stack(buf, true)])
			code = 1
			break
		}
	}
	os.Exit(code)
}

// sink keeps what the runner observed, and sees that it is called once at a time.
type sink struct {
	t        *testing.T
	mu       sync.Mutex
	trials   []record.Trial
	progress map[string]int
	onTrial  func(record.Trial) error
	onTell   func(runner.Progress)
}

func (s *sink) enter() func() {
	if !s.mu.TryLock() {
		s.t.Error("the sink was called while it was called")
		s.mu.Lock()
	}
	return s.mu.Unlock
}

func (s *sink) Launched(record.Launch) error { defer s.enter()(); return nil }

func (s *sink) Trial(t record.Trial) error {
	defer s.enter()()
	s.trials = append(s.trials, t)
	if s.onTrial != nil {
		return s.onTrial(t)
	}
	return nil
}

func (s *sink) Progress(p runner.Progress) {
	defer s.enter()()
	if s.progress == nil {
		s.progress = make(map[string]int)
	}
	s.progress[p.Stage]++
	if s.onTell != nil {
		s.onTell(p)
	}
}

// profile is an engine that is fast enough for short tests: 200 tokens a second a
// stream.
func profile() simulator.Profile {
	p := simulator.DefaultProfile()
	p.Models = []string{"tiny"}
	p.BaseTTFTMs = 2
	p.Prefill = []simulator.PrefillPoint{{Context: 1024, TokensPerSecond: 1e6}}
	p.Decode = simulator.DecodeTable{Active: []int{1}, Rows: []simulator.DecodeRow{{Context: 1024, Ms: simulator.Millis(5)}}}
	return p
}

func serve(t *testing.T, p simulator.Profile, f simulator.Faults) *runner.Engine {
	t.Helper()
	s, err := simulator.New(p, simulator.Options{Faults: f})
	if err != nil {
		t.Fatal(err)
	}
	url, err := s.Start(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &runner.Engine{BaseURL: url, Launch: record.Launch{Number: 1},
		Exited: s.Exited(), ExitReason: func() string { return "exit status 1\nboom" }}
}

func thePlan(steps ...plan.Step) *plan.Plan {
	for i := range steps {
		s := &steps[i]
		s.Repeat = 1
		if s.ID == "" {
			s.ID = fmt.Sprintf("%s-%d-c%d-r1", s.Phase, s.ContextTokens, s.Concurrency)
		}
	}
	return &plan.Plan{Identity: plan.Identity{
		MethodVersion: runner.MethodVersion, Model: plan.Model{ID: "tiny"}, Prompts: "shared",
		Sampling:  plan.Sampling{IgnoreEOS: true},
		MaxOutput: 2000, WindowNs: int64(600 * time.Millisecond), SettleNs: int64(200 * time.Millisecond),
		Capacity: plan.Capacity{Rule: "worst_case"}, LoopGuard: true, Steps: steps,
		Limits: plan.Limits{StartNs: int64(10 * time.Second), StallNs: int64(15 * time.Second), IdleNs: int64(5 * time.Second)},
	}}
}

func decode(context, streams int) plan.Step {
	return plan.Step{Phase: record.PhaseDecode, ContextTokens: context, ContextLabel: fmt.Sprint(context), Concurrency: streams}
}

func prefill(context int) plan.Step {
	return plan.Step{Phase: record.PhasePrefill, ContextTokens: context, ContextLabel: fmt.Sprint(context), Concurrency: 1}
}

// measure waits for the engine and runs the plan.
func (s *sink) measure(ctx context.Context, e *runner.Engine, p *plan.Plan, opts runner.Options) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Minute, errors.New("the test took too long"))
	defer cancel()
	if opts.RunID == "" {
		opts.RunID = "test-run"
	}
	if err := runner.WaitReady(ctx, e, p, opts); err != nil {
		s.t.Fatalf("WaitReady: %v", err)
	}
	return runner.Measure(ctx, e, p, opts, s)
}

func describe(t *record.Trial) string {
	return fmt.Sprintf("%s: %s %s %q, warnings %q", t.StepID, t.Status, t.FailureKind, t.Reason, t.Warnings)
}

// busy tolerates a machine that is too busy for the client: then the trial says so.
func busy(t *record.Trial) bool { return t.Status == record.ClientLimited }

func TestMatrix(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(prefill(1024), prefill(2048), decode(0, 1), decode(1024, 1), decode(1024, 4),
		plan.Step{ID: "left-out", Phase: record.PhaseDecode, ContextTokens: 1024, Concurrency: 2, Skip: "as asked"},
		decode(131072, 1), // longer than the model allows
		decode(8192, 16),  // 163,072 tokens for 131,072
	)
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if len(s.trials) != len(p.Identity.Steps) {
		t.Fatalf("%d rows for %d steps", len(s.trials), len(p.Identity.Steps))
	}
	l := &e.Launch
	if l.Version == "" || len(l.Models) != 1 || l.MaxModelLen == nil || *l.MaxModelLen != 32768 ||
		!l.MetricsAvailable || l.KVCapacityTokens == nil || *l.KVCapacityTokens != 131072 {
		t.Errorf("launch: %+v", l)
	}
	want := []record.Status{record.Valid, record.Valid, record.Valid, record.Valid, record.Valid,
		record.Skipped, record.Skipped, record.OverCapacity}
	for i := range s.trials {
		tr := &s.trials[i]
		if tr.Status != want[i] && !busy(tr) {
			t.Errorf("%s, want %s", describe(tr), want[i])
		}
		if tr.Status == record.Valid || busy(tr) {
			checkShape(t, p, tr)
		}
	}
	if r := s.trials[6]; r.Reason != "model_len" || len(r.Warnings) != 1 || r.Launch != 0 {
		t.Errorf("%s", describe(&r))
	}
	if r := s.trials[7]; r.Reason != record.ReasonPredicted || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "131072") {
		t.Errorf("%s", describe(&r))
	}
	for _, stage := range []string{"idle", "warmup", "scout", "readiness", "window", "drain", "done"} {
		if s.progress[stage] == 0 {
			t.Errorf("no progress of stage %q: %v", stage, s.progress)
		}
	}
}

// checkShape holds what must be true of every trial that was measured.
func checkShape(t *testing.T, p *plan.Plan, tr *record.Trial) {
	t.Helper()
	bad := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s: %s", tr.StepID, fmt.Sprintf(format, args...))
	}
	if tr.IdleBefore == nil || !*tr.IdleBefore || tr.IdleAfter == nil || !*tr.IdleAfter {
		bad("idle before %v, after %v", tr.IdleBefore, tr.IdleAfter)
	}
	if tr.PromptTokens == nil || tr.PromptOff || tr.ContextTokens > 0 && *tr.PromptTokens != int64(tr.ContextTokens) {
		bad("prompt is %v tokens, off %v", tr.PromptTokens, tr.PromptOff)
	}
	if tr.Client.LagP99Ns == nil && tr.Phase == record.PhaseDecode || tr.Client.SendLagMaxNs == nil || tr.Client.ReadEventsMax == 0 {
		bad("client: %+v", tr.Client)
	}
	if tr.Client.PeakOpen != tr.Concurrency {
		bad("at most %d were open", tr.Client.PeakOpen)
	}
	wave := 0
	for i, r := range tr.Requests {
		if r.Index != i || i > 0 && r.DueNs < tr.Requests[i-1].DueNs {
			bad("request %d out of order: %+v", i, r)
		}
		if r.Outcome == "" || r.EndNs == nil || r.SentNs == nil || *r.SentNs < r.DueNs {
			bad("request %d is not complete: %+v", i, r)
		}
		if r.Role == record.RoleMeasured && r.Generation == 0 {
			wave++
			if r.DueNs != *tr.LaunchNs {
				bad("stream %d was due at %d, the launch at %d", r.Stream, r.DueNs, *tr.LaunchNs)
			}
		}
	}
	if wave != tr.Concurrency {
		bad("%d requests in the wave", wave)
	}
	if tr.Phase == record.PhasePrefill {
		return
	}
	if got := *tr.WindowEndNs - *tr.WindowStartNs; got != p.Identity.WindowNs {
		bad("the window was %v", time.Duration(got))
	}
	if *tr.WindowStartNs-*tr.LaunchNs < p.Identity.SettleNs {
		bad("the window opened %v after the launch", time.Duration(*tr.WindowStartNs-*tr.LaunchNs))
	}
	if tr.EndNs < *tr.WindowEndNs || *tr.ScoutEndNs > *tr.LaunchNs || *tr.ScoutStartNs > *tr.ScoutEndNs {
		bad("clocks: %+v", tr)
	}
	// The simulated engine gives 200 tokens a second a stream, and says so.
	var tokens int64
	for _, r := range tr.Requests {
		last := int64(0)
		for _, c := range r.Chunks {
			if r.Role == record.RoleMeasured && c.AtNs >= *tr.WindowStartNs && c.AtNs < *tr.WindowEndNs {
				tokens += c.Tokens - last
			}
			last = c.Tokens
		}
	}
	// What it owed when the machine paused it before the window, it gives in it.
	if want := int64(tr.Concurrency) * 120; (tokens*100 < want*85 || tokens*100 > want*125) && !busy(tr) {
		bad("%d tokens in the window, want about %d", tokens, want)
	}
	seen := map[string]int{}
	for _, s := range tr.Samples {
		seen[s.Source+" "+s.Name]++
	}
	for _, name := range []string{"metrics requests_running", "metrics requests_waiting", "metrics kv_usage_ratio",
		"metrics generation_tokens_total", "client open_streams", "client active_streams"} {
		if seen[name] == 0 {
			bad("no sample of %s: %v", name, seen)
		}
	}
}

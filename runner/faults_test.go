package runner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// behind serves a simulated engine behind a handler that may answer itself: it
// returns true if it did.
func behind(t *testing.T, p simulator.Profile, f simulator.Faults, first func(http.ResponseWriter, *http.Request) bool) *runner.Engine {
	t.Helper()
	s, err := simulator.New(p, simulator.Options{Faults: f})
	if err != nil {
		t.Fatal(err)
	}
	engine := s.Handler()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first(w, r) {
			engine.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		s.Close()
		front.CloseClientConnections()
		front.Close()
	})
	return &runner.Engine{BaseURL: front.URL, Launch: record.Launch{Number: 1}}
}

// loops repeats two words for ever, fast enough for the guard to see it.
func loops(p *simulator.Profile) {
	p.Loop, p.TokensPerChunk = true, 16
	p.Decode.Rows[0].Ms = simulator.Millis(0.3)
}

// Trials that are not valid, each with what makes it so. The step after the first
// says whether the matrix goes on.
func TestStatuses(t *testing.T) {
	t.Parallel()
	ms := func(n int) int64 { return int64(n) * int64(time.Millisecond) }
	for _, c := range []struct {
		name    string
		profile func(*simulator.Profile)
		faults  simulator.Faults
		plan    func(*plan.Identity)
		step    plan.Step
		status  record.Status
		kind    record.FailureKind
		text    string // in the reason or a warning
		ended   record.FailureKind
	}{
		{name: "more streams than slots", profile: func(p *simulator.Profile) { p.Slots = 2 },
			plan: func(id *plan.Identity) { id.WindowNs = ms(1200) },
			step: decode(1024, 4), status: record.Queued, text: "requests waited in"},
		{name: "more streams than slots, and no metrics", profile: func(p *simulator.Profile) { p.Slots = 2 },
			faults: simulator.Faults{MetricsStatus: 502}, plan: func(id *plan.Identity) { id.Limits.ReadyNs = ms(700) },
			step: decode(1024, 4), status: record.NotReady, text: "2 of 4 streams had a first token"},
		{name: "no metrics", faults: simulator.Faults{MetricsStatus: 502}, step: decode(1024, 4), status: record.Valid},
		{name: "usage is missing", profile: func(p *simulator.Profile) { p.Usage = simulator.UsageAbsent },
			step: decode(1024, 2), status: record.Valid, text: "of 2 requests: /tokenize counted their text afterwards"},
		{name: "usage at the end only", profile: func(p *simulator.Profile) { p.Usage = simulator.UsageFinal },
			plan: func(id *plan.Identity) { id.MaxOutput, id.WindowNs = 120, ms(800) }, step: decode(1024, 2), status: record.Valid},
		{name: "repetition", profile: loops,
			step: decode(1024, 2), status: record.Loop, text: "repeated the same"},
		{name: "repetition, as expected", profile: loops,
			plan: func(id *plan.Identity) { id.LoopGuard = false }, step: decode(1024, 2), status: record.Valid},
		{name: "a proxy that hands on in lumps", faults: simulator.Faults{ClumpBytes: 16 << 10},
			plan: func(id *plan.Identity) { id.WindowNs = ms(1000) },
			step: decode(1024, 4), status: record.ClientLimited, text: "held them back"},
		{name: "an error in the stream", faults: simulator.Faults{ErrorAfterTokens: 100},
			step: decode(1024, 4), status: record.Failed, kind: record.FailInBand, text: "4 streams"},
		{name: "streams end in the middle", faults: simulator.Faults{TruncateAfterTokens: 100},
			step: decode(1024, 4), status: record.Failed, kind: record.FailTruncated, text: "4 of 4 streams"},
		{name: "503 for part of the wave", faults: simulator.Faults{UnavailableEvery: 6},
			step: decode(1024, 8), status: record.Failed, kind: record.FailHTTP, text: "HTTP status 503"},
		{name: "output that does not fit the model", plan: func(id *plan.Identity) { id.Capacity.MaxModelLen = 1 << 20 },
			profile: func(p *simulator.Profile) { p.MaxModelLen = 2048 },
			step:    decode(1024, 1), status: record.Failed, kind: record.FailHTTP, text: "context longer than the model allows"},
		{name: "the engine dies in the window", faults: simulator.Faults{ExitAfterTokens: 400},
			step: decode(1024, 4), status: record.Failed, kind: record.FailEngineExit, text: "boom", ended: record.FailEngineExit},
		{name: "the engine hangs in the window", faults: simulator.Faults{HangAfterTokens: 500},
			plan: func(id *plan.Identity) { id.WindowNs, id.Limits.StallNs = ms(20_000), ms(500) },
			step: decode(1024, 4), status: record.Failed, kind: record.FailStall, text: "no token from any request for 500ms", ended: record.FailStall},
		{name: "the engine hangs before the launch", faults: simulator.Faults{HangAfterTokens: 1},
			plan: func(id *plan.Identity) { id.Limits.ScoutNs, id.Limits.StallNs = ms(300), ms(300) },
			step: decode(1024, 4), status: record.Failed, kind: record.FailStall, text: "a short request was not answered", ended: record.FailStall},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pr := profile()
			if c.profile != nil {
				c.profile(&pr)
			}
			e := serve(t, pr, c.faults)
			p := thePlan(c.step, plan.Step{ID: "next", Phase: record.PhaseDecode, ContextTokens: 0, Concurrency: 1})
			p.Identity.WindowNs = ms(400)
			if c.plan != nil {
				c.plan(&p.Identity)
			}
			s := &sink{t: t}
			err := s.measure(t.Context(), e, p, runner.Options{})
			if len(s.trials) != 2 {
				t.Fatalf("%d rows, error %v", len(s.trials), err)
			}
			got, next := &s.trials[0], &s.trials[1]
			if (got.Status != c.status || got.FailureKind != c.kind) && !busy(got) {
				t.Errorf("%s, want %s %s", describe(got), c.status, c.kind)
			}
			if all := got.Reason + strings.Join(got.Warnings, "\n"); !strings.Contains(all, c.text) && !busy(got) {
				t.Errorf("%s does not say %q", describe(got), c.text)
			}
			var ended *runner.EngineError
			if c.ended == "" {
				if err != nil || next.Status == record.Skipped {
					t.Errorf("the matrix did not go on: %v, %s", err, describe(next))
				}
			} else if !errors.As(err, &ended) || ended.Kind != c.ended || next.Status != record.Skipped || next.Reason != record.ReasonEngineEnded {
				t.Errorf("error %v, %s", err, describe(next))
			}
			if c.status == record.Valid && (got.WindowStartNs == nil || got.IdleAfter != nil && !*got.IdleAfter) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// All streams are on the wire at once, however many: no pool caps them.
func TestWide(t *testing.T) {
	t.Parallel()
	pr := profile()
	pr.Slots, pr.KVTokens = 256, 1<<22
	pr.Decode = simulator.DecodeTable{Active: []int{1}, Rows: []simulator.DecodeRow{{Context: 1024, Ms: simulator.Millis(50)}}}
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, pr, simulator.Faults{}), thePlan(decode(512, 256)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	if tr.Status != record.Valid && !busy(tr) {
		t.Errorf("%s", describe(tr))
	}
	if tr.Client.PeakOpen != 256 {
		t.Errorf("at most %d were open", tr.Client.PeakOpen)
	}
}

// A stream that ends is followed by its successor at once, and every arrival is a
// record.
func TestSuccessors(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(decode(1024, 4))
	p.Identity.MaxOutput = 40
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	last := map[int]*record.Request{}
	successors, slow := 0, 0
	for i := range tr.Requests {
		r := &tr.Requests[i]
		if r.Role != record.RoleMeasured {
			continue
		}
		before := last[r.Stream]
		if before == nil && r.Generation != 0 || before != nil && r.Generation != before.Generation+1 {
			t.Fatalf("stream %d: generation %d follows %+v", r.Stream, r.Generation, before)
		}
		if before != nil && (before.Outcome != record.OutcomeCompleted || r.DueNs < *before.EndNs) {
			t.Errorf("stream %d: due %d after %d (%s)", r.Stream, r.DueNs, *before.EndNs, before.Outcome)
		}
		if before != nil {
			successors++
			if r.DueNs-*before.EndNs > int64(50*time.Millisecond) {
				slow++
			}
		}
		last[r.Stream] = r
	}
	if slow*2 > successors { // a machine that pauses makes some slow
		t.Errorf("%d of %d successors came late", slow, successors)
	}
	if len(last) != 4 || last[0].Generation < 2 {
		t.Errorf("%d streams, %d successors", len(last), last[0].Generation)
	}
	if tr.Client.PeakOpen != 4 {
		t.Errorf("%d open at once", tr.Client.PeakOpen)
	}
}

func TestDistinct(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(decode(1024, 3), decode(1024, 4))
	p.Identity.Prompts = "distinct"
	p.Identity.WindowNs = int64(300 * time.Millisecond)
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range s.trials {
		tr := &s.trials[i]
		scouts := 0
		for _, r := range tr.Requests {
			if r.Role == record.RoleScout {
				scouts++
			}
		}
		if scouts != tr.Concurrency || tr.PromptMode != "distinct" || tr.PromptOff {
			t.Errorf("%d scouts, mode %s: %s", scouts, tr.PromptMode, describe(tr))
		}
	}
}

// Readings of the server that are slow move neither end of the window.
func TestSlowMetrics(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{MetricsDelay: 300 * time.Millisecond})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(decode(1024, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	if tr.Status != record.Valid && !busy(tr) {
		t.Fatalf("%s", describe(tr))
	}
	if got := *tr.WindowEndNs - *tr.WindowStartNs; got != int64(600*time.Millisecond) {
		t.Errorf("the window was %v", time.Duration(got))
	}
	for _, r := range tr.Requests {
		if late := *r.EndNs - *tr.WindowEndNs; r.Outcome == record.OutcomeCancelled && late > int64(150*time.Millisecond) && !busy(tr) {
			t.Errorf("stream %d was closed %v after the window", r.Stream, time.Duration(late))
		}
	}
}

// The same prompts again on the same server: what was to be measured does not take
// place, and the row says so.
func TestCacheHits(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(prefill(1024))
	for i, want := range []record.Status{record.Valid, record.NotReady} {
		s := &sink{t: t}
		if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
			t.Fatal(err)
		}
		if tr := &s.trials[0]; tr.Status != want && !busy(tr) {
			t.Errorf("run %d: %s, want %s", i+1, describe(tr), want)
		}
	}
	// Another run or launch has prompts of its own.
	e.Launch.Number = 2
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if tr := &s.trials[0]; tr.Status != record.Valid && !busy(tr) {
		t.Errorf("launch 2: %s", describe(tr))
	}
}

func TestNoTokenize(t *testing.T) {
	t.Parallel()
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/tokenize" {
			http.NotFound(w, r)
			return true
		}
		return false
	})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(prefill(4096), decode(2048, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range s.trials {
		tr := &s.trials[i]
		if tr.Status != record.Valid && !busy(tr) || tr.PromptTokens == nil {
			t.Fatalf("%s", describe(tr))
		}
		asked, got := int64(tr.ContextTokens), *tr.PromptTokens
		if got*100 < asked*95 || got*100 > asked*105 {
			t.Errorf("%s: %d tokens", tr.StepID, got)
		}
		if !slices.ContainsFunc(tr.Warnings, func(s string) bool { return strings.Contains(s, "estimated") }) {
			t.Errorf("no word about the estimate: %s", describe(tr))
		}
	}
}

// answering answers one path with a text of its own.
func answering(path, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == path {
			io.WriteString(w, body)
			return true
		}
		return false
	}
}

// Counts that cannot be right are none: lengths are estimated, and why is said. Before
// there were bounds, such a server made a prompt of gigabytes.
func TestTokenizeLies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, reply, text string }{
		{"always 7", `{"count":7}`, "counts 7 tokens for"},
		{"none", `{"count":0}`, "counts 0 tokens for"},
		{"negative", `{"count":-5}`, "counts -5 tokens for"},
		{"1e18", `{"count":1000000000000000000}`, "counts 1000000000000000000 tokens for"},
		{"no count", `{}`, "it has no count"},
		{"a page", `<html>`, "not what the API says"},
		{"huge", strings.Repeat("x", 4<<20), "larger than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &sink{t: t}
			e := behind(t, profile(), simulator.Faults{}, answering("/tokenize", c.reply))
			if err := s.measure(t.Context(), e, thePlan(prefill(1024), decode(2048, 1)), runner.Options{}); err != nil {
				t.Fatal(err)
			}
			for i := range s.trials {
				tr := &s.trials[i]
				if tr.Status != record.Valid && !busy(tr) || tr.PromptTokens == nil || *tr.PromptTokens*100 < int64(tr.ContextTokens)*95 {
					t.Errorf("%s", describe(tr))
				}
				if all := strings.Join(tr.Warnings, "\n"); !strings.Contains(all, "estimated") || !strings.Contains(all, c.text) {
					t.Errorf("no word about the estimate: %s", describe(tr))
				}
			}
		})
	}
}

// The wish to end is heard while a prompt is made.
func TestDrainWhileCounting(t *testing.T) {
	t.Parallel()
	drain := make(chan struct{})
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/tokenize" {
			return false
		}
		io.Copy(io.Discard, r.Body)
		close(drain)
		<-r.Context().Done()
		return true
	})
	s := &sink{t: t}
	begun := time.Now()
	if err := s.measure(t.Context(), e, thePlan(prefill(1024), decode(1024, 1)), runner.Options{Drain: drain}); err != nil {
		t.Fatal(err)
	}
	if len(s.trials) != 1 || s.trials[0].Status != record.Interrupted || time.Since(begun) > 30*time.Second {
		t.Errorf("after %v: %d rows", time.Since(begun), len(s.trials))
	}
}

// A scout that the server says it does not run is given up after the stall limit,
// however long a scout may take.
func TestForgotten(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	silent := hanging(chatPath)
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		return ready.Load() && silent(w, r)
	})
	p := thePlan(decode(1024, 1))
	p.Identity.Limits.StallNs = int64(700 * time.Millisecond)
	s := &sink{t: t, onTell: func(runner.Progress) { ready.Store(true) }}
	begun := time.Now()
	err := s.measure(t.Context(), e, p, runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailStall || time.Since(begun) > 30*time.Second {
		t.Errorf("after %v: %v, %s", time.Since(begun), err, describe(&s.trials[0]))
	}
}

// A key that is taken back ends the run: every further step would fail the same way.
func TestUnauthorizedInTheMiddle(t *testing.T) {
	t.Parallel()
	var closed atomic.Bool
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if closed.Load() && strings.HasPrefix(r.URL.Path, "/v1/") {
			http.Error(w, `{"error":{"message":"bad key sk-secret"}}`, http.StatusUnauthorized)
			return true
		}
		return false
	})
	e.APIKey = "sk-secret"
	s := &sink{t: t, onTrial: func(record.Trial) error { closed.Store(true); return nil }}
	err := s.measure(t.Context(), e, thePlan(prefill(1024), decode(1024, 1), decode(1024, 2)), runner.Options{})
	if err == nil || !strings.Contains(err.Error(), "401") || strings.Contains(err.Error(), "sk-secret") {
		t.Errorf("error %v", err)
	}
	if len(s.trials) != 2 || s.trials[1].Status != record.Failed || strings.Contains(s.trials[1].Reason, "sk-secret") {
		t.Errorf("%d rows, last %s", len(s.trials), describe(&s.trials[len(s.trials)-1]))
	}
}

// A server without a process of ours that goes away ends the run too.
func TestServerGone(t *testing.T) {
	t.Parallel()
	srv, err := simulator.New(profile(), simulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	url, err := srv.Start(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	e := &runner.Engine{BaseURL: url, Launch: record.Launch{Number: 1}}
	s := &sink{t: t, onTell: func(p runner.Progress) {
		if p.Stage == "window" && p.Elapsed > 0 {
			cancel(errors.New("gone"))
		}
	}}
	p := thePlan(decode(1024, 2), decode(1024, 4))
	p.Identity.WindowNs = int64(30 * time.Second)
	err = s.measure(t.Context(), e, p, runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailEngineExit || len(s.trials) != 2 ||
		s.trials[0].Status != record.Failed || s.trials[1].Status != record.Skipped {
		t.Errorf("error %v, %d rows, %s", err, len(s.trials), describe(&s.trials[0]))
	}
}

// The first wish to end keeps what was measured so far; the second writes nothing.
func TestDrain(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(decode(1024, 2), decode(1024, 4))
	p.Identity.WindowNs = int64(30 * time.Second)
	drain := make(chan struct{})
	once := false
	s := &sink{t: t, onTell: func(p runner.Progress) {
		if p.Tokens > 0 && !once {
			once = true
			close(drain)
		}
	}}
	if err := s.measure(t.Context(), e, p, runner.Options{Drain: drain}); err != nil {
		t.Fatal(err)
	}
	if len(s.trials) != 1 || s.trials[0].Status != record.Interrupted {
		t.Fatalf("%d rows: %+v", len(s.trials), s.trials)
	}
	tr := &s.trials[0]
	if got := *tr.WindowEndNs - *tr.WindowStartNs; got <= 0 || got > int64(20*time.Second) {
		t.Errorf("the window was cut to %v", time.Duration(got))
	}
	chunks := 0
	for _, r := range tr.Requests {
		chunks += len(r.Chunks)
	}
	if chunks < 10 {
		t.Errorf("only %d events were kept", chunks)
	}
	if s.progress["done"] != 0 {
		t.Error("says that it is done")
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	p := thePlan(prefill(1024), decode(1024, 2))
	p.Identity.WindowNs = int64(30 * time.Second)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cause := errors.New("second signal")
	s := &sink{t: t, onTell: func(p runner.Progress) {
		if p.Tokens > 0 {
			cancel(cause)
		}
	}}
	if err := s.measure(ctx, e, p, runner.Options{}); err != cause {
		t.Errorf("error %v", err)
	}
	if len(s.trials) != 1 {
		t.Errorf("%d rows", len(s.trials))
	}
}

// What cannot be kept is not measured; what is done is not measured again.
func TestSinkAndDone(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	full := errors.New("disk full")
	s := &sink{t: t, onTrial: func(record.Trial) error { return full }}
	p := thePlan(prefill(1024), prefill(2048), prefill(4096))
	err := s.measure(t.Context(), e, p, runner.Options{
		RunID: "r", Done: func(id string) bool { return id == p.Identity.Steps[0].ID }})
	if !errors.Is(err, full) || len(s.trials) != 1 || s.trials[0].StepID != p.Identity.Steps[1].ID {
		t.Errorf("error %v, rows %+v", err, s.trials)
	}
}

// A prompt that the model takes and the KV cache cannot hold waits for ever. It is
// given up, said to be over capacity, and the next step finds an idle server.
func TestNeverFits(t *testing.T) {
	t.Parallel()
	var held atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/v1/chat/completions" && r.ContentLength > 20_000:
			io.Copy(io.Discard, r.Body) // or the server does not see the client go
			held.Add(1)
			<-r.Context().Done()
			held.Add(-1)
			return true
		case r.URL.Path == "/metrics" && held.Load() > 0:
			fmt.Fprintf(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting %d\n", held.Load())
			return true
		}
		return false
	})
	p := thePlan(decode(8192, 1), prefill(8192), decode(1024, 1))
	p.Identity.Limits.ScoutNs = int64(400 * time.Millisecond)
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []record.Status{record.OverCapacity, record.OverCapacity, record.Valid} {
		if tr := &s.trials[i]; tr.Status != want && !busy(tr) {
			t.Errorf("%s, want %s", describe(tr), want)
		}
	}
	if tr := &s.trials[0]; tr.Reason != record.ReasonNoOutput || tr.IdleAfter == nil || !*tr.IdleAfter {
		t.Errorf("%s", describe(tr))
	}
}

// The engine ends between two steps: nothing failed, and nothing more is run.
func TestExitBetweenSteps(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	exited := make(chan struct{})
	e.Exited, e.ExitReason = exited, func() string { return "signal: killed, key sk-hidden" }
	s := &sink{t: t, onTrial: func(tr record.Trial) error {
		if tr.StepID == "prefill-1024-c1-r1" {
			close(exited)
		}
		return nil
	}}
	p := thePlan(prefill(1024), decode(8192, 16), decode(1024, 1))
	err := s.measure(t.Context(), e, p, runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailEngineExit || !strings.Contains(err.Error(), "killed") {
		t.Errorf("error %v", err)
	}
	var got []record.Status
	for _, tr := range s.trials {
		got = append(got, tr.Status)
	}
	if !busy(&s.trials[0]) && !slices.Equal(got, []record.Status{record.Valid, record.OverCapacity, record.Skipped}) {
		t.Errorf("statuses %v", got)
	}
}

// Somebody else's requests are on the server: nothing is measured over them, and
// what is measured before they came is not valid either.
func TestBusyServer(t *testing.T) {
	t.Parallel()
	var others atomic.Bool
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/metrics" && others.Load() {
			fmt.Fprint(w, "vllm:num_requests_running 3\nvllm:num_requests_waiting 0\n")
			return true
		}
		return false
	})
	p := thePlan(decode(1024, 1), decode(1024, 2))
	p.Identity.Limits.IdleNs = int64(300 * time.Millisecond)
	s := &sink{t: t, onTell: func(p runner.Progress) {
		if p.Stage == "window" && p.Elapsed > 0 {
			others.Store(true)
		}
	}}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if tr := &s.trials[0]; tr.Status != record.Failed || tr.FailureKind != record.FailTimeout || tr.IdleAfter == nil || *tr.IdleAfter {
		t.Errorf("%s", describe(tr))
	}
	tr := &s.trials[1]
	if tr.Status != record.NotReady || tr.IdleBefore == nil || *tr.IdleBefore || len(tr.Requests) != 0 || !strings.Contains(tr.Reason, "running 3") {
		t.Errorf("%s", describe(tr))
	}
}

// Metrics that go away in the middle take the gauges with them and nothing else.
func TestMetricsLost(t *testing.T) {
	t.Parallel()
	var lost atomic.Bool
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/metrics" && lost.Load() {
			http.Error(w, "<html>502</html>", http.StatusBadGateway)
			return true
		}
		return false
	})
	s := &sink{t: t, onTrial: func(record.Trial) error { lost.Store(true); return nil }}
	if err := s.measure(t.Context(), e, thePlan(prefill(1024), prefill(2048), decode(1024, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range s.trials {
		tr := &s.trials[i]
		if tr.Status != record.Valid && !busy(tr) {
			t.Errorf("%s", describe(tr))
		}
		if i > 0 && (tr.IdleBefore != nil || len(tr.Warnings) == 0) {
			t.Errorf("idle %v, %s", tr.IdleBefore, describe(tr))
		}
	}
}

// The engine falls silent near the end of a window that is shorter than the stall
// limit.
func TestHangsAtTheEnd(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{HangAfterTokens: 500})
	p := thePlan(decode(1024, 2), decode(1024, 1))
	p.Identity.WindowNs = int64(3500 * time.Millisecond)
	p.Identity.Limits.StallNs = int64(4 * time.Second)
	p.Identity.Limits.IdleNs = int64(300 * time.Millisecond)
	s := &sink{t: t}
	err := s.measure(t.Context(), e, p, runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailStall || len(s.trials) != 2 || s.trials[0].FailureKind != record.FailStall {
		t.Errorf("error %v, %s", err, describe(&s.trials[0]))
	}
}

func TestCountingFails(t *testing.T) {
	t.Parallel()
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/tokenize" {
			http.Error(w, `{"error":{"message":"tokenizer is broken"}}`, http.StatusInternalServerError)
			return true
		}
		return false
	})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(prefill(1024), decode(1024, 1)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i := range s.trials {
		if tr := &s.trials[i]; tr.Status != record.Failed || tr.FailureKind != record.FailHTTP || !strings.Contains(tr.Reason, "tokenizer is broken") {
			t.Errorf("%s", describe(tr))
		}
	}
}

// A wish to end that comes in an early stage is heard there.
func TestDrainEarly(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"idle", "scout", "readiness"} {
		drain := make(chan struct{})
		once := false
		s := &sink{t: t, onTell: func(p runner.Progress) {
			if p.Stage == stage && !once {
				once = true
				close(drain)
			}
		}}
		if err := s.measure(t.Context(), serve(t, profile(), simulator.Faults{}), thePlan(decode(1024, 2)), runner.Options{Drain: drain}); err != nil {
			t.Fatal(err)
		}
		if len(s.trials) != 1 || s.trials[0].Status != record.Interrupted || s.trials[0].WindowStartNs != nil {
			t.Errorf("%s: %d rows, %s", stage, len(s.trials), describe(&s.trials[0]))
		}
	}
}

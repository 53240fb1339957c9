package runner

import (
	"math"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
)

const sec = int64(time.Second)

// story is a trial as it looks when nothing went wrong: 4 streams over a window
// from 10 s to 40 s. The rows of the table change one thing.
func story() (*record.Trial, facts) {
	t := &record.Trial{
		Point:    record.Point{Phase: record.PhaseDecode, ContextTokens: 8192, Concurrency: 4},
		LaunchNs: ptr(5 * sec), WindowStartNs: ptr(10 * sec), WindowEndNs: ptr(40 * sec), WindowAskedNs: 30 * sec,
		IdleBefore: ptr(true), IdleAfter: ptr(true),
		Client: record.ClientHealth{LagP99Ns: ptr(int64(time.Millisecond)), CPURatio: ptr(0.1), SendLagMaxNs: ptr(int64(time.Millisecond))},
	}
	t.Requests = append(t.Requests, record.Request{Role: record.RoleScout, Outcome: record.OutcomeCompleted,
		EndNs: ptr(4 * sec), Chunks: chunks(4*sec, 4*sec, 1, 1)})
	for i := range 4 {
		t.Requests = append(t.Requests, record.Request{Role: record.RoleMeasured, Stream: i, DueNs: 5 * sec,
			Outcome: record.OutcomeCancelled, EndNs: ptr(40 * sec), Chunks: chunks(6*sec, 40*sec, 200, 1)})
	}
	for at := 10 * sec; at < 40*sec; at += sec / 2 {
		t.Samples = append(t.Samples,
			record.Sample{AtNs: at, Source: record.SourceMetrics, Name: record.SampleRunning, Value: 4},
			record.Sample{AtNs: at, Source: record.SourceMetrics, Name: record.SampleWaiting, Value: 0})
	}
	return t, facts{stage: stageDrain}
}

// chunks are n output events from first to last, which came so many in a read.
func chunks(first, last int64, n int, readEvents int32) []record.Chunk {
	out := make([]record.Chunk, n)
	step := (last - first) / int64(n)
	for i := range out {
		out[i] = record.Chunk{AtNs: first + int64(i)*step, Output: true, ReadEvents: readEvents}
	}
	return out
}

func set(t *record.Trial, name string, value float64, every int) {
	n := 0
	for i := range t.Samples {
		if t.Samples[i].Name == name {
			if n++; n%every == 0 {
				t.Samples[i].Value = value
			}
		}
	}
}

func drop(t *record.Trial, name string) {
	var keep []record.Sample
	for _, s := range t.Samples {
		if s.Name != name {
			keep = append(keep, s)
		}
	}
	t.Samples = keep
}

func TestJudge(t *testing.T) {
	fail := func(r *record.Request, kind record.FailureKind, status int, message string, at int64) {
		r.Outcome, r.FailureKind, r.HTTPStatus, r.Message, r.EndNs = record.OutcomeFailed, kind, status, message, ptr(at)
	}
	// quiet is a trial that never had a token.
	quiet := func(t *record.Trial) {
		for i := range t.Requests {
			t.Requests[i].Chunks = nil
		}
		t.WindowStartNs, t.WindowEndNs = nil, nil
	}
	for _, c := range []struct {
		name   string
		change func(*record.Trial, *facts)
		status record.Status
		kind   record.FailureKind
		reason string // a part of it
	}{
		{"nothing", func(*record.Trial, *facts) {}, record.Valid, "", ""},

		// Order of the rules.
		{"engine exit beats all", func(t *record.Trial, f *facts) {
			f.engine = &EngineError{Kind: record.FailEngineExit, Reason: "exit status 1"}
			f.drained = true
			fail(&t.Requests[1], record.FailTruncated, 200, "eof", 20*sec)
		}, record.Failed, record.FailEngineExit, "exit status 1"},
		{"stall", func(t *record.Trial, f *facts) {
			f.engine = &EngineError{Kind: record.FailStall, Reason: "no token"}
		}, record.Failed, record.FailStall, "no token"},
		{"drained", func(t *record.Trial, f *facts) { f.drained, f.stage = true, stageWindow }, record.Interrupted, "", "window"},

		// Failed requests.
		{"one of four streams", func(t *record.Trial, f *facts) {
			fail(&t.Requests[2], record.FailInBand, 200, "CUDA error", 20*sec)
		}, record.Failed, record.FailInBand, "1 of 4 streams: CUDA error"},
		{"the first failure is named", func(t *record.Trial, f *facts) {
			fail(&t.Requests[3], record.FailTruncated, 200, "the stream ended", 21*sec)
			fail(&t.Requests[4], record.FailHTTP, 503, "overloaded", 20*sec)
		}, record.Failed, record.FailHTTP, "2 of 4 streams: HTTP status 503: overloaded"},
		{"context too long", func(t *record.Trial, f *facts) {
			fail(&t.Requests[0], record.FailHTTP, 400, "This model's maximum context length is 4096 tokens.", 3*sec)
		}, record.Failed, record.FailHTTP, "context longer than the model allows"},
		{"cancelled is not failed", func(t *record.Trial, f *facts) {
			t.Requests[1].Outcome = record.OutcomeCompleted
		}, record.Valid, "", ""},

		// Limits.
		{"not idle before", func(t *record.Trial, f *facts) {
			f.stage, f.limit, f.why = stageIdle, time.Minute, "running 3"
		}, record.NotReady, "", "running 3"},
		{"no token, all wait", func(t *record.Trial, f *facts) {
			quiet(t)
			f.stage, f.limit, f.running, f.waiting = stageReadiness, time.Minute, ptr(0.0), ptr(1.0)
		}, record.OverCapacity, "", record.ReasonNoOutput},
		{"no token, one runs and others wait", func(t *record.Trial, f *facts) {
			quiet(t)
			f.stage, f.limit, f.running, f.waiting = stageReadiness, time.Minute, ptr(1.0), ptr(3.0)
		}, record.OverCapacity, "", record.ReasonNoOutput},
		{"no token though all run", func(t *record.Trial, f *facts) {
			quiet(t)
			f.stage, f.limit, f.running, f.waiting = stageReadiness, time.Minute, ptr(4.0), ptr(0.0)
		}, record.NotReady, "", "within 1m0s"},
		{"the scout's token does not count", func(t *record.Trial, f *facts) {
			quiet(t)
			t.Requests[0].Chunks = chunks(4*sec, 4*sec, 1, 1)
			f.stage, f.limit, f.running, f.waiting = stageReadiness, time.Minute, ptr(0.0), ptr(4.0)
		}, record.OverCapacity, "", record.ReasonNoOutput},
		{"no token and nothing told", func(t *record.Trial, f *facts) {
			quiet(t)
			f.stage, f.limit = stageReadiness, time.Minute
		}, record.NotReady, "", "within"},
		{"a scout that waits for ever", func(t *record.Trial, f *facts) {
			quiet(t)
			t.LaunchNs = nil
			f.stage, f.limit, f.running, f.waiting = stageScout, time.Minute, ptr(0.0), ptr(1.0)
		}, record.OverCapacity, "", record.ReasonNoOutput},
		{"a scout that is slow", func(t *record.Trial, f *facts) {
			quiet(t)
			t.LaunchNs = nil
			f.stage, f.limit, f.running, f.waiting = stageScout, time.Minute, ptr(1.0), ptr(0.0)
		}, record.Failed, record.FailTimeout, "scout request"},
		{"some never ran", func(t *record.Trial, f *facts) {
			t.WindowStartNs, t.WindowEndNs = nil, nil
			f.stage, f.limit, f.why, f.waiting = stageReadiness, time.Minute, "3 of 4 streams", ptr(1.0)
		}, record.NotReady, "", "3 of 4 streams"},

		// After the window.
		{"silence", func(t *record.Trial, f *facts) { f.silent = true }, record.Failed, record.FailStall, "whole window"},
		{"loop", func(t *record.Trial, f *facts) { f.loop = "stream 1 repeated" }, record.Loop, "", "stream 1"},
		{"not idle after", func(t *record.Trial, f *facts) { t.IdleAfter, f.why = ptr(false), "running 1" }, record.Failed, record.FailTimeout, "running 1"},
		{"idle not known", func(t *record.Trial, f *facts) { t.IdleBefore, t.IdleAfter = nil, nil }, record.Valid, "", ""},
		{"cache hits in decode are wanted", func(t *record.Trial, f *facts) { f.cacheHits = 8000 }, record.Valid, "", ""},
		{"cache hits in prefill", func(t *record.Trial, f *facts) {
			t.Phase, t.WindowStartNs, t.WindowEndNs = record.PhasePrefill, nil, nil
			f.cacheHits, f.cacheFree = 64, 20
		}, record.NotReady, "", record.ReasonCacheHits},
		{"hits in the template", func(t *record.Trial, f *facts) {
			t.Phase, t.WindowStartNs, t.WindowEndNs = record.PhasePrefill, nil, nil
			f.cacheHits, f.cacheFree = 16, 20
		}, record.Valid, "", ""},

		// The client.
		{"late ticks", func(t *record.Trial, f *facts) { t.Client.LagP99Ns = ptr(51 * int64(time.Millisecond)) }, record.ClientLimited, "", "late"},
		{"busy", func(t *record.Trial, f *facts) { t.Client.CPURatio = ptr(0.95) }, record.ClientLimited, "", "cores"},
		{"late sending", func(t *record.Trial, f *facts) { t.Client.SendLagMaxNs = ptr(sec) }, record.ClientLimited, "", "after it was due"},
		{"late sending of much", func(t *record.Trial, f *facts) { t.Client.SendLagMaxNs, f.bodyBytes = ptr(sec), 25e6 }, record.Valid, "", ""},
		{"nothing observed", func(t *record.Trial, f *facts) { t.Client = record.ClientHealth{} }, record.Valid, "", ""},
		{"clumps", func(t *record.Trial, f *facts) {
			for i := range t.Requests[1:] {
				t.Requests[i+1].Chunks = chunks(6*sec, 40*sec, 200, 65)
			}
		}, record.ClientLimited, "", "held them back"},
		{"A21 one slow stream behind a proxy of 16 KB", func(t *record.Trial, f *facts) {
			// 200 events, one per 250 ms, in lumps of 65: one of them falls into the window.
			t.Concurrency, t.Requests = 1, t.Requests[:2]
			t.Requests[1].Chunks = chunks(30*sec, 30*sec, 65, 65)
			set(t, record.SampleRunning, 1, 1)
		}, record.ClientLimited, "", "65 of 65 output events"},
		{"too few events to say", func(t *record.Trial, f *facts) {
			for i := range t.Requests[1:] {
				t.Requests[i+1].Chunks = chunks(9*sec, 17*sec, 4, 4)
			}
		}, record.Valid, "", ""},
		{"few clumps", func(t *record.Trial, f *facts) { t.Requests[1].Chunks = chunks(6*sec, 40*sec, 200, 65) }, record.Valid, "", ""},
		{"two events in a read", func(t *record.Trial, f *facts) {
			for i := range t.Requests[1:] {
				t.Requests[i+1].Chunks = chunks(6*sec, 40*sec, 200, 2)
			}
		}, record.Valid, "", ""},

		// Filling. 60 readings: 3 are 5 %.
		{"waited in 3 of 60", func(t *record.Trial, f *facts) { set(t, record.SampleWaiting, 1, 20) }, record.Valid, "", ""},
		{"waited in 4 of 60", func(t *record.Trial, f *facts) { set(t, record.SampleWaiting, 1, 15) }, record.Queued, "", "4 of 60"},
		{"waited outside the window", func(t *record.Trial, f *facts) {
			for i := range t.Samples {
				t.Samples[i].AtNs -= 35 * sec
			}
			set(t, record.SampleWaiting, 1, 1)
		}, record.Valid, "", ""},
		{"C07 preempted twice", func(t *record.Trial, f *facts) {
			for i, n := range []float64{3, 3, 4, 5} {
				t.Samples = append(t.Samples, record.Sample{AtNs: (11 + int64(i)) * sec, Source: record.SourceMetrics, Name: record.SamplePreemptions, Value: n})
			}
		}, record.Queued, "", "waited in 0 of 60 readings of the window, and the server preempted 2"},
		{"preempted before the window", func(t *record.Trial, f *facts) {
			for i, n := range []float64{0, 3, 3} {
				t.Samples = append(t.Samples, record.Sample{AtNs: (9 + int64(i)) * sec, Source: record.SourceMetrics, Name: record.SamplePreemptions, Value: n})
			}
		}, record.Valid, "", ""},
		{"C11 gauges lag, the streams run", func(t *record.Trial, f *facts) { set(t, record.SampleRunning, 0, 2) }, record.Valid, "", ""},
		{"C12 72 of 256 run", func(t *record.Trial, f *facts) {
			t.Concurrency, t.Requests = 256, t.Requests[:1]
			for i := range 256 {
				r := record.Request{Role: record.RoleMeasured, Stream: i, DueNs: 5 * sec, Outcome: record.OutcomeCancelled, EndNs: ptr(40 * sec)}
				if i < 72 {
					r.Chunks = chunks(6*sec, 40*sec, 200, 1)
				}
				t.Requests = append(t.Requests, r)
			}
			set(t, record.SampleRunning, 72, 1)
			set(t, record.SampleWaiting, 184, 1)
		}, record.Queued, "", "60 of 60 readings"},
		{"C12 the same without metrics", func(t *record.Trial, f *facts) {
			t.Concurrency, t.Samples = 256, nil
		}, record.Queued, "", "95 %"},
		{"three of four ran", func(t *record.Trial, f *facts) {
			t.Requests = t.Requests[:4]
			set(t, record.SampleRunning, 3, 1)
		}, record.Queued, "", "95 %"},
		{"three of four, nothing told", func(t *record.Trial, f *facts) {
			t.Requests = t.Requests[:4]
			t.Samples = nil
		}, record.Queued, "", "95 %"},
		{"three of four, the server ran all", func(t *record.Trial, f *facts) { t.Requests = t.Requests[:4] }, record.Underfilled, "", "ran all"},
		{"running not told", func(t *record.Trial, f *facts) {
			t.Requests = t.Requests[:4]
			drop(t, record.SampleRunning)
		}, record.Queued, "", "95 %"},
		{"exactly 95 %", func(t *record.Trial, f *facts) {
			// 4 × 30 s are 120 stream-seconds; 114 of them.
			t.Requests[4].EndNs = ptr(34 * sec)
		}, record.Valid, "", ""},
		{"just below 95 %", func(t *record.Trial, f *facts) { t.Requests[4].EndNs = ptr(34*sec - 1) }, record.Underfilled, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, f := story()
			c.change(tr, &f)
			status, kind, reason := judge(tr, f)
			if status != c.status || kind != c.kind || !strings.Contains(reason, c.reason) {
				t.Errorf("%s %s %q, want %s %s %q", status, kind, reason, c.status, c.kind, c.reason)
			}
			if (status == record.Failed) != (kind != "") {
				t.Errorf("kind %q with status %s", kind, status)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	var r rate
	if got := r.expect(8192); got != 8192*slowestPrefill {
		t.Errorf("nothing measured: %v", got)
	}
	r.saw(8192, 2*time.Second)
	r.saw(1024, 9*time.Second) // shorter ones tell less
	r.saw(8192, time.Second)
	for _, c := range []struct {
		tokens int64
		want   time.Duration
	}{{60, 2 * time.Second}, {8192, 2 * time.Second}, {8193, 8 * time.Second}, {16384, 8 * time.Second}, {131072, 512 * time.Second}} {
		if got := r.expect(c.tokens); got != c.want {
			t.Errorf("%d tokens: %v, want %v", c.tokens, got, c.want)
		}
	}
	if got := saturatedHold(3*time.Second, time.Second); got != 3*time.Second {
		t.Errorf("hold: %v", got)
	}
	if got := saturatedHold(3*time.Second, 10*time.Second); got != 15*time.Second {
		t.Errorf("hold: %v", got)
	}
}

func TestRank99(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 1, 99: 98, 100: 98, 101: 99, 6000: 5939} {
		if got := rank99(n); got != want {
			t.Errorf("rank99(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestSilence(t *testing.T) {
	var s silence
	for i, c := range []struct {
		at, outputs int64
		want        time.Duration
	}{
		{5 * sec, 10, 0},
		{5*sec + sec/2, 10, time.Second / 2},
		{6 * sec, 10, time.Second},
		{7 * sec, 11, 0},
		{3600 * sec, 11, time.Second}, // this program slept, not the engine
		{3601 * sec, 11, 2 * time.Second},
	} {
		if got := s.see(c.at, c.outputs); got != c.want {
			t.Errorf("look %d: %v, want %v", i, got, c.want)
		}
	}
}

func TestCompleted(t *testing.T) {
	launch := record.Launch{KVCapacityTokens: ptr(int64(1000)), KVCapacityPerEngine: []int64{600, 400}, KVCapacitySource: "label", MaxModelLen: ptr(int64(300))}
	for _, c := range []struct {
		name   string
		plan   plan.Capacity
		launch record.Launch
		want   plan.Capacity
	}{
		{"nothing known", plan.Capacity{Rule: "worst_case"}, record.Launch{}, plan.Capacity{Rule: "worst_case"}},
		{"the engine tells", plan.Capacity{}, launch, plan.Capacity{KVTokens: 1000, PerEngine: 400, Source: "label", MaxModelLen: 300}},
		{"the plan decides", plan.Capacity{KVTokens: 77, Source: "option", MaxModelLen: 50}, launch, plan.Capacity{KVTokens: 77, Source: "option", MaxModelLen: 50}},
	} {
		if got := completed(c.plan, &c.launch); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestModelName(t *testing.T) {
	for _, c := range []struct {
		model  plan.Model
		models []string
		want   string
	}{
		{plan.Model{ID: "org/m", Served: []string{"bench", "m"}}, []string{"x"}, "bench"},
		{plan.Model{ID: "org/m"}, []string{"x"}, "org/m"},
		{plan.Model{}, []string{"x"}, "x"},
		{plan.Model{}, []string{"x", "y"}, ""},
	} {
		if got := modelName(&plan.Identity{Model: c.model}, &record.Launch{Models: c.models}); got != c.want {
			t.Errorf("%+v: %q, want %q", c, got, c.want)
		}
	}
}

func TestSchedP99(t *testing.T) {
	inf := math.Inf(1)
	h := func(counts ...uint64) *metrics.Float64Histogram {
		return &metrics.Float64Histogram{Counts: counts, Buckets: []float64{math.Inf(-1), 0.001, 0.01, inf}}
	}
	for _, c := range []struct {
		name   string
		now    *metrics.Float64Histogram
		before []uint64
		want   *int64
	}{
		{"nothing since", h(5, 5, 5), []uint64{5, 5, 5}, nil},
		{"all fast", h(105, 5, 5), []uint64{5, 5, 5}, ptr(int64(time.Millisecond))},
		{"two of a hundred", h(98, 2, 0), []uint64{0, 0, 0}, ptr(10 * int64(time.Millisecond))},
		{"without an edge", h(0, 0, 9), []uint64{0, 0, 0}, ptr(10 * int64(time.Millisecond))},
	} {
		got := schedP99(c.now, c.before)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

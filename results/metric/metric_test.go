package metric

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"speedmatrix/results/record"
)

func ptr[T any](v T) *T { return &v }

const ms = int64(time.Millisecond)

// out is an output event with running usage, bare one without, usage a frame
// with a count and no output.
func out(atMs, total int64) record.Chunk {
	return record.Chunk{AtNs: atMs * ms, Tokens: total, HasTokens: true, Output: true, Channel: record.ChannelContent, ReadEvents: 1}
}
func bare(atMs int64) record.Chunk {
	return record.Chunk{AtNs: atMs * ms, Output: true, Channel: record.ChannelContent, ReadEvents: 1}
}
func usage(atMs, total int64) record.Chunk {
	return record.Chunk{AtNs: atMs * ms, Tokens: total, HasTokens: true, ReadEvents: 1}
}

// request sent at a time, with its events; completed one second after its last.
func request(sentMs int64, chunks ...record.Chunk) record.Request {
	r := record.Request{Role: record.RoleMeasured, Outcome: record.OutcomeCompleted, DueNs: sentMs * ms, SentNs: ptr(sentMs * ms), Chunks: chunks, PromptTokens: ptr(int64(1000))}
	end := sentMs * ms
	counts := 0
	for i, c := range chunks {
		end = c.AtNs
		if c.HasTokens {
			r.CompletionTokens = ptr(c.Tokens)
			if i < len(chunks)-1 || c.Output {
				counts++
			}
		}
	}
	r.RunningUsage = counts > 0
	r.EndNs = ptr(end + 1000*ms)
	return r
}

func cut(r record.Request, atMs int64) record.Request {
	r.Outcome, r.EndNs = record.OutcomeCancelled, ptr(atMs*ms)
	return r
}

// window is a decode trial with the window [0 ms, length) and these requests.
func window(lengthMs int64, rs ...record.Request) *record.Trial {
	t := &record.Trial{StepID: "s", Point: record.Point{Phase: record.PhaseDecode, Concurrency: max(1, len(rs))}, Repeat: 1, Status: record.Valid,
		LaunchNs: ptr(-1000 * ms), WindowStartNs: ptr(int64(0)), WindowEndNs: ptr(lengthMs * ms), EndNs: lengthMs*ms + 1, Requests: rs}
	for i := range t.Requests {
		t.Requests[i].Index = i
	}
	return t
}

const absent = math.MaxFloat64

func TestValues(t *testing.T) {
	// Steady streams: a token each step from the first on.
	stream := func(sentMs, firstMs, stepMs, n int64) record.Request {
		r := request(sentMs)
		for i := range n {
			r.Chunks = append(r.Chunks, out(firstMs+i*stepMs, i+1))
		}
		r.CompletionTokens, r.RunningUsage = ptr(n), true
		return cut(r, 1<<40/ms)
	}
	many := make([]record.Request, 10)
	for i := range many {
		many[i] = stream(0, int64(100*(i+1)), 50, 100)
	}
	for _, tt := range []struct {
		name   string
		trial  *record.Trial
		source string
		want   map[string]float64
	}{
		{
			// A10: cumulative usage 0, 1, 4, 10, 12, 12, 12 over seven chunks. Adding usages
			// up gives 51, counting events 4.
			name: "usage is cumulative", source: record.TokensRunning,
			trial: window(1000, request(-100, usage(10, 0), out(20, 1), out(30, 4), out(40, 10), out(50, 12))),
			want: map[string]float64{OutputTokens: 12, WindowSeconds: 1, OutputTokensPerSecond: 12, TTFT: 0.120, TPOT: 0.030 / 11, TokensPerChunkMean: 3, TokensPerChunkMax: 6,
				RefOutputTokens: 12, RefWindowSeconds: 0.050, RefOutputTokensPerSecond: 240, RefTPOT: 0.030 / 11},
		},
		{
			name: "a window that closes after event 3 holds 10", source: record.TokensRunning,
			trial: window(45, request(-100, usage(10, 0), out(20, 1), out(30, 4), out(40, 10), out(50, 12))),
			want:  map[string]float64{OutputTokens: 10, CompletedRequests: 0, RefCompletedRequests: 1},
		},
		{
			// A11, A14, sse/06: 24 tokens in three output events, usage at the end only. In a
			// window of the last two events: 16, and nothing at the usage's own time.
			name: "final usage is spread over events", source: record.TokensFinal,
			trial: window(1000, request(-100, bare(-50), bare(100), bare(200), usage(900, 24))),
			want: map[string]float64{OutputTokens: 16, TPOT: 0.100 / 8, TokensPerChunkMean: 8, TokensPerChunkMax: absent, TTFT: 0.050,
				RefOutputTokens: 24, RefWindowSeconds: 0.900},
		},
		{
			name: "final usage outside the window counts nothing inside", source: "",
			trial: window(1000, request(-900, bare(-800), bare(-700), usage(500, 24))),
			want:  map[string]float64{OutputTokens: absent, OutputTokensPerSecond: absent, RefOutputTokens: 24},
		},
		{
			// A11: one stream still runs when the window closes and has no usage at all.
			name: "unfinished without usage is unknown", source: record.TokensUnknown,
			trial: window(1000, request(-100, bare(100), bare(200), usage(900, 24)), cut(request(0, bare(300), bare(600)), 1000)),
			want: map[string]float64{OutputTokens: absent, OutputTokensPerSecond: absent, OutputTokensPerSecondPeak: absent, TPOT: absent, RequestTokensPerSecond: absent, TokensPerChunkMean: absent,
				TTFT: 0.250, ICL: 0.200, ActiveRequests: (0.9 + 0.7), CompletedRequests: 0},
		},
		{
			name: "worst source is named", source: record.TokensRetokenise,
			trial: window(1000, request(0, out(100, 1), out(200, 2)), func() record.Request {
				r := cut(request(0, bare(300), bare(600)), 1000)
				r.RetokenisedTokens = ptr(int64(10))
				return r
			}()),
			want: map[string]float64{OutputTokens: 12},
		},
		{
			name: "a stale running count is spread too", source: record.TokensFinal,
			trial: window(1000, request(-100, out(-50, 0), out(100, 0), out(200, 0), usage(900, 24))),
			want:  map[string]float64{OutputTokens: 16},
		},
		{
			name: "a count that stopped is no count", source: record.TokensUnknown,
			trial: window(1000, cut(request(-100, out(100, 1), bare(200), bare(300), bare(400)), 1000)),
			want:  map[string]float64{OutputTokens: absent},
		},
		{
			name: "a count every second chunk keeps up", source: record.TokensRunning,
			trial: window(1000, cut(request(-100, bare(100), out(200, 4), bare(300), out(400, 8), bare(500)), 1000)),
			want:  map[string]float64{OutputTokens: 8},
		},
		{
			// A12, sse/24: two empty chunks while the prompt is read.
			name: "empty text is no output", source: record.TokensRunning,
			trial: window(1000, request(0, usage(100, 0), out(300, 1), out(400, 3))),
			want:  map[string]float64{TTFT: 0.300, OutputTokens: 3, TPOT: 0.050},
		},
		{
			// A17, sse/07: a tool-call parser holds 16 tokens back.
			name: "a jump of the count invents no time between tokens", source: record.TokensRunning,
			trial: func() *record.Trial {
				r := request(0, usage(50, 0), out(100, 17), out(200, 25), out(300, 31))
				for i := range r.Chunks {
					r.Chunks[i].Channel = record.ChannelTool
				}
				return window(1000, r)
			}(),
			want: map[string]float64{OutputTokens: 31, TTFT: 0.100, TPOT: 0.200 / 14, TokensPerChunkMax: 17, RefTTFT: absent, RefTPOT: absent},
		},
		{
			// D10: the last long request drags no average, for the window ends before.
			name: "only the window counts", source: record.TokensRunning,
			trial: window(1000, stream(-5000, -4000, 10, 10_000), stream(-5000, -4500, 10, 10_000)),
			want:  map[string]float64{OutputTokens: 200, OutputTokensPerSecond: 200, OutputTokensPerSecondPeak: 200, ActiveRequests: 2, TPOT: 0.010, RequestTokensPerSecond: 100},
		},
		{
			// D11: the last event comes before the end; the reference divides by its time.
			name: "the window ends at its time", source: record.TokensRunning,
			trial: window(2000, request(0, out(0, 1), out(500, 2), out(1000, 3))),
			want:  map[string]float64{WindowSeconds: 2, OutputTokens: 3, OutputTokensPerSecond: 1.5, RefWindowSeconds: 1, RefOutputTokensPerSecond: 3},
		},
		{
			// D13: answers longer than the window.
			name: "unfinished requests count", source: record.TokensRunning,
			trial: window(30_000, stream(-3000, -1000, 20, 4096)),
			want:  map[string]float64{CompletedRequests: 0, OutputTokens: 1500, OutputTokensPerSecond: 50},
		},
		{
			// D15: chunks of 4 tokens every 20 ms.
			name: "several tokens per chunk", source: record.TokensRunning,
			trial: window(1000, request(-100, out(0, 4), out(20, 8), out(40, 12), out(60, 16))),
			want:  map[string]float64{TPOT: 0.005, RequestTokensPerSecond: 200, ICL: 0.020, TokensPerChunkMean: 4},
		},
		{
			// The second seed's 128K × 2: medians of two are means, so 7.9 tok/s stands
			// beside 224 ms, which is no reciprocal.
			name: "two medians, not one", source: record.TokensRunning,
			trial: window(30_000, request(-100, out(0, 1), out(76, 2)), request(-100, out(0, 1), out(372, 2))),
			want: map[string]float64{TPOT: 0.224, RequestTokensPerSecond: (1/0.076 + 1/0.372) / 2, TPOTN: 2,
				RefTPOT: 0.224, RefRequestTokensPerSecond: (1/0.076 + 1/0.372) / 2},
		},
		{
			name: "edges: start is inside, end is not", source: record.TokensRunning,
			trial: window(100, request(-100, out(-1, 1), out(0, 3), out(99, 4), out(100, 9))),
			want:  map[string]float64{OutputTokens: 3},
		},
		{
			name: "one read, one stamp, no time between tokens", source: record.TokensRunning,
			trial: window(1000, request(-100, out(50, 1), out(50, 2), out(50, 3))),
			want:  map[string]float64{OutputTokens: 3, TPOT: absent, RequestTokensPerSecond: absent, TPOTN: absent, ICL: 0},
		},
		{
			// The tenth has its first token at the very end of the window: outside.
			name: "percentiles need their numbers", source: record.TokensRunning,
			trial: window(1000, many...),
			want: map[string]float64{TTFTN: 9, TTFT: 0.5, TTFTP90: absent, TTFTP99: absent, TTFTWave: 0.5, TTFTWaveN: 9, TTFTSteady: absent, TTFTSteadyN: absent,
				NoFirstTokenRequests: 1, FailedRequests: 0},
		},
		{
			name: "ten are enough for a p90", source: record.TokensRunning,
			trial: window(1001, many...),
			want:  map[string]float64{TTFTN: 10, TTFT: 0.550, TTFTP90: 0.910, TTFTP99: absent, NoFirstTokenRequests: 0},
		},
		{
			// A04: a model that thinks first. Window and tokens cover the same events, so
			// 6 s of thought and 1.2 s of answer are one stream.
			name: "A04 thought and answer are one stream", source: record.TokensRunning,
			trial: func() *record.Trial {
				r := stream(-100, 0, 24, 300) // one token every 24 ms, 7.176 s in all
				for i := range r.Chunks[:250] {
					r.Chunks[i].Channel = record.ChannelReasoning
				}
				return window(8000, r)
			}(),
			want: map[string]float64{OutputTokens: 300, TTFT: 0.100, TPOT: 0.024, RequestTokensPerSecond: 1 / 0.024, RefTTFT: 0.100},
		},
		{
			// C11: the server's gauges lag by seconds and begin with 0; the streams tell.
			name: "C11 active requests come from the streams", source: record.TokensRunning,
			trial: func() *record.Trial {
				tr := window(10_000, stream(-1000, -500, 20, 1000), stream(-1000, -500, 20, 1000))
				for i, v := range []float64{0, 0, 0, 2, 2} {
					tr.Samples = append(tr.Samples, record.Sample{AtNs: int64(i) * 2000 * ms, Source: record.SourceMetrics, Name: record.SampleRunning, Value: v})
				}
				return tr
			}(),
			want: map[string]float64{ActiveRequests: 2, RunningMean: 0.8, RefActiveRequests: 0.8},
		},
		{
			// C12: 256 were let in, 72 ran and 184 had no token in the whole window.
			name: "C12 72 of 256 are active", source: record.TokensRunning,
			trial: func() *record.Trial {
				var rs []record.Request
				for range 72 {
					rs = append(rs, stream(-1000, -500, 20, 1000))
				}
				for range 184 {
					rs = append(rs, cut(request(-1000), 10_000))
				}
				return window(10_000, rs...)
			}(),
			want: map[string]float64{ActiveRequests: 72, NoFirstTokenRequests: 184, OutputTokens: 72 * 500, TTFTN: 72},
		},
		{
			// D24: one fast second and nine slow ones: the rate is tokens ÷ time, 28, where a
			// median of rates would say 20.
			name: "D24 throughput is no median", source: record.TokensRunning,
			trial: func() *record.Trial {
				r := request(-100)
				n := int64(0)
				for at := int64(0); at < 10_000; at += 50 {
					n++
					if at < 1000 {
						n += 4
					}
					r.Chunks = append(r.Chunks, out(at, n))
				}
				r.CompletionTokens, r.RunningUsage = ptr(n), true
				return window(10_000, cut(r, 10_000))
			}(),
			want: map[string]float64{OutputTokensPerSecond: 28, OutputTokensPerSecondPeak: 100},
		},
		{
			name: "wave and steady apart; failed ones in nothing", source: record.TokensRunning,
			trial: func() *record.Trial {
				next, bad := request(500, out(600, 1), out(700, 2)), request(0, out(10, 500))
				next.Generation = 1
				bad.Outcome = record.OutcomeFailed
				scout := request(0, out(10, 900))
				scout.Role = record.RoleScout
				return window(2000, request(-300, out(-100, 1), out(100, 2)), next, bad, scout)
			}(),
			want: map[string]float64{TTFT: 0.150, TTFTWave: 0.200, TTFTSteady: 0.100, TTFTSteadyN: 1, FailedRequests: 1, OutputTokens: 3, CompletedRequests: 2},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Cell(tt.trial, 3)
			if c.Seq != 3 || c.StepID != "s" || len(c.Warnings) > 0 {
				t.Errorf("cell %+v", c)
			}
			if c.TokenSource != tt.source {
				t.Errorf("token source %q, want %q", c.TokenSource, tt.source)
			}
			check(t, &c, tt.want)
			for name := range tt.want {
				m, _ := ByName(name)
				v1, ok1 := m.Value(tt.trial)
				v2, ok2 := c.Value(name)
				if v1 != v2 || ok1 != ok2 {
					t.Errorf("%s: alone %v %v, in the cell %v %v", name, v1, ok1, v2, ok2)
				}
			}
		})
	}
}

func check(t *testing.T, c *record.Cell, want map[string]float64) {
	t.Helper()
	for name, w := range want {
		if _, known := ByName(name); !known {
			t.Fatalf("no metric %q", name)
		}
		got, ok := c.Value(name)
		switch {
		case ok != (w != absent):
			t.Errorf("%s: %v (known: %v), want %v", name, got, ok, w)
		case ok && math.Abs(got-w) > 1e-9*max(1, math.Abs(w)):
			t.Errorf("%s: %v, want %v", name, got, w)
		}
	}
}

func TestPrefill(t *testing.T) {
	r := request(1000, out(4727, 1))
	r.PromptTokens, r.CachedTokens = ptr(int64(8147)), ptr(int64(0))
	warm := request(0, out(500, 1))
	warm.Role = record.RoleWarmup
	tr := &record.Trial{StepID: "p", Point: record.Point{Phase: record.PhasePrefill, ContextTokens: 8192, Concurrency: 1}, Status: record.Valid, PromptTokens: ptr(int64(8147)), Requests: []record.Request{warm, r}}
	for i, v := range []float64{100, 100, 8247} { // before, during, after: the request fell between two readings
		at := []int64{900, 2000, 6000}[i] * ms
		tr.Samples = append(tr.Samples, record.Sample{AtNs: at, Source: record.SourceMetrics, Name: record.SamplePrefixQueries, Value: v},
			record.Sample{AtNs: at, Source: record.SourceMetrics, Name: record.SamplePrefixHits, Value: v * 0})
	}
	c := Cell(tr, 0)
	check(t, &c, map[string]float64{TTFT: 3.727, PrefillTokensPerSecond: 8147 / 3.727, CompletedRequests: 1, TTFTN: 1, PromptTokens: 8147, PrefixHitRatio: 0,
		RefTTFT: 3.727, RefPrefillTokensPerSecond: 8147 / 3.727, RefCompletedRequests: 1,
		OutputTokens: absent, OutputTokensPerSecond: absent, WindowSeconds: absent, ActiveRequests: absent, RefOutputTokens: absent, TPOT: absent})
	if c.TokenSource != "" {
		t.Errorf("token source %q", c.TokenSource)
	}
}

// The server's own account, and gaps in it.
func TestServer(t *testing.T) {
	tr := window(3000, request(-100, out(0, 1), out(1000, 2)))
	add := func(name string, values ...float64) {
		for i, v := range values {
			tr.Samples = append(tr.Samples, record.Sample{AtNs: (int64(i) - 1) * 1000 * ms, Source: record.SourceMetrics, Name: name, Value: v})
		}
	}
	// At -1, 0, 1, 2, 3 s; the window holds 0, 1 and 2 s.
	add(record.SampleRunning, 9, 1, 2, 3, 9)
	add(record.SampleWaiting, 9, 0, 0, 4, 9)
	add(record.SampleKVUsage, 0.9, 0.1, 0.3, 0.2, 0.9)
	add(record.SamplePreemptions, 1, 1, 2, 4, 9)
	add(record.SampleGeneration, 0, 100, 150, 300, 900)
	add(record.SamplePrefixQueries, 0, 100, 200, 400, 500)
	add(record.SamplePrefixHits, 0, 90, 190, 300, 500)
	add(record.SampleSpecDrafts, 5, 5, 5, 5, 5)
	add(record.SampleSpecAccepted, 9, 9, 9, 9, 9)
	tr.Client = record.ClientHealth{LagP99Ns: ptr(2 * ms), CPURatio: ptr(0.25), PeakOpen: 1}
	c := Cell(tr, 0)
	check(t, &c, map[string]float64{RunningMean: 2, RunningMax: 3, RefActiveRequests: 2, WaitingRatio: 1. / 3, WaitingMax: 4, KVUsageMax: 0.3, Preemptions: 3, ServerTokensPerSecond: 100,
		PrefixHitRatio: 0.75, SpecAccepted: absent, ClientLagP99: 0.002, ClientCPU: 0.25, PeakOpen: 1, ReadEventsMax: absent, SendLagMax: absent, ReadinessSeconds: 1, ScoutSeconds: absent})

	// D16: what a draft model guessed right, since its speed depends on the text.
	tr.Samples = nil
	add(record.SampleSpecDrafts, 0, 10, 20, 40, 90)
	add(record.SampleSpecAccepted, 0, 15, 40, 75, 200)
	c = Cell(tr, 0)
	check(t, &c, map[string]float64{SpecAccepted: 2})

	// A restart in the middle: a counter that fell says nothing.
	tr.Samples = nil
	add(record.SamplePreemptions, 7, 7, 0, 1)
	c = Cell(tr, 0)
	check(t, &c, map[string]float64{Preemptions: absent, RunningMean: absent, WaitingRatio: absent, PrefixHitRatio: absent, KVUsageMax: absent})
}

func TestStatuses(t *testing.T) {
	for _, s := range record.Statuses {
		tr := window(1000, request(-100, out(0, 1), out(100, 2), out(200, 3)))
		tr.Status = s
		tr.PromptTokens = ptr(int64(10))
		c := Cell(tr, 0)
		stands := s == record.Valid || s == record.Queued || s == record.Underfilled || s == record.ClientLimited
		for _, m := range All() {
			if _, ok := c.Value(m.Name); ok && m.Headline && !stands {
				t.Errorf("%s: has %s", s, m.Name)
			}
		}
		if _, ok := c.Value(OutputTokensPerSecond); ok != stands {
			t.Errorf("%s: throughput %v", s, ok)
		}
		if v, ok := c.Value(PromptTokens); !ok || v != 10 {
			t.Errorf("%s: lost what is no headline", s)
		}
	}
	// Not one event: nothing is invented.
	for _, phase := range []string{record.PhasePrefill, record.PhaseDecode} {
		c := Cell(&record.Trial{StepID: "s", Point: record.Point{Phase: phase}, Status: record.OverCapacity, Reason: "predicted"}, 0)
		if len(c.Values) != 0 || c.TokenSource != "" || c.StartedAt != nil {
			t.Errorf("%s: %+v", phase, c)
		}
	}
}

func TestRefused(t *testing.T) {
	// The count falls and rises again: 5 + 10 credited, but it ended at 12.
	tr := window(1000, request(-100, out(0, 1), out(100, 5), out(200, 2), out(300, 12)))
	c := Cell(tr, 0)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "credited 15 tokens") || !strings.Contains(c.Warnings[0], "ended at 12") {
		t.Errorf("warnings %q", c.Warnings)
	}
	check(t, &c, map[string]float64{OutputTokens: absent, OutputTokensPerSecond: absent, TPOT: absent, TTFT: 0.1})
	if c.TokenSource != record.TokensUnknown {
		t.Errorf("token source %q", c.TokenSource)
	}
	// Made again from its own record, the warning is not doubled.
	tr.Warnings = c.Warnings
	if again := Cell(tr, 0); len(again.Warnings) != 1 {
		t.Errorf("warnings %q", again.Warnings)
	}
	// A15: a peak in chunks beside a mean in tokens.
	if why := peakBelowMean(113, 411); !strings.Contains(why, "113.0") || !strings.Contains(why, "411.0") {
		t.Errorf("%q", why)
	}
	if why := peakBelowMean(411, 411); why != "" {
		t.Errorf("%q", why)
	}
	// The same from events: a whole answer of 400 tokens of which no event was seen,
	// beside one of 3 tokens that was.
	hidden := request(0, usage(900, 400))
	hidden.EndNs = ptr(950 * ms)
	tr = window(1000, request(-100, out(0, 1), out(100, 2), out(200, 3)), hidden)
	c = Cell(tr, 0)
	if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "3.0 tokens/s, is below its mean, 403.0 tokens/s") {
		t.Errorf("A15: warnings %q", c.Warnings)
	}
	check(t, &c, map[string]float64{OutputTokensPerSecond: absent, OutputTokensPerSecondPeak: absent, TTFT: 0.1})
}

func TestPercentile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tt := range []struct {
		values []float64
		p      float64
		want   float64
		ok     bool
	}{
		{nil, 50, 0, false},
		{[]float64{3}, 50, 3, true},
		{[]float64{4, 2}, 50, 3, true},
		{[]float64{9, 1, 2}, 50, 2, true},
		{[]float64{1, 2, 3, 4, 5}, 25, 2, true},
		{hundred[:9], 90, 0, false},
		{hundred[:10], 90, 99.1, true},
		{hundred[:99], 99, 0, false},
		{hundred, 99, 99.01, true},
		{hundred, 0, 1, true},
	} {
		got, ok := Percentile(tt.values, tt.p)
		if ok != tt.ok || math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("Percentile(%v, %v) = %v %v, want %v %v", tt.values, tt.p, got, ok, tt.want, tt.ok)
		}
	}
	if hundred[0] != 100 {
		t.Error("the sample was sorted in place")
	}
}

func TestTable(t *testing.T) {
	seen := map[string]bool{}
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, m := range All() {
		if seen[m.Name] || !name.MatchString(m.Name) {
			t.Errorf("name %q", m.Name)
		}
		seen[m.Name] = true
		if m.Label == "" || m.Unit == "" || m.Definition == "" || m.Since < 1 || m.value == nil || len(m.Phases) == 0 || m.Better < -1 || m.Better > 1 {
			t.Errorf("%s: incomplete: %+v", m.Name, m)
		}
		if m.Unit == "seconds" != strings.Contains(m.Name, "seconds") && !strings.Contains(m.Name, "per_second") {
			t.Errorf("%s: unit %s", m.Name, m.Unit)
		}
		if strings.HasPrefix(m.Name, "ref_") != (m.Scope == ScopeReference) {
			t.Errorf("%s: scope %s", m.Name, m.Scope)
		}
		if m.Scope == ScopeReference || m.Twin != "" {
			if twin, ok := ByName(m.Twin); !ok || twin.Twin != m.Name || twin.Unit != m.Unit || twin.Integer != m.Integer {
				t.Errorf("%s: twin %q", m.Name, m.Twin)
			}
		}
	}
	if _, ok := ByName("nonsense"); ok {
		t.Error("found nonsense")
	}
}

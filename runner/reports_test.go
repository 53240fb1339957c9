package runner_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// What went wrong for people who measured servers, each with what is right. The
// tests are named after the report and go from the socket to the row.

const chatPath = "/v1/chat/completions"

// bodyOf reads a request's body and puts it back.
func bodyOf(r *http.Request) string {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	r.Body = io.NopCloser(bytes.NewReader(b))
	return string(b)
}

// measured says whether a request is one of the streams that count: the plan of
// these tests asks them, and nobody else, for 2,000 tokens.
func measured(r *http.Request) bool {
	return r.URL.Path == chatPath && strings.Contains(bodyOf(r), `"max_tokens":2000,`)
}

// hold keeps a request without an answer until its client goes.
func hold(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or the server does not see the client go
	<-r.Context().Done()
}

// Ways in which a stream that counts fails while the server lives: the trial has the
// kind, the row no number, and the matrix goes on.
func TestBrokenReplies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		reply func(http.ResponseWriter, *http.Request)
		kind  record.FailureKind
		text  string
	}{
		{"A34 a stream without a choice", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: [DONE]\n\n")
		}, record.FailNoOutput, "4 of 4 streams"},
		{"a page with status 200", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<h1>Sign in</h1>")
		}, record.FailEncoding, "Sign in"},
		{"A32 an error as the first event", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: {\"error\":{\"message\":\"EngineCore is dead\",\"code\":500}}\n\ndata: [DONE]\n\n")
		}, record.FailInBand, "EngineCore is dead"},
		{"the connection ends before a reply", func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, record.FailConnect, "EOF"},
		{"A35 the connection ends on a chunk boundary", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Connection", "close")
			io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
		}, record.FailTruncated, "without finish_reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
				if !measured(r) {
					return false
				}
				c.reply(w, r)
				return true
			})
			s := &sink{t: t}
			if err := s.measure(t.Context(), e, thePlan(decode(1024, 4), prefill(1024)), runner.Options{}); err != nil {
				t.Fatal(err)
			}
			failed(t, &s.trials[0], c.kind, c.text)
			if next := &s.trials[1]; next.Status != record.Valid && !busy(next) {
				t.Errorf("the matrix did not go on: %s", describe(next))
			}
		})
	}
}

// failed holds what is true of every failed row: a kind, the reason, and no number.
func failed(t *testing.T, tr *record.Trial, kind record.FailureKind, text string) {
	t.Helper()
	if tr.Status != record.Failed || tr.FailureKind != kind || !strings.Contains(tr.Reason, text) {
		t.Errorf("%s, want failed (%s) with %q", describe(tr), kind, text)
	}
	row := metric.Cell(tr, 0)
	for _, name := range []string{metric.OutputTokensPerSecond, metric.TTFT, metric.TPOT, metric.OutputTokens} {
		if v, ok := row.Value(name); ok {
			t.Errorf("%s is %v", name, v)
		}
	}
	if n, ok := row.Value(metric.FailedRequests); tr.LaunchNs != nil && kind != record.FailStall && (!ok || n == 0) {
		t.Errorf("failed requests: %v %v", n, ok)
	}
}

// A request that is slow and nothing else, while the server runs it: a timeout, and not
// a server without room for it, in whichever stage it is.
func TestTooSlow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		step plan.Step
		pass int32 // so many long requests are answered
		text string
	}{
		{decode(2048, 2), 0, "the scout request"},
		{prefill(2048), 0, "the warmup request"},
		{prefill(2048), 1, "the measured request"},
	} {
		t.Run(c.text, func(t *testing.T) {
			t.Parallel()
			var long, running atomic.Int32
			e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case r.URL.Path == chatPath && r.ContentLength > 5000 && long.Add(1) > c.pass:
					running.Add(1)
					defer running.Add(-1)
					hold(r)
					return true
				case r.URL.Path == "/metrics" && running.Load() > 0:
					fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n", running.Load())
					return true
				}
				return false
			})
			p := thePlan(c.step, decode(0, 1))
			p.Identity.Limits.ScoutNs = int64(500 * time.Millisecond)
			s := &sink{t: t}
			if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
				t.Fatal(err)
			}
			tr, next := &s.trials[0], &s.trials[1]
			if want := c.text + " had not ended after 500ms: the server says running 1"; tr.Status != record.Failed || tr.FailureKind != record.FailTimeout || !strings.Contains(tr.Reason, want) {
				t.Errorf("%s", describe(tr))
			}
			if next.Status != record.Valid && !busy(next) {
				t.Errorf("%s", describe(next))
			}
		})
	}
}

// Short answers behind long first tokens: the server runs all that was asked and lets
// nothing wait, yet most of the time nobody decodes.
func TestUnderfilled(t *testing.T) {
	t.Parallel()
	pr := profile()
	pr.BaseTTFTMs = 150
	var open atomic.Int32
	e := behind(t, pr, simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case chatPath:
			open.Add(1)
			context.AfterFunc(r.Context(), func() { open.Add(-1) })
		case "/metrics":
			running := open.Load()
			if running == 1 { // between an answer and the next
				running = 2
			}
			fmt.Fprintf(w, "vllm:num_requests_running %d\nvllm:num_requests_waiting 0\n", running)
			return true
		}
		return false
	})
	p := thePlan(decode(1024, 2))
	p.Identity.MaxOutput, p.Identity.WindowNs = 10, int64(1500*time.Millisecond)
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if tr := &s.trials[0]; tr.Status != record.Underfilled && !busy(tr) {
		t.Errorf("%s", describe(tr))
	}
}

// A21: a proxy holds 16 KB back. Streams then come in clumps, TTFT is the proxy's and
// the time between tokens falls: the row has no valid one.
func TestReportClumps(t *testing.T) {
	t.Parallel()
	p := thePlan(decode(1024, 1))
	p.Identity.WindowNs = int64(time.Second)
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, profile(), simulator.Faults{ClumpBytes: 8 << 10}), p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	row := metric.Cell(&s.trials[0], 0)
	if row.Status != record.ClientLimited {
		t.Errorf("%s", describe(&s.trials[0]))
	}
	if n, ok := row.Value(metric.ReadEventsMax); !ok || n < 16 {
		t.Errorf("most events in a read: %v", n)
	}
}

// A39: a server that compresses when it is asked to gives an event at a time, since it
// is not asked to.
func TestReportCompression(t *testing.T) {
	t.Parallel()
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, profile(), simulator.Faults{Gzip: true}), thePlan(decode(1024, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if tr := &s.trials[0]; tr.Status != record.Valid && !busy(tr) {
		t.Errorf("%s", describe(tr))
	}
}

// A41: a model that likes to stop. What came and why it ended are kept, and the next
// request follows at once, so the streams stay as many as asked.
func TestReportEarlyStop(t *testing.T) {
	t.Parallel()
	pr := profile()
	// Answers of 1.5 s: the moment between two of them, in which a stream is not active,
	// stays a small part of the window on a busy machine too.
	pr.EOSAfterTokens = 300
	p := thePlan(decode(1024, 4))
	p.Identity.Sampling.IgnoreEOS = false
	p.Identity.WindowNs = int64(2400 * time.Millisecond)
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, pr, simulator.Faults{}), p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	if tr.Status != record.Valid && !busy(tr) || tr.MaxOutput != 2000 {
		t.Errorf("%s, asked %d", describe(tr), tr.MaxOutput)
	}
	stopped := 0
	for _, r := range tr.Requests {
		if r.Role != record.RoleMeasured || r.Outcome != record.OutcomeCompleted {
			continue
		}
		stopped++
		if r.FinishReason != "stop" || r.CompletionTokens == nil || *r.CompletionTokens != 300 {
			t.Errorf("ended by %q after %v tokens", r.FinishReason, r.CompletionTokens)
		}
	}
	row := metric.Cell(tr, 0)
	if active, _ := row.Value(metric.ActiveRequests); (stopped < 4 || active < 3.8) && !busy(tr) {
		t.Errorf("%d stopped, %v of 4 streams were active", stopped, active)
	}
}

// A43: a server that refuses the name of the limit. Its words are told, and nothing
// else is tried that would mean something else.
func TestReportStrictServer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != chatPath {
			return false
		}
		asked.Add(1)
		if body := bodyOf(r); strings.Contains(body, "max_completion_tokens") || !strings.Contains(body, "max_tokens") {
			t.Errorf("body %.200s", body)
		}
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'max_tokens'), 'msg': 'Extra inputs are not permitted'}]","code":400}`)
		return true
	})
	err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{})
	if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), "'max_tokens'") || asked.Load() != 1 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}

// A44: prompt and output fill the model's length to the token. The prompt is exact, so
// nothing is refused; one token more is said to be too long, and not over capacity.
func TestReportModelLength(t *testing.T) {
	t.Parallel()
	pr := profile()
	pr.MaxModelLen = 3024
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, pr, simulator.Faults{}), thePlan(decode(1024, 2), decode(1025, 2), prefill(3023), prefill(3024)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []record.Status{record.Valid, record.Skipped, record.Valid, record.Skipped} {
		tr := &s.trials[i]
		if tr.Status != want && !busy(tr) {
			t.Errorf("%s, want %s", describe(tr), want)
		}
		if want == record.Skipped && (tr.Reason != "model_len" || len(tr.Requests) != 0) {
			t.Errorf("%d requests, %s", len(tr.Requests), describe(tr))
		}
		if want == record.Valid && (tr.PromptTokens == nil || *tr.PromptTokens != int64(tr.ContextTokens)) {
			t.Errorf("%s: %v tokens", tr.StepID, tr.PromptTokens)
		}
	}
}

// A46: a part of the wave is refused with 503. Each request is sent once and is one
// record, and none of them is in a number.
func TestReportNoRetries(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if !measured(r) {
			return false
		}
		if arrived.Add(1)&1 == 0 {
			return false
		}
		w.Header().Set("Retry-After", "1")
		http.Error(w, `{"error":{"message":"overloaded"}}`, http.StatusServiceUnavailable)
		return true
	})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(decode(1024, 16)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	failed(t, &s.trials[0], record.FailHTTP, "of 16 streams: HTTP status 503")
	records, refused := 0, 0
	for _, r := range s.trials[0].Requests {
		if r.Role == record.RoleMeasured {
			records++
			if r.HTTPStatus == http.StatusServiceUnavailable && r.RetryAfterSeconds != nil {
				refused++
			}
		}
	}
	// The trial ends soon after the first refusal; until then some were refused.
	if int32(records) != arrived.Load() || records != 16 || refused < 1 || refused > 8 {
		t.Errorf("%d arrived, %d records, %d of them refused", arrived.Load(), records, refused)
	}
}

// B05: /health is well from the beginning, the model comes later and its first answer
// later still.
func TestReportHealthIsNotReady(t *testing.T) {
	t.Parallel()
	var looks, answers atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/health":
			return true
		case "/v1/models":
			if looks.Add(1) <= 3 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
		case chatPath:
			answers.Add(1)
		}
		return false
	})
	if err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if looks.Load() != 4 || answers.Load() != 1 {
		t.Errorf("ready after %d looks at the models and %d completions", looks.Load(), answers.Load())
	}
}

// B07: from some moment on no request is answered, the gauges say 0 and /health says
// 200. The cell is failed, and the run ends with that reason.
func TestReportHangs(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if measured(r) {
			hangs.Store(true)
		}
		switch {
		case hangs.Load() && r.URL.Path == chatPath:
			hold(r)
			return true
		case hangs.Load() && r.URL.Path == "/metrics":
			fmt.Fprint(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n")
			return true
		}
		return false
	})
	p := thePlan(decode(1024, 2), decode(1024, 4))
	p.Identity.Limits.ReadyNs, p.Identity.Limits.StallNs = int64(300*time.Millisecond), int64(300*time.Millisecond)
	s := &sink{t: t}
	err := s.measure(t.Context(), e, p, runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailStall || len(s.trials) != 2 {
		t.Fatalf("%d rows, error %v", len(s.trials), err)
	}
	failed(t, &s.trials[0], record.FailStall, "not answered within 300ms (limits.stall)")
	if next := &s.trials[1]; next.Status != record.Skipped {
		t.Errorf("%s", describe(next))
	}
}

// C07: two prompts that fit on paper grow until the pool is full; one is put back into
// the queue and they run one after the other.
func TestReportPreemption(t *testing.T) {
	t.Parallel()
	pr := profile()
	// 2.5 s after the launch, so that it lies in the window however late that opens on a
	// busy machine.
	pr.KVTokens, pr.MaxModelLen = 2*1024+1024, 2048
	p := thePlan(decode(1024, 2))
	p.Identity.Prompts, p.Identity.Capacity.Rule, p.Identity.MaxOutput = "distinct", "try", 900
	p.Identity.WindowNs = int64(3500 * time.Millisecond)
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, pr, simulator.Faults{}), p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	if tr.Status != record.Queued && !busy(tr) || !strings.Contains(tr.Reason, ", and the server preempted ") && !busy(tr) {
		t.Errorf("%s", describe(tr))
	}
	row := metric.Cell(tr, 0)
	if n, ok := row.Value(metric.Preemptions); (!ok || n == 0) && !busy(tr) {
		t.Errorf("preemptions: %v %v", n, ok)
	}
	if _, ok := row.Value(metric.OutputTokensPerSecond); !ok {
		t.Error("the numbers do not stand")
	}
}

// C14: a proxy answers /metrics with a page, and says 200 to it. Nothing is waited
// for, no zero is made of it, and the run goes on.
func TestReportMetricsArePages(t *testing.T) {
	t.Parallel()
	var reads atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/metrics" {
			return false
		}
		reads.Add(1)
		io.WriteString(w, "<html><h1>Welcome</h1> vllm:num_requests_running</html>")
		return true
	})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(prefill(1024), decode(1024, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if e.Launch.MetricsAvailable || e.Launch.KVCapacityTokens != nil || reads.Load() != 1 {
		t.Errorf("read %d times: %+v", reads.Load(), e.Launch)
	}
	for i := range s.trials {
		tr := &s.trials[i]
		if tr.Status != record.Valid && !busy(tr) || tr.IdleBefore != nil || tr.IdleAfter != nil {
			t.Errorf("%s", describe(tr))
		}
		row := metric.Cell(tr, 0)
		for _, name := range []string{metric.RunningMean, metric.WaitingRatio, metric.PrefixHitRatio, metric.Preemptions, metric.KVUsageMax} {
			if v, ok := row.Value(name); ok && name != metric.PrefixHitRatio {
				t.Errorf("%s: %s is %v", tr.StepID, name, v)
			}
		}
	}
}

// D01, D02, D05: what was in the cache. A prefill comes after an unscored one of the
// same shape, finds nothing, and has the server's counters on both sides; a decode
// finds its prompts, on purpose, and the row says both.
func TestReportCache(t *testing.T) {
	t.Parallel()
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, profile(), simulator.Faults{}), thePlan(prefill(2048), decode(4096, 4)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	p := &s.trials[0]
	if len(p.Requests) != 2 || p.Requests[0].Role != record.RoleWarmup || p.Requests[1].Role != record.RoleMeasured ||
		*p.Requests[0].PromptTokens != *p.Requests[1].PromptTokens || *p.Requests[0].EndNs > *p.Requests[1].SentNs || p.CacheDeclared != "cold" {
		t.Fatalf("cache %q, requests %+v", p.CacheDeclared, p.Requests)
	}
	if before, after := readings(p, record.SamplePrefixHits, p.Requests[1].SentNs, p.Requests[1].EndNs); before == 0 || after == 0 {
		t.Errorf("%d readings before the prefill, %d after it", before, after)
	}
	row := metric.Cell(p, 0)
	if v, ok := row.Value(metric.PrefixHitRatio); !ok || v > 0.02 {
		t.Errorf("prefill: %v %v of the prompt came from the cache", v, ok)
	}
	if n, _ := row.Value(metric.TTFTN); n != 1 {
		t.Errorf("prefill: TTFT of %v requests", n)
	}

	d := &s.trials[1]
	if d.CacheDeclared != "warm" {
		t.Errorf("decode: cache %q", d.CacheDeclared)
	}
	// One reading is older than the streams, or their own hits could not be told.
	if before, _ := readings(d, record.SamplePrefixHits, d.LaunchNs, d.WindowEndNs); before == 0 {
		t.Error("decode: no reading before the launch")
	}
	for _, m := range d.Samples {
		if m.Source == record.SourceMetrics && m.AtNs < *d.ScoutEndNs {
			t.Error("decode: a reading is older than the scout, whose hits are not the streams'")
		}
	}
	row = metric.Cell(d, 1)
	if v, ok := row.Value(metric.PrefixHitRatio); (!ok || v < 0.95) && !busy(d) {
		t.Errorf("decode: %v %v of the prompts came from the cache", v, ok)
	}
}

// readings counts those of a name up to one time and from another on.
func readings(t *record.Trial, name string, from, to *int64) (before, after int) {
	for _, s := range t.Samples {
		switch {
		case s.Source != record.SourceMetrics || s.Name != name:
		case s.AtNs <= *from:
			before++
		case s.AtNs >= *to:
			after++
		}
	}
	return before, after
}

// D12: closed streams keep generating for a while. The next cell is not begun before
// the server says that it runs nothing.
func TestReportLingeringStreams(t *testing.T) {
	t.Parallel()
	const linger = 300 * time.Millisecond
	var mu sync.Mutex
	var closed time.Time // when the streams of the first trial were
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != "/metrics" || closed.IsZero() || time.Since(closed) >= linger {
			return false
		}
		fmt.Fprint(w, "vllm:num_requests_running 16\nvllm:num_requests_waiting 0\n")
		return true
	})
	s := &sink{t: t, onTell: func(p runner.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if p.Stage == "drain" && closed.IsZero() {
			closed = time.Now()
		}
	}}
	if err := s.measure(t.Context(), e, thePlan(decode(0, 16), decode(0, 1)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	first, next := &s.trials[0], &s.trials[1]
	if first.IdleAfter == nil || !*first.IdleAfter || next.IdleBefore == nil || !*next.IdleBefore {
		t.Fatalf("idle after %v, idle before the next %v", first.IdleAfter, next.IdleBefore)
	}
	if after := time.Duration(first.EndNs - *first.WindowEndNs); after < linger-50*time.Millisecond {
		t.Errorf("the trial ended %v after its window, the server's streams after %v", after, linger)
	}
	if next.Status != record.Valid && !busy(next) {
		t.Errorf("%s", describe(next))
	}
}

// A37: a server that keeps the connection open after [DONE], and sends more. The
// request ends there, its successor follows at once, and what came late is nothing.
func TestReportOpenAfterDone(t *testing.T) {
	t.Parallel()
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if !measured(r) {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		out := http.NewResponseController(w)
		for n := 1; n <= 5; n++ {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":1024,\"completion_tokens\":%d}}\n\n", n)
			out.Flush()
			<-time.After(10 * time.Millisecond)
		}
		io.WriteString(w, "data: [DONE]\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"late\"}}],\"usage\":{\"completion_tokens\":99}}\n\n")
		out.Flush()
		hold(r)
		return true
	})
	s := &sink{t: t}
	if err := s.measure(t.Context(), e, thePlan(decode(1024, 2)), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	completed, slow := 0, 0
	ends := map[int]int64{}
	for _, r := range s.trials[0].Requests {
		if r.Role != record.RoleMeasured {
			continue
		}
		if end, ok := ends[r.Stream]; ok && r.DueNs-end > int64(50*time.Millisecond) {
			slow++
		}
		ends[r.Stream] = *r.EndNs
		if r.Outcome == record.OutcomeCompleted {
			completed++
			if *r.CompletionTokens != 5 || len(r.Chunks) != 5 {
				t.Errorf("%d tokens in %d events", *r.CompletionTokens, len(r.Chunks))
			}
		}
	}
	if completed < 8 || slow*2 > completed { // a machine that pauses makes some slow
		t.Errorf("%d requests ended, %d successors came late: %s", completed, slow, describe(&s.trials[0]))
	}
}

// B08: for a while nothing listens at all; that is no error of an engine that starts.
func TestReportPortOpensLate(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{})
	var tries atomic.Int32
	late := transport(func(r *http.Request) (*http.Response, error) {
		if tries.Add(1) <= 4 {
			return nil, syscall.ECONNREFUSED
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{Transport: late}); err != nil {
		t.Errorf("after %d tries: %v", tries.Load(), err)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// D07: 32 requests of 1 MB at once. The client is not the limit, or says that it is.
func TestReportLargeBodies(t *testing.T) {
	// Not beside other tests, whose clocks the work of this engine would stop.
	pr := profile()
	pr.MaxModelLen, pr.KVTokens, pr.Slots = 1<<20, 1<<24, 32
	pr.Prefill[0].TokensPerSecond = 1e8
	pr.Decode.Rows[0].Ms = simulator.Millis(50)
	p := thePlan(decode(250_000, 32))
	s := &sink{t: t}
	if err := s.measure(t.Context(), serve(t, pr, simulator.Faults{}), p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &s.trials[0]
	if tr.Status != record.Valid && !busy(tr) || tr.PromptTokens == nil || *tr.PromptTokens != 250_000 || tr.Client.PeakOpen != 32 {
		t.Errorf("%s, %v tokens, %d open", describe(tr), tr.PromptTokens, tr.Client.PeakOpen)
	}
	row := metric.Cell(tr, 0)
	lag, ok1 := row.Value(metric.SendLagMax)
	cpu, ok2 := row.Value(metric.ClientCPU)
	if !ok1 || !ok2 {
		t.Error("the client says nothing of itself")
	}
	t.Logf("%s: sent at most %.3f s late, %.2f of the cores", tr.Status, lag, cpu)
}

// D27: one of 8 streams breaks in the window.
func TestReportOneStreamBreaks(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	s, err := simulator.New(profile(), simulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine := s.Handler()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if measured(r) && broken.CompareAndSwap(false, true) {
			w = &breaks{ResponseWriter: w, left: 300 * 250} // 1.5 s of events
		}
		engine.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		front.CloseClientConnections()
		front.Close()
	})
	p := thePlan(decode(1024, 8))
	p.Identity.WindowNs = int64(20 * time.Second)
	out := &sink{t: t}
	if err := out.measure(t.Context(), &runner.Engine{BaseURL: front.URL, Launch: record.Launch{Number: 1}}, p, runner.Options{}); err != nil {
		t.Fatal(err)
	}
	tr := &out.trials[0]
	failed(t, tr, record.FailTruncated, "1 of 8 streams")
	if tr.WindowStartNs == nil || *tr.WindowEndNs-*tr.WindowStartNs > int64(10*time.Second) {
		t.Errorf("the window: %v to %v", tr.WindowStartNs, tr.WindowEndNs)
	}
}

// breaks is a connection that ends after so many bytes.
type breaks struct {
	http.ResponseWriter
	left int
}

func (b *breaks) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return b.ResponseWriter.Write(p)
}

func (b *breaks) Flush() { b.ResponseWriter.(http.Flusher).Flush() }

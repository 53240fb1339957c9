package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// totals are what /metrics tells beside the scheduler's counters. They are guarded
// by the server's mutex.
type totals struct {
	stop, length, abort int64

	promptTokens, generationTokens, ttft, e2e, queue, perToken histogram
}

func (t *totals) init() {
	t.promptTokens.bounds = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000}
	t.generationTokens.bounds = t.promptTokens.bounds
	t.ttft.bounds = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	t.e2e.bounds = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	t.queue.bounds = t.e2e.bounds
	t.perToken.bounds = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	for _, h := range []*histogram{&t.promptTokens, &t.generationTokens, &t.ttft, &t.e2e, &t.queue, &t.perToken} {
		h.counts = make([]int64, len(h.bounds)+1)
	}
}

// token notes that r got n tokens at a time.
func (t *totals) token(r *request, n int, at time.Duration) {
	if r.generated == n {
		t.ttft.observe((at - r.arrived).Seconds())
		t.queue.observe((r.admitted - r.arrived).Seconds())
	}
	if r.place != nowhere {
		return
	}
	if r.stops {
		t.stop++
	} else {
		t.length++
	}
	t.promptTokens.observe(float64(r.prompt.tokens))
	t.generationTokens.observe(float64(r.generated))
	t.e2e.observe((at - r.arrived).Seconds())
	if r.generated > 1 {
		t.perToken.observe((at - r.first).Seconds() / float64(r.generated-1))
	}
}

type histogram struct {
	bounds []float64
	counts []int64 // the last one is above all bounds
	sum    float64
}

func (h *histogram) observe(v float64) {
	i := 0
	for i < len(h.bounds) && v > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += v
}

// exposition writes Prometheus text with the labels vLLM gives its metrics.
type exposition struct {
	b      []byte
	labels string
}

func (e *exposition) kind(name, kind string) {
	e.b = fmt.Appendf(e.b, "# TYPE vllm:%s %s\n", name, kind)
}

func (e *exposition) value(name, extra string, v float64) {
	e.b = append(e.b, "vllm:"...)
	e.b = append(e.b, name...)
	e.b = append(e.b, '{')
	e.b = append(e.b, e.labels...)
	e.b = append(e.b, extra...)
	e.b = append(e.b, "} "...)
	e.b = strconv.AppendFloat(e.b, v, 'g', -1, 64)
	e.b = append(e.b, '\n')
}

func (e *exposition) gauge(name string, v float64) {
	e.kind(name, "gauge")
	e.value(name, "", v)
}

func (e *exposition) counter(name string, v int64) {
	e.kind(name, "counter")
	e.value(name, "", float64(v))
}

func (e *exposition) histogram(name string, h *histogram) {
	e.kind(name, "histogram")
	n := int64(0)
	for i, c := range h.counts {
		n += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = strconv.FormatFloat(h.bounds[i], 'g', -1, 64)
		}
		e.value(name+"_bucket", `,le="`+le+`"`, float64(n))
	}
	e.value(name+"_count", "", float64(n))
	e.value(name+"_sum", "", h.sum)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	f := &s.opts.Faults
	if f.MetricsDelay > 0 {
		t := time.NewTimer(f.MetricsDelay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		case <-s.closing:
			panic(http.ErrAbortHandler)
		}
	}
	if f.MetricsStatus != 0 {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(f.MetricsStatus)
		fmt.Fprintf(w, "<html><head><title>%d %s</title></head><body><center><h1>%[1]d %[2]s</h1></center></body></html>\n",
			f.MetricsStatus, http.StatusText(f.MetricsStatus))
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	w.Write(s.exposition())
}

func (s *Server) exposition() []byte {
	p := &s.profile
	e := &exposition{b: make([]byte, 0, 16<<10)}
	e.labels = `engine="0",model_name=` + promString(p.Models[0])

	s.mu.Lock()
	defer s.mu.Unlock()
	sc, st, t := s.sched, &s.sched.stats, &s.done
	waiting := float64(len(sc.waiting))
	e.gauge("num_requests_running", float64(sc.running()))
	e.gauge("num_requests_waiting", waiting)
	e.kind("num_requests_waiting_by_reason", "gauge")
	e.value("num_requests_waiting_by_reason", `,reason="capacity"`, waiting)
	e.value("num_requests_waiting_by_reason", `,reason="deferred"`, 0)
	e.gauge("kv_cache_usage_perc", float64(sc.kv.held)/float64(sc.kv.total))
	e.counter("prefix_cache_queries_total", st.queriedTokens)
	e.counter("prefix_cache_hits_total", st.hitTokens)
	e.counter("num_preemptions_total", st.preemptions)
	e.counter("prompt_tokens_total", st.promptTokens)
	e.kind("prompt_tokens_by_source_total", "counter")
	e.value("prompt_tokens_by_source_total", `,source="local_compute"`, float64(st.promptTokens-st.cachedTokens))
	e.value("prompt_tokens_by_source_total", `,source="local_cache_hit"`, float64(st.cachedTokens))
	e.value("prompt_tokens_by_source_total", `,source="external_kv_transfer"`, 0)
	e.counter("prompt_tokens_cached_total", st.cachedTokens)
	e.counter("generation_tokens_total", st.generatedTokens)
	if p.TokensPerChunk > 1 {
		e.counter("spec_decode_num_drafts_total", st.drafts)
		e.counter("spec_decode_num_draft_tokens_total", st.drafts*int64(p.TokensPerChunk-1))
		e.counter("spec_decode_num_accepted_tokens_total", st.accepted)
	}
	e.kind("request_success_total", "counter")
	for _, x := range []struct {
		reason string
		n      int64
	}{{"stop", t.stop}, {"length", t.length}, {"abort", t.abort}, {"error", 0}, {"repetition", 0}} {
		e.value("request_success_total", `,finished_reason="`+x.reason+`"`, float64(x.n))
	}
	e.histogram("request_prompt_tokens", &t.promptTokens)
	e.histogram("request_generation_tokens", &t.generationTokens)
	e.histogram("time_to_first_token_seconds", &t.ttft)
	e.histogram("e2e_request_latency_seconds", &t.e2e)
	e.histogram("request_queue_time_seconds", &t.queue)
	e.histogram("request_time_per_output_token_seconds", &t.perToken)
	// cache_config_info has no model_name.
	e.labels = `engine="0"`
	e.kind("cache_config_info", "gauge")
	e.value("cache_config_info", s.cacheConfig(), 1)
	return e.b
}

func (s *Server) cacheConfig() string {
	p := &s.profile
	caching := "False"
	if p.PrefixCaching {
		caching = "True"
	}
	size := s.sched.kv.total * p.BlockTokens
	return fmt.Sprintf(`,block_size="%d",cache_dtype="auto",enable_prefix_caching="%s",kv_cache_max_concurrency="%s",kv_cache_size_tokens="%d",mamba_block_size="None",num_gpu_blocks="%d",num_gpu_blocks_override="None"`,
		p.BlockTokens, caching, strconv.FormatFloat(float64(size)/float64(p.MaxModelLen), 'f', 2, 64), size, s.sched.kv.total)
}

// promString quotes a label value.
func promString(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; c {
		case '\\', '"':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

package vllm

import (
	"bytes"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"speedmatrix/results/record"
)

// Where a KV capacity comes from, as stored.
const (
	CapacityLabel   = "label"  // kv_cache_size_tokens of vllm:cache_config_info
	CapacityBlocks  = "blocks" // num_gpu_blocks × block_size
	CapacityLog     = "log"    // the start-up log's maximum concurrency
	CapacityUnknown = "unknown"
)

// maxBody is more than any body of /metrics: one of vLLM's has 43 KB, and one engine
// more adds as much.
const maxBody = 8 << 20

// Reading is what changes from scrape to scrape. Counts are sums over the engines
// of a data-parallel server. Nil: not known.
type Reading struct {
	// Available is false if the body is not vLLM's metrics at all: a proxy's error page,
	// another server.
	Available bool

	Running     *int64   // requests in execution batches
	Waiting     *int64   // requests waiting
	KVUsage     *float64 // 0 to 1, of the fullest engine
	Preemptions *int64   // counter

	// Prompt tokens looked up in the prefix cache, and found. First V1 versions count
	// blocks.
	PrefixQueries, PrefixHits *int64

	PromptTokens, GenerationTokens *int64 // counters

	// Speculation: drafts made, tokens in them, tokens accepted.
	SpecDrafts, SpecDraftTokens, SpecAccepted *int64
}

// Metrics is everything a body of /metrics says.
type Metrics struct {
	Reading
	Engines int // data-parallel engines; 0 if not available

	// KVCapacityTokens is the sum over the engines. A single request must fit one
	// engine: see KVCapacityPerEngine, in the order of their numbers.
	KVCapacityTokens    *int64
	KVCapacityPerEngine []int64
	KVCapacitySource    string
	// KVCapacityTolerance is by how many tokens the capacity can be off, because the
	// log rounds; 0 for other sources.
	KVCapacityTolerance int64
}

// field is one number of a [Reading].
type field int

const (
	running field = iota
	waiting
	kvUsage
	preemptions
	prefixQueries
	prefixHits
	promptTokens
	generationTokens
	specDrafts
	specDraftTokens
	specAccepted
	fields // how many
)

// ranks is how many names one field has at most.
const ranks = 3

// fieldOf gives the field that a series belongs to, and the rank of its name: lower
// is better. Names of one field are never added up; versions in between export the
// old and the new one side by side.
func fieldOf(name []byte) (f field, rank int, ok bool) {
	switch string(name) { // allocates nothing
	case "vllm:num_requests_running":
		return running, 0, true
	case "vllm:num_requests_waiting":
		return waiting, 0, true
	case "vllm:kv_cache_usage_perc":
		return kvUsage, 0, true
	case "vllm:gpu_cache_usage_perc":
		return kvUsage, 1, true
	case "vllm:num_preemptions_total":
		return preemptions, 0, true
	case "vllm:num_preemptions":
		return preemptions, 1, true
	case "vllm:prefix_cache_queries_total":
		return prefixQueries, 0, true
	case "vllm:prefix_cache_queries":
		return prefixQueries, 1, true
	case "vllm:gpu_prefix_cache_queries_total":
		return prefixQueries, 2, true
	case "vllm:prefix_cache_hits_total":
		return prefixHits, 0, true
	case "vllm:prefix_cache_hits":
		return prefixHits, 1, true
	case "vllm:gpu_prefix_cache_hits_total":
		return prefixHits, 2, true
	case "vllm:prompt_tokens_total":
		return promptTokens, 0, true
	case "vllm:generation_tokens_total":
		return generationTokens, 0, true
	case "vllm:spec_decode_num_drafts_total":
		return specDrafts, 0, true
	case "vllm:spec_decode_num_draft_tokens_total":
		return specDraftTokens, 0, true
	case "vllm:spec_decode_num_accepted_tokens_total":
		return specAccepted, 0, true
	}
	return 0, 0, false
}

const prefix = "vllm:"

// tally adds series up.
type tally struct {
	available bool
	sums      [fields][ranks]struct {
		sum, max float64
		n        int
		unknown  bool // some series had no number: then the sum is none either
	}
}

func (t *tally) add(f field, rank int, v float64) {
	s := &t.sums[f][rank]
	s.n++
	if !(v >= 0) || math.IsInf(v, 1) { // NaN, and -1 for "none yet"
		s.unknown = true
		return
	}
	s.sum += v
	s.max = max(s.max, v)
}

func (t *tally) reading() Reading {
	r := Reading{Available: t.available}
	if !t.available {
		return r
	}
	for f, to := range map[field]**int64{
		running: &r.Running, waiting: &r.Waiting, preemptions: &r.Preemptions,
		prefixQueries: &r.PrefixQueries, prefixHits: &r.PrefixHits,
		promptTokens: &r.PromptTokens, generationTokens: &r.GenerationTokens,
		specDrafts: &r.SpecDrafts, specDraftTokens: &r.SpecDraftTokens, specAccepted: &r.SpecAccepted,
	} {
		for _, s := range t.sums[f] {
			if s.n > 0 && !s.unknown && s.sum == math.Trunc(s.sum) && s.sum <= 1<<53 {
				n := int64(s.sum)
				*to = &n
				break
			}
		}
	}
	for _, s := range t.sums[kvUsage] {
		if s.n > 0 && !s.unknown {
			usage := s.max
			r.KVUsage = &usage
			break
		}
	}
	return r
}

// Values gives what is known, under the names that are stored.
func (r *Reading) Values() iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for _, s := range []struct {
			name  string
			count *int64
		}{
			{record.SampleRunning, r.Running},
			{record.SampleWaiting, r.Waiting},
			{record.SamplePreemptions, r.Preemptions},
			{record.SamplePrefixQueries, r.PrefixQueries},
			{record.SamplePrefixHits, r.PrefixHits},
			{record.SampleGeneration, r.GenerationTokens},
			{record.SampleSpecDrafts, r.SpecDrafts},
			{record.SampleSpecAccepted, r.SpecAccepted},
		} {
			if s.count != nil && !yield(s.name, float64(*s.count)) {
				return
			}
		}
		if r.KVUsage != nil {
			yield(record.SampleKVUsage, *r.KVUsage)
		}
	}
}

// Gauges reads a body of /metrics for what changes. It gives what [Parse] gives for
// every body that vLLM sends, in a fraction of the time: it looks only at the lines it
// knows.
func Gauges(body []byte) Reading {
	var t tally
	if len(body) > maxBody {
		return Reading{}
	}
	for len(body) > 0 {
		line := body
		if at := bytes.IndexByte(body, '\n'); at >= 0 {
			line, body = body[:at], body[at+1:]
		} else {
			body = nil
		}
		if len(line) < len(prefix) || string(line[:len(prefix)]) != prefix {
			continue
		}
		end := bytes.IndexAny(line, "{ \t")
		if end < 0 {
			return Reading{} // cut short, or no metrics
		}
		t.available = true
		f, rank, ok := fieldOf(line[:end])
		if !ok {
			continue
		}
		rest := line[end:]
		if rest[0] == '{' {
			// A label's value may hold a brace; a number and a time do not.
			rest = rest[bytes.LastIndexByte(rest, '}')+1:]
		}
		value := bytes.Fields(rest)
		if len(value) == 0 {
			return Reading{}
		}
		v, err := strconv.ParseFloat(string(value[0]), 64)
		if err != nil {
			return Reading{}
		}
		t.add(f, rank, v)
	}
	return t.reading()
}

// Parse reads a whole body of /metrics. Log, which may be nil, helps out where the
// metrics do not tell the KV capacity.
func Parse(body []byte, log *LogFacts) Metrics {
	var t tally
	var caches []cache
	engines := map[string]bool{}

	var families map[string]*dto.MetricFamily
	if len(body) <= maxBody {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		var err error
		if families, err = parser.TextToMetricFamilies(bytes.NewReader(body)); err != nil {
			families = nil // cut short, or no metrics: half of them would be wrong sums
		}
	}
	for name, family := range families {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		t.available = true
		f, rank, known := fieldOf([]byte(name))
		for _, m := range family.GetMetric() {
			switch {
			case known:
				if v, ok := value(m); ok {
					t.add(f, rank, v)
				}
			case name == "vllm:cache_config_info":
				caches = append(caches, readCache(m))
			default:
				continue
			}
			engines[label(m, "engine")] = true
		}
	}

	out := Metrics{Reading: t.reading(), KVCapacitySource: CapacityUnknown}
	if t.available {
		// Without labels, as in older versions, it is one engine.
		out.Engines = max(1, len(engines))
		if len(engines) > 1 && engines[""] {
			out.Engines-- // some series have no engine: they are of the server
		}
	}
	out.capacity(caches, log)
	return out
}

// capacity picks the best source that knows all engines: the sum over some of them
// would call cells over capacity that fit.
func (m *Metrics) capacity(caches []cache, log *LogFacts) {
	slices.SortStableFunc(caches, func(a, b cache) int { return a.engine - b.engine })
	for _, source := range []struct {
		name   string
		tokens func(cache) *int64
	}{
		{CapacityLabel, func(c cache) *int64 { return c.size }},
		{CapacityBlocks, cache.product},
	} {
		var each []int64
		for _, c := range caches {
			if n := source.tokens(c); n != nil {
				each = append(each, *n)
			}
		}
		if len(each) > 0 && len(each) == len(caches) && len(each) == m.Engines {
			m.setCapacity(source.name, each, 0)
			return
		}
	}
	// Without metrics the log alone says how many engines there are.
	if each, tolerance := log.Capacity(); len(each) > 0 && (len(each) == m.Engines || !m.Available) {
		m.setCapacity(CapacityLog, each, tolerance)
	}
}

func (m *Metrics) setCapacity(source string, each []int64, tolerance int64) {
	var sum int64
	for _, n := range each {
		sum += n
	}
	m.KVCapacityTokens, m.KVCapacityPerEngine = &sum, each
	m.KVCapacitySource, m.KVCapacityTolerance = source, tolerance
}

// cache is one series of vllm:cache_config_info. It is an info metric: its labels
// are Python's str() of the values.
type cache struct {
	engine       int
	size         *int64
	blocks, each *int64
	mamba        bool
}

func readCache(m *dto.Metric) cache {
	engine, _ := strconv.Atoi(label(m, "engine"))
	mamba := label(m, "mamba_block_size")
	return cache{
		engine: engine,
		size:   tokens(label(m, "kv_cache_size_tokens")),
		blocks: tokens(label(m, "num_gpu_blocks")),
		each:   tokens(label(m, "block_size")),
		mamba:  mamba != "" && mamba != "None",
	}
}

// product is the capacity of a model whose layers all have the same kind of block.
// In one with Mamba layers the blocks are shared out and the product means nothing.
func (c cache) product() *int64 {
	if c.mamba || c.blocks == nil || c.each == nil || *c.blocks > maxCount / *c.each {
		return nil
	}
	n := *c.blocks * *c.each
	return &n
}

// maxCount bounds counts from outside, so that no sum of them can overflow. It is a
// million caches of a million tokens.
const maxCount = 1 << 40

// tokens reads a positive whole number; None, -1, 0 and nothing are none.
func tokens(s string) *int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n <= 0 || n > maxCount {
		return nil
	}
	return &n
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func value(m *dto.Metric) (float64, bool) {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue(), true
	case m.Counter != nil:
		return m.Counter.GetValue(), true
	case m.Untyped != nil:
		return m.Untyped.GetValue(), true
	}
	return 0, false
}

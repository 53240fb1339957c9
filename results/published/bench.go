package published

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"speedmatrix/results/record"
)

// The --output file of llm-inference-bench, as far as a page needs it. Pointers
// are fields that some versions do not have, or that are null for a cell without
// a result.
type benchFile struct {
	Metadata *benchMeta              `json:"metadata"`
	Prefill  map[string]benchPrefill `json:"prefill"`
	Results  []benchResult           `json:"results"`
}

type benchMeta struct {
	Version           string  `json:"version"`
	Engine            string  `json:"engine"`
	Model             string  `json:"model"`
	Timestamp         string  `json:"timestamp"`
	DecodeMode        string  `json:"decode_mode"`
	Duration          float64 `json:"duration_per_test"`
	PrefillMode       string  `json:"prefill_mode"`
	MaxTokens         int     `json:"max_tokens"`
	KVBudget          int64   `json:"max_total_tokens"`
	MetricsAvailable  *bool   `json:"metrics_available"`
	ConcurrencyLevels []int   `json:"concurrency_levels"`
	ContextLengths    []int   `json:"context_lengths"`
}

type benchPrefill struct {
	TTFTSeconds  *float64 `json:"ttft_seconds"`
	TokPerSec    *float64 `json:"tok_per_sec"`
	PromptTokens *float64 `json:"prompt_tokens"`
	Samples      *float64 `json:"samples"`
}

type benchResult struct {
	Concurrency   int      `json:"concurrency"`
	ContextTokens int      `json:"context_tokens"`
	AggregateTPS  *float64 `json:"aggregate_tps"`
	PerRequest    *float64 `json:"output_tps_per_user_p50"`
	TTFT          *float64 `json:"ttft_p50"`
	ITL           *float64 `json:"inter_token_latency_p50"`
	AvgRunning    *float64 `json:"avg_running_reqs"`
	Completed     *float64 `json:"completed_request_count"`
	OutputTokens  *float64 `json:"client_output_tokens"`
	Measured      *float64 `json:"measurement_seconds"`
	InputTokens   *float64 `json:"input_seq_len_avg"`

	CapacityLimited bool    `json:"capacity_limited"`
	WarmupTimedOut  bool    `json:"warmup_timed_out"`
	WarmupDuration  float64 `json:"warmup_duration"`
	TimeoutReason   string  `json:"timeout_reason"`
	FailureReason   string  `json:"failure_reason"`
	LoopDetected    bool    `json:"loop_detected"`
}

// Values of aggregate_tps that are no rates.
const (
	benchLoop   = -3
	benchFailed = -4
)

// readBenchJSON reads a file of llm-inference-bench. Cells that the tool left out
// because they would not fit the KV cache are not in the file; they follow from
// the lists in its metadata.
func (p *Page) readBenchJSON(data []byte, errs *mistakes) {
	var f benchFile
	if err := json.Unmarshal(data, &f); err != nil {
		errs.add(0, "not readable as the output of llm-inference-bench: %v", err)
		return
	}
	m := f.Metadata
	if m == nil || f.Results == nil {
		errs.add(0, "no metadata and results: this is no --output file of llm-inference-bench")
		return
	}
	if len(m.ConcurrencyLevels) > maxCells || len(m.ContextLengths) > maxCells ||
		len(m.ConcurrencyLevels)*len(m.ContextLengths)+len(f.Prefill)+len(f.Results) > maxRows {
		errs.add(0, "the matrix has more cells than a page can have (%d)", maxRows)
		return
	}
	for _, s := range []string{m.Version, m.Engine, m.Model, m.Timestamp, m.DecodeMode, m.PrefillMode} {
		if len(s) > maxText {
			errs.add(0, "a text in metadata has %d bytes, more than a field can have (%d)", len(s), maxText)
			return
		}
	}
	p.benchRun(m, errs)

	for _, ctx := range sortedContexts(f.Prefill, errs) {
		b := f.Prefill[strconv.Itoa(ctx)]
		r := &row{phase: record.PhasePrefill, context: ctx, label: contextLabel(ctx), requests: 1, status: record.Valid,
			promptTokens: positive(b.PromptTokens)}
		r.n[mTotal] = exact(b.TokPerSec, rate, 0.5) // the tool rounds to whole tokens per second
		r.n[mTTFT] = exact(b.TTFTSeconds, seconds, 0.5e-3)
		r.n[mCompleted] = exact(b.Samples, count, 0)
		p.rows = append(p.rows, r)
	}

	type key struct{ ctx, c int }
	results := map[key]*benchResult{}
	for i := range f.Results {
		b := &f.Results[i]
		k := key{b.ContextTokens, b.Concurrency}
		switch {
		case !slices.Contains(m.ContextLengths, k.ctx) || !slices.Contains(m.ConcurrencyLevels, k.c):
			errs.add(0, "results[%d]: context %d with %d requests is not in the lists of metadata", i, k.ctx, k.c)
		case results[k] != nil:
			errs.add(0, "results[%d]: context %d with %d requests stands twice", i, k.ctx, k.c)
		}
		results[k] = b
	}
	for _, ctx := range m.ContextLengths {
		for _, c := range m.ConcurrencyLevels {
			if ctx < 0 || ctx > maxContext || c < 1 || c > maxRequests {
				errs.add(0, "metadata: context %d with %d requests is no cell", ctx, c)
				return
			}
			r := &row{phase: record.PhaseDecode, context: ctx, label: contextLabel(ctx), requests: c}
			if b := results[key{ctx, c}]; b != nil {
				r.fromBench(b, m)
			} else if m.KVBudget > 0 && (int64(ctx)+int64(m.MaxTokens))*int64(c) > m.KVBudget {
				r.status = record.OverCapacity
			} else {
				// The tool keeps no row for a cell that a person skipped or that it did not reach.
				r.status, r.reason = record.Skipped, "not in the results"
			}
			p.rows = append(p.rows, r)
		}
	}
	if len(p.rows) == 0 {
		errs.add(0, "the file has no cells")
	}
}

// benchRun fills the blocks about engine and run.
func (p *Page) benchRun(m *benchMeta, errs *mistakes) {
	p.Run.Title = m.Model + ", measured by llm-inference-bench " + m.Version
	p.Run.Engine.Engine = m.Engine
	l := &p.Run.Load
	l.ServedModel = m.Model
	l.BenchmarkTool = "llm-inference-bench v" + m.Version
	l.DecodeTest, l.PrefillMode = m.DecodeMode, m.PrefillMode
	switch m.DecodeMode { // the words of the pages
	case "duration":
		l.DecodeTest = "Fixed duration"
	}
	switch m.PrefillMode {
	case "integrated_decode_scout":
		l.PrefillMode = "Measured during decode warm-up"
	}
	if m.Duration > 0 && m.Duration < 7*24*3600 {
		l.TimePerMeasure = strconv.FormatFloat(m.Duration, 'f', -1, 64) + " s"
		p.Experiment.Duration = time.Duration(m.Duration * float64(time.Second)).Round(time.Millisecond)
	}
	if m.MaxTokens < 0 || m.MaxTokens > maxContext || m.KVBudget < 0 {
		errs.add(0, "metadata: max_tokens %d or max_total_tokens %d is out of range", m.MaxTokens, m.KVBudget)
		m.MaxTokens, m.KVBudget = 0, 0
	}
	if m.MaxTokens > 0 {
		l.MaxOutput = grouped(float64(m.MaxTokens)) + " tokens"
		p.Experiment.MaxOutput = m.MaxTokens
	}
	p.kv = m.KVBudget
	if m.Timestamp != "" {
		p.Other = append(p.Other, record.Field{Label: "Timestamp (local, no zone)", Value: m.Timestamp})
	}
}

// fromBench fills a row with a result.
func (r *row) fromBench(b *benchResult, m *benchMeta) {
	tps := math.NaN()
	if b.AggregateTPS != nil {
		tps = *b.AggregateTPS
	}
	switch {
	case b.LoopDetected || tps == benchLoop:
		r.status = record.Loop
	case b.FailureReason != "" || tps == benchFailed || math.IsNaN(tps) || tps < 0:
		r.status, r.reason = record.Failed, clip(b.FailureReason, maxText)
	case b.CapacityLimited && tps > 0:
		r.status = record.Queued
	case b.CapacityLimited:
		r.status = record.OverCapacity // sent, and not one token came
	default:
		r.status = record.Valid
	}
	if b.WarmupTimedOut {
		r.notReady = fmt.Sprintf("%s after %.1f s", clip(b.TimeoutReason, 200), b.WarmupDuration)
	}
	r.promptTokens = positive(b.InputTokens)
	if r.status != record.OverCapacity && r.status != record.Failed && r.status != record.Loop {
		r.n[mTotal] = exact(b.AggregateTPS, rate, 0)
	}
	// The tool writes 0 for a statistic of nothing.
	r.n[mEach] = exact(positive(b.PerRequest), rate, 0)
	r.n[mTTFT] = exact(positive(b.TTFT), seconds, 0)
	r.n[mGap] = exact(positive(b.ITL), seconds, 0)
	if m.MetricsAvailable == nil || *m.MetricsAvailable {
		r.n[mActive] = exact(b.AvgRunning, mean, 0.05)
	}
	r.n[mCompleted] = exact(b.Completed, count, 0)
	r.n[mTokens] = exact(b.OutputTokens, count, 0)
	r.n[mMeasured] = exact(positive(b.Measured), seconds, 0.5e-6)
}

// sortedContexts returns the keys of prefill, ascending.
func sortedContexts(prefill map[string]benchPrefill, errs *mistakes) []int {
	var list []int
	for k := range prefill {
		n, err := strconv.Atoi(k)
		if err != nil || n < 0 || n > maxContext || strconv.Itoa(n) != k {
			errs.add(0, "prefill: %q is no context in tokens", clip(k, 60))
			continue
		}
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// positive drops what the tool writes when it has no value.
func positive(v *float64) *float64 {
	if v == nil || *v <= 0 {
		return nil
	}
	return v
}

// exact makes a number of a value of the file; half is the tool's own rounding.
func exact(v *float64, q quantity, half float64) *number {
	if v == nil || *v < 0 || *v > 1e15 || q == count && *v != math.Trunc(*v) {
		return nil
	}
	n := &number{value: *v, half: half}
	switch q {
	case seconds:
		if n.text = strconv.FormatFloat(*v, 'f', 3, 64) + " s"; *v < 1 {
			n.text = strconv.FormatFloat(*v*1000, 'f', 2, 64) + " ms"
		}
	case count:
		n.text = grouped(*v)
	default:
		n.text = strconv.FormatFloat(*v, 'f', 1, 64)
	}
	return n
}

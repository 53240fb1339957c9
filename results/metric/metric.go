// Package metric declares each metric once: name, unit, which way is better,
// definition, and the function that computes it from stored events. It makes the
// rows of cells.parquet.
//
// It does not know how events were observed (runner), where they are stored
// (store) or how a number is shown (report), and sees only package record, so
// every number can be computed again from stored files.
//
// # Flow
//
//  1. [Cell] looks at a trial once: which requests count, how many tokens each
//     output event stands for, which events are inside the window.
//  2. Every metric of [All] takes its value from that one look.
//  3. A status without headline numbers loses them; figures that contradict the
//     trial's own events are refused, with a warning on the cell.
//
// # Which requests count
//
// Requests of role measured that did not fail. A failed request is counted in
// failed_requests and in nothing else. The window holds events with stamps in
// [start, end). Percentiles interpolate linearly at (n − 1)·p over the sorted
// sample; a p90 needs 10 values and a p99 needs 100, else it is absent.
//
// # Tokens
//
// Tokens come from the server's count and from nothing else. Each growth of the
// count is spread evenly over the output events since the growth before it: with
// running usage that is the event itself; with one usage at the end, all output
// events of the request. It is never credited to the moment at which a usage
// arrived. Without any usage the server's /tokenize count of the received text is
// spread in the same way. If one request with output inside the window has no
// count at all, the cell has no token figure. Cell.TokenSource names the worst
// source among the requests with output in the window.
//
// # Two scopes
//
// The metrics whose names begin with ref_ are what llm-inference-bench 0.7.7 to
// 0.8.0 would print for the same events, with its scopes and formulas. A
// published page fills exactly these:
//
//	Total tok/s               decode   ref_output_tokens_per_second
//	Total tok/s               prefill  ref_prefill_tokens_per_second
//	Per request tok/s         decode   ref_request_tokens_per_second_p50
//	TTFT                      both     ref_ttft_seconds_p50
//	Time between tokens       decode   ref_tpot_seconds_p50
//	Average active requests   decode   ref_active_requests_mean
//	Completed requests        both     ref_completed_requests
//	Output tokens             decode   ref_output_tokens
//	Measured for              decode   ref_window_seconds
//
// and [Metric.Twin] names, for each of them, our own metric of the same column.
package metric

import (
	"slices"

	"speedmatrix/results/record"
)

// Scopes of a metric.
const (
	ScopeWindow    = "window"    // events inside the window
	ScopeRequests  = "requests"  // the requests launched for the cell and their successors
	ScopeTrial     = "trial"     // the whole trial
	ScopeReference = "reference" // as the reference tool scopes it
)

// Metric is one number that a cell can have.
type Metric struct {
	Name   string   // with the unit in it; the column of cells.parquet
	Label  string   // for people, without the unit
	Unit   string   // "tokens/s", "seconds", "tokens", "requests", "ratio", …; empty: a plain count
	Better int      // +1 higher, -1 lower, 0 neither
	Phases []string // phases in which it exists
	Scope  string   // one of the Scope constants

	// Integer: the value is a whole number and is stored as one.
	Integer bool
	// Headline: a throughput, a latency, or a count that belongs to one. Only
	// statuses whose numbers stand have it; see [HasNumbers].
	Headline bool
	// Tokens: the value is made from output tokens, so it is absent where these are
	// unknown or were refused.
	Tokens bool
	// Twin is the metric that holds the same column of a page in the other scope.
	Twin string

	Definition string // one sentence
	Since      int    // schema version that added it

	value func(*look) (float64, bool)
}

// Value computes the metric for a trial. False: not known, not measured, or not
// to be had with the trial's status.
func (m Metric) Value(t *record.Trial) (float64, bool) { return m.of(newLook(t)) }

// In says whether the metric exists in a phase.
func (m Metric) In(phase string) bool { return slices.Contains(m.Phases, phase) }

// HasNumbers says whether throughputs and latencies of a trial with this status
// stand.
func HasNumbers(s record.Status) bool {
	switch s {
	case record.Valid, record.Queued, record.Underfilled, record.ClientLimited:
		return true
	}
	return false
}

// ByName returns the metric with that name.
func ByName(name string) (Metric, bool) {
	for _, m := range All() {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{}, false
}

// Names of the metrics that other packages speak of.
const (
	OutputTokensPerSecond     = "output_tokens_per_second"
	OutputTokensPerSecondPeak = "output_tokens_per_second_peak"
	RequestTokensPerSecond    = "request_tokens_per_second_p50"
	PrefillTokensPerSecond    = "prefill_tokens_per_second"
	TTFT                      = "ttft_seconds_p50"
	TTFTP90                   = "ttft_seconds_p90"
	TTFTP99                   = "ttft_seconds_p99"
	TTFTN                     = "ttft_n"
	TTFTWave                  = "ttft_wave_seconds_p50"
	TTFTWaveN                 = "ttft_wave_n"
	TTFTSteady                = "ttft_steady_seconds_p50"
	TTFTSteadyN               = "ttft_steady_n"
	TPOT                      = "tpot_seconds_p50"
	TPOTP90                   = "tpot_seconds_p90"
	TPOTP99                   = "tpot_seconds_p99"
	TPOTN                     = "tpot_n"
	ICL                       = "icl_seconds_p50"
	ICLP99                    = "icl_seconds_p99"
	ActiveRequests            = "active_requests_mean"
	CompletedRequests         = "completed_requests"
	FailedRequests            = "failed_requests"
	NoFirstTokenRequests      = "no_first_token_requests"
	OutputTokens              = "output_tokens"
	WindowSeconds             = "window_seconds"
	PromptTokens              = "prompt_tokens"
	TokensPerChunkMean        = "tokens_per_chunk_mean"
	TokensPerChunkMax         = "tokens_per_chunk_max"
	ScoutSeconds              = "scout_seconds"
	ReadinessSeconds          = "readiness_seconds"
	DrainSeconds              = "drain_seconds"
	WaitingRatio              = "waiting_ratio"
	WaitingMax                = "waiting_requests_max"
	RunningMean               = "running_requests_mean"
	RunningMax                = "running_requests_max"
	KVUsageMax                = "kv_usage_max_ratio"
	Preemptions               = "preemptions"
	PrefixHitRatio            = "prefix_hit_ratio"
	ServerTokensPerSecond     = "server_output_tokens_per_second"
	SpecAccepted              = "spec_accepted_tokens_per_draft"
	ClientLagP99              = "client_lag_p99_seconds"
	ClientLagMax              = "client_lag_max_seconds"
	ClientSchedP99            = "client_sched_p99_seconds"
	ClientCPU                 = "client_cpu_ratio"
	SendLagMax                = "send_lag_max_seconds"
	PeakOpen                  = "peak_open_requests"
	ReadEventsMax             = "read_events_max"

	RefOutputTokensPerSecond  = "ref_output_tokens_per_second"
	RefPrefillTokensPerSecond = "ref_prefill_tokens_per_second"
	RefRequestTokensPerSecond = "ref_request_tokens_per_second_p50"
	RefTTFT                   = "ref_ttft_seconds_p50"
	RefTPOT                   = "ref_tpot_seconds_p50"
	RefActiveRequests         = "ref_active_requests_mean"
	RefCompletedRequests      = "ref_completed_requests"
	RefOutputTokens           = "ref_output_tokens"
	RefWindowSeconds          = "ref_window_seconds"
)

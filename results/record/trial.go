package record

import "time"

// Point names a cell of the matrix.
type Point struct {
	Phase         string `json:"phase"`          // PhasePrefill or PhaseDecode
	ContextTokens int    `json:"context_tokens"` // as asked; the true length is PromptTokens
	ContextLabel  string `json:"context_label"`  // as written by the person: "8K", "0"
	Concurrency   int    `json:"concurrency"`    // simultaneous requests
}

// Trial is everything observed in one execution of a cell.
type Trial struct {
	StepID string `json:"step_id"` // of the plan: "decode-8k-c16-r1"
	Point
	Repeat int `json:"repeat"` // 1-based
	Launch int `json:"launch"` // 1-based number of the engine launch it ran in; 0 if none

	Status      Status      `json:"status"`
	Reason      string      `json:"reason,omitempty"`       // a word or sentence for people
	FailureKind FailureKind `json:"failure_kind,omitempty"` // only with Failed

	StartedAt time.Time `json:"started_at"` // UTC; origin of all *_ns below

	// The three clocks; nil where that stage was not reached.
	ScoutStartNs  *int64 `json:"scout_start_ns,omitempty"`
	ScoutEndNs    *int64 `json:"scout_end_ns,omitempty"`
	LaunchNs      *int64 `json:"launch_ns,omitempty"` // streams launched; readiness starts
	WindowStartNs *int64 `json:"window_start_ns,omitempty"`
	WindowEndNs   *int64 `json:"window_end_ns,omitempty"` // start + asked duration, unless cut short
	EndNs         int64  `json:"end_ns"`                  // all streams seen to end, server idle
	WindowAskedNs int64  `json:"window_asked_ns"`         // 0 where the phase has no window

	PromptTokens  *int64 `json:"prompt_tokens,omitempty"`  // true length by the server's count
	PromptOff     bool   `json:"prompt_off,omitempty"`     // PromptTokens is more than 0.1 % off ContextTokens
	PromptMode    string `json:"prompt_mode,omitempty"`    // shared or distinct
	MaxOutput     int    `json:"max_output,omitempty"`     // tokens asked per request
	CacheDeclared string `json:"cache_declared,omitempty"` // "warm" (decode after scout) or "cold" (prefill)

	IdleBefore *bool `json:"idle_before,omitempty"` // server seen idle; nil: not known (no metrics)
	IdleAfter  *bool `json:"idle_after,omitempty"`

	Client   ClientHealth `json:"client"`
	Warnings []string     `json:"warnings,omitempty"` // the numbers stand, read them with care

	Requests []Request `json:"requests,omitempty"`
	Samples  []Sample  `json:"samples,omitempty"`
}

// Role of a request within its trial.
const (
	RoleScout    = "scout"    // loads the prompt into the cache
	RoleWarmup   = "warmup"   // same shape, not scored
	RoleMeasured = "measured" // counts
)

// Outcome of one request.
const (
	OutcomeCompleted = "completed" // the stream ended by itself, well
	OutcomeCancelled = "cancelled" // we closed it at the end of the window
	OutcomeFailed    = "failed"    // see FailureKind
)

// Request is one HTTP exchange.
type Request struct {
	Index      int    `json:"index"`      // unique in the trial, in order of due time
	Stream     int    `json:"stream"`     // which of the C streams, 0-based
	Generation int    `json:"generation"` // 0: launched with the wave; n: n-th successor on its stream
	Role       string `json:"role"`

	DueNs       int64  `json:"due_ns"`                  // when it should have been sent
	SentNs      *int64 `json:"sent_ns,omitempty"`       // when it was handed to the socket
	FirstByteNs *int64 `json:"first_byte_ns,omitempty"` // first byte of the reply's body
	EndNs       *int64 `json:"end_ns,omitempty"`        // [DONE], end, failure or our closing

	Outcome     string      `json:"outcome"`
	FailureKind FailureKind `json:"failure_kind,omitempty"`
	HTTPStatus  int         `json:"http_status,omitempty"`
	Message     string      `json:"message,omitempty"` // the server's, at most 2 KiB, secrets removed
	// ErrorCode is the number in the server's error object, or the HTTP status that
	// was not 200; 0: neither. In a stream that failed it is all there is of a status.
	ErrorCode         int    `json:"error_code,omitempty"`
	RetryAfterSeconds *int64 `json:"retry_after_seconds,omitempty"` // as the server asked
	FinishReason      string `json:"finish_reason,omitempty"`       // as sent

	PromptTokens     *int64 `json:"prompt_tokens,omitempty"`     // usage
	CachedTokens     *int64 `json:"cached_tokens,omitempty"`     // usage.prompt_tokens_details.cached_tokens
	CompletionTokens *int64 `json:"completion_tokens,omitempty"` // last usage seen; nil: the server sent none
	RunningUsage     bool   `json:"running_usage,omitempty"`     // usage came while output was still coming
	// RetokenisedTokens is the server's /tokenize count of the text received, where
	// it sent no usage.
	RetokenisedTokens *int64 `json:"retokenised_tokens,omitempty"`
	BadFrames         int    `json:"bad_frames,omitempty"` // events that are no JSON object, or whose usage is no count

	Chunks []Chunk `json:"chunks,omitempty"`
}

// Channel of an output event.
type Channel uint8

const (
	ChannelNone      Channel = iota // no visible text: usage grew, or no output at all
	ChannelContent                  // content or text
	ChannelReasoning                // reasoning or reasoning_content
	ChannelTool                     // tool_calls
)

// String returns the stored word.
func (c Channel) String() string {
	switch c {
	case ChannelContent:
		return "content"
	case ChannelReasoning:
		return "reasoning"
	case ChannelTool:
		return "tool"
	}
	return "none"
}

// Chunk is one event of a stream that carries output or changes the count of
// tokens. Events that do neither (role, keep-alive, a repeated usage) are not
// kept.
type Chunk struct {
	AtNs       int64   `json:"at_ns"`       // stamp of the socket read that brought it
	Tokens     int64   `json:"tokens"`      // cumulative completion tokens by the server's count, if HasTokens
	HasTokens  bool    `json:"has_tokens"`  // the event had a usage
	Output     bool    `json:"output"`      // an output event, by the rules of the fixtures
	Channel    Channel `json:"channel"`     // of its text
	ReadEvents int32   `json:"read_events"` // how many events that socket read brought
}

// Sample is one reading of one gauge or counter over time.
type Sample struct {
	AtNs   int64   `json:"at_ns"`
	Source string  `json:"source"` // "metrics", "client", "gpu", "cpu"
	Name   string  `json:"name"`   // "requests_running", "requests_waiting", "kv_usage_ratio", …
	Value  float64 `json:"value"`  // finite
}

// ClientHealth is what the client observed of itself over the window (or, in
// prefill, over the request). Nil: not observed.
type ClientHealth struct {
	LagP99Ns      *int64   `json:"lag_p99_ns,omitempty"` // lateness of a 5 ms ticker
	LagMaxNs      *int64   `json:"lag_max_ns,omitempty"`
	SchedP99Ns    *int64   `json:"sched_p99_ns,omitempty"`    // Go run-queue latency
	CPURatio      *float64 `json:"cpu_ratio,omitempty"`       // our CPU time ÷ wall time ÷ GOMAXPROCS
	SendLagMaxNs  *int64   `json:"send_lag_max_ns,omitempty"` // sent − due, largest
	PeakOpen      int      `json:"peak_open,omitempty"`       // streams open at once, largest
	ReadEventsMax int      `json:"read_events_max,omitempty"` // events in one socket read, largest
}

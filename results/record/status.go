package record

// Status says how a trial ended. The set is closed; Words gives the text for
// people.
type Status string

const (
	// Valid: measured over the window it claims, nothing waited.
	Valid Status = "valid"
	// Queued: requests waited for more than 5 % of the window, were preempted in it
	// and put back to wait, or fewer were active than asked. The numbers stand.
	Queued Status = "queued"
	// OverCapacity: not sent because it would not fit the KV cache ([ReasonPredicted]),
	// or sent and not one token came ([ReasonNoOutput]).
	OverCapacity Status = "over_capacity"
	// NotReady: the streams never all ran; there is no headline number.
	NotReady Status = "not_ready"
	// Underfilled: nothing waited, yet fewer streams were decoding than asked.
	Underfilled Status = "underfilled"
	// ClientLimited: this client was the limit; the numbers are its own.
	ClientLimited Status = "client_limited"
	// Failed: see FailureKind.
	Failed Status = "failed"
	// Loop: the model repeated itself exactly; see Reason.
	Loop Status = "loop"
	// Skipped: not run; see Reason.
	Skipped Status = "skipped"
	// Interrupted: a person or a signal ended it in the middle.
	Interrupted Status = "interrupted"
)

// Statuses lists the closed set, in the order of FORMAT.md.
var Statuses = []Status{Valid, Queued, OverCapacity, NotReady, Underfilled,
	ClientLimited, Failed, Loop, Skipped, Interrupted}

// Words returns the text for people, as it stands on pages.
func (s Status) Words() string {
	switch s {
	case Valid:
		return "Valid"
	case Queued:
		return "Requests queued"
	case OverCapacity:
		return "Over capacity"
	case NotReady:
		return "Not ready"
	case Underfilled:
		return "Underfilled"
	case ClientLimited:
		return "Client limited"
	case Failed:
		return "Failed"
	case Loop:
		return "Repetition loop"
	case Skipped:
		return "Skipped"
	case Interrupted:
		return "Interrupted"
	}
	return string(s)
}

// Reasons that are words; others are sentences.
const (
	ReasonPredicted   = "predicted"         // with OverCapacity: not sent
	ReasonNoOutput    = "no_output"         // with OverCapacity: sent, and not a token came
	ReasonInterrupted = "interrupted"       // with Skipped: the run was ended before the trial's turn
	ReasonEngineEnded = "engine ended"      // with Skipped
	ReasonCacheHits   = "prefix cache hits" // with NotReady, in prefill
)

// FailureKind says what failed; empty unless the trial or request failed.
type FailureKind string

const (
	FailHTTP       FailureKind = "http"        // a status other than 200
	FailConnect    FailureKind = "connect"     // no connection, or it broke before a reply
	FailTimeout    FailureKind = "timeout"     // a stated limit passed
	FailInBand     FailureKind = "in_band"     // 200, then an error object in the stream
	FailTruncated  FailureKind = "truncated"   // the stream ended without finish_reason and [DONE]
	FailNoOutput   FailureKind = "no_output"   // the stream ended well but had no choice in it
	FailEncoding   FailureKind = "encoding"    // the reply is no event stream we can read
	FailEngineExit FailureKind = "engine_exit" // the engine's process ended
	FailStall      FailureKind = "stall"       // no token from any request for the stall limit
)

// Phases of a matrix.
const (
	PhasePrefill = "prefill"
	PhaseDecode  = "decode"
)

// PhaseWords returns the phase's name on pages.
func PhaseWords(phase string) string {
	switch phase {
	case PhasePrefill:
		return "Prefill"
	case PhaseDecode:
		return "Sustained decode"
	}
	return phase
}

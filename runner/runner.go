package runner

import (
	"net/http"
	"time"

	"speedmatrix/results/record"
)

// MethodVersion names the way of measuring. It rises with every change that can
// move a number; results/FORMAT.md has a line for each value.
const MethodVersion = "1"

// Engine is a running server that [Measure] can talk to.
type Engine struct {
	BaseURL string // http://127.0.0.1:8000, no trailing slash
	APIKey  string // sent as bearer token; never logged
	Launch  record.Launch
	// Exited is closed when the engine's process ended; nil if there is no process
	// of ours. ExitReason then says how, with the last lines of its log.
	Exited     <-chan struct{}
	ExitReason func() string
	// LogCapacity, if not nil, gives the KV capacity stated by the start-up log, for
	// engines whose metrics do not tell.
	LogCapacity func() (tokens int64, ok bool)
	// ConnectWithin is how long nothing may listen at BaseURL before [WaitReady] gives
	// up: short where a server is said to be there already. 0: the start limit.
	ConnectWithin time.Duration
	// Simulated marks the embedded engine.
	Simulated bool
}

// Sink takes what the runner observed. Its methods are called one at a time.
// An error from Launched or Trial ends the run: what cannot be kept is not
// measured.
type Sink interface {
	// Launched is called when the engine is ready, and again with the same number
	// when it has ended or what is known of it grew.
	Launched(record.Launch) error
	// Trial is called once for each step that was run or left out.
	Trial(record.Trial) error
	// Progress is called often and must not block.
	Progress(Progress)
}

// Progress is for people who wait.
type Progress struct {
	Stage  string // "build", "start", "ready", "idle", "scout", "warmup", "readiness", "window", "drain", "done"
	StepID string // empty outside steps
	Text   string // one line, untrusted
	// Of the window, so far:
	Elapsed, Total time.Duration
	Tokens         int64
	Active         int // streams with a first token
}

// Options for one call of [Measure].
type Options struct {
	RunID string
	Done  func(stepID string) bool
	Drain <-chan struct{}
	// Secrets are removed from every text that is kept.
	Secrets   []string
	Transport http.RoundTripper // nil: our own
}

// EngineError says that the engine ended or hung, so no further step can be run.
type EngineError struct {
	Kind   record.FailureKind // engine_exit or stall
	Reason string             // exit status and last log lines
}

func (e *EngineError) Error() string { return "engine: " + string(e.Kind) + ": " + e.Reason }

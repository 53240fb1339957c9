package container

import (
	"fmt"
	"path/filepath"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// Places inside the containers.
const (
	Binary  = "/speedmatrix/speedmatrix" // this program
	RunDir  = "/speedmatrix/run"         // the shared volume
	OutDir  = "/speedmatrix/out"         // what is exported
	JobFile = "/speedmatrix/job.json"
	HubDir  = "/speedmatrix/hub" // models, laid out as the hub's own cache
)

// Names of environment variables inside the containers.
const (
	// LaunchVariable makes two launches of one command two services: container engines
	// take services of equal content for one.
	LaunchVariable = "SPEEDMATRIX_LAUNCH"
	// RunVariable keeps the result of a measuring step from being taken from a cache.
	RunVariable = "SPEEDMATRIX_RUN"
	// KeyVariable holds the key that requests carry.
	KeyVariable = "SPEEDMATRIX_API_KEY"
	// SecretsVariable holds a JSON list of literal values that must not be written.
	SecretsVariable = "SPEEDMATRIX_SECRETS"
)

// Job is what Measure is to do: the content of JobFile. It holds no secret.
type Job struct {
	Plan   *plan.Plan    `json:"plan"`
	RunID  string        `json:"run_id"`
	Launch record.Launch `json:"launch"` // as far as it is known outside
	// LaunchID is the value that the engine's container has as LaunchVariable.
	LaunchID  string   `json:"launch_id"`
	EngineURL string   `json:"engine_url"`
	Done      []string `json:"done,omitempty"` // steps that are not to be run again
	Nonce     string   `json:"nonce"`          // goes into each event
	Simulated bool     `json:"simulated,omitempty"`
}

// EngineState is engine.json. It is written beside and renamed at each change.
type EngineState struct {
	LaunchID string `json:"launch_id"`
	// Starts counts how often a supervisor began in this folder: more than one means
	// that the container was started again behind our back.
	Starts    int       `json:"starts"`
	StartedAt time.Time `json:"started_at"`
	Argv      []string  `json:"argv"`            // as executed, redacted
	Error     string    `json:"error,omitempty"` // it could not be started
	// ExitStatus is set when the engine's first process ended by itself, before we told it
	// to: "exit status 1".
	ExitStatus string     `json:"exit_status,omitempty"`
	ExitedAt   *time.Time `json:"exited_at,omitempty"`
	LogTail    []string   `json:"log_tail,omitempty"` // when it ended
	// Stopped says that we were told to stop it, Gone that no process is left.
	Stopped bool `json:"stopped,omitempty"`
	Gone    bool `json:"gone,omitempty"`
	// WarmCaches are the compile caches that held something at the start.
	WarmCaches []string `json:"warm_caches,omitempty"`
}

// End is end.json: how the measuring of one launch ended.
type End struct {
	// Engine is set when the engine ended or hung.
	Engine  *runner.EngineError `json:"engine,omitempty"`
	Error   string              `json:"error,omitempty"` // anything else that went wrong
	Drained bool                `json:"drained,omitempty"`
}

// Event is one line of Measure's standard output, after eventPrefix. Exactly one
// field beside Nonce is set.
type Event struct {
	Nonce    string           `json:"nonce"` // the job's: the engine prints into the same log
	Progress *runner.Progress `json:"progress,omitempty"`
	Launched *record.Launch   `json:"launched,omitempty"`
	// Cell is the row of a trial that is kept in the volume.
	Cell *record.Cell `json:"cell,omitempty"`
	// Part is a piece of that trial: a volume dies with its container engine.
	Part *Part `json:"part,omitempty"`
	// End is the last event.
	End *End `json:"end,omitempty"`
}

// Part is a piece of the file of a trial. The pieces come in order; one that is missing
// makes the others worthless, and the file is fetched from the volume at the end.
type Part struct {
	Step   string `json:"step"`
	Index  int    `json:"index"` // from 0
	Count  int    `json:"count"`
	SHA256 string `json:"sha256"` // of the whole file, hex
	Data   []byte `json:"data"`
}

// eventPrefix begins the lines of standard output that are an [Event]: a container
// engine mixes them with lines of its own.
const eventPrefix = "speedmatrix-event "

// LaunchDir is the folder of a launch below dir, which is RunDir or a copy of it.
func LaunchDir(dir string, number int) string {
	return filepath.Join(dir, fmt.Sprintf("launch-%d", number))
}

// Package pipelines carries out a plan: each executor starts or finds the engine,
// hands it to the runner, and ends what it started.
//
// It does not know how a run is stored or shown. Flow: package main resolves a
// plan, picks an executor, and gives it a [Job] and a [runner.Sink]; the executor
// starts the engine (a launch), waits until a real completion came back, calls
// [runner.Measure], stops the engine and sees it gone.
package pipelines

import (
	"context"
	"net/http"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// Job is one plan to carry out.
type Job struct {
	Plan  *plan.Plan
	RunID string
	// Launch is the number of the first engine launch: 1, or higher when a run is
	// resumed.
	Launch int
	// Resumed: an earlier launch of this run may have left something where only the
	// executor finds it.
	Resumed bool
	// Done says whether a step was finished by an earlier launch.
	Done func(stepID string) bool
	// LogsDir is a directory of the run for logs of the engine.
	LogsDir string
	// CacheDir is the user's cache folder for this program.
	CacheDir string
	// BaseDir is the folder that relative paths of the experiment start from.
	BaseDir string
	// Wheel is set for source wheel.
	Wheel *Wheel
	// AttachURL and APIKey are set for source attach; APIKey also where the serve
	// command has a placeholder for one.
	AttachURL string
	APIKey    string
	// Argv and Env are the serve command with the secret values that the plan shows
	// as <redacted>; never recorded. Nil: the plan's own.
	Argv []string
	Env  map[string]string
	// Profile is the simulator's profile, YAML.
	Profile []byte
	// Archive is the path of the image of source image that is a file; empty: it is in a
	// registry.
	Archive string
	// Patches are the contents of the plan's patches, in their order.
	Patches [][]byte
	// Secrets are literal values that must appear in nothing that is written.
	Secrets []string
	// Drain is closed when a person asks to end early: the current trial is
	// recorded as interrupted, the engine is stopped, nothing more is sent.
	Drain <-chan struct{}
	// Transport, if not nil, replaces the runner's (tests only).
	Transport http.RoundTripper
}

// Wheel is the content of a wheel source: files that were read by whoever made
// the job, so that their hashes are those of the plan.
type Wheel struct {
	Lock        []byte
	Python      string
	ModelScript string // path; empty: none
}

// Executor carries out a plan.
//
// Execute is called once, blocks until the engine is gone, and calls the sink's
// methods one at a time. Cancelling ctx ends everything at once. An error means
// that the plan could not be carried on (it wraps *runner.EngineError when the
// engine ended); failed trials are no errors.
type Executor interface {
	Execute(ctx context.Context, job Job, sink runner.Sink) error
}

// Previewer is a sink that can show a cell before its trial is there: some executors
// bring the trials home only at the end. The trial follows, or the run is resumed.
type Previewer interface {
	Preview(record.Cell)
}

//go:build !linux

package host

import (
	"context"
	"errors"
	"time"

	"speedmatrix/pipelines"
	"speedmatrix/runner"
)

// Executor needs Linux: it finds every process of an engine through /proc.
type Executor struct {
	Self    string
	Environ []string
	Grace   time.Duration
	Port    int
	Hub     string
}

var _ pipelines.Executor = Executor{}

// Execute returns an error.
func (Executor) Execute(context.Context, pipelines.Job, runner.Sink) error {
	return errors.New("engine.source wheel and host need Linux; serve the model elsewhere and measure it with --attach URL")
}

package simulator

import (
	"context"
	"slices"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// Executor carries out a plan on the embedded engine.
type Executor struct {
	// Options of the server; zero in production.
	Options Options
}

var _ pipelines.Executor = Executor{}

// Names are a profile's model names and those that a plan asks for.
func Names(names []string, m plan.Model) []string {
	for _, name := range append(slices.Clone(m.Served), m.ID) {
		if name != "" && !slices.Contains(names, name) {
			names = append(slices.Clip(names), name)
		}
	}
	return names
}

// Execute serves job.Profile (nil: the default) on a free port of loopback for as
// long as the plan takes.
func (e Executor) Execute(ctx context.Context, job pipelines.Job, sink runner.Sink) error {
	p := DefaultProfile()
	if job.Profile != nil {
		var err error
		if p, err = ParseProfile(job.Profile); err != nil {
			return err
		}
	}
	// The plan's names are served too: what a profile is called does not matter.
	p.Models = Names(p.Models, job.Plan.Identity.Model)
	p.APIKey = job.APIKey

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := New(p, e.Options)
	if err != nil {
		return err
	}
	defer s.Close()
	started := time.Now()
	url, err := s.Start(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	engine := &runner.Engine{
		BaseURL: url, APIKey: p.APIKey, Simulated: true,
		Exited: s.Exited(), ExitReason: func() string { return "the simulated engine ended, as its fault says" },
		Launch: record.Launch{Number: job.Launch, Executor: "simulator", StartedAt: started.UTC()},
	}
	return pipelines.Measure(ctx, engine, job, sink)
}

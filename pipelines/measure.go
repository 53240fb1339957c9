package pipelines

import (
	"context"
	"fmt"
	"slices"
	"time"

	"speedmatrix/runner"
)

// Measure is the part that executors without a process of their own share: it
// waits until the engine answers, tells the sink, measures, and tells the sink the
// launch's end, whatever happened between.
func Measure(ctx context.Context, e *runner.Engine, job Job, sink runner.Sink) (err error) {
	opts := runner.Options{
		RunID: job.RunID, Done: job.Done, Drain: job.Drain, Transport: job.Transport,
		Secrets: slices.Clone(job.Secrets),
	}
	if e.APIKey != "" && !slices.Contains(opts.Secrets, e.APIKey) {
		opts.Secrets = append(opts.Secrets, e.APIKey)
	}
	if err := runner.WaitReady(ctx, e, job.Plan, opts); err != nil {
		return fmt.Errorf("engine at %s: %w", e.BaseURL, err)
	}
	if err := sink.Launched(e.Launch); err != nil {
		return err
	}
	defer func() {
		end := time.Now().UTC()
		e.Launch.EndedAt = &end
		if last := sink.Launched(e.Launch); err == nil {
			err = last
		}
	}()
	return runner.Measure(ctx, e, job.Plan, opts, sink)
}

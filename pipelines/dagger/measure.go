package dagger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	sdk "dagger.io/dagger"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// tellWithin bounds how long the last lines of the log are waited for.
const tellWithin = time.Second

// drainWithin bounds the step that tells the measuring step to end early.
const drainWithin = time.Minute

// outcome is what is known of a measuring step from outside.
type outcome struct {
	status int   // exit status of the step
	err    error // it has none: the step was ended, or the session is lost
}

// measure runs the measuring step: one for the whole matrix.
func (j *job) measure(ctx context.Context, service *sdk.Service, launch record.Launch) outcome {
	job := container.Job{
		Plan: j.Plan, RunID: j.RunID, Launch: launch, LaunchID: j.launchID, Nonce: j.nonce,
		EngineURL: fmt.Sprintf("http://%s:%d", engineAlias, enginePort),
		Simulated: j.Plan.Identity.Engine.Source == "simulator",
	}
	for _, s := range j.Plan.Identity.Steps {
		if j.isDone(s.ID) {
			job.Done = append(job.Done, s.ID)
		}
	}
	b, err := json.MarshalIndent(job, "", "  ")
	if err != nil {
		return outcome{err: err}
	}
	step := j.scratch().
		WithNewFile(container.JobFile, string(b)).
		With(j.mount(container.RunDir, j.runVolume())).
		WithServiceBinding(engineAlias, service).
		WithEnvVariable(container.RunVariable, j.launchID).
		WithSecretVariable(container.KeyVariable, j.session.secret(secretKey)).
		WithSecretVariable(container.SecretsVariable, j.session.secret(secretList)).
		WithExec([]string{container.Binary, "measure", "--job", container.JobFile, "--dir", container.RunDir},
			sdk.ContainerWithExecOpts{Expect: sdk.ReturnTypeAny})

	measuring, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan outcome, 1)
	go func() {
		status, err := step.ExitCode(measuring)
		done <- outcome{status, err}
	}()
	drain := j.Drain
	for {
		select {
		case o := <-done:
			// The log comes a little after the result.
			select {
			case <-j.allTold:
			case <-time.After(tellWithin):
			}
			return o
		case <-ctx.Done():
			return outcome{err: context.Cause(ctx)}
		case <-drain:
			drain = nil
			j.progress("drain", "ending the current cell")
			if err := j.askToDrain(ctx); err != nil {
				// Then nothing but ending the step is left; finished cells are in the volume.
				cancel(err)
			}
		}
	}
}

// askToDrain puts the file into the volume that the measuring step looks for.
func (j *job) askToDrain(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainWithin, errors.New("the Dagger engine took no further step"))
	defer cancel()
	_, err := j.step("drain", []string{container.Binary, "collect", "--drain", container.RunDir}).Sync(ctx)
	return err
}

// arrived keeps a trial that came through the log. Should it be no trial of this plan, or
// the disk be full, the volume still has it.
func (j *job) arrived(t *record.Trial, err error) {
	if t == nil || err != nil || j.isDone(t.StepID) || !slices.ContainsFunc(j.Plan.Identity.Steps, func(s plan.Step) bool { return s.ID == t.StepID }) {
		return
	}
	_ = j.sink.Trial(*t)
}

// stream takes the engine's log: our events come out of it, the rest is kept and shown
// while there is nothing better to show.
type stream struct {
	io.Writer
	events *container.EventReader
	log    io.Closer
	file   io.Closer
}

func (s *stream) Close() error { return errors.Join(s.events.Close(), s.log.Close(), s.file.Close()) }

func (j *job) newStream(log io.WriteCloser) *stream {
	const every = 2 * time.Second
	var last time.Time
	ready := false
	kept := supervise.NewLog(log, j.secretValues(), nil)
	var parts container.Assembler
	events := container.NewEventReader(func(e container.Event) {
		switch {
		case e.Nonce != j.nonce: // an engine can print what it likes
		case e.Launched != nil:
			ready = true
			// An error to keep it is found again when the launch is fetched.
			_ = j.sink.Launched(*e.Launched)
		case e.Cell != nil:
			j.sink.Preview(*e.Cell)
		case e.Part != nil:
			j.arrived(parts.Add(*e.Part))
		case e.End != nil:
			j.told()
		case e.Progress != nil:
			ready = ready || e.Progress.StepID != ""
			j.sink.Progress(*e.Progress)
		}
	}, func(line string) {
		line = j.redact.Redact(line)
		_, _ = io.WriteString(kept, line+"\n")
		if now := time.Now(); !ready && now.Sub(last) >= every && !strings.Contains(line, " WARN ") {
			last = now
			j.sink.Progress(runner.Progress{Stage: "build", Text: line})
		}
	})
	return &stream{Writer: events, events: events, log: kept, file: log}
}

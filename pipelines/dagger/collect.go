package dagger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// collected copies the run's volume out of the engine.
func (j *job) collected(ctx context.Context, name string) (*container.Collected, error) {
	out := filepath.Join(j.tmp, name)
	_, err := j.step(name, []string{container.Binary, "collect", "--dir", container.RunDir, "--out", container.OutDir}).
		Directory(container.OutDir).Export(ctx, out)
	if err != nil {
		return nil, j.engineFailed(ctx, "fetch what was measured", err)
	}
	return container.Open(out, j.Plan)
}

// deliver gives the sink every trial of the volume that it does not have yet.
func (j *job) deliver(c *container.Collected) error {
	for t, err := range c.Trials() {
		if err != nil {
			j.progress("drain", "a trial in the volume cannot be read and is run again: %v", err)
			continue
		}
		if j.isDone(t.StepID) {
			continue
		}
		if err := j.sink.Trial(t); err != nil {
			return err
		}
	}
	return nil
}

// takeOver delivers what an earlier session of this run measured and did not bring home.
func (j *job) takeOver(ctx context.Context) error {
	j.progress("build", "fetching what was measured before")
	c, err := j.collected(ctx, "before")
	if err != nil {
		return err
	}
	for _, l := range c.Launches() {
		if l.Number >= j.Launch {
			continue
		}
		if l.EndedAt == nil {
			l.ExitStatus = cmp.Or(l.ExitStatus, "unknown: its session was lost")
		}
		if err := errors.Join(j.sink.Launched(l), j.keepLog(c, l.Number)); err != nil {
			return err
		}
	}
	return j.deliver(c)
}

// fetch brings home what the launch measured, and says how it ended.
func (j *job) fetch(ctx context.Context, o outcome) error {
	c, err := j.collected(ctx, "after")
	if err != nil {
		if o.err != nil {
			return j.engineFailed(ctx, "measure", o.err)
		}
		return err
	}
	engine, started := c.Engine(j.Launch)
	if err := j.keepLog(c, j.Launch); err != nil {
		return err
	}
	for _, l := range c.Launches() {
		if l.Number == j.Launch {
			if err := j.sink.Launched(j.ended(l, engine)); err != nil {
				return err
			}
		}
	}
	if err := j.deliver(c); err != nil {
		return err
	}
	end, told := c.End(j.Launch)
	switch {
	case told && end.Engine != nil:
		return end.Engine
	case told && end.Error != "":
		return errors.New(end.Error)
	case told && end.Drained && !j.drained():
		return errors.New("measure: the step was told to end early, and not by us: was the Dagger engine stopped, or the run's volume changed?")
	case told:
		return nil
	case started && (engine.ExitStatus != "" || engine.Starts > 1):
		// The step was ended with the engine's container before it could say so.
		return &runner.EngineError{Kind: record.FailEngineExit, Reason: exitReason(engine)}
	case o.err != nil:
		if m := serviceExited.FindStringSubmatch(o.err.Error()); m != nil {
			// The whole container, our keeper with it: out of memory, or killed from outside.
			engine.ExitStatus = "its container ended: " + m[1]
			engine.LogTail = container.LastLines(c.LogPath(j.Launch))
			return &runner.EngineError{Kind: record.FailEngineExit, Reason: exitReason(engine)}
		}
		return j.engineFailed(ctx, "measure", o.err)
	}
	return fmt.Errorf("measure: the step ended with status %d and did not say why; its log is %s", o.status, j.LogsDir)
}

// drained says whether we were asked to end early.
func (j *job) drained() bool {
	select {
	case <-j.Drain:
		return true
	default:
		return false
	}
}

// ended completes a launch by what the supervisor saw last.
func (j *job) ended(l record.Launch, engine container.EngineState) record.Launch {
	if l.EndedAt == nil {
		now := time.Now().UTC()
		l.EndedAt = &now
	}
	if engine.ExitStatus != "" {
		l.ExitStatus, l.LogTail = engine.ExitStatus, engine.LogTail
	}
	caches := "cold"
	if len(engine.WarmCaches) > 0 {
		caches = "warm"
	}
	if j.Plan.Identity.Engine.Source != "simulator" {
		l.Settings = append(l.Settings, record.Field{Label: "Compile caches", Value: caches})
	}
	if engine.Stopped && !engine.Gone {
		l.Settings = append(l.Settings, record.Field{Label: "End", Value: "the engine was not seen to end"})
	}
	// What was noted since the measuring step was given the launch.
	l.Settings = append(l.Settings, j.settings...)
	return l
}

// serviceExited is how a container engine says that the service of a step is gone.
var serviceExited = regexp.MustCompile(`bound service .* exited: ([^\[\n]+)`)

func exitReason(e container.EngineState) string {
	reason := e.ExitStatus
	if e.Starts > 1 {
		reason = "the container was started again behind our back"
	}
	return reason + quote(strings.Join(e.LogTail, "\n"), 12)
}

// keepLog puts the engine's log among the run's.
func (j *job) keepLog(c *container.Collected, number int) error {
	in, err := os.Open(c.LogPath(number))
	if err != nil {
		return nil // the engine never started
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(j.LogsDir, fmt.Sprintf("engine-%d.log", number)))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, supervise.MaxLog))
	return errors.Join(err, out.Close())
}

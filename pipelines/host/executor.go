//go:build linux

package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/vllm"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// Executor starts the engine on this machine.
type Executor struct {
	// Self is the path of this program, whose verb supervise is [Supervise].
	Self string
	// Environ is our environment, NAME=value; an allow-list of it reaches the engine.
	Environ []string
	// Grace is the time between TERM and KILL; 0: 15 s.
	Grace time.Duration
	// Port, if not 0, is the only port that may be used; 0: a free one.
	Port int
}

const defaultGrace = 15 * time.Second

// Execute carries out job's plan on an engine of this machine.
func (x Executor) Execute(ctx context.Context, pj pipelines.Job, sink runner.Sink) error {
	dir, err := filepath.Abs(pj.BaseDir)
	if err != nil {
		return err
	}
	if x.Grace == 0 {
		x.Grace = defaultGrace
	}
	j := &job{
		Job:     pj,
		self:    x.Self,
		environ: x.Environ,
		grace:   x.Grace,
		port:    x.Port,
		dir:     dir,
		secrets: slices.Concat(pj.Secrets, envSecrets(x.Environ)),
		sink:    &lockedSink{sink: sink},
	}
	if err := os.MkdirAll(j.LogsDir, 0o755); err != nil {
		return err
	}
	// A wish to end early ends a start at once; once the engine is ready it is the
	// runner that drains.
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-j.Drain:
			cancel(runner.ErrDrained)
		case <-starting.Done():
		}
	}()
	err = j.execute(ctx, starting)
	if errors.Is(err, runner.ErrDrained) {
		return nil
	}
	return err
}

// job is one call of Execute.
type job struct {
	pipelines.Job
	self    string
	environ []string
	grace   time.Duration
	port    int
	dir     string // absolute BaseDir
	secrets []string
	sink    *lockedSink
}

func (j *job) progress(stage, text string) {
	j.sink.Progress(runner.Progress{Stage: stage, Text: text})
}

// chatter gives a function that passes on what a program prints, now and then: it
// shows people that something happens. All of it is in the log.
func (j *job) chatter(stage string) func(line string) {
	const every = 2 * time.Second
	var last time.Time
	return func(line string) {
		if now := time.Now(); now.Sub(last) >= every {
			last = now
			j.progress(stage, line)
		}
	}
}

// execute prepares in starting, which a drain ends, and measures in ctx.
func (j *job) execute(ctx, starting context.Context) error {
	var program string
	var settings []record.Field
	dir := j.dir
	switch e := j.Plan.Identity.Engine; e.Source {
	case "wheel":
		if j.Wheel == nil {
			return errors.New("engine.source.wheel: its files were not read")
		}
		v, err := j.ensureVenv(starting)
		if err != nil {
			return err
		}
		settings = append(settings,
			record.Field{Label: "Wheels", Value: fmt.Sprintf("%d packages, lock sha256:%s", v.Packages, v.Lock)},
			record.Field{Label: "Python", Value: v.Python},
			record.Field{Label: "Installer", Value: v.Installer})
		if program, err = wheelProgram(v, e.Argv); err != nil {
			return err
		}
		if j.Wheel.ModelScript != "" {
			name := modelArgument(e.Argv)
			if dir, err = j.ensureModel(starting, v, name); err != nil {
				return err
			}
			files, err := hashFiles(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			settings = append(settings, record.Field{Label: "Model files", Value: files})
		}
	case "host":
		var err error
		if program, err = j.hostProgram(e.Program); err != nil {
			return err
		}
	default:
		return fmt.Errorf("engine.source: this executor cannot start %q", e.Source)
	}
	return j.launch(ctx, starting, program, dir, settings)
}

// launch is one start of the engine: everything that it makes is gone when it
// returns, however far it came.
func (j *job) launch(ctx, starting context.Context, program, dir string, settings []record.Field) (err error) {
	port := j.port
	if port == 0 {
		if port, err = choosePort(); err != nil {
			return err
		}
	} else if err := portFree(port); err != nil {
		return fmt.Errorf("%w; end that process, or let a free port be chosen", err)
	}
	key := j.APIKey
	if key == "" {
		key = rand.Text()
	}
	j.secrets = append(j.secrets, key)
	cmd, err := j.serveCommand(program, port, key)
	if err != nil {
		return err
	}

	tmp, err := os.MkdirTemp("", "speedmatrix-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	logPath := filepath.Join(j.LogsDir, fmt.Sprintf("engine-%d.log", j.Launch))
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close()
	var facts logFacts
	var ready atomic.Bool
	chatter := j.chatter("start")
	log := newLogWriter(logFile, j.secrets, func(line string) {
		facts.line(line)
		if !ready.Load() {
			chatter(line)
		}
	})

	gpus := gpuMemory(starting, j.environ)
	j.progress("start", "starting the engine")
	begin := time.Now()
	e := &runner.Engine{
		BaseURL: fmt.Sprintf("http://127.0.0.1:%d", port),
		APIKey:  key,
		Launch: record.Launch{
			Number:    j.Job.Launch,
			Executor:  "host",
			StartedAt: begin.UTC(),
			Argv:      j.display(append([]string{cmd.program}, cmd.shown...)...),
			Env:       j.display(cmd.shownEnv...),
			Settings:  settings,
		},
		LogCapacity: facts.capacity,
	}
	p, err := start(j.self, command{
		program: cmd.program,
		args:    cmd.args,
		env:     setenv(cmd.env, "TMPDIR", tmp),
		dir:     dir,
		tmp:     tmp,
		grace:   j.grace,
		log:     log,
	})
	if err != nil {
		return err
	}
	e.Exited = p.exited
	e.ExitReason = func() string {
		p.readLog()
		reason := p.exitStatus()
		if err := portFree(port); err != nil && !ready.Load() {
			reason += "; " + err.Error()
		}
		return reason + quote(log.Tail(), 12)
	}
	defer func() {
		err = errors.Join(err, j.end(ctx, e, p, log, port, gpus, settings, &facts))
	}()

	opts := runner.Options{RunID: j.RunID, Done: j.Done, Drain: j.Drain, Secrets: j.secrets, Transport: j.Transport}
	if err := runner.WaitReady(starting, e, j.Plan, opts); err != nil {
		return j.notReady(starting, e, p, log, logPath, err)
	}
	ready.Store(true)
	if e.Launch.ReadySeconds == nil {
		seconds := time.Since(begin).Seconds()
		e.Launch.ReadySeconds = &seconds
	}
	e.Launch.Settings = append(slices.Clone(settings), facts.settings()...)
	if err := j.sink.Launched(e.Launch); err != nil {
		return err
	}
	return runner.Measure(ctx, e, j.Plan, opts, j.sink)
}

// notReady words why an engine never was ready.
func (j *job) notReady(starting context.Context, e *runner.Engine, p *process, log *logWriter, logPath string, err error) error {
	if cause := context.Cause(starting); cause != nil {
		return cause
	}
	var ended *runner.EngineError
	if !errors.As(err, &ended) && isClosed(p.exited) {
		err = &runner.EngineError{Kind: record.FailEngineExit, Reason: e.ExitReason()}
	}
	if errors.As(err, &ended) {
		return fmt.Errorf("before it was ready: %w", err)
	}
	return fmt.Errorf("%w\nthe engine runs, its log is %s%s", err, logPath, quote(log.Tail(), 6))
}

// end stops the engine and sees it gone, and tells the sink how it ended.
func (j *job) end(ctx context.Context, e *runner.Engine, p *process, log *logWriter, port int, gpus map[string]int, settings []record.Field, facts *logFacts) error {
	died := isClosed(p.exited)
	j.progress("drain", "stopping the engine")
	errs := []error{p.stop(ctx)}
	now := time.Now().UTC()
	e.Launch.EndedAt = &now
	if died {
		e.Launch.ExitStatus, e.Launch.LogTail = p.exitStatus(), log.Tail()
	}
	e.Launch.Settings = append(slices.Clone(settings), facts.settings()...)
	if err := portFree(port); err != nil {
		errs = append(errs, fmt.Errorf("after the engine ended: %w", err))
	}
	if err := awaitGPUMemory(ctx, j.environ, gpus, gpuLimit); err != nil && ctx.Err() == nil {
		errs = append(errs, err)
	}
	if err := log.Close(); err != nil {
		errs = append(errs, fmt.Errorf("write the engine's log: %w", err))
	}
	return errors.Join(append(errs, j.sink.Launched(e.Launch))...)
}

// logFacts guards what the start-up log says: one goroutine reads it, others ask.
type logFacts struct {
	mu    sync.Mutex
	facts vllm.LogFacts
}

func (f *logFacts) line(s string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.facts.Line(s)
}

func (f *logFacts) settings() []record.Field {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.facts.Settings()
}

// capacity is the sum over the engines.
func (f *logFacts) capacity() (tokens int64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	each, _ := f.facts.Capacity()
	for _, n := range each {
		tokens += n
	}
	return tokens, len(each) > 0
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lockedSink lets the reader of a log and the runner speak to one sink.
type lockedSink struct {
	mu   sync.Mutex
	sink runner.Sink
}

func (s *lockedSink) Launched(l record.Launch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Launched(l)
}

func (s *lockedSink) Trial(t record.Trial) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Trial(t)
}

func (s *lockedSink) Progress(p runner.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink.Progress(p)
}

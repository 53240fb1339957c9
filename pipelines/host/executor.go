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
	"speedmatrix/pipelines/supervise"
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
	// Hub is where models of a locked plan are fetched from.
	Hub string
	// Port, if not 0, is the only port that may be used; 0: a free one.
	Port int
}

var _ pipelines.Executor = Executor{}

const (
	defaultGrace = 15 * time.Second
	// loadingGrace is for an engine that is not ready: vLLM takes no notice of TERM
	// while it loads, and it has nothing yet to end in good order.
	loadingGrace = 3 * time.Second
)

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
		hub:     x.Hub,
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
	hub     string
	env     []string // what the engine needs to find the plan's models
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
			name := pipelines.ModelArgument(e.Argv)
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
	env, models, err := j.snapshots(starting)
	if err != nil {
		return err
	}
	j.env = env
	return j.launch(ctx, starting, program, dir, append(settings, models...))
}

// launch is one start of the engine.
type launch struct {
	*job
	engine   *runner.Engine
	process  *supervise.Process
	log      *supervise.Log
	logPath  string
	port     int
	gpus     map[string]int // memory in use before
	settings []record.Field // of what we made; the log's come after them
	facts    logFacts
	ready    atomic.Bool
}

// launch starts the engine, measures it and ends it: everything that it makes is
// gone when it returns, however far it came.
func (j *job) launch(ctx, starting context.Context, program, dir string, settings []record.Field) (err error) {
	l := &launch{job: j, port: j.port, settings: settings}
	if l.port == 0 {
		if l.port, err = choosePort(); err != nil {
			return err
		}
	} else if err := portFree(l.port); err != nil {
		return fmt.Errorf("%w; end that process, or let a free port be chosen", err)
	}
	key := j.APIKey
	if key == "" {
		key = rand.Text()
	}
	j.secrets = append(j.secrets, key)
	cmd, err := j.serveCommand(program, l.port, key)
	if err != nil {
		return err
	}

	tmp, err := os.MkdirTemp("", "speedmatrix-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l.logPath = filepath.Join(j.LogsDir, fmt.Sprintf("engine-%d.log", j.Launch))
	logFile, err := os.OpenFile(l.logPath, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close()
	chatter := j.chatter("start")
	l.log = supervise.NewLog(logFile, j.secrets, func(line string) {
		l.facts.line(line)
		if !l.ready.Load() {
			chatter(line)
		}
	})

	l.gpus = gpuMemory(starting, j.environ)
	j.progress("start", "starting the engine")
	begin := time.Now()
	l.process, err = supervise.Start(j.self, supervise.Command{
		Program: cmd.program,
		Args:    cmd.args,
		Env:     supervise.Setenv(cmd.env, "TMPDIR", tmp),
		Dir:     dir,
		Tmp:     tmp,
		Grace:   j.grace,
		Log:     l.log,
	})
	if err != nil {
		return err
	}
	l.engine = &runner.Engine{
		BaseURL: fmt.Sprintf("http://127.0.0.1:%d", l.port),
		APIKey:  key,
		Launch: record.Launch{
			Number:    j.Launch,
			Executor:  "host",
			StartedAt: begin.UTC(),
			Argv:      j.display(append([]string{cmd.program}, cmd.shown...)...),
			Env:       j.display(cmd.shownEnv...),
			Settings:  settings,
		},
		Exited:      l.process.Exited,
		ExitReason:  l.exitReason,
		LogCapacity: l.facts.capacity,
	}
	defer func() { err = errors.Join(err, l.end(ctx)) }()

	opts := runner.Options{RunID: j.RunID, Done: j.Done, Drain: j.Drain, Secrets: j.secrets, Transport: j.Transport}
	if err := runner.WaitReady(starting, l.engine, j.Plan, opts); err != nil {
		return l.notReady(starting, err)
	}
	l.ready.Store(true)
	if l.engine.Launch.ReadySeconds == nil {
		seconds := time.Since(begin).Seconds()
		l.engine.Launch.ReadySeconds = &seconds
	}
	if err := l.tell(); err != nil {
		return err
	}
	return runner.Measure(ctx, l.engine, j.Plan, opts, j.sink)
}

// tell gives the sink what is known of the launch by now.
func (l *launch) tell() error {
	l.engine.Launch.Settings = append(slices.Clone(l.settings), l.facts.settings()...)
	return l.sink.Launched(l.engine.Launch)
}

// exitReason says how the engine ended, with its last lines.
func (l *launch) exitReason() string {
	l.process.ReadLog()
	reason := l.process.ExitStatus()
	if err := portFree(l.port); err != nil && !l.ready.Load() {
		reason += "; " + err.Error()
	}
	return reason + supervise.Quote(l.log.Tail(), 12)
}

// notReady words why an engine never was ready.
func (l *launch) notReady(starting context.Context, err error) error {
	if cause := context.Cause(starting); cause != nil {
		return cause
	}
	var ended *runner.EngineError
	if !errors.As(err, &ended) && isClosed(l.process.Exited) {
		err = &runner.EngineError{Kind: record.FailEngineExit, Reason: l.exitReason()}
	}
	if errors.As(err, &ended) {
		return fmt.Errorf("before it was ready: %w", err)
	}
	return fmt.Errorf("%w\nthe engine runs, its log is %s%s", err, l.logPath, supervise.Quote(l.log.Tail(), 6))
}

// end stops the engine, sees it gone, and tells the sink how it ended.
func (l *launch) end(ctx context.Context) error {
	died := isClosed(l.process.Exited)
	l.progress("drain", "stopping the engine")
	stopping := ctx
	if !l.ready.Load() {
		var cancel context.CancelFunc
		stopping, cancel = context.WithTimeout(ctx, loadingGrace)
		defer cancel()
	}
	errs := []error{l.process.Stop(stopping)}
	now := time.Now().UTC()
	l.engine.Launch.EndedAt = &now
	if died {
		l.engine.Launch.ExitStatus, l.engine.Launch.LogTail = l.process.ExitStatus(), l.log.Tail()
	}
	if err := portFree(l.port); err != nil {
		errs = append(errs, fmt.Errorf("after the engine ended: %w", err))
	}
	if err := awaitGPUMemory(ctx, l.environ, l.gpus, gpuLimit); err != nil && ctx.Err() == nil {
		errs = append(errs, err)
	}
	if err := l.log.Close(); err != nil {
		errs = append(errs, fmt.Errorf("write the engine's log: %w", err))
	}
	return errors.Join(append(errs, l.tell())...)
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

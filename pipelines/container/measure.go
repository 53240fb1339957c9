package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/vllm"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

const (
	// lookEvery is how often the files of the other container are looked at: two calls of
	// stat, which nothing that is measured notices.
	lookEvery = 250 * time.Millisecond
	// appearWithin is what the other container has to show that it started: it starts
	// first, so this is no matter of the engine.
	appearWithin = time.Minute
	// maxLogRead bounds how much of the engine's log is read for its settings.
	maxLogRead = 32 << 20
	maxLogLine = 64 << 10
	// maxGPULog bounds what is read of the GPUs' readings.
	maxGPULog = 64 << 20
)

// MeasureOptions of [Measure].
type MeasureOptions struct {
	Dir     string // RunDir, or another place in tests
	JobFile string
	Environ []string
	Stdout  io.Writer // takes the events
	Stderr  io.Writer
	// Drain is closed when this process is asked to end in order.
	Drain     <-chan struct{}
	Transport http.RoundTripper // nil: the runner's own
}

// Measure carries out the job on the engine that another container serves, and keeps
// every trial in the volume before it tells of it. How it ended also stands in end.json.
func Measure(ctx context.Context, o MeasureOptions) error {
	var job Job
	if err := readJob(o.JobFile, &job); err != nil {
		return err
	}
	dir := LaunchDir(o.Dir, job.Launch.Number)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Join(o.Dir, trialsDir), 0o755)); err != nil {
		return err
	}
	m := &measuring{
		MeasureOptions: o, job: job, launchDir: dir,
		secrets: secretsOf(o.Environ),
		exited:  make(chan struct{}), drain: make(chan struct{}),
		appear: time.Now().Add(appearWithin),
	}
	m.redact = record.NewRedactor(m.secrets...)
	events := newEventWriter(o.Stdout, job.Nonce)
	defer events.close()
	m.journal = &journal{dir: o.Dir, launchDir: dir, redact: m.redact, events: events, gpus: newGPULog(dir)}
	m.log = follower{path: filepath.Join(dir, logFile), most: maxLogRead, line: m.logLine}
	err := m.run(ctx)
	end := End{Drained: isClosed(m.drain)}
	var engine *runner.EngineError
	switch {
	case err == nil:
	case errors.As(err, &engine):
		end.Engine = &runner.EngineError{Kind: engine.Kind, Reason: m.redact.Redact(engine.Reason)}
	default:
		end.Error = m.redact.Redact(err.Error())
	}
	if err != nil {
		err = redactedError{err, m.redact.Redact(err.Error())}
	}
	return errors.Join(err, writeJSON(filepath.Join(dir, endFile), end), events.write(Event{End: &end}))
}

// redactedError is an error whose text can be printed.
type redactedError struct {
	error
	text string
}

func (e redactedError) Error() string { return e.text }
func (e redactedError) Unwrap() error { return e.error }

func readJob(path string, job *Job) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d := json.NewDecoder(io.LimitReader(f, maxJob))
	d.DisallowUnknownFields()
	if err := d.Decode(job); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: something follows the job, or it is over %d MiB", path, maxJob>>20)
	}
	if job.Plan == nil || job.Launch.Number < 1 || job.EngineURL == "" {
		return fmt.Errorf("%s: it has no plan, launch or engine", path)
	}
	return nil
}

const maxJob = 64 << 20

// measuring is one call of Measure.
type measuring struct {
	MeasureOptions
	job       Job
	launchDir string
	secrets   []string
	redact    *record.Redactor
	journal   *journal
	ready     atomic.Bool

	exited chan struct{} // closed when the engine is known to have ended
	drain  chan struct{} // closed when somebody asked to end early

	// looking guards what one look at the engine's files remembers for the next. It is
	// taken before mu.
	looking sync.Mutex
	log     follower
	seen    os.FileInfo // of engine.json
	appear  time.Time   // when that has to be there

	mu     sync.Mutex
	reason string // why exited is closed
	state  EngineState
	facts  vllm.LogFacts
}

func (m *measuring) run(ctx context.Context) error {
	m.look() // the engine may be ready before the watch has its first turn
	watching, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { m.watch(watching) })
	defer watch.Wait()
	defer stop(nil)

	done, err := m.journal.done(m.job.Plan, m.job.Done, m.Stderr)
	if err != nil {
		return err
	}
	key := supervise.Getenv(m.Environ, KeyVariable)
	engine := &runner.Engine{
		BaseURL: m.job.EngineURL, APIKey: key, Launch: m.job.Launch, Simulated: m.job.Simulated,
		Exited: m.exited, ExitReason: m.exitReason, LogCapacity: m.capacity,
	}
	opts := runner.Options{
		RunID: m.job.RunID, Drain: m.drain, Secrets: m.secrets, Transport: m.Transport,
		Done: func(id string) bool { return done[id] },
	}
	if err := runner.WaitReady(ctx, engine, m.job.Plan, opts); err != nil {
		switch {
		case errors.Is(err, runner.ErrDrained):
			return nil
		case isClosed(m.exited):
			return &runner.EngineError{Kind: record.FailEngineExit, Reason: "before it was ready: " + m.exitReason()}
		}
		return fmt.Errorf("%w%s", err, supervise.Quote(LastLines(filepath.Join(m.launchDir, logFile)), 6))
	}
	m.look() // all that the engine said until now
	m.ready.Store(true)
	m.mu.Lock()
	if began := m.state.StartedAt; !began.IsZero() {
		seconds := time.Since(began).Seconds()
		engine.Launch.StartedAt, engine.Launch.ReadySeconds = began, &seconds
	}
	engine.Launch.Settings = append(slices.Clone(engine.Launch.Settings), m.facts.Settings()...)
	m.mu.Unlock()
	if err := m.journal.Launched(engine.Launch); err != nil {
		return err
	}
	err = runner.Measure(ctx, engine, m.job.Plan, opts, m.journal)
	now := time.Now().UTC()
	engine.Launch.EndedAt = &now
	return errors.Join(err, m.journal.Launched(engine.Launch))
}

// watch looks at the files of the other containers until ctx ends.
func (m *measuring) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	drain := m.Drain
	for {
		select {
		case <-ctx.Done():
			return
		case <-drain:
			drain = nil
			m.end()
		case <-tick.C:
		}
		if _, err := os.Stat(filepath.Join(m.Dir, drainFile)); err == nil {
			m.end()
		}
		m.look()
	}
}

// look reads what is new in the files of the engine's container: its log until it is
// ready, its state whenever that changed.
func (m *measuring) look() {
	m.looking.Lock()
	defer m.looking.Unlock()
	if !m.ready.Load() {
		m.log.read()
	}
	fi, err := os.Stat(filepath.Join(m.launchDir, engineFile))
	switch {
	case err != nil && m.seen == nil && time.Now().After(m.appear):
		m.over(fmt.Sprintf("its container did not start within %v", appearWithin))
	case err == nil && (m.seen == nil || !os.SameFile(fi, m.seen) || !fi.ModTime().Equal(m.seen.ModTime())):
		// Each state is a new file; the times of two may be one, the clock of files is coarse.
		if state, err := readEngine(m.launchDir); err == nil {
			m.seen = fi
			m.judge(state)
		}
	}
}

// logLine takes a line of the engine's log.
func (m *measuring) logLine(s string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.facts.Line(s)
	m.journal.Progress(runner.Progress{Stage: "start", Text: s})
}

// end passes on the wish to end early.
func (m *measuring) end() {
	if !isClosed(m.drain) {
		close(m.drain)
	}
}

// judge takes a new state of the engine.
func (m *measuring) judge(s EngineState) {
	m.mu.Lock()
	m.state = s
	m.mu.Unlock()
	switch {
	case s.LaunchID != m.job.LaunchID:
		m.over(fmt.Sprintf("another launch (%.80q) has taken its place", s.LaunchID))
	case s.Starts > 1:
		m.over("its container was started again behind our back: what ran before was lost")
	case s.Error != "":
		m.over(s.Error)
	case s.ExitStatus != "":
		m.over(s.ExitStatus + supervise.Quote(s.LogTail, 12))
	}
}

// over says once why the engine is gone.
func (m *measuring) over(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reason == "" {
		m.reason = reason
		close(m.exited)
	}
}

func (m *measuring) exitReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reason
}

// capacity is what the start-up log says, summed over the engines.
func (m *measuring) capacity() (tokens int64, ok bool) {
	m.look()
	m.mu.Lock()
	defer m.mu.Unlock()
	each, _ := m.facts.Capacity()
	for _, n := range each {
		tokens += n
	}
	return tokens, len(each) > 0
}

// follower reads the lines that a file grows by.
type follower struct {
	path string
	most int64 // bytes that are read
	line func(string)

	at      int64
	pending []byte
}

func (f *follower) read() {
	file, err := os.Open(f.path)
	if err != nil {
		return
	}
	defer file.Close()
	b, err := io.ReadAll(io.NewSectionReader(file, f.at, max(0, f.most-f.at)))
	if err != nil {
		return
	}
	f.at += int64(len(b))
	f.pending = append(f.pending, b...)
	for {
		line, rest, ok := bytes.Cut(f.pending, []byte("\n"))
		if !ok {
			break
		}
		f.line(string(line))
		f.pending = rest
	}
	if len(f.pending) > maxLogLine {
		f.pending = nil
	}
}

// LastLines reads the end of a log.
func LastLines(path string) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, fi.Size()-8<<10), 8<<10))
	var out []string
	for line := range bytes.Lines(b) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			out = append(out, string(line[:min(len(line), 1<<10)]))
		}
	}
	return out
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

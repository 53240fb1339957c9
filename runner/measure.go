package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/scrape"
	"speedmatrix/runner/internal/workload"
)

// Reasons for which a trial is given up; they are causes of its context.
var (
	errExited     = errors.New("the engine ended")
	errLimit      = errors.New("the stage's limit passed")
	errWindowEnds = errors.New("the window ends")
)

// ErrDrained is what [WaitReady] returns when Options.Drain was closed meanwhile.
var ErrDrained = errors.New("ended early, as asked")

// measurement is one call of [Measure].
type measurement struct {
	engine *Engine
	id     *plan.Identity
	opts   Options
	sink   Sink
	client *openai.Client
	model  string

	capacity plan.Capacity
	read     scrape.Read // nil: the server has no metrics
	prompts  *workload.Builder
	rate     rate
	// warmed are the contexts that were sent once in this launch.
	warmed map[int]bool
	// loaded are the decode prompts of a context: one if they are shared, else one
	// for each stream used so far.
	loaded map[int][]workload.Prompt
	// unauthorized: the server stopped taking our key.
	unauthorized bool
}

// Measure runs every step of the plan that is not done, in order. A trial that
// failed is a row and no error; an error says that nothing more can be measured:
// an [*EngineError] after the remaining steps became skipped rows, what the sink
// could not keep, or the cause for which ctx was cancelled. It calls the sink on
// its own goroutine.
func Measure(ctx context.Context, e *Engine, p *plan.Plan, opts Options, sink Sink) error {
	m := &measurement{
		engine: e, id: &p.Identity, opts: opts, sink: sink,
		client:   newClient(e, opts, peak(&p.Identity)),
		model:    modelName(&p.Identity, &e.Launch),
		capacity: completed(p.Identity.Capacity, &e.Launch),
		warmed:   make(map[int]bool),
		loaded:   make(map[int][]workload.Prompt),
	}
	defer m.client.Close()
	m.prompts = workload.NewBuilder(m.count)
	if e.Launch.MetricsAvailable {
		m.read = gauges(m.client)
	}

	run, release := m.watch(ctx)
	defer release()
	var ended *EngineError
	for _, s := range m.id.Steps {
		if opts.Done != nil && opts.Done(s.ID) {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var t record.Trial
		if out := m.leaveOut(s); out != nil {
			t = *out
		} else {
			// Asked here, since the watch may not have had its turn yet.
			if ended == nil && isClosed(e.Exited) {
				ended = m.exited()
			}
			if ended != nil {
				t = m.row(s)
				t.Status, t.Reason = record.Skipped, record.ReasonEngineEnded
			} else if isClosed(opts.Drain) {
				return nil
			} else if t, ended = m.trial(run, s); ctx.Err() != nil {
				// At once means at once: half a trial is measured again.
				return context.Cause(ctx)
			}
		}
		m.scrub(&t)
		if err := sink.Trial(t); err != nil {
			return fmt.Errorf("keep trial %s: %w", s.ID, err)
		}
		if m.unauthorized {
			return fmt.Errorf("trial %s: HTTP status 401: the server wants another API key", s.ID)
		}
	}
	if ended != nil {
		return ended
	}
	m.progress(Progress{Stage: "done"})
	return nil
}

// watch gives a context that also ends, with its cause, when the engine's process
// does or a person asks to end early.
func (m *measurement) watch(ctx context.Context) (context.Context, func()) {
	run, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select { // a nil channel is never ready
		case <-m.engine.Exited:
			cancel(errExited)
		case <-m.opts.Drain:
			cancel(ErrDrained)
		case <-run.Done():
		}
	}()
	return run, func() {
		cancel(nil)
		<-done
	}
}

func isClosed(c <-chan struct{}) bool {
	select { // a nil channel is never ready
	case <-c:
		return true
	default:
		return false
	}
}

// exited describes the end of the engine's process.
func (m *measurement) exited() *EngineError {
	return &EngineError{Kind: record.FailEngineExit, Reason: exitReason(m.engine)}
}

func exitReason(e *Engine) string {
	if e.ExitReason != nil {
		return e.ExitReason()
	}
	return "its process ended"
}

// row is the record of a step before anything happened.
func (m *measurement) row(s plan.Step) record.Trial {
	return record.Trial{
		StepID: s.ID,
		Point: record.Point{Phase: s.Phase, ContextTokens: s.ContextTokens,
			ContextLabel: s.ContextLabel, Concurrency: s.Concurrency},
		Repeat: s.Repeat,
		Launch: m.engine.Launch.Number,
	}
}

// leaveOut gives the row of a step that is not run: the plan says so, or it cannot
// fit. The arithmetic is a warning of the row.
func (m *measurement) leaveOut(s plan.Step) *record.Trial {
	t := m.row(s)
	t.Launch = 0
	if s.Skip != "" {
		t.Status, t.Reason = record.Skipped, s.Skip
		return &t
	}
	v := m.id.Predict(m.capacity, s)
	if v.Fits {
		return nil
	}
	t.Status, t.Reason = record.Status(v.Status), v.Reason
	if v.Why != "" {
		t.Warnings = []string{v.Why}
	}
	return &t
}

// scrub removes secrets from the texts that were put together here; those of
// requests have none.
func (m *measurement) scrub(t *record.Trial) {
	r := record.NewRedactor(append([]string{m.engine.APIKey}, m.opts.Secrets...)...)
	t.Reason = r.Redact(t.Reason)
	for i := range t.Warnings {
		t.Warnings[i] = r.Redact(t.Warnings[i])
	}
}

func (m *measurement) progress(p Progress) {
	m.sink.Progress(p)
}

// count is the [workload.Counter] of this server. One whose reply is no count cannot
// count; one that refuses, or does not answer, could have.
func (m *measurement) count(ctx context.Context, text string) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, firstToken, errLimit)
	defer cancel()
	n, err := m.client.TokenizeChat(ctx, m.model, openai.Message{Role: "user", Content: openai.Quote(text)})
	var refused *openai.StatusError
	switch {
	case errors.Is(err, openai.ErrNotFound), errors.As(err, &refused) && (refused.Status == 405 || refused.Status == 501):
		return 0, workload.ErrNoCounter
	case errors.Is(err, openai.ErrReply):
		return 0, fmt.Errorf("%w: %w", workload.ErrNoCounter, err)
	}
	return n, err
}

// options of a request's body.
func (m *measurement) options(maxTokens int) openai.Options {
	s := &m.id.Sampling
	return openai.Options{Model: m.model, MaxTokens: maxTokens,
		Temperature: s.Temperature, TopP: s.TopP, Seed: s.Seed, IgnoreEOS: s.IgnoreEOS}
}

// chat makes the body of a request for a prompt.
func (m *measurement) chat(text openai.Text, maxTokens int) []byte {
	return openai.ChatBody(m.options(maxTokens), openai.Message{Role: "user", Content: text})
}

// completed fills what the plan leaves to the engine. An unknown capacity stays
// unknown.
func completed(c plan.Capacity, l *record.Launch) plan.Capacity {
	if l.KVCapacityTokens != nil {
		c = c.Told(*l.KVCapacityTokens, l.KVCapacityPerEngine, l.KVCapacitySource)
	}
	if c.MaxModelLen == 0 && l.MaxModelLen != nil {
		c.MaxModelLen = *l.MaxModelLen
	}
	return c
}

// peak is the largest number of streams of any step.
func peak(id *plan.Identity) int {
	n := 1
	for _, s := range id.Steps {
		n = max(n, s.Concurrency)
	}
	return n
}

func newClient(e *Engine, opts Options, streams int) *openai.Client {
	return openai.New(e.BaseURL, e.APIKey, streams, opts.Transport)
}

// modelName is the name that is sent: the first that the command gives, else the
// model's own, else the only one there is.
func modelName(id *plan.Identity, l *record.Launch) string {
	switch {
	case len(id.Model.Served) > 0:
		return id.Model.Served[0]
	case id.Model.ID != "":
		return id.Model.ID
	case len(l.Models) == 1:
		return l.Models[0]
	}
	return ""
}

// short sleeps, or says that ctx ended first.
func short(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

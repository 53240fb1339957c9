package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/scrape"
	"speedmatrix/runner/internal/workload"
)

// progressEvery is how often people who wait are told.
const progressEvery = 250 * time.Millisecond

// trial is one step being run. All of it but what mu guards is used by the one
// goroutine that called [Measure].
type trial struct {
	*measurement
	step  plan.Step
	rec   record.Trial
	facts facts
	begun time.Time
	live  openai.Live
	texts texts
	// settle, and the slowest scout of this trial, make the limits of readiness.
	settle, scouted time.Duration
	warned          map[string]bool

	mu       sync.Mutex
	requests []*record.Request
}

// trial runs one step. The engine error, if there is one, is in the record too.
func (m *measurement) trial(ctx context.Context, s plan.Step) (record.Trial, *EngineError) {
	t := &trial{measurement: m, step: s, rec: m.row(s), begun: time.Now(),
		settle: time.Duration(m.id.SettleNs), warned: make(map[string]bool)}
	t.rec.StartedAt = t.begun.UTC().Round(0)
	t.enter(stageIdle)
	if idle := t.idle(ctx); idle != nil && !*idle {
		t.rec.IdleBefore = idle
	} else if t.rec.IdleBefore = idle; ctx.Err() == nil {
		switch s.Phase {
		case record.PhasePrefill:
			t.prefill(ctx)
		default:
			t.decode(ctx)
		}
		t.leave(ctx)
	}
	t.rec.EndNs = t.now()

	t.recount(ctx)
	t.collect()
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errExited):
		t.facts.engine = m.exited()
	case errors.Is(cause, ErrDrained) && t.facts.stage != stageDrain:
		t.facts.drained = true
	}
	t.warnings()
	t.rec.Status, t.rec.FailureKind, t.rec.Reason = judge(&t.rec, t.facts)
	return t.rec, t.facts.engine
}

// now is nanoseconds since the trial began, by the monotonic clock.
func (t *trial) now() int64 { return int64(time.Since(t.begun)) }

// enter says in which stage the trial is.
func (t *trial) enter(stage string) {
	t.facts.stage = stage
	t.tell(Progress{})
}

func (t *trial) tell(p Progress) {
	p.Stage, p.StepID = t.facts.stage, t.step.ID
	t.progress(p)
}

// warn keeps a sentence, once.
func (t *trial) warn(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	if !t.warned[s] {
		t.warned[s] = true
		t.rec.Warnings = append(t.rec.Warnings, s)
	}
}

// await runs f on a goroutine and tells people meanwhile. It returns when f has.
func (t *trial) await(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			t.tell(Progress{})
		}
	}
}

// begin makes the record of a request that is due.
func (t *trial) begin(role string, stream, generation int, dueNs int64) *record.Request {
	r := &record.Request{Role: role, Stream: stream, Generation: generation, DueNs: dueNs}
	t.mu.Lock()
	t.requests = append(t.requests, r)
	t.mu.Unlock()
	return r
}

// collect puts the requests into the record, in the order in which they were due.
func (t *trial) collect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortStableFunc(t.requests, byDue)
	t.rec.Requests = make([]record.Request, len(t.requests))
	for i, r := range t.requests {
		t.rec.Requests[i] = *r
		t.rec.Requests[i].Index = i
		// Then every further step would fail the same way.
		t.unauthorized = t.unauthorized || r.HTTPStatus == http.StatusUnauthorized
	}
}

// byDue is the order of requests: the moment at which they were due.
func byDue(a, b *record.Request) int {
	return cmp.Or(cmp.Compare(a.DueNs, b.DueNs), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Generation, b.Generation))
}

// send makes one request outside of a wave and waits for it. It reports false if
// the request did not complete: the trial then ends, and why is in its record or in
// the facts.
func (t *trial) send(ctx context.Context, r *record.Request, body []byte, limit time.Duration) bool {
	t.await(func() {
		var watch sync.WaitGroup
		defer watch.Wait()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			t.client.Stream(ctx, t.call(body), r)
		}()
		late := time.NewTimer(limit)
		defer late.Stop()
		forgotten := make(chan struct{})
		if stall := t.stallLimit(); stall < limit {
			watch.Go(func() {
				if t.forgotten(ctx, stall) {
					close(forgotten)
				}
			})
		}
		select {
		case <-done:
		case <-forgotten:
			limit = t.stallLimit()
			t.look(ctx)
			cancel(errLimit)
			<-done
		case <-late.C:
			t.look(ctx)
			cancel(errLimit)
			<-done
		}
		if r.Outcome == record.OutcomeCancelled && errors.Is(context.Cause(ctx), errLimit) {
			t.facts.limit = limit
		}
	})
	if r.Outcome == record.OutcomeCompleted {
		return true
	}
	if t.facts.limit > 0 {
		t.facts.why = t.gaugeWords()
		t.suspect(ctx)
	}
	t.broken(ctx, r.FailureKind)
	return false
}

func (t *trial) call(body []byte) openai.Call {
	return openai.Call{Path: openai.ChatPath, Body: body, Clock: t.now, Live: &t.live, Secrets: t.opts.Secrets}
}

// forgotten waits until the server has said in every reading for as long as the stall
// limit that it runs nothing and lets nothing wait, though it has a request of ours and
// no output came: then it is not reading a long prompt. It gives up with its context.
func (t *trial) forgotten(ctx context.Context, stall time.Duration) bool {
	if t.read == nil {
		return false // nothing tells a long prompt from a stall
	}
	outputs := t.live.Outputs.Load()
	for since := time.Now(); ; {
		if !short(ctx, scrapeEvery) {
			return false
		}
		r, err := scrape.Take(ctx, scrapeDeadline, t.now, t.read)
		running, _ := r.Get(record.SampleRunning)
		waiting, _ := r.Get(record.SampleWaiting)
		if now := t.live.Outputs.Load(); err != nil || running > 0 || waiting > 0 || now != outputs {
			since, outputs = time.Now(), now
		}
		if time.Since(since) >= stall {
			return true
		}
	}
}

// look asks for the gauges once more, to say what the server did when a limit
// passed. It must come before our requests are closed: a request that waits for
// memory and one that is only slow differ in nothing but these gauges, and a server
// forgets both at once.
func (t *trial) look(ctx context.Context) {
	t.facts.running, t.facts.waiting = nil, nil
	if t.read == nil {
		return
	}
	if r, err := scrape.Take(ctx, scrapeDeadline, t.now, t.read); err == nil {
		t.seen(r)
	}
}

func (t *trial) seen(r scrape.Reading) {
	t.facts.running, t.facts.waiting = nil, nil
	if v, ok := r.Get(record.SampleRunning); ok {
		t.facts.running = &v
	}
	if v, ok := r.Get(record.SampleWaiting); ok {
		t.facts.waiting = &v
	}
}

// gaugeWords says what the server last told.
func (t *trial) gaugeWords() string {
	if t.facts.running == nil || t.facts.waiting == nil {
		return "the server tells nothing of its queue"
	}
	return fmt.Sprintf("the server says running %v, waiting %v", *t.facts.running, *t.facts.waiting)
}

// suspect asks whether the engine is still alive, when no token came for so long
// that it may not be: an engine can hang for hours while /health answers.
func (t *trial) suspect(ctx context.Context) {
	if ctx.Err() != nil || t.facts.engine != nil {
		return
	}
	limit := t.stallLimit()
	var answer record.Request
	var alive bool
	t.await(func() {
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
		defer cancel()
		answer, alive = t.probe(ctx)
	})
	switch {
	case alive || ctx.Err() != nil:
	case answer.FailureKind == record.FailConnect:
		t.broken(ctx, answer.FailureKind)
	default:
		t.facts.engine = &EngineError{Kind: record.FailStall,
			Reason: fmt.Sprintf("no token came, and a short request was not answered within %v (limits.stall): the engine hangs, though its port is open", limit)}
	}
}

// broken follows a failed request. It waits for what fails at the same time, and
// looks for a better explanation of a broken connection: the engine ended.
func (t *trial) broken(ctx context.Context, kind record.FailureKind) {
	if !short(ctx, failGrace) {
		return
	}
	if kind != record.FailConnect && kind != record.FailTruncated && kind != record.FailInBand {
		return
	}
	if t.facts.engine != nil || ctx.Err() != nil {
		return
	}
	if t.engine.Exited != nil && !short(ctx, exitGrace) {
		return // it did, or somebody ended the run
	}
	probe, cancel := context.WithTimeoutCause(ctx, probeLimit, errLimit)
	defer cancel()
	var refused *openai.StatusError
	if _, err := t.client.Models(probe); err != nil && ctx.Err() == nil && !errors.As(err, &refused) {
		t.facts.engine = &EngineError{Kind: record.FailEngineExit, Reason: "the server does not answer any more: " + err.Error()}
	}
}

// idle waits until the server runs nothing and lets nothing wait. Nil: the server
// does not tell; our own streams have ended, and that is all that is known.
func (t *trial) idle(ctx context.Context) *bool {
	if t.read == nil {
		return nil
	}
	limit := orDefault(t.id.Limits.IdleNs, defaultLimit)
	t.facts.limit, t.facts.why = 0, ""
	var idle *bool
	t.await(func() {
		end := time.Now().Add(limit)
		seen, failed := 0, 0
		for {
			r, err := scrape.Take(ctx, scrapeDeadline, t.now, t.read)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				// A server whose metrics went away is measured without them.
				if failed++; failed > idleHold {
					t.facts.why = err.Error()
					return
				}
			default:
				failed = 0
				t.seen(r)
				if *t.facts.running == 0 && *t.facts.waiting == 0 {
					seen++
				} else {
					seen = 0
				}
				if seen >= idleHold {
					idle = ptr(true)
					return
				}
			}
			// One that was idle just now is asked once more.
			if seen == 0 && time.Now().After(end) {
				idle = ptr(false)
				return
			}
			if !short(ctx, idlePoll) {
				return
			}
		}
	})
	switch {
	case idle == nil && t.facts.why != "":
		t.warn("whether the server was idle is not known: %s", t.facts.why)
	case idle != nil && !*idle:
		t.facts.limit, t.facts.why = limit, t.gaugeWords()
	}
	return idle
}

// leave waits until the server is idle again, unless nobody can or wants to know.
func (t *trial) leave(ctx context.Context) {
	if ctx.Err() != nil || t.facts.engine != nil {
		return
	}
	keep := t.facts // how the trial went so far decides, if it already failed
	t.rec.IdleAfter = t.idle(ctx)
	why := t.facts.why
	t.facts = keep
	if t.rec.IdleAfter != nil && !*t.rec.IdleAfter {
		t.facts.why = why
		t.suspect(ctx)
	}
}

// prompt makes a prompt and asks for a calibration where the server cannot count.
func (t *trial) prompt(ctx context.Context, tokens int, task workload.Task, nonce string) (workload.Prompt, bool) {
	var p workload.Prompt
	var err error
	build := func() { p, err = t.prompts.Build(ctx, tokens, task, nonce) }
	known := t.prompts.Estimated()
	t.await(build)
	if err == nil && !known && t.prompts.Estimated() {
		// One short request tells how long a word is; the prompt that was just made
		// could be longer than the model takes.
		sample := t.prompts.Sample()
		r := t.begin(record.RoleWarmup, 0, 0, t.now())
		if !t.send(ctx, r, t.chat(openai.Quote(sample.Text()), 1), scoutLimit(t.id.Limits, &t.rate, 1024)) {
			return p, false
		}
		if r.PromptTokens != nil {
			t.prompts.Observe(sample, *r.PromptTokens)
		}
		t.await(build)
	}
	if err != nil && ctx.Err() == nil {
		t.cannotCount(ctx, err)
	}
	return p, err == nil
}

// cannotCount says that the server did not count a prompt although it can.
func (t *trial) cannotCount(ctx context.Context, err error) {
	t.facts.failed, t.facts.why = record.FailConnect, err.Error()
	var refused *openai.StatusError
	switch {
	case errors.As(err, &refused):
		t.facts.failed = record.FailHTTP
		t.unauthorized = t.unauthorized || refused.Status == http.StatusUnauthorized
	case errors.Is(err, errLimit):
		t.facts.failed = record.FailTimeout
		t.suspect(ctx)
	}
	t.broken(ctx, t.facts.failed)
}

// length records how long the prompt was: by the usage of a request that had it, by
// the server's count before, or not at all.
func (t *trial) length(p workload.Prompt, r *record.Request) {
	switch {
	case r != nil && r.PromptTokens != nil && !p.LengthOff(*r.PromptTokens):
		t.rec.PromptTokens = ptr(*r.PromptTokens)
		t.prompts.Observe(p, *r.PromptTokens)
	case p.Tokens != nil:
		t.rec.PromptTokens = ptr(*p.Tokens)
	}
	if t.prompts.Estimated() {
		t.warn("the length of prompts was estimated, since /tokenize did not count them: %v", t.prompts.Why())
	}
	if t.rec.PromptTokens == nil {
		t.rec.PromptOff = t.step.ContextTokens > 0
	} else {
		t.rec.PromptOff = workload.Off(t.step.ContextTokens, *t.rec.PromptTokens)
	}
}

// nonce is different for every run, launch and context, and for what else is named.
// A resumed run is another launch: what the first one left in the cache is not used.
func (t *trial) nonce(parts ...string) string {
	return workload.Nonce(append([]string{t.opts.RunID, strconv.Itoa(t.engine.Launch.Number),
		strconv.Itoa(t.step.ContextTokens)}, parts...)...)
}

// warnings says what to know about numbers that stand.
func (t *trial) warnings() {
	if t.facts.unknown = t.unknown(); t.facts.unknown != "" {
		t.warn("%s", t.facts.unknown)
	}
	if t.rec.PromptOff && t.rec.PromptTokens != nil {
		t.warn("the prompt was %d tokens long, asked were %d", *t.rec.PromptTokens, t.step.ContextTokens)
	}
	if t.facts.cacheHits > 0 {
		t.warn("%d prompt tokens came from the prefix cache, of which %d stand before the prompt", t.facts.cacheHits, min(t.facts.cacheHits, t.facts.cacheFree))
	}
	if t.facts.stage == stageDrain && t.engine.Launch.MetricsAvailable && !slices.ContainsFunc(t.rec.Samples, func(s record.Sample) bool {
		return s.Source == record.SourceMetrics && t.rec.LaunchNs != nil && s.AtNs >= *t.rec.LaunchNs
	}) {
		t.warn("the server's metrics could not be read during the trial")
	}
}

// grew is by how much a counter rose between the first and the last reading of the
// window.
func grew(t *record.Trial, name string) float64 {
	if t.WindowStartNs == nil || t.WindowEndNs == nil {
		return 0
	}
	var first, last *float64
	for i := range t.Samples {
		s := &t.Samples[i]
		if s.Source != record.SourceMetrics || s.Name != name || s.AtNs < *t.WindowStartNs || s.AtNs > *t.WindowEndNs {
			continue
		}
		if first == nil {
			first = &s.Value
		}
		last = &s.Value
	}
	if first == nil {
		return 0
	}
	return *last - *first
}

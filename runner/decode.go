package runner

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/load"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/scrape"
	"speedmatrix/runner/internal/workload"
)

// lookEvery is how often the streams are looked at while they get ready.
const lookEvery = 20 * time.Millisecond

// decode measures streams that generate side by side, over a window that opens when
// all of them run.
func (t *trial) decode(ctx context.Context) {
	t.rec.MaxOutput = t.id.MaxOutput
	t.rec.WindowAskedNs = t.id.WindowNs
	t.rec.PromptMode = t.id.Prompts
	t.rec.CacheDeclared = "warm"
	t.enter(stageScout)
	bodies, ok := t.load(ctx)
	if !ok {
		return
	}
	// The counters as the scouts left them: what grows from here on is the streams'.
	// Read before the connections are opened, which a server closes after some idle
	// seconds.
	t.keep(ctx)
	t.warm(ctx)
	if ctx.Err() != nil {
		return
	}
	w := t.launch(ctx, bodies)
	if t.untilReady(ctx, w) {
		t.window(ctx, w)
	}
	t.finish(ctx, w)
}

// load makes the prompts and sends each once for a single token, so that the prefix
// cache holds it and its length is known. It returns the body of each stream; they
// share one if the prompts are shared.
func (t *trial) load(ctx context.Context) ([][]byte, bool) {
	streams := t.step.Concurrency
	distinct := 1
	if t.id.Prompts == "distinct" {
		distinct = streams
	}
	loaded := t.loaded[t.step.ContextTokens]
	for i := len(loaded); i < distinct; i++ {
		// Not the step's: the same prompts serve every concurrency of a context.
		p, ok := t.prompt(ctx, t.step.ContextTokens, workload.Decode, t.nonce(record.PhaseDecode, strconv.Itoa(i)))
		if !ok {
			return nil, false
		}
		loaded = append(loaded, p)
		t.loaded[t.step.ContextTokens] = loaded
	}
	t.rec.ScoutStartNs = ptr(t.now())
	var first *record.Request
	bodies := make([][]byte, streams)
	scouts := distinct
	if t.step.ContextTokens == 0 {
		scouts = 1 // there is nothing to load; one tells the length and whether it is accepted
	}
	for i := range distinct {
		text := openai.Quote(loaded[i].Text())
		bodies[i] = t.chat(text, t.id.MaxOutput)
		if i >= scouts {
			continue
		}
		scout := t.chat(text, 1)
		r := t.begin(record.RoleScout, i, 0, t.now())
		if i == 0 {
			first = r
		}
		if !t.send(ctx, r, scout, scoutLimit(t.id.Limits, &t.rate, int64(t.step.ContextTokens))) {
			return nil, false
		}
		t.took(loaded[i], r)
		if !t.agrees(loaded[i], r) {
			return nil, false
		}
		if r.SentNs != nil && r.EndNs != nil {
			t.scouted = max(t.scouted, time.Duration(*r.EndNs-*r.SentNs))
		}
	}
	t.rec.ScoutEndNs = ptr(t.now())
	t.warmed[t.step.ContextTokens] = true
	t.length(loaded[0], first)
	for i := distinct; i < streams; i++ {
		bodies[i] = bodies[0] // nobody changes a body; a megabyte is not copied for each stream
	}
	return bodies, true
}

// launched is a wave under way.
type launched struct {
	wave    *load.Wave
	scraper *scrape.Scraper // nil: the server has no metrics
	first   atomic.Int64    // streams that have had a first token
	failed  chan *record.Request
	loop    atomic.Pointer[string]
	sampled int64 // when the client's own gauges were last kept
	silence silence
}

// launch starts the streams at one instant; the clock of readiness starts there.
func (t *trial) launch(ctx context.Context, bodies [][]byte) *launched {
	t.enter(stageReadiness)
	streams := len(bodies)
	w := &launched{failed: make(chan *record.Request, streams)}
	// Each element is used by its stream's goroutine only.
	had := make([]bool, streams)
	expect := make([]int, streams) // output events of the next request, to make room for
	for i := range expect {
		expect[i] = t.id.MaxOutput
	}
	var guards []loopGuard
	if t.id.LoopGuard {
		guards = make([]loopGuard, streams)
	}
	w.wave = load.Start(ctx, streams, t.now, func(ctx context.Context, a load.Arrival) bool {
		r := t.begin(record.RoleMeasured, a.Stream, a.Generation, a.DueNs)
		call := t.call(bodies[a.Stream])
		call.Chunks = expect[a.Stream]
		call.OnFirst = func() {
			if !had[a.Stream] {
				had[a.Stream] = true
				w.first.Add(1)
			}
		}
		came := t.texts.begin(r)
		var g *loopGuard
		if guards != nil {
			g = &guards[a.Stream]
			g.reset()
		}
		call.OnText = func(_ record.Channel, text []byte) {
			came.add(text)
			if g == nil {
				return
			}
			if g.add(text); g.period > 0 {
				w.looped(a.Stream, g)
			}
		}
		t.client.Stream(ctx, call, r)
		came.end()
		if r.Outcome == record.OutcomeFailed {
			w.failed <- r // room for one of each stream: it does not go on
		}
		expect[a.Stream] = len(r.Chunks) + 16
		return r.Outcome == record.OutcomeCompleted
	})
	t.facts.bodyBytes = bytesOf(bodies)
	t.rec.LaunchNs = ptr(w.wave.Release())
	if t.read != nil {
		w.scraper = scrape.Start(ctx, scrapeEvery, scrapeDeadline, t.now, t.read)
	}
	return w
}

func bytesOf(bodies [][]byte) (n int64) {
	for _, b := range bodies {
		n += int64(len(b))
	}
	return n
}

func (w *launched) looped(stream int, g *loopGuard) {
	if w.loop.Load() == nil {
		s := fmt.Sprintf("stream %d repeated the same %d bytes over %d bytes", stream, g.period, g.bytes)
		w.loop.CompareAndSwap(nil, &s)
	}
}

// gauge is the newest reading, if the server tells.
func (w *launched) gauge() (scrape.Reading, bool) {
	if w.scraper == nil {
		return scrape.Reading{}, false
	}
	return w.scraper.Last()
}

// untilReady waits for the window to open. It reports false if it does not; why is
// in the facts.
func (t *trial) untilReady(ctx context.Context, w *launched) bool {
	streams := t.step.Concurrency
	r := readiness{streams: streams, settle: t.settle, hold: saturatedHold(t.settle, t.scouted)}
	limit := readyLimit(t.id.Limits, streams, t.scouted, t.settle)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	told := time.Now()
	for {
		select {
		case <-tick.C:
		case bad := <-w.failed:
			t.broken(ctx, bad.FailureKind)
			return false
		case <-ctx.Done():
			return false
		}
		l := look{atNs: t.now(), first: int(w.first.Load()), outputs: t.live.Outputs.Load()}
		reading, known := w.gauge()
		if known {
			l.reading = max(reading.BegunNs, 1)
			l.waiting, _ = reading.Get(record.SampleWaiting)
			t.seen(reading)
		}
		switch r.see(l) {
		case ready:
			return true
		case saturated:
			t.warn("the window opened with %d of %d streams having had a first token: the server ran all it could for %v, and %v requests waited",
				l.first, streams, r.hold, l.waiting)
			return true
		}
		t.sample(w)
		if time.Since(told) >= progressEvery {
			told = time.Now()
			t.tell(Progress{Active: int(t.live.Active.Load()), Text: fmt.Sprintf("%d of %d streams have had a first token", l.first, streams)})
		}
		since := time.Duration(l.atNs - *t.rec.LaunchNs)
		// While a stream waits for its first token silence is no stall: the engine may
		// be reading a long prompt.
		if quiet := w.silence.see(l.atNs, l.outputs); l.first == streams && quiet >= t.stallLimit() {
			t.stalled()
			return false
		}
		if since >= limit {
			t.facts.limit = limit
			if !known {
				t.facts.running, t.facts.waiting = nil, nil
			}
			t.facts.why = fmt.Sprintf("%d of %d streams had a first token; %s", l.first, streams, t.gaugeWords())
			return false
		}
	}
}

// silence measures for how long no output came, as seen from here. A step from one
// look to the next counts for at most a second: if this program was stopped for an
// hour, the engine was not silent for an hour.
type silence struct {
	begun   bool
	outputs int64
	atNs    int64
	quietNs int64
}

func (s *silence) see(atNs, outputs int64) time.Duration {
	if s.begun && outputs == s.outputs {
		s.quietNs += min(atNs-s.atNs, int64(time.Second))
	} else {
		s.quietNs = 0
	}
	s.begun, s.outputs, s.atNs = true, outputs, atNs
	return time.Duration(s.quietNs)
}

func (t *trial) stallLimit() time.Duration { return orDefault(t.id.Limits.StallNs, defaultLimit) }

func (t *trial) stalled() {
	t.facts.engine = &EngineError{Kind: record.FailStall,
		Reason: fmt.Sprintf("no token from any request for %v (limits.stall)", t.stallLimit())}
}

// window measures for exactly the time asked. Nothing in it waits for the server.
func (t *trial) window(ctx context.Context, w *launched) {
	t.enter(stageWindow)
	asked := t.id.Window()
	health := watchHealth(ctx, asked)
	tokens := t.live.Tokens.Load()
	outputs := t.live.Outputs.Load()
	start := t.now()
	t.rec.WindowStartNs = ptr(start)
	t.rec.WindowEndNs = ptr(start + int64(asked))
	defer health.stop(&t.rec.Client)
	cut := func() { t.rec.WindowEndNs = ptr(min(t.now(), start+int64(asked))) }

	end := time.NewTimer(asked)
	defer end.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-end.C:
			t.enter(stageDrain)
			if t.live.Outputs.Load() == outputs {
				t.facts.silent = true
			}
			return
		case bad := <-w.failed:
			cut()
			t.broken(ctx, bad.FailureKind)
			return
		case <-ctx.Done():
			cut()
			return
		case <-tick.C:
		}
		now := t.now()
		t.sample(w)
		t.tell(Progress{Elapsed: min(time.Duration(now-start), asked), Total: asked,
			Tokens: t.live.Tokens.Load() - tokens, Active: int(t.live.Active.Load())})
		if w.silence.see(now, t.live.Outputs.Load()) >= t.stallLimit() {
			cut()
			t.stalled()
			return
		}
	}
}

// sample keeps what the client sees of itself, about as often as the server is
// asked.
func (t *trial) sample(w *launched) {
	now := t.now()
	if now-w.sampled < int64(scrapeEvery) {
		return
	}
	w.sampled = now
	t.rec.Samples = append(t.rec.Samples,
		record.Sample{AtNs: now, Source: record.SourceClient, Name: record.SampleOpen, Value: float64(t.live.Open.Load())},
		record.Sample{AtNs: now, Source: record.SourceClient, Name: record.SampleActive, Value: float64(t.live.Active.Load())})
}

// finish closes all streams and sees them end.
func (t *trial) finish(ctx context.Context, w *launched) {
	last := t.live.LastOutputNs.Load()
	closing := t.now()
	w.wave.Stop(errWindowEnds)
	if w.scraper != nil {
		t.rec.Samples = append(t.rec.Samples, w.scraper.Stop()...)
	}
	t.clientFacts()
	if s := w.loop.Load(); s != nil {
		t.facts.loop = *s
	}
	// A window can be shorter than the stall limit: an engine that fell silent in it
	// is asked whether it lives. The same where not one token came at all.
	quiet := time.Duration(closing - last)
	switch {
	case t.facts.stage == stageDrain && (t.facts.silent || quiet > quietLimit),
		t.facts.limit > 0 && (w.first.Load() == 0 || quiet > t.stallLimit()):
		t.suspect(ctx)
	}
}

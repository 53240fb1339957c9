package runner

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/load"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/scrape"
	"speedmatrix/runner/internal/workload"
)

// prefill measures how long a prompt that no cache holds takes to its first token:
// one token is asked for, so the end of the request is the end of the prefill.
func (t *trial) prefill(ctx context.Context) {
	t.rec.MaxOutput = 1
	t.rec.CacheDeclared = "cold"
	t.rec.PromptMode = "distinct"
	limit := scoutLimit(t.id.Limits, &t.rate, int64(t.step.ContextTokens))

	t.enter(stageWarmup)
	if !t.warmed[t.step.ContextTokens] {
		p, ok := t.prompt(ctx, t.step.ContextTokens, workload.Prefill, t.nonce(t.step.ID, record.RoleWarmup))
		if !ok {
			return
		}
		r := t.begin(record.RoleWarmup, 0, 0, t.now())
		if !t.send(ctx, r, t.chat(openai.Quote(p.Text()), 1), limit) {
			return
		}
		t.took(p, r)
		if !t.agrees(p, r) {
			return
		}
		t.warmed[t.step.ContextTokens] = true
	}

	// All streams of the step have a prompt of their own.
	prompts := make([]workload.Prompt, t.step.Concurrency)
	bodies := make([][]byte, t.step.Concurrency)
	for i := range prompts {
		var ok bool
		if prompts[i], ok = t.prompt(ctx, t.step.ContextTokens, workload.Prefill, t.nonce(t.step.ID, record.RoleMeasured, strconv.Itoa(i))); !ok {
			return
		}
		bodies[i] = t.chat(openai.Quote(prompts[i].Text()), 1)
	}
	hitsBefore := t.cacheHits(ctx)
	t.warm(ctx)
	limit = scoutLimit(t.id.Limits, &t.rate, int64(t.step.ContextTokens)) * time.Duration(t.step.Concurrency)

	t.enter(stageWindow)
	var scraper *scrape.Scraper
	if t.read != nil {
		scraper = scrape.Start(ctx, scrapeEvery, scrapeDeadline, t.now, t.read)
		defer scraper.Stop()
	}
	health := watchHealth(ctx, time.Minute)
	failed := make(chan *record.Request, t.step.Concurrency)
	sent := make([]*record.Request, t.step.Concurrency) // each by its stream's goroutine
	wave := load.Start(ctx, t.step.Concurrency, t.now, func(ctx context.Context, a load.Arrival) bool {
		r := t.begin(record.RoleMeasured, a.Stream, a.Generation, a.DueNs)
		sent[a.Stream] = r
		t.client.Stream(ctx, t.call(bodies[a.Stream]), r)
		if r.Outcome == record.OutcomeFailed {
			failed <- r
		}
		return false
	})
	t.facts.bodyBytes = bytesOf(bodies)
	t.rec.LaunchNs = ptr(wave.Release())
	late := time.NewTimer(limit)
	defer late.Stop()
	t.await(func() {
		select {
		case <-wave.Done():
		case <-ctx.Done():
		case <-late.C:
			t.look(ctx)
			t.facts.limit = limit
		}
		wave.Stop(errLimit)
	})
	health.stop(&t.rec.Client)
	t.clientFacts()
	if scraper != nil {
		t.rec.Samples = append(t.rec.Samples, scraper.Stop()...)
	}
	if t.facts.limit > 0 {
		t.facts.why = t.gaugeWords()
		t.suspect(ctx)
		return
	}
	select {
	case r := <-failed:
		t.broken(ctx, r.FailureKind)
		return
	default:
	}
	if ctx.Err() != nil {
		return
	}
	t.took(prompts[0], sent[0])
	t.length(prompts[0], sent[0])
	for i := range prompts {
		if !t.agrees(prompts[i], sent[i]) {
			return
		}
	}
	t.enter(stageDrain)
	if hitsAfter := t.cacheHits(ctx); hitsBefore != nil && hitsAfter != nil {
		t.facts.cacheHits = int64(*hitsAfter - *hitsBefore)
	}
	t.facts.cacheHits = max(t.facts.cacheHits, t.cachedByUsage())
	// What the chat template puts in front is the same in every request.
	free, _ := t.prompts.Overhead()
	t.facts.cacheFree = free * int64(t.step.Concurrency)
}

// took remembers how long a prompt took that nothing held.
func (t *trial) took(p workload.Prompt, r *record.Request) {
	tokens := p.Tokens
	if tokens == nil && r.PromptTokens != nil && !p.LengthOff(*r.PromptTokens) {
		tokens = r.PromptTokens
	}
	if tokens != nil && r.SentNs != nil && r.EndNs != nil {
		t.rate.saw(*tokens, time.Duration(*r.EndNs-*r.SentNs))
	}
}

// keep makes one reading of the server's metrics and keeps it, if it can be had.
func (t *trial) keep(ctx context.Context) (r scrape.Reading) {
	if t.read == nil {
		return r
	}
	t.await(func() {
		var err error
		if r, err = scrape.Take(ctx, scrapeDeadline, t.now, t.read); err != nil {
			r = scrape.Reading{}
		}
	})
	t.rec.Samples = append(t.rec.Samples, r.Samples()...)
	return r
}

// cacheHits reads the counter of prefix cache hits, and keeps the reading.
func (t *trial) cacheHits(ctx context.Context) *float64 {
	if v, ok := t.keep(ctx).Get(record.SamplePrefixHits); ok {
		return &v
	}
	return nil
}

// cachedByUsage is how many prompt tokens the server's usage says were cached, for
// servers whose metrics do not tell.
func (t *trial) cachedByUsage() (n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.requests {
		if r.Role == record.RoleMeasured && r.CachedTokens != nil {
			n += *r.CachedTokens
		}
	}
	return n
}

// warm opens the connections of the streams. If that fails, the requests will say
// why better than this could.
func (t *trial) warm(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, errLimit)
	defer cancel()
	t.await(func() {
		if err := t.client.Warm(ctx, t.step.Concurrency); err != nil && ctx.Err() == nil {
			t.warn("connections could not be opened before the launch: %v", err)
		}
	})
}

// clientFacts adds to the client's health what the requests show.
func (t *trial) clientFacts() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var edges []edge // of the time in which a request was open
	for _, r := range t.requests {
		if r.Role != record.RoleMeasured || r.SentNs == nil {
			continue
		}
		if lag := *r.SentNs - r.DueNs; t.rec.Client.SendLagMaxNs == nil || lag > *t.rec.Client.SendLagMaxNs {
			t.rec.Client.SendLagMaxNs = ptr(lag)
		}
		edges = append(edges, edge{*r.SentNs, +1})
		if r.EndNs != nil {
			edges = append(edges, edge{*r.EndNs, -1})
		}
		for i := range r.Chunks {
			t.rec.Client.ReadEventsMax = max(t.rec.Client.ReadEventsMax, int(r.Chunks[i].ReadEvents))
		}
	}
	// One that ends at the moment at which its successor begins is not open twice.
	slices.SortFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.open, b.open))
	})
	open := 0
	for _, e := range edges {
		open += e.open
		t.rec.Client.PeakOpen = max(t.rec.Client.PeakOpen, open)
	}
}

// edge is a moment at which one request more or less is open.
type edge struct {
	at   int64
	open int
}

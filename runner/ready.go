package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/vllm"
	"speedmatrix/results/record"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/scrape"
)

// Between two looks at a server that is not up yet: fast at first, since one that
// is only attached answers at once, and slow when it takes minutes.
const (
	pollFirst = 20 * time.Millisecond
	pollMost  = time.Second
)

// WaitReady waits until /v1/models lists the model and one short completion came
// back. /health is not asked: it says that something listens, no more. The launch
// in e is completed with what the engine told.
//
// An engine whose process ends is an [*EngineError] at once; a server that wants
// another key, serves the model under another name, or refuses the completion is an
// error at once; anything else is waited for until the plan's start limit.
func WaitReady(ctx context.Context, e *Engine, p *plan.Plan, opts Options) error {
	limit := orDefault(p.Identity.Limits.StartNs, defaultStart)
	m := &measurement{engine: e, id: &p.Identity, opts: opts}
	ctx, release := m.watch(ctx)
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()

	m.client = newClient(e, opts, 1)
	defer m.client.Close()
	err := m.listed(ctx)
	if err == nil {
		m.model = modelName(m.id, &e.Launch)
		err = m.answers(ctx)
	}
	if err == nil {
		m.asks(ctx)
		err = ctx.Err()
	}
	if err == nil || ctx.Err() == nil {
		return err
	}
	switch cause := context.Cause(ctx); cause {
	case errExited:
		return m.exited()
	case errLimit:
		return fmt.Errorf("not ready within %v (limits.start): %w", limit, err)
	default:
		return cause // the caller's, or a person's
	}
}

// listed waits until the server lists the model.
func (m *measurement) listed(ctx context.Context) error {
	var last error
	begun := time.Now()
	for pause := pollFirst; ; pause = min(2*pause, pollMost) {
		asked := time.Now()
		models, err := m.client.Models(ctx)
		took := time.Since(asked)
		switch {
		case err == nil:
			return m.choose(models)
		case ctx.Err() == nil:
			last = err
		case last == nil || took > pollMost:
			// Not that the limit passed in the middle of a look, but if the look itself
			// was long, what an earlier one saw is no longer so.
			last = fmt.Errorf("/v1/models: it has not answered for %v", took.Round(time.Millisecond))
		}
		var refused *openai.StatusError
		if errors.As(err, &refused) && (refused.Status == 401 || refused.Status == 403) {
			return fmt.Errorf("%s: %d, API key: the server wants %s; give it by an environment variable or a file",
				refused.Path, refused.Status, another(m.engine.APIKey))
		}
		if within := m.engine.ConnectWithin; ctx.Err() == nil && refused == nil && within > 0 && time.Since(begun) >= within {
			return fmt.Errorf("nothing answered for %v: start the server, or check its address: %w", within, last)
		}
		if !short(ctx, pause) {
			return last
		}
	}
}

func another(key string) string {
	if key == "" {
		return "one"
	}
	return "another one"
}

// choose checks that the model is served under the name that will be sent.
func (m *measurement) choose(models []openai.Model) error {
	l := &m.engine.Launch
	l.Models = nil
	for _, model := range models {
		l.Models = append(l.Models, model.ID)
	}
	name := modelName(m.id, l)
	at := slices.IndexFunc(models, func(model openai.Model) bool { return model.ID == name })
	switch {
	case len(models) == 0:
		return errors.New("/v1/models: the server serves no model")
	case at < 0 && name == "":
		return fmt.Errorf("/v1/models: the experiment names no model, and the server serves %s: name one of these (model.id)", quoted(l.Models))
	case at < 0:
		return fmt.Errorf("/v1/models: no model %q is served, but %s: name one of these in the experiment (model.id, or --served-model-name in its command)",
			name, quoted(l.Models))
	}
	l.MaxModelLen = models[at].MaxModelLen
	return nil
}

// quoted lists names from outside: at most ten.
func quoted(names []string) string {
	const most = 10
	var out []string
	for _, n := range names[:min(len(names), most)] {
		out = append(out, fmt.Sprintf("%q", n))
	}
	if len(names) > most {
		out = append(out, fmt.Sprintf("%d more", len(names)-most))
	}
	return strings.Join(out, ", ")
}

// answers sees one short completion come back.
func (m *measurement) answers(ctx context.Context) error {
	r, _ := m.probe(ctx)
	switch {
	case r.Outcome == record.OutcomeCompleted:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: the first completion has not come back: %s", openai.ChatPath, unended(&r))
	case r.HTTPStatus == 401 || r.HTTPStatus == 403:
		return fmt.Errorf("%s: %d, API key: the server wants %s for completions", openai.ChatPath, r.HTTPStatus, another(m.engine.APIKey))
	case r.FailureKind == record.FailHTTP:
		return fmt.Errorf("%s: the first completion failed: HTTP status %d: %s", openai.ChatPath, r.HTTPStatus, r.Message)
	default:
		return fmt.Errorf("%s: the first completion failed (%s): %s", openai.ChatPath, r.FailureKind, r.Message)
	}
}

// unended says how far a request came that was given up.
func unended(r *record.Request) string {
	switch {
	case r.EndNs == nil || r.SentNs == nil:
		return "it could not be sent"
	case r.FirstByteNs == nil:
		return fmt.Sprintf("no byte of a reply for %v", time.Duration(*r.EndNs-*r.SentNs).Round(time.Millisecond))
	default:
		return fmt.Sprintf("its stream had not ended %v after its first byte", time.Duration(*r.EndNs-*r.FirstByteNs).Round(time.Millisecond))
	}
}

// probe makes one short request that belongs to no trial, and says whether the
// engine answered it in any way: a refusal is a sign of life too.
func (m *measurement) probe(ctx context.Context) (r record.Request, alive bool) {
	started := time.Now()
	r.Role = record.RoleWarmup
	m.client.Stream(ctx, openai.Call{
		Path:    openai.ChatPath,
		Body:    m.chat(openai.Quote("Say yes."), 1),
		Clock:   func() int64 { return int64(time.Since(started)) },
		Secrets: m.opts.Secrets,
	}, &r)
	return r, r.HTTPStatus != 0 && r.EndNs != nil && r.Outcome != record.OutcomeCancelled && r.FailureKind != record.FailTimeout
}

// asks completes the launch with what else the engine tells. Nothing of it is
// needed: a server that tells nothing can be measured.
func (m *measurement) asks(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, scrapeDeadline, errLimit)
	defer cancel()
	l := &m.engine.Launch
	if v, err := m.client.Version(ctx); err == nil {
		l.Version = v
	}
	l.MetricsAvailable = false
	l.KVCapacityTokens, l.KVCapacityPerEngine, l.KVCapacitySource = nil, nil, vllm.CapacityUnknown
	if body, err := m.client.Metrics(ctx); err == nil {
		got := vllm.Parse(body, nil)
		l.MetricsAvailable = got.Running != nil && got.Waiting != nil
		l.Engines = got.Engines
		l.KVCapacityTokens, l.KVCapacityPerEngine = got.KVCapacityTokens, got.KVCapacityPerEngine
		l.KVCapacitySource = got.KVCapacitySource
	}
	if l.KVCapacityTokens == nil && m.engine.LogCapacity != nil {
		if n, ok := m.engine.LogCapacity(); ok {
			l.KVCapacityTokens, l.KVCapacitySource = &n, vllm.CapacityLog
		}
	}
}

// errNoGauges: what /metrics answered is not vLLM's metrics.
var errNoGauges = errors.New("/metrics: no gauges of vLLM in the reply")

// gauges reads a server's /metrics as samples.
func gauges(c *openai.Client) scrape.Read {
	return func(ctx context.Context) ([]scrape.Value, error) {
		body, err := c.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		g := vllm.Gauges(body)
		if !g.Available || g.Running == nil || g.Waiting == nil {
			return nil, errNoGauges
		}
		var out []scrape.Value
		for name, v := range g.Values() {
			out = append(out, scrape.Value{Name: name, Value: v})
		}
		return out, nil
	}
}

package runner

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/openai"
	"speedmatrix/runner/internal/workload"
)

// What is kept of text that the server has not counted, and what is asked for it.
const (
	textMost      = 1 << 20  // bytes of one request
	textsMost     = 64 << 20 // of a trial
	recountMost   = 4096     // requests of a trial
	recountAtOnce = 4
	recountLimit  = time.Minute // for all of them
	stillMost     = 64          // output events for which a count may stand still
)

// texts holds what came of requests that the server has not counted so far, so that
// it can be asked afterwards.
type texts struct {
	used atomic.Int64 // bytes

	mu sync.Mutex
	of map[*record.Request][]byte
}

// text is that of one request. It is used by the one goroutine that reads the stream.
type text struct {
	all  *texts
	r    *record.Request
	b    []byte
	lost bool // it was too much to be kept
}

func (x *texts) begin(r *record.Request) *text { return &text{all: x, r: r} }

// add takes more text. A server that counts while it goes on needs none of it.
func (x *text) add(b []byte) {
	switch {
	case x.lost:
	case x.r.RunningUsage && *x.r.CompletionTokens > 0: // 0 comes before the first token
		x.lose()
	default:
		x.b = append(x.b, b...)
		if used := x.all.used.Add(int64(len(b))); used > textsMost || len(x.b) > textMost {
			x.lose()
		}
	}
}

func (x *text) lose() {
	x.all.used.Add(-int64(len(x.b)))
	x.b, x.lost = nil, true
}

// end keeps the text if the request ended without a count of the server's.
func (x *text) end() {
	if x.lost || len(x.b) == 0 || counted(x.r) {
		x.lose()
		return
	}
	x.all.mu.Lock()
	defer x.all.mu.Unlock()
	if x.all.of == nil {
		x.all.of = make(map[*record.Request][]byte)
	}
	x.all.of[x.r] = x.b
}

// counted says whether the server's usage tells how many tokens came: there was one,
// and the request ended by itself, or the count kept up with the output until it was
// cut: it was never further behind than at the end. Package metric credits tokens by
// the same rule.
func counted(r *record.Request) bool {
	behind, most := counting(r)
	return r.CompletionTokens != nil && (r.Outcome == record.OutcomeCompleted || behind <= most)
}

// counting says how many output events came since the count last grew, and the most
// that came between two growths.
func counting(r *record.Request) (behind, most int) {
	var tokens int64
	some := false
	see := func(n int64) {
		if n > tokens {
			if !some {
				return // it belongs to the first output event
			}
			most = max(most, behind)
			behind = 0
		}
		tokens = n
	}
	for i := range r.Chunks {
		c := &r.Chunks[i]
		if c.Output {
			some = true
			behind++
		}
		if c.HasTokens {
			see(c.Tokens)
		}
	}
	if r.CompletionTokens != nil {
		see(*r.CompletionTokens)
	}
	return behind, most
}

// wrongUsage says how the server's counts of a decode trial contradict what was asked
// or what came; empty if they do not.
func wrongUsage(t *record.Trial) string {
	if t.Phase != record.PhaseDecode {
		return ""
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Role != record.RoleMeasured {
			continue
		}
		var tokens int64
		wrong := ""
		see := func(n int64) {
			if n < tokens && wrong == "" {
				wrong = fmt.Sprintf("its count of the tokens of a stream went back from %d to %d", tokens, n)
			}
			tokens = n
			if t.MaxOutput > 0 && n > int64(t.MaxOutput) {
				wrong = fmt.Sprintf("it counts %d tokens where at most %d were asked", n, t.MaxOutput)
			}
		}
		outputs := 0
		for j := range r.Chunks {
			c := &r.Chunks[j]
			if c.HasTokens {
				see(c.Tokens)
			}
			if c.Output {
				outputs++
			}
		}
		if r.CompletionTokens != nil {
			see(*r.CompletionTokens)
		}
		if wrong != "" {
			return wrong
		}
		if r.RetokenisedTokens != nil || outputs == 0 {
			continue
		}
		behind, most := counting(r)
		switch told := r.CompletionTokens != nil; {
		case told && tokens == 0 && r.Outcome == record.OutcomeCompleted:
			return fmt.Sprintf("it counts no tokens where %d output events came", outputs)
		case told && !counted(r) && behind > max(stillMost, 4*most):
			return fmt.Sprintf("its count stood still at %d tokens while %d output events came", tokens, behind)
		case !told && r.BadFrames > 0:
			return "there is no whole number of tokens in it"
		}
	}
	return ""
}

// agrees holds a request's count of its prompt against what is known of the prompt.
// If they contradict each other the trial fails: one of both is wrong, and so is
// every number made of it.
func (t *trial) agrees(p workload.Prompt, r *record.Request) bool {
	if r == nil || r.PromptTokens == nil || !p.LengthOff(*r.PromptTokens) {
		return true
	}
	t.facts.failed = record.FailEncoding
	t.facts.why = fmt.Sprintf("%s%d prompt tokens", usageWrong, *r.PromptTokens)
	if p.Tokens != nil {
		t.facts.why += fmt.Sprintf(", where /tokenize counts %d for the same prompt", *p.Tokens)
	} else {
		t.facts.why += fmt.Sprintf(" for %d bytes", len(p.Text()))
	}
	return false
}

const usageWrong = "the server's usage cannot be right: "

// recount asks the server how many tokens the text of those requests is that it did
// not count. It is made after the trial, so that it is in nobody's way.
func (t *trial) recount(ctx context.Context) {
	var todo []*record.Request
	for r := range t.texts.of {
		todo = append(todo, r)
	}
	if len(todo) == 0 || t.facts.stage != stageDrain || t.facts.engine != nil || t.prompts.Estimated() {
		return
	}
	slices.SortFunc(todo, byDue)
	todo = todo[:min(len(todo), recountMost)]

	ctx, cancel := context.WithTimeoutCause(ctx, recountLimit, errLimit)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var next atomic.Int64
	t.await(func() {
		var workers sync.WaitGroup
		for range min(recountAtOnce, len(todo)) {
			workers.Go(func() {
				for ctx.Err() == nil {
					i := int(next.Add(1)) - 1
					if i >= len(todo) {
						return
					}
					r, b := todo[i], t.texts.of[todo[i]]
					n, err := t.client.TokenizeText(ctx, t.model, openai.Quote(string(b)))
					switch {
					case err != nil:
						giveUp(err) // the others would end the same way
					case n > int64(len(b)) || !workload.Plausible(len(b), n):
						giveUp(fmt.Errorf("/tokenize counts %d tokens for %d bytes: that cannot be used", n, len(b)))
					default:
						r.RetokenisedTokens = &n
					}
				}
			})
		}
		workers.Wait()
	})
	if ctx.Err() != nil {
		t.warn("the text that came could not be counted: %v", context.Cause(ctx))
	}
}

// unknown says what nobody counted, and warns of what was counted afterwards.
func (t *trial) unknown() string {
	if t.facts.stage != stageDrain {
		return ""
	}
	if t.rec.Phase == record.PhasePrefill {
		if t.rec.PromptTokens == nil {
			return "how long the prompt was is not known: the server sent no usage, and /tokenize did not count it"
		}
		return ""
	}
	all, recounted, missing := 0, 0, 0
	for i := range t.rec.Requests {
		r := &t.rec.Requests[i]
		if _, ok := firstOutput(r); r.Role != record.RoleMeasured || !ok {
			continue
		}
		all++
		switch {
		case counted(r):
		case r.RetokenisedTokens != nil:
			recounted++
		default:
			missing++
		}
	}
	if recounted > 0 {
		t.warn("the server's usage does not tell the tokens of %d of %d requests: /tokenize counted their text afterwards", recounted, all)
	}
	if missing > 0 {
		return fmt.Sprintf("how many tokens came is not known: the server sent no usage that tells it for %d of %d requests, and /tokenize did not count their text", missing, all)
	}
	return ""
}

package simulator

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// completion answers /v1/chat/completions and /v1/completions.
func (s *Server) completion(w http.ResponseWriter, r *http.Request, chat bool) {
	if k := s.opts.Faults.UnavailableEvery; k > 0 && s.completions.Add(1)%k == 0 {
		unavailable(w)
		return
	}
	b, ok := s.read(w, r)
	if !ok {
		return
	}
	if b.N != nil && *b.N != 1 {
		apiError(w, http.StatusBadRequest, "BadRequestError", "n", "n: this engine gives one answer, %d were asked", *b.N)
		return
	}
	p, err := s.count(b, chat, false)
	if err != nil {
		apiError(w, http.StatusBadRequest, "BadRequestError", "", "%v", err)
		return
	}
	limit := s.profile.MaxModelLen
	most := limit - p.tokens
	asked := b.MaxCompletionTokens
	if asked == nil {
		asked = b.MaxTokens
	}
	out := most
	if !chat {
		out = 16 // the API's default
	}
	if asked != nil {
		out = *asked
	}
	if out < 1 && asked != nil {
		apiError(w, http.StatusBadRequest, "BadRequestError", "max_tokens", "max_tokens must be at least 1, got %d.", out)
		return
	}
	if out = max(out, 1); out > most {
		// vLLM stops counting at the first token too many, and so says "at least".
		apiError(w, http.StatusBadRequest, "BadRequestError", "input_tokens",
			"This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.",
			limit, out, max(limit-out+1, 0), max(limit-out+1, 0)+out)
		return
	}
	reason := "length"
	if e := s.profile.EOSAfterTokens; e > 0 && !b.IgnoreEOS && e < out {
		out, reason = e, "stop"
	}
	req := &request{prompt: p, max: out, stops: reason == "stop", stream: newStream()}
	a := s.newAnswer(req, b, chat, reason)
	s.truth(truthLine{at: b.came, request: a.id, event: truthRead})
	s.submit(req)
	defer s.cancel(req)
	if b.Stream {
		a.streamTo(w, r)
	} else {
		a.whole(w, r)
	}
}

// answer turns a request's tokens into text.
type answer struct {
	s      *Server
	req    *request
	chat   bool
	model  string
	id     string
	seed   uint64
	reason string // finish_reason
	usage  bool   // at the end
	each   bool   // and in each chunk

	// Constant parts of a chunk.
	head, reasoningHead, contentHead, textEnd, usageHead, created string
	callHead, toolHead, toolEnd                                   string
	end                                                           string // of an event
}

func (s *Server) newAnswer(req *request, b *body, chat bool, reason string) *answer {
	a := &answer{s: s, req: req, chat: chat, model: b.Model, reason: reason}
	if a.model == "" {
		a.model = s.profile.Models[0]
	}
	object, prefix := "text_completion", "cmpl-"
	if chat {
		object, prefix = "chat.completion.chunk", "chatcmpl-"
	}
	a.id = fmt.Sprintf("%s%016x", prefix, s.ids.Add(1))
	// The same prompt and seed give the same text.
	a.seed = uint64(req.prompt.tokens)
	if n := len(req.prompt.blocks); n > 0 {
		a.seed ^= req.prompt.blocks[n-1]
	}
	if b.Seed != nil {
		a.seed += uint64(*b.Seed) * fnvPrime
	}
	if o := b.StreamOptions; o != nil && s.profile.Usage != UsageAbsent {
		a.usage = o.IncludeUsage
		a.each = o.IncludeUsage && o.ContinuousUsageStats && s.profile.Usage == UsageRunning
	}
	name, err := json.Marshal(a.model)
	if err != nil { // a string; cannot fail
		panic(err)
	}
	a.created = strconv.FormatInt(time.Now().Unix(), 10)
	a.head = `data: {"id":"` + a.id + `","object":"` + object + `","created":` + a.created + `,"model":` + string(name) + `,"choices":[`
	if chat {
		a.contentHead = a.head + `{"index":0,"delta":{"content":"`
		a.reasoningHead = a.head + `{"index":0,"delta":{"reasoning":"`
		a.textEnd = `"},"logprobs":null,"finish_reason":`
		a.callHead = a.head + `{"index":0,"delta":{"tool_calls":[{"id":"call-0","type":"function","index":0,"function":{"name":"look_up","arguments":"`
		a.toolHead = a.head + `{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"`
		a.toolEnd = `"}}]},"logprobs":null,"finish_reason":`
	} else {
		a.contentHead = a.head + `{"index":0,"text":"`
		a.textEnd = `","logprobs":null,"finish_reason":`
	}
	a.end = "}\n\n"
	if s.opts.Faults.CRLF {
		a.end = "}\r\n\r\n"
	}
	a.usageHead = `,"usage":{"prompt_tokens":` + strconv.Itoa(req.prompt.tokens) + `,"total_tokens":`
	return a
}

// appendUsage writes the running usage after n tokens.
func (a *answer) appendUsage(b []byte, n int) []byte {
	b = append(b, a.usageHead...)
	b = strconv.AppendInt(b, int64(a.req.prompt.tokens+n), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '}')
}

func (a *answer) appendRole(b []byte) []byte {
	if !a.chat {
		return b
	}
	b = append(b, a.head...)
	b = append(b, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if a.each {
		b = a.appendUsage(b, 0)
	}
	return append(b, a.end...)
}

// reasoning says whether token i is thought rather than said.
func (a *answer) reasoning(i int) bool { return a.chat && i < a.s.profile.ReasoningTokens }

// tool says whether what is said are the arguments of a tool call.
func (a *answer) tool() bool { return a.chat && a.s.profile.ToolCalls }

// appendChunk writes the event of tokens from..to, all of one channel.
func (a *answer) appendChunk(b []byte, from, to int) []byte {
	head, textEnd := a.contentHead, a.textEnd
	switch {
	case a.reasoning(from):
		head = a.reasoningHead
	case a.tool() && from == a.s.profile.ReasoningTokens:
		head, textEnd = a.callHead, a.toolEnd
	case a.tool():
		head, textEnd = a.toolHead, a.toolEnd
	}
	b = append(b, head...)
	for i := from; i < to; i++ {
		b = append(b, a.s.word(a.seed, i)...)
	}
	b = append(b, textEnd...)
	if to == a.req.max {
		b = append(b, '"')
		b = append(b, a.reason...)
		b = append(b, `","stop_reason":null}]`...)
	} else {
		b = append(b, `null}]`...)
	}
	if a.each {
		b = a.appendUsage(b, to)
	}
	return append(b, a.end...)
}

// appendEnd writes what follows the last token.
func (a *answer) appendEnd(b []byte) []byte {
	if a.usage {
		b = append(b, a.head...)
		b = append(b, ']')
		b = a.appendUsage(b, a.req.max)
		b = b[:len(b)-1] // open the usage again
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(a.cached()), 10)
		b = append(b, "}}"...)
		b = append(b, a.end...)
	}
	b = append(b, "data: [DONE]"...)
	return append(b, a.end[1:]...)
}

// cached may be asked once the first token is there.
func (a *answer) cached() int {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	return a.req.cached
}

// wait returns how many tokens there are, more than sent, or false when nobody
// wants them any more.
func (a *answer) wait(r *http.Request, sent int) (int, bool) {
	for {
		if n := int(a.req.stream.tokens.Load()); n > sent {
			return n, true
		}
		select {
		case <-a.req.stream.wake:
		case <-r.Context().Done():
			return 0, false
		case <-a.s.closing:
			panic(http.ErrAbortHandler)
		case <-a.s.died:
			panic(http.ErrAbortHandler)
		}
	}
}

func (a *answer) streamTo(w http.ResponseWriter, r *http.Request) {
	faults := &a.s.opts.Faults
	out := newOutlet(w, r, faults)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Request-Id", a.id)
	note := func(before, sent, events int) {
		a.s.truth(truthLine{at: a.s.now(), request: a.id, event: truthWrite, tokens: sent - before, events: events, last: sent == a.req.max})
	}
	buf := make([]byte, 0, 1024)
	roleSent := false
	if faults.RoleEarly {
		buf, roleSent = a.appendRole(buf), true
		if out.write(buf, false) != nil {
			return
		}
	}
	step := 0 // of decode, whose tokens come in one event
	for sent := 0; sent < a.req.max; {
		there, ok := a.wait(r, sent)
		if !ok {
			a.s.truth(truthLine{at: a.s.now(), request: a.id, event: truthGone})
			return
		}
		buf = buf[:0]
		if !roleSent {
			buf, roleSent = a.appendRole(buf), true
		}
		before, events := sent, 0
		for sent < there {
			to := 1 // the prefill's token comes alone
			if sent > 0 {
				to = min(there, sent+a.s.profile.accepted(a.req.no+step))
				step++
			}
			if t := a.s.profile.ReasoningTokens; a.reasoning(sent) && to > t {
				to = t // one channel an event
			}
			events++
			buf = a.appendChunk(buf, sent, to)
			sent = to
			if n := faults.TruncateAfterTokens; n > 0 && sent >= n {
				note(before, sent, events)
				out.write(buf, true)
				panic(http.ErrAbortHandler)
			}
			if n := faults.ErrorAfterTokens; n > 0 && sent >= n {
				note(before, sent, events)
				buf = append(buf, `data: {"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"InternalServerError","param":null,"code":500}}`+"\n\ndata: [DONE]\n\n"...)
				out.write(buf, true)
				return
			}
		}
		if sent == a.req.max {
			buf = a.appendEnd(buf)
		}
		note(before, sent, events)
		if out.write(buf, sent == a.req.max) != nil {
			return
		}
	}
}

func (a *answer) whole(w http.ResponseWriter, r *http.Request) {
	for n := 0; n < a.req.max; {
		var ok bool
		if n, ok = a.wait(r, n); !ok {
			return
		}
	}
	var said, thought strings.Builder
	for i := range a.req.max {
		if a.reasoning(i) {
			thought.WriteString(a.s.word(a.seed, i))
		} else {
			said.WriteString(a.s.word(a.seed, i))
		}
	}
	choice := map[string]any{"index": 0, "logprobs": nil, "finish_reason": a.reason, "stop_reason": nil}
	object := "text_completion"
	if a.chat {
		object = "chat.completion"
		message := map[string]any{"role": "assistant", "content": said.String()}
		if thought.Len() > 0 {
			message["reasoning"] = thought.String()
		}
		choice["message"] = message
	} else {
		choice["text"] = said.String()
	}
	reply := map[string]any{
		"id": a.id, "object": object, "created": json.Number(a.created), "model": a.model, "choices": []any{choice},
	}
	if a.s.profile.Usage != UsageAbsent {
		reply["usage"] = map[string]any{
			"prompt_tokens": a.req.prompt.tokens, "completion_tokens": a.req.max, "total_tokens": a.req.prompt.tokens + a.req.max,
			"prompt_tokens_details": map[string]int{"cached_tokens": a.cached()},
		}
	}
	a.s.truth(truthLine{at: a.s.now(), request: a.id, event: truthWrite, tokens: a.req.max, events: 1, last: true})
	writeJSON(w, http.StatusOK, reply)
}

// outlet writes a stream: straight through and flushed, or with the faults of
// proxies.
type outlet struct {
	w     io.Writer
	flush http.Flusher
	zip   *gzip.Writer
	clump int
	held  []byte
}

func newOutlet(w http.ResponseWriter, r *http.Request, f *Faults) *outlet {
	o := &outlet{w: w, clump: f.ClumpBytes}
	o.flush, _ = w.(http.Flusher)
	if f.Gzip && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		o.zip = gzip.NewWriter(w)
		o.w = o.zip
	}
	return o
}

// write sends b, or keeps it until a clump is full; last sends everything.
func (o *outlet) write(b []byte, last bool) error {
	if o.clump > 0 {
		o.held = append(o.held, b...)
		if len(o.held) < o.clump && !last {
			return nil
		}
		b = o.held
		o.held = o.held[:0]
	}
	if _, err := o.w.Write(b); err != nil {
		return err
	}
	if o.zip != nil {
		end := o.zip.Flush
		if last {
			end = o.zip.Close
		}
		if err := end(); err != nil {
			return err
		}
	}
	if o.flush != nil {
		o.flush.Flush()
	}
	return nil
}

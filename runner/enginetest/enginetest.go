// Package enginetest is the conformance suite of "an engine we can measure": what
// package runner relies on when it measures a server, as tests against that server.
//
// It runs against the simulator on every change, and against any real engine by
//
//	go test ./runner/enginetest -run TestEngine -engine-url http://HOST:PORT
//
// so that nothing in the runner works with the fake alone. For the same reason it
// does not use the runner's client: it reads the protocol itself, simply, and
// judges what the server sent rather than what a client made of it.
package enginetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Engine is a running server to be examined.
type Engine struct {
	BaseURL string // no trailing slash
	APIKey  string
	Model   string // empty: the first that /v1/models lists
	// Slots is how many requests run at once; 0: not known, and queueing is not
	// examined.
	Slots int
	// NoRunningUsage: the engine is known to send usage only at the end.
	NoRunningUsage bool
	// Settle is how long the engine may take until its gauges show that a request
	// came or went; 0: one second.
	Settle time.Duration
}

// maxReply bounds what is read of a reply.
const maxReply = 64 << 20

// Test runs the suite. Its tests run one after another and leave the engine idle.
func Test(t *testing.T, e Engine) {
	if e.Settle == 0 {
		e.Settle = time.Second
	}
	x := &examiner{Engine: e, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}}}
	t.Cleanup(x.client.CloseIdleConnections)
	if !t.Run("Models", x.models) {
		t.Fatal("without a model there is nothing to examine")
	}
	t.Run("Metrics", x.metrics)
	t.Run("Tokenize", x.tokenize)
	t.Run("ExactPromptLength", x.exactPrompt)
	t.Run("Stream", x.stream)
	t.Run("RunningUsage", x.runningUsage)
	t.Run("PrefixCache", x.prefixCache)
	t.Run("CancelFreesSlot", x.cancel)
	t.Run("Queueing", x.queueing)
	t.Run("OverModelLength", x.overLength)
	t.Run("WrongModel", x.wrongModel)
	t.Run("WrongKey", x.wrongKey)
	t.Run("IdleAfterwards", x.idle)
}

type examiner struct {
	Engine
	client *http.Client
	maxLen int
	nonce  int
}

// do sends a request and returns the reply; the caller closes its body.
func (x *examiner) do(ctx context.Context, path string, body any) (*http.Response, error) {
	return x.doAs(ctx, x.APIKey, path, body)
}

func (x *examiner) doAs(ctx context.Context, key, path string, body any) (*http.Response, error) {
	method, payload := http.MethodGet, io.Reader(nil)
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		method, payload = http.MethodPost, bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, x.BaseURL+path, payload)
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return x.client.Do(req)
}

// ask reads a whole reply; into may be nil.
func (x *examiner) ask(t *testing.T, path string, body, into any) (status int, text string) {
	t.Helper()
	resp, err := x.do(t.Context(), path, body)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if into != nil {
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d: %.300s", path, resp.StatusCode, b)
		}
		if err := json.Unmarshal(b, into); err != nil {
			t.Fatalf("%s: %v in %.300q", path, err, b)
		}
	}
	return resp.StatusCode, string(b)
}

func (x *examiner) models(t *testing.T) {
	var list struct {
		Data []struct {
			ID          string
			MaxModelLen int `json:"max_model_len"`
		}
	}
	x.ask(t, "/v1/models", nil, &list)
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
		if x.Model == "" || m.ID == x.Model {
			x.Model, x.maxLen = m.ID, m.MaxModelLen
		}
	}
	if !slices.Contains(names, x.Model) || x.Model == "" {
		t.Fatalf("/v1/models lists %q, not %q", names, x.Model)
	}
	if x.maxLen < 1 {
		t.Fatalf("/v1/models gives %s a max_model_len of %d", x.Model, x.maxLen)
	}
	var v struct{ Version string }
	if x.ask(t, "/version", nil, &v); v.Version == "" {
		t.Error("/version names no version")
	}
}

// gauges reads what the runner reads of /metrics, summed over engines.
func (x *examiner) gauges(t *testing.T) map[string]float64 {
	t.Helper()
	_, text := x.ask(t, "/metrics", nil, nil)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("/metrics: %v", err)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			if g := m.GetGauge(); g != nil {
				out[name] += g.GetValue()
			}
			if c := m.GetCounter(); c != nil {
				out[name] += c.GetValue()
			}
		}
	}
	return out
}

const (
	gaugeRunning = "vllm:num_requests_running"
	gaugeWaiting = "vllm:num_requests_waiting"
)

func (x *examiner) metrics(t *testing.T) {
	g := x.gauges(t)
	for _, name := range []string{gaugeRunning, gaugeWaiting, "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total",
		"vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"} {
		if _, ok := g[name]; !ok {
			t.Errorf("/metrics has no %s", name)
		}
	}
}

// eventually polls the gauges until they are as wanted.
func (x *examiner) eventually(t *testing.T, what string, within time.Duration, ok func(running, waiting float64) bool) {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	// A busy engine can take seconds for one reply: a single late reading says nothing
	// of what was so in time.
	const enough = 10
	for n := 1; ; n++ {
		g := x.gauges(t)
		if ok(g[gaugeRunning], g[gaugeWaiting]) {
			return
		}
		if took := time.Since(began); took > within && n >= enough {
			t.Fatalf("%s: after %v and %d readings running is %v and waiting is %v", what, took, n, g[gaugeRunning], g[gaugeWaiting])
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal(context.Cause(t.Context()))
		}
	}
}

func (x *examiner) idle(t *testing.T) {
	x.eventually(t, "idle", x.Settle, func(r, w float64) bool { return r == 0 && w == 0 })
}

type object = map[string]any

// chat is a request for n tokens after a text that no request had before.
func (x *examiner) chat(text string, n int) object {
	return object{
		"model": x.Model, "messages": []object{{"role": "user", "content": text}}, "max_tokens": n,
		"ignore_eos": true, "temperature": 0, "stream": true,
		"stream_options": object{"include_usage": true, "continuous_usage_stats": true},
	}
}

// fresh begins a text that nothing in a prefix cache begins with.
func (x *examiner) fresh() string {
	x.nonce++
	return fmt.Sprintf("%d.%d ", time.Now().UnixNano(), x.nonce)
}

func (x *examiner) count(t *testing.T, text string) int {
	t.Helper()
	var r struct {
		Count  int
		Tokens []int
	}
	x.ask(t, "/tokenize", object{"model": x.Model, "messages": []object{{"role": "user", "content": text}}}, &r)
	if r.Tokens != nil && len(r.Tokens) != r.Count {
		t.Errorf("/tokenize counts %d tokens and lists %d", r.Count, len(r.Tokens))
	}
	return r.Count
}

func (x *examiner) tokenize(t *testing.T) {
	for _, text := range []string{"hello", "one two three four five", "é ü 漢字 \U0001F600", strings.Repeat("a b c ", 200)} {
		want := x.count(t, text)
		s := x.run(t, x.chat(text, 1))
		if s.prompt != want {
			t.Errorf("%.20q: /tokenize says %d, usage %d", text, want, s.prompt)
		}
	}
	var bare struct{ Count int }
	x.ask(t, "/tokenize", object{"model": x.Model, "prompt": "one two three"}, &bare)
	if bare.Count < 1 {
		t.Errorf("a bare prompt has %d tokens", bare.Count)
	}
}

// exactPrompt: by trying lengths against /tokenize, a prompt of an exact length can
// be made, within the 0.1 % that the runner allows.
func (x *examiner) exactPrompt(t *testing.T) {
	for _, want := range []int{256, 1024, 4096} {
		if want+1 > x.maxLen {
			t.Skipf("the model length is %d", x.maxLen)
		}
		head := x.fresh()
		words := want
		for range 20 {
			got := x.count(t, head+strings.Repeat(" a", words))
			if got == want {
				break
			}
			// A word need not be one token: the step goes by the rate seen so far.
			step := (want - got) * words / max(1, got)
			if step == 0 {
				step = (want - got) / max(1, abs(want-got))
			}
			words = max(1, words+step)
		}
		text := head + strings.Repeat(" a", words)
		if s := x.run(t, x.chat(text, 1)); s.prompt-want > want/1000 || want-s.prompt > want/1000 {
			t.Errorf("asked for %d prompt tokens, usage says %d", want, s.prompt)
		}
	}
}

func abs(n int) int { return max(n, -n) }

// stream is what one stream said.
type streamed struct {
	prompt, completion int
	cached             *int
	cumulative         []int // completion tokens of each event with choices
	outputs            int   // events with text
	finish             string
	done               bool
	afterDone          int
}

// read reads a stream to its end; each, if not nil, is called after each event and
// stops the reading by returning false.
func read(body io.Reader, each func(*streamed) bool) (*streamed, error) {
	s := &streamed{}
	r := bufio.NewReaderSize(io.LimitReader(body, maxReply), 64<<10)
	for {
		line, err := r.ReadString('\n')
		if data, ok := strings.CutPrefix(strings.TrimRight(line, "\r\n"), "data:"); ok {
			if err := s.event(strings.TrimSpace(data)); err != nil {
				return s, err
			}
			if each != nil && !each(s) {
				return s, nil
			}
		}
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, err
		}
	}
}

func (s *streamed) event(data string) error {
	if s.done {
		s.afterDone++
	}
	if data == "[DONE]" {
		s.done = true
		return nil
	}
	var c struct {
		Choices []struct {
			Delta        struct{ Content, Reasoning, ReasoningContent string }
			FinishReason *string `json:"finish_reason"`
		}
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
			Details    *struct {
				Cached *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		return fmt.Errorf("event %.200q: %w", data, err)
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return fmt.Errorf("error in the stream: %.300s", c.Error)
	}
	for _, ch := range c.Choices {
		if ch.Delta.Content+ch.Delta.Reasoning+ch.Delta.ReasoningContent != "" {
			s.outputs++
		}
		if ch.FinishReason != nil {
			s.finish = *ch.FinishReason
		}
	}
	if u := c.Usage; u != nil {
		s.prompt, s.completion = u.Prompt, u.Completion
		if u.Details != nil && u.Details.Cached != nil {
			s.cached = u.Details.Cached
		}
		if len(c.Choices) > 0 {
			s.cumulative = append(s.cumulative, u.Completion)
		}
	}
	return nil
}

// run sends a streaming chat and reads it to its good end.
func (x *examiner) run(t *testing.T, body object) *streamed {
	t.Helper()
	resp, err := x.do(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 2<<10))
		t.Fatalf("status %d: %s", resp.StatusCode, b)
	}
	if ct := resp.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("content type %q", ct)
	}
	s, err := read(resp.Body, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !s.done || s.afterDone > 0 {
		t.Errorf("[DONE] seen: %v, events after it: %d", s.done, s.afterDone)
	}
	return s
}

func (x *examiner) stream(t *testing.T) {
	s := x.run(t, x.chat(x.fresh()+"tell me a story", 32))
	if s.completion != 32 || s.finish != "length" {
		t.Errorf("asked for 32 tokens, got %d, finish_reason %q", s.completion, s.finish)
	}
	if s.outputs == 0 || s.outputs > 32 {
		t.Errorf("%d output events for 32 tokens", s.outputs)
	}
}

func (x *examiner) runningUsage(t *testing.T) {
	if x.NoRunningUsage {
		t.Skip("this engine is known to send usage only at the end")
	}
	s := x.run(t, x.chat(x.fresh()+"tell me a story", 32))
	if len(s.cumulative) < 2 || s.cumulative[len(s.cumulative)-1] != 32 {
		t.Fatalf("running usage: %v, want it to rise to 32", s.cumulative)
	}
	if !slices.IsSorted(s.cumulative) {
		t.Errorf("running usage falls: %v", s.cumulative)
	}
}

// prefixCache: the second request with one prompt finds it in the cache, by the
// counters, and by usage where that tells.
func (x *examiner) prefixCache(t *testing.T) {
	text := x.fresh() + strings.Repeat(" a", min(2000, x.maxLen/2))
	first := x.run(t, x.chat(text, 1))
	before := x.gauges(t)["vllm:prefix_cache_hits_total"]
	second := x.run(t, x.chat(text, 1))
	hits := x.gauges(t)["vllm:prefix_cache_hits_total"] - before
	if hits == 0 {
		t.Skip("no prefix-cache hit: the engine runs without prefix caching")
	}
	if hits < float64(second.prompt)/2 {
		t.Errorf("%v tokens hit of a prompt of %d that was there before", hits, second.prompt)
	}
	if first.cached != nil && *first.cached > first.prompt/10 {
		t.Errorf("usage says that %d tokens of a new prompt were cached", *first.cached)
	}
	if second.cached != nil && float64(*second.cached) != hits {
		t.Errorf("usage says %d cached tokens, the counters %v", *second.cached, hits)
	}
}

// open starts a stream and returns when its first output is there.
func (x *examiner) open(ctx context.Context, body object) (io.Closer, error) {
	resp, err := x.do(ctx, "/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	s, err := read(resp.Body, func(s *streamed) bool { return s.outputs == 0 })
	if err == nil && s.outputs == 0 {
		err = fmt.Errorf("status %d, and no output", resp.StatusCode)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp.Body, nil
}

func (x *examiner) cancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	body, err := x.open(ctx, x.chat(x.fresh()+"a long story", min(100_000, x.maxLen/2)))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	x.eventually(t, "one stream open", x.Settle, func(r, w float64) bool { return r == 1 && w == 0 })
	cancel(errors.New("the client hangs up"))
	x.eventually(t, "the client hung up", x.Settle, func(r, w float64) bool { return r == 0 && w == 0 })
}

// queueing: with more requests than slots the rest is seen waiting, and runs when
// the slots are free.
func (x *examiner) queueing(t *testing.T) {
	if x.Slots == 0 {
		t.Skip("the number of slots is not given (-engine-slots)")
	}
	if x.Slots > 128 {
		t.Skipf("%d slots are too many to fill here", x.Slots)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(errors.New("seen enough"))
	text := x.fresh() + "a long story"
	for i := range x.Slots + 2 {
		wg.Go(func() {
			resp, err := x.do(ctx, "/v1/chat/completions", x.chat(text, min(100_000, x.maxLen/2)))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if ctx.Err() == nil {
				t.Logf("request %d ended before it was cancelled: %v", i, err)
			}
		})
	}
	x.eventually(t, "two more requests than slots", 30*x.Settle, func(r, w float64) bool { return r == float64(x.Slots) && w == 2 })
}

// overLength: a prompt that is longer than the model allows is refused by name.
//
// Note: a prompt that fits, with more output asked than is left, is refused by some
// versions of vLLM and cut short by others (0.32.0 does that), so it is not examined.
func (x *examiner) overLength(t *testing.T) {
	text := strings.Repeat(" a", x.maxLen)
	for n := x.count(t, text); n <= x.maxLen; n = x.count(t, text) {
		text += text
	}
	status, answer := x.ask(t, "/v1/chat/completions", x.chat(text, 1), nil)
	if status != http.StatusBadRequest || !strings.Contains(answer, "maximum context length") {
		t.Errorf("a prompt over %d tokens: status %d, %.300s", x.maxLen, status, answer)
	}
}

func (x *examiner) wrongModel(t *testing.T) {
	body := x.chat("hello", 1)
	body["model"] = "no-such-model"
	if status, text := x.ask(t, "/v1/chat/completions", body, nil); status != http.StatusNotFound {
		t.Errorf("status %d: %.300s", status, text)
	}
}

func (x *examiner) wrongKey(t *testing.T) {
	if x.APIKey == "" {
		t.Skip("the engine has no key")
	}
	resp, err := x.doAs(t.Context(), "wrong", "/v1/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("status %d", resp.StatusCode)
	}
}

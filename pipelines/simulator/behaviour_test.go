package simulator

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestErrorsLikeVLLM(t *testing.T) {
	p := quick()
	p.APIKey = "sesame"
	p.MaxModelLen, p.KVTokens = 262144, 262144
	_, url := serve(t, p, Options{})
	raw, err := os.ReadFile("testdata/21-http-400-context.http")
	if err != nil {
		t.Fatal(err)
	}
	_, overLength, _ := strings.Cut(string(raw), "\r\n\r\n")
	long := strings.Repeat(" word", 260_000)
	const auth, key = "Authorization", "Bearer sesame"
	for _, c := range []struct {
		name, path, body, key string
		status                int
		want                  string
	}{
		{"no key", "/v1/chat/completions", chatBody("x", 1, ""), "", 401, `{"error":"Unauthorized"}`},
		{"wrong key", "/v1/chat/completions", chatBody("x", 1, ""), "Bearer sesam", 401, `{"error":"Unauthorized"}`},
		{"no key needed beside /v1", "/tokenize", chatBody("x", 1, ""), "", 200, `{"count":`},
		{"wrong model", "/v1/completions", `{"model":"gpt","prompt":"x"}`, key, 404, "The model `gpt` does not exist."},
		{"no JSON", "/v1/completions", `{"model":`, key, 400, "JSON decode error"},
		{"no prompt", "/v1/completions", `{}`, key, 400, "prompt: is missing"},
		{"no messages", "/v1/chat/completions", `{"messages":[]}`, key, 400, "at least one"},
		{"picture", "/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, key, 400, "reads text only"},
		{"two prompts", "/v1/completions", `{"prompt":["a","b"]}`, key, 400, "a list of one text"},
		{"two answers", "/v1/completions", `{"prompt":"a","n":2}`, key, 400, "one answer"},
		{"no tokens asked", "/v1/completions", `{"prompt":"a","max_tokens":0}`, key, 400, "max_tokens must be at least 1"},
		{"id out of vocabulary", "/v1/completions", `{"prompt":[1,99999999]}`, key, 400, "out of vocabulary"},
		{"over the model length", "/v1/chat/completions", chatBody(long, 4096, ""), key, 400, overLength},
	} {
		status, body, err := post(t, url+c.path, c.body, auth, c.key)
		if err != nil || status != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s: status %d, %v, %.300q; want %d with %q", c.name, status, err, body, c.status, c.want)
		}
		if strings.Contains(body, "sesame") {
			t.Errorf("%s: the key is in the answer", c.name)
		}
	}
	if status, _ := get(t, url+"/nothing"); status != 404 {
		t.Errorf("/nothing: %d", status)
	}
	for _, path := range []string{"/health", "/ping", "/version", "/metrics"} {
		if status, _ := get(t, url+path); status != 200 {
			t.Errorf("%s: %d", path, status)
		}
	}
}

func TestWholeAnswers(t *testing.T) {
	p := quick()
	p.ReasoningTokens, p.EOSAfterTokens = 2, 5
	_, url := serve(t, p, Options{})
	type reply struct {
		Object  string
		Choices []struct {
			Message      struct{ Content, Reasoning string }
			Text         string
			FinishReason string `json:"finish_reason"`
		}
		Usage struct {
			Completion int `json:"completion_tokens"`
			Prompt     int `json:"prompt_tokens"`
		}
	}
	ask := func(path, body string) (r reply) {
		t.Helper()
		status, b, err := post(t, url+path, body)
		if err != nil || status != 200 || json.Unmarshal([]byte(b), &r) != nil || len(r.Choices) != 1 {
			t.Fatalf("%s: %d, %v: %s", path, status, err, b)
		}
		return r
	}
	r := ask("/v1/chat/completions", chatBody("hello there", 10, ""))
	if m := r.Choices[0].Message; r.Object != "chat.completion" || r.Usage.Completion != 5 || r.Choices[0].FinishReason != "stop" ||
		strings.Count(m.Reasoning, " ") != 2 || strings.Count(m.Content, " ") != 3 {
		t.Errorf("ended by the end of sequence: %+v", r)
	}
	r = ask("/v1/chat/completions", chatBody("hello there", 10, `,"ignore_eos":true`))
	if r.Usage.Completion != 10 || r.Choices[0].FinishReason != "length" {
		t.Errorf("the end of sequence is ignored: %+v", r)
	}
	r = ask("/v1/completions", `{"prompt":[5,6,7],"ignore_eos":true}`)
	if r.Usage.Completion != 16 || r.Usage.Prompt != 3 || strings.Count(r.Choices[0].Text, " ") != 16 {
		t.Errorf("completions have 16 tokens by default: %+v", r)
	}
	one := ask("/v1/completions", `{"prompt":"same","seed":1}`).Choices[0].Text
	if again := ask("/v1/completions", `{"prompt":"same","seed":1}`).Choices[0].Text; one != again {
		t.Errorf("the same seed gave %q and %q", one, again)
	}
	if other := ask("/v1/completions", `{"prompt":"same","seed":2}`).Choices[0].Text; one == other {
		t.Errorf("another seed gave %q too", one)
	}
}

func TestUsageModes(t *testing.T) {
	for _, c := range []struct {
		mode, options string
		each, last    bool
	}{
		{UsageRunning, `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, true, true},
		{UsageRunning, `"stream":true,"stream_options":{"include_usage":true}`, false, true},
		{UsageRunning, `"stream":true`, false, false},
		{UsageFinal, `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, false, true},
		{UsageAbsent, `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, false, false},
	} {
		p := quick()
		p.Usage = c.mode
		_, url := serve(t, p, Options{})
		_, body, err := post(t, url+"/v1/completions", `{"prompt":"x","max_tokens":3,`+c.options+`}`)
		if err != nil {
			t.Fatal(err)
		}
		all, _ := chunks(t, body)
		for i, ch := range all {
			want := c.each
			if len(ch.Choices) == 0 {
				want = c.last
			}
			if (ch.Usage != nil) != want {
				t.Errorf("%s with %s: chunk %d has usage %+v", c.mode, c.options, i, ch.Usage)
			}
		}
		if last := all[len(all)-1]; (len(last.Choices) == 0) != c.last {
			t.Errorf("%s with %s: a usage chunk at the end: %v", c.mode, c.options, !c.last)
		}
	}
}

// bubble serves a request in memory, so that time is the bubble's.
func bubble(ctx context.Context, s *Server, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body))
	s.Handler().ServeHTTP(w, req)
	return w
}

// 256 streams over the whole path from handler to truth log, in fake time: each
// write happens at the very time the profile says, and none drifts.
func TestPacingOf256Streams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams, tokens, stepMs = 256, 100, 20
		p := DefaultProfile()
		p.Slots, p.BaseTTFTMs = streams, 30
		p.Prefill = []PrefillPoint{{0, 1e9}} // a nanosecond a token
		p.Decode = DecodeTable{Active: []int{1}, Rows: []DecodeRow{{0, Millis(stepMs)}}}
		var truth bytes.Buffer
		s, err := New(p, Options{Truth: &truth})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		start := time.Now()
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				w := bubble(t.Context(), s, fmt.Sprintf(`{"prompt":"x","max_tokens":%d,%s}`, tokens, running))
				if n := strings.Count(w.Body.String(), `"text":" `); n != tokens {
					t.Errorf("%d output events, want %d", n, tokens)
				}
			})
		}
		wg.Wait()
		writes := 0
		for line := range strings.Lines(truth.String()) {
			var l struct {
				T      int64 `json:"t_ns"`
				Event  string
				Tokens int
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			if l.Event != "write" {
				continue
			}
			writes++
			at := time.Duration(l.T - start.UnixNano())
			// First tokens land at 30 ms plus a nanosecond for each prefill before;
			// steps follow on a grid of 20 ms from the first of them.
			off := (at - 30*time.Millisecond) % (stepMs * time.Millisecond)
			if l.Tokens != 1 || at < 30*time.Millisecond || off > 2*time.Microsecond {
				t.Fatalf("%d tokens at %v", l.Tokens, at)
			}
		}
		if writes != streams*tokens {
			t.Errorf("%d writes, want %d", writes, streams*tokens)
		}
		if d := time.Since(start); d.Round(time.Millisecond) != (30+tokens*stepMs)*time.Millisecond && d.Round(time.Millisecond) != (30+(tokens-1)*stepMs)*time.Millisecond {
			t.Errorf("all over after %v", d)
		}
	})
}

func TestClientGoneFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := DefaultProfile()
		p.Slots = 1
		s, err := New(p, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithCancelCause(t.Context())
		go bubble(ctx, s, `{"prompt":"x","max_tokens":10000,"stream":true}`)
		<-time.After(time.Second) // of the bubble
		gauge := func(running, waiting int) {
			t.Helper()
			m := string(s.exposition())
			for name, n := range map[string]int{"running": running, "waiting": waiting} {
				if want := fmt.Sprintf("vllm:num_requests_%s{engine=\"0\",model_name=\"simulated\"} %d\n", name, n); !strings.Contains(m, want) {
					t.Errorf("no line %q", want)
				}
			}
		}
		gauge(1, 0)
		done := make(chan struct{})
		go func() {
			defer close(done)
			bubble(t.Context(), s, `{"prompt":"y","max_tokens":3,"stream":true}`)
		}()
		synctest.Wait()
		gauge(1, 1)
		cancel(errors.New("gone"))
		synctest.Wait()
		gauge(1, 0) // no time passed: the second has the slot
		<-done
		gauge(0, 0)
		if s.done.abort != 1 || s.done.length != 1 {
			t.Errorf("%d aborted, %d complete", s.done.abort, s.done.length)
		}
	})
}

func TestMetricsHaveVLLMsNames(t *testing.T) {
	parse := func(r io.Reader) map[string]bool {
		t.Helper()
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(r)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]bool{}
		for name, f := range families {
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			if name == "vllm:cache_config_info" {
				// The real one has more labels; ours must be among them.
				for _, l := range labels {
					out[name+"/"+l] = true
				}
				continue
			}
			out[fmt.Sprintf("%s %v %v", name, f.GetType(), labels)] = true
		}
		return out
	}
	f, err := os.Open("testdata/vllm-0.32.0-metrics-ngram.prom")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	real := parse(f)
	p := quick()
	p.TokensPerChunk = 4
	p.Models = []string{`a "model"` + "\n\\"}
	_, url := serve(t, p, Options{})
	if _, _, err := post(t, url+"/v1/completions", `{"prompt":"x","max_tokens":9}`); err != nil {
		t.Fatal(err)
	}
	_, body := get(t, url+"/metrics")
	for name := range parse(strings.NewReader(body)) {
		if !real[name] {
			t.Errorf("vLLM has no %s", name)
		}
	}
	for _, want := range []string{
		"generation_tokens_total{engine=\"0\",model_name=\"a \\\"model\\\"\\n\\\\\"} 9\n", "spec_decode_num_drafts_total", `kv_cache_size_tokens="131072"`,
		`finished_reason="length"} 1` + "\n", "time_to_first_token_seconds_count",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
}

func TestFaults(t *testing.T) {
	stream := `{"prompt":"x","max_tokens":50,` + running + `}`
	parse := func(s string) Faults {
		t.Helper()
		f, err := ParseFaults(s)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	t.Run("truncated", func(t *testing.T) {
		_, url := serve(t, quick(), Options{Faults: parse("truncate-after-tokens=7")})
		status, body, err := post(t, url+"/v1/completions", stream)
		if err == nil || status != 200 || strings.Contains(body, "[DONE]") || !strings.Contains(body, `"completion_tokens":7}`) {
			t.Errorf("%d, %v: %s", status, err, body)
		}
	})
	t.Run("in-band error", func(t *testing.T) {
		_, url := serve(t, quick(), Options{Faults: parse("error-after-tokens=7")})
		status, body, err := post(t, url+"/v1/completions", stream)
		all, done := chunks(t, body)
		if err != nil || status != 200 || !done || all[len(all)-1].Error == nil {
			t.Errorf("%d, %v: %s", status, err, body)
		}
	})
	t.Run("unavailable", func(t *testing.T) {
		_, url := serve(t, quick(), Options{Faults: parse("unavailable-every=3")})
		var got []int
		for range 6 {
			status, _, _ := post(t, url+"/v1/completions", `{"prompt":"x","max_tokens":1}`)
			got = append(got, status)
		}
		if fmt.Sprint(got) != "[200 200 503 200 200 503]" {
			t.Errorf("%v", got)
		}
	})
	t.Run("gzip and clumps", func(t *testing.T) {
		_, url := serve(t, quick(), Options{Faults: parse("gzip,clump-bytes=16384")})
		_, body, err := post(t, url+"/v1/completions", stream, "Accept-Encoding", "gzip")
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if _, done := chunks(t, string(plain)); err != nil || !done {
			t.Errorf("%v, done %v", err, done)
		}
	})
	t.Run("role early", func(t *testing.T) {
		p := quick()
		_, url := serve(t, p, Options{Faults: parse("role-early,hang-after-tokens=1")})
		resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(chatBody("x", 50, ","+running)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		r := bufio.NewReader(resp.Body)
		if first, err := r.ReadString('\n'); err != nil || !strings.Contains(first, `"role":"assistant"`) {
			t.Errorf("%q, %v", first, err)
		}
		// It hangs now, and still says that it is well.
		if status, _ := get(t, url+"/health"); status != 200 {
			t.Errorf("/health: %d", status)
		}
	})
	t.Run("exit after tokens", func(t *testing.T) {
		exited := make(chan struct{})
		s, url := serve(t, quick(), Options{Faults: parse("exit-after-tokens=20"), Exit: func() { close(exited) }})
		if _, body, err := post(t, url+"/v1/completions", stream); err == nil {
			t.Errorf("the stream ended well: %s", body)
		}
		<-exited
		<-s.Exited()
		<-s.served // the socket is gone too
		if resp, err := http.Get(url + "/health"); err == nil {
			resp.Body.Close()
			t.Errorf("it still answers: %d", resp.StatusCode)
		}
	})
	t.Run("metrics", func(t *testing.T) {
		_, url := serve(t, quick(), Options{Faults: parse("metrics-status=502,metrics-delay=1ms")})
		if status, body := get(t, url+"/metrics"); status != 502 || !strings.Contains(body, "<h1>502 Bad Gateway</h1>") {
			t.Errorf("%d: %s", status, body)
		}
	})
	t.Run("over time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := New(DefaultProfile(), Options{Faults: parse("startup-delay=2s,exit-after=5s")})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if w := bubble(t.Context(), s, stream); w.Code != 503 || w.Header().Get("Retry-After") == "" {
				t.Errorf("while it starts: %d", w.Code)
			}
			<-time.After(2 * time.Second) // of the bubble
			if w := bubble(t.Context(), s, `{"prompt":"x","max_tokens":1}`); w.Code != 200 {
				t.Errorf("when it has started: %d", w.Code)
			}
			<-s.Exited()
			if d := s.now(); d != 5*time.Second {
				t.Errorf("died after %v", d)
			}
		})
	})
	t.Run("hang over time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, err := New(DefaultProfile(), Options{Faults: parse("hang-after=1s")})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("waited long enough"))
			defer cancel()
			w := bubble(ctx, s, `{"prompt":"x","max_tokens":10000,"stream":true}`)
			n := strings.Count(w.Body.String(), `"text":" `)
			if n < 100 || n > 130 || strings.Contains(w.Body.String(), "[DONE]") {
				t.Errorf("%d tokens in the second before", n)
			}
		})
	})
}

func TestParseFaultsMistakes(t *testing.T) {
	for _, s := range []string{"explode", "exit-after=soon", "exit-after=-1s", "exit-after-tokens=0", "gzip=perhaps", "metrics-status=200"} {
		if f, err := ParseFaults(s); err == nil {
			t.Errorf("%q was read as %+v", s, f)
		}
	}
	if f, err := ParseFaults(""); err != nil || f != (Faults{}) {
		t.Errorf("nothing is no fault: %+v, %v", f, err)
	}
}

func TestTextDoesNotRepeat(t *testing.T) {
	s := &Server{words: makeWords()}
	var text []string
	seen := map[string]bool{}
	for i := range 20_000 {
		w := s.word(1, i)
		if tokenLen(w) != len(w) {
			t.Fatalf("word %q is more than one token", w)
		}
		text = append(text, w)
		if i >= 4 {
			if four := strings.Join(text[i-4:], ""); seen[four] {
				t.Fatalf("the text repeats %q at %d", four, i)
			} else {
				seen[four] = true
			}
		}
	}
	s.profile.Loop = true
	if s.word(1, 0) == s.word(1, 1) || s.word(1, 0) != s.word(9, 2) {
		t.Error("the loop is none of two words")
	}
}

func TestTokenizer(t *testing.T) {
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil},
		{"one two", []string{"one", " two"}},
		{"antidisestablish", []string{"antidise", "stablish"}},
		{"a1234b", []string{"a", "123", "4", "b"}},
		{"  x", []string{" ", " x"}},
		{"x \n", []string{"x", " ", "\n"}},
		{"héllo", []string{"h", "é", "llo"}},
		{"\xff\xfe", []string{"\xff", "\xfe"}},
		{" ", []string{" "}},
	} {
		var got []string
		for s := c.text; s != ""; {
			n := tokenLen(s)
			got = append(got, s[:n])
			s = s[n:]
		}
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
	count := func(f func(*counter)) prompt {
		c := newCounter(4, true)
		f(c)
		return c.prompt
	}
	a := count(func(c *counter) { c.text("a b c d e f g h i") })
	b := count(func(c *counter) { c.text("a b c d e f g X i") })
	if a.tokens != 9 || len(a.blocks) != 2 || a.blocks[0] != b.blocks[0] || a.blocks[1] == b.blocks[1] || len(a.ids) != 9 {
		t.Errorf("%+v and %+v", a, b)
	}
	// A chat costs its template, and a message more.
	m1 := count(func(c *counter) { c.message("user", "x"); c.generation() })
	m2 := count(func(c *counter) { c.message("user", "x y"); c.generation() })
	if m2.tokens != m1.tokens+1 {
		t.Errorf("%d and %d tokens", m1.tokens, m2.tokens)
	}
}

func FuzzTokenizer(f *testing.F) {
	f.Add("one two  three\n42 \xff é")
	f.Fuzz(func(t *testing.T, s string) {
		n := 0
		for rest := s; rest != ""; n++ {
			l := tokenLen(rest)
			if l < 1 || l > len(rest) {
				t.Fatalf("a token of %d bytes in %q", l, rest)
			}
			rest = rest[l:]
		}
		c := newCounter(16, false)
		if c.text(s); c.tokens != n || len(c.blocks) != n/16 {
			t.Fatalf("%d tokens and %d blocks, counted %d", c.tokens, len(c.blocks), n)
		}
		// Appending a word adds a token, whatever is before it.
		c.text(" word")
		if d := newCounter(16, false); true {
			if d.text(s + " word"); s != "" && d.tokens != c.tokens {
				t.Fatalf("%d tokens in one, %d in two texts", d.tokens, c.tokens)
			}
		}
	})
}

func TestFromServeArgs(t *testing.T) {
	none := func(string) string { return "" }
	cfg, err := FromServeArgs(strings.Fields("serve models/tiny --served-model-name tiny other --load-format dummy --dtype bfloat16 --max-model-len 4096 --max-num-seqs=4 --host 127.0.0.1 --port 0 --num-gpu-blocks-override 64 --block-size 128 --api-key k --enforce-eager"), none)
	if err != nil {
		t.Fatal(err)
	}
	p := cfg.Profile
	if cfg.Addr != "127.0.0.1:0" || p.MaxModelLen != 4096 || p.Slots != 4 || p.KVTokens != 8192 || p.APIKey != "k" || fmt.Sprint(p.Models) != "[tiny other]" {
		t.Errorf("%+v", cfg)
	}
	if got := fmt.Sprint(cfg.LikeVLLM.IgnoredOptions); got != "[--load-format --dtype --enforce-eager]" {
		t.Errorf("ignored: %s", got)
	}
	for _, c := range []struct{ args, want string }{
		{"", "serve MODEL"},
		{"bench", "serve MODEL"},
		{"serve", "needs a model"},
		{"serve m --port x", "--port"},
		{"serve m --port", "expected one argument"},
		{"serve m x", "unrecognized arguments: x"},
		{"serve m --num-gpu-blocks-override 2 --max-model-len 4096", "To serve at least one request"},
	} {
		if _, err := FromServeArgs(strings.Fields(c.args), none); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
	env := func(k string) string { return map[string]string{"SIMULATOR_FAULTS": "nonsense"}[k] }
	if _, err := FromServeArgs(strings.Fields("serve m"), env); err == nil {
		t.Error("a fault that is none was accepted")
	}
}

// lineWriter hands lines over as they are written.
type lineWriter struct {
	mu  sync.Mutex
	buf bytes.Buffer
	on  func(line string)
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	for line := range strings.Lines(string(b)) {
		w.on(strings.TrimSuffix(line, "\n"))
	}
	return len(b), nil
}

func TestServeLikeVLLM(t *testing.T) {
	env := func(k string) string { return map[string]string{"SIMULATOR_FAULTS": "exit-after-tokens=5"}[k] }
	cfg, err := FromServeArgs(strings.Fields("serve models/tiny --served-model-name tiny --max-model-len 8192 --max-num-seqs 4 --host 127.0.0.1 --port 0"), env)
	if err != nil {
		t.Fatal(err)
	}
	url := make(chan string, 1)
	w := &lineWriter{on: func(line string) {
		if _, u, ok := strings.Cut(line, "Starting vLLM server on "); ok {
			url <- u
		}
	}}
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), cfg, w) }()
	if _, _, err := post(t, <-url+"/v1/completions", `{"prompt":"x","max_tokens":10}`); err == nil {
		t.Error("the engine did not die")
	}
	if err := <-ended; !errors.Is(err, ErrDied) {
		t.Errorf("Serve: %v", err)
	}
	// Each line that the real log has for the same thing is there in its shape.
	for _, want := range []string{"non-default args: {'model_tag': 'models/tiny'", "Using max model len 8192", "Initializing a V1 LLM engine (v", " KV cache size: 131,072 tokens, Maximum concurrency for 8,192 tokens per request: 16.00x", "Application startup complete."} {
		if !strings.Contains(w.buf.String(), want) {
			t.Errorf("no %q in\n%s", want, w.buf.String())
		}
	}
	real, err := os.ReadFile("testdata/vllm-0.32.0-startup.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, shape := range []string{"non-default args: {'model_tag': 'models/tiny'", "Using max model len 8192", "Initializing a V1 LLM engine (v", " KV cache size: ", " tokens, Maximum concurrency for 8,192 tokens per request: ", "Application startup complete."} {
		if !strings.Contains(string(real), shape) {
			t.Errorf("the real log has no %q", shape)
		}
	}
}

// A program that fails while it loads its model: it never listens.
func TestServeDiesBeforeItIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := func(k string) string {
			return map[string]string{"SIMULATOR_FAULTS": "startup-delay=1m,exit-after=10s"}[k]
		}
		cfg, err := FromServeArgs(strings.Fields("serve m"), env)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var out bytes.Buffer
		if err := Serve(t.Context(), cfg, &out); !errors.Is(err, ErrDied) || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if s := out.String(); strings.Contains(s, "startup complete") || !strings.Contains(s, "EngineCore failed to start") {
			t.Errorf("log:\n%s", s)
		}
	})
}

// No body makes a server stumble.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"prompt":[1,2],"model":"simulated"}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"x","content":null}]}`))
	f.Add([]byte(`{"prompt":["a"],"add_generation_prompt":false}`))
	f.Add([]byte(`[]`))
	f.Add([]byte(``))
	s, err := New(quick(), Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/tokenize", bytes.NewReader(b)))
		if !json.Valid(w.Body.Bytes()) || w.Code != 200 && w.Code != 400 && w.Code != 404 {
			t.Fatalf("%d: %q", w.Code, w.Body)
		}
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	w := &lineWriter{on: func(line string) {
		if strings.Contains(line, "simulated engine on http://127.0.0.1:") {
			cancel(errors.New("enough"))
		}
	}}
	if err := Serve(ctx, Config{Addr: "127.0.0.1:0", Profile: DefaultProfile()}, w); err != nil {
		t.Error(err)
	}
	full := errors.New("the disk is full")
	told := Config{Addr: "127.0.0.1:0", Profile: DefaultProfile(), Listening: func(url string) error {
		if !strings.HasPrefix(url, "http://127.0.0.1:") {
			t.Errorf("listening on %q", url)
		}
		return full
	}}
	if err := Serve(t.Context(), told, io.Discard); !errors.Is(err, full) {
		t.Errorf("%v", err)
	}
	if err := Serve(t.Context(), Config{Addr: "127.0.0.1:-1", Profile: DefaultProfile()}, io.Discard); err == nil {
		t.Error("no error for an address that is none")
	}
}

package simulator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// quick is an engine that needs next to no time.
func quick() Profile {
	p := DefaultProfile()
	p.BaseTTFTMs = 0
	p.Prefill = []PrefillPoint{{0, 1e8}}
	p.Decode = DecodeTable{Active: []int{1}, Rows: []DecodeRow{{0, Millis(0.2)}}}
	return p
}

func serve(t *testing.T, p Profile, o Options) (*Server, string) {
	t.Helper()
	s, err := New(p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	url, err := s.Start(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return s, url
}

// post returns status and body; a body that breaks off is returned as far as it came.
func post(t *testing.T, url, body string, header ...string) (int, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// event is what the tests read of a chunk.
type chunk struct {
	Choices []struct {
		Delta        struct{ Role, Content, Reasoning string }
		Text         string
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	Error *struct{ Message string }
}

func chunks(t *testing.T, body string) (out []chunk, done bool) {
	t.Helper()
	for ev := range strings.SplitSeq(body, "\n\n") {
		if ev == "" {
			continue
		}
		data, ok := strings.CutPrefix(ev, "data: ")
		if !ok {
			t.Fatalf("event %q is no data", ev)
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var c chunk
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		out = append(out, c)
	}
	return out, done
}

const running = `"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`

func chatBody(content string, maxTokens int, rest string) string {
	c, _ := json.Marshal(content)
	return fmt.Sprintf(`{"model":"simulated","messages":[{"role":"user","content":%s}],"max_tokens":%d%s}`, c, maxTokens, rest)
}

// What servers may also do: CRLF, arguments of a tool call, and steps that give
// different numbers of tokens.
func TestVariants(t *testing.T) {
	p := quick()
	p.ReasoningTokens, p.ToolCalls, p.TokensPerChunk, p.Acceptance = 2, true, 4, []int{1, 4, 2}
	_, url := serve(t, p, Options{Faults: Faults{CRLF: true}})
	_, body, err := post(t, url+"/v1/chat/completions", chatBody("one two three", 12, ","+running))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(body, "\n"); strings.Count(body, "\r\n") != n || strings.Count(body, "\r\n\r\n") != n/2 {
		t.Errorf("line ends of %q", body)
	}
	all, done := chunks(t, strings.ReplaceAll(body, "\r", ""))
	if !done {
		t.Error("no [DONE]")
	}
	// The prefill's token alone, then the steps; two are thought, and 12 are all.
	var totals []int
	for _, c := range all {
		totals = append(totals, c.Usage.Completion)
	}
	if want := []int{0, 1, 2, 6, 8, 9, 12, 12}; !slices.Equal(totals, want) {
		t.Errorf("usage %v, want %v:\n%s", totals, want, body)
	}
	if n := strings.Count(body, `"arguments":" `); n != 4 || strings.Count(body, `"name":"look_up"`) != 1 || strings.Contains(body, `"delta":{"content":" `) {
		t.Errorf("%d pieces of arguments, want 4:\n%s", n, body)
	}
}

func TestChatStream(t *testing.T) {
	var truth bytes.Buffer
	p := quick()
	p.ReasoningTokens = 3
	s, url := serve(t, p, Options{Truth: &truth})
	status, body, err := post(t, url+"/v1/chat/completions", chatBody("one two three", 12, ","+running))
	if err != nil || status != 200 {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	all, done := chunks(t, body)
	if !done || len(all) != 14 {
		t.Fatalf("%d chunks, done %v, want role, 12 tokens, usage and [DONE]:\n%s", len(all), done, body)
	}
	if r := all[0].Choices[0].Delta.Role; r != "assistant" || all[0].Usage.Completion != 0 {
		t.Errorf("first chunk: role %q, usage %+v", r, all[0].Usage)
	}
	var text strings.Builder
	for i, c := range all[1:13] {
		if c.Usage.Completion != i+1 || c.Usage.Total != c.Usage.Prompt+i+1 {
			t.Errorf("chunk %d: usage %+v", i+1, c.Usage)
		}
		d := c.Choices[0].Delta
		if (d.Reasoning != "") != (i < 3) || (d.Content != "") != (i >= 3) {
			t.Errorf("chunk %d: %+v", i+1, d)
		}
		text.WriteString(d.Reasoning + d.Content)
		if f := c.Choices[0].FinishReason; (f != nil) != (i == 11) {
			t.Errorf("chunk %d: finish_reason %v", i+1, f)
		}
	}
	last := all[13]
	if len(last.Choices) != 0 || last.Usage.Completion != 12 || last.Usage.Details == nil {
		t.Errorf("last chunk: %+v", last)
	}

	// What was generated counts as what usage said.
	_, tok, err := post(t, url+"/tokenize", fmt.Sprintf(`{"model":"simulated","prompt":%q}`, text.String()))
	if err != nil || !strings.HasPrefix(tok, `{"count":12,`) {
		t.Errorf("tokenize of the answer: %s, %v", tok, err)
	}
	// And the prompt as usage said.
	_, tok, err = post(t, url+"/tokenize", chatBody("one two three", 1, ""))
	if want := fmt.Sprintf(`{"count":%d,`, last.Usage.Prompt); err != nil || !strings.HasPrefix(tok, want) {
		t.Errorf("tokenize of the prompt: %s, %v; want %s", tok, err, want)
	}
	s.Close() // truth is complete
	sum, events, seen := 0, 0, ""
	for i, line := range slices.Collect(strings.Lines(truth.String())) {
		var l struct {
			Start   int64 `json:"start_ns"`
			T       int64 `json:"t_ns"`
			Request string
			Event   string
			Tokens  int
			Events  int
			Last    bool
		}
		err := json.Unmarshal([]byte(line), &l)
		if (i == 0) != (l.Start != 0) || (i == 0) != (l.T == 0) || (i == 0) != (l.Request == "") || err != nil {
			t.Fatalf("truth line %d %q: %v", i, line, err)
		}
		sum, events = sum+l.Tokens, events+l.Events
		if l.Last {
			l.Event += "!"
		}
		if l.Event != "write" {
			seen += " " + l.Event
		}
	}
	if sum != 12 || events != 12 || seen != "  read write!" {
		t.Errorf("truth holds %d tokens in %d events and%s, want 12 in 12, read and last write", sum, events, seen)
	}
}

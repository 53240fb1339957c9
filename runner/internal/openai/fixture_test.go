package openai

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"speedmatrix/results/record"
)

// want is a want.json of testdata/sse; its rules are in the comment of package sse
// and of stream.
type want struct {
	API        string `json:"api"`
	HTTPStatus int    `json:"http_status"`
	OK         bool   `json:"ok"`
	Error      *struct {
		Kind            string `json:"kind"`
		Code            int    `json:"code"`
		MessageContains string `json:"message_contains"`
		Class           string `json:"class"`
		RetryAfterS     *int64 `json:"retry_after_s"`
	} `json:"error"`
	PromptTokens     *int64          `json:"prompt_tokens"`
	CompletionTokens *int64          `json:"completion_tokens"`
	Text             *string         `json:"text"`
	TextLen          int             `json:"text_len"`
	TextPrefix       string          `json:"text_prefix"`
	Reasoning        string          `json:"reasoning"`
	ToolArguments    string          `json:"tool_arguments"`
	TTFTEvent        *int            `json:"ttft_event"`
	OutputEvents     int             `json:"output_events"`
	Events           int             `json:"events"`
	FinishReason     *string         `json:"finish_reason"`
	DoneSeen         bool            `json:"done_seen"`
	BadFrames        int             `json:"bad_frames"`
	Cumulative       [][2]int64      `json:"cumulative"`
	HoldOpenS        int             `json:"hold_open_s"`
	Notes            string          `json:"notes"`
	AcceptAlso       json.RawMessage `json:"accept_also"`
}

// seen is what a stream gave, in the terms of want.
type seen struct {
	st                         *stream
	rec                        record.Request
	text, reasoning, arguments bytes.Buffer
	ttft                       *int
	outputs                    int
	cumulative                 [][2]int64
	firsts                     int
	live                       Live
}

func newSeen() *seen {
	s := &seen{}
	tick := int64(0)
	call := &Call{
		Path:  ChatPath,
		Live:  &s.live,
		Clock: func() int64 { tick++; return tick },
		OnFirst: func() {
			s.firsts++
		},
		OnText: func(ch record.Channel, b []byte) {
			switch ch {
			case record.ChannelContent:
				s.text.Write(b)
			case record.ChannelReasoning:
				s.reasoning.Write(b)
			case record.ChannelTool:
				s.arguments.Write(b)
			}
		},
	}
	s.st = newStream(call, &s.rec)
	s.live.Open.Add(1)
	s.st.observe = func(index int, c *chunk, output bool) {
		if output {
			s.outputs++
			if s.ttft == nil {
				s.ttft = &index
			}
		}
		if c.hasTokens {
			s.cumulative = append(s.cumulative, [2]int64{int64(index), c.tokens})
		}
	}
	return s
}

func (s *seen) check(t *testing.T, w *want) {
	t.Helper()
	rec := &s.rec
	eq := func(what string, got, want any) {
		t.Helper()
		if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
			t.Errorf("%s: got %s, want %s", what, g, w)
		}
	}
	eq("http_status", rec.HTTPStatus, w.HTTPStatus)
	eq("ok", rec.Outcome == record.OutcomeCompleted, w.OK)
	if w.Error != nil {
		eq("outcome", rec.Outcome, record.OutcomeFailed)
		eq("error.kind", rec.FailureKind, w.Error.Kind)
		eq("error.code", rec.ErrorCode, w.Error.Code)
		if !strings.Contains(rec.Message, w.Error.MessageContains) {
			t.Errorf("message %q does not contain %q", rec.Message, w.Error.MessageContains)
		}
		eq("error.class is context", ContextLength(rec), w.Error.Class == "context")
		eq("error.retry_after_s", str64(rec.RetryAfterSeconds), str64(w.Error.RetryAfterS))
	} else {
		eq("error.kind", rec.FailureKind, "")
		eq("message", rec.Message, "")
	}
	eq("prompt_tokens", str64(rec.PromptTokens), str64(w.PromptTokens))
	eq("completion_tokens", str64(rec.CompletionTokens), str64(w.CompletionTokens))
	if w.Text != nil {
		eq("text", s.text.String(), *w.Text)
	} else {
		eq("text_len", s.text.Len(), w.TextLen)
		if !strings.HasPrefix(s.text.String(), w.TextPrefix) {
			t.Errorf("text begins %.40q, want %q", s.text.String(), w.TextPrefix)
		}
	}
	eq("reasoning", s.reasoning.String(), w.Reasoning)
	eq("tool_arguments", s.arguments.String(), w.ToolArguments)
	eq("ttft_event", strInt(s.ttft), strInt(w.TTFTEvent))
	eq("output_events", s.outputs, w.OutputEvents)
	eq("events", s.st.events, w.Events)
	eq("finish_reason", rec.FinishReason, deref(w.FinishReason))
	eq("done_seen", s.st.done, w.DoneSeen)
	eq("bad_frames", rec.BadFrames, w.BadFrames)
	eq("running usage", rec.RunningUsage, w.Cumulative != nil)
	if w.Cumulative != nil {
		eq("cumulative", s.cumulative, w.Cumulative)
	}

	// What holds for every stream.
	outputs, tokens := 0, int64(0)
	for i, c := range rec.Chunks {
		if c.Output {
			outputs++
		}
		if c.HasTokens {
			tokens = c.Tokens
		}
		if c.ReadEvents < 1 {
			t.Errorf("chunk %d: %d events in its read", i, c.ReadEvents)
		}
	}
	eq("output chunks", outputs, w.OutputEvents)
	if w.CompletionTokens != nil {
		eq("tokens of the last chunk", tokens, *w.CompletionTokens)
		eq("live tokens", s.live.Tokens.Load(), *w.CompletionTokens)
	}
	eq("calls of OnFirst", s.firsts, min(1, w.OutputEvents))
	eq("live outputs", s.live.Outputs.Load(), w.OutputEvents)
	eq("live open, active", [2]int64{s.live.Open.Load(), s.live.Active.Load()}, [2]int64{})
	eq("live completed + failed", s.live.Completed.Load()+s.live.Failed.Load(), 1)
	if rec.EndNs == nil {
		t.Error("no end")
	}
}

func str64(p *int64) string {
	if p == nil {
		return "null"
	}
	return fmt.Sprint(*p)
}

func strInt(p *int) string {
	if p == nil {
		return "null"
	}
	return fmt.Sprint(*p)
}

func deref(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}

func readWant(t *testing.T, sample string) *want {
	t.Helper()
	name := strings.TrimSuffix(sample, filepath.Ext(sample)) + ".want.json"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var w want
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields() // a field we do not check is a promise we do not keep
	if err := dec.Decode(&w); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if w.AcceptAlso != nil {
		t.Fatalf("%s: has accept_also, which no sample had when this was written", name)
	}
	return &w
}

func samples(t *testing.T, pattern string, n int) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", "sse", pattern))
	if err != nil || len(names) != n {
		t.Fatalf("%d samples, want %d (%v)", len(names), n, err)
	}
	return names
}

// sized gives at most n bytes a read.
type sized struct {
	r io.Reader
	n int
}

func (s sized) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), s.n)]) }

var readSizes = []int{1, 7, 64, 4096, 1 << 30}

func TestBodies(t *testing.T) {
	for _, name := range samples(t, "*.sse", 18) {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		w := readWant(t, name)
		for _, n := range readSizes {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(name), n), func(t *testing.T) {
				s := newSeen()
				s.rec.HTTPStatus = http.StatusOK
				s.st.read(sized{bytes.NewReader(body), n}, nil, func(error) {})
				s.st.close(context.Background(), nil)
				s.check(t, w)
			})
		}
	}
}

// TestReplies reads whole raw replies in pieces, without a socket.
func TestReplies(t *testing.T) {
	for _, name := range samples(t, "*.http", 8) {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		w := readWant(t, name)
		for _, n := range readSizes {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(name), n), func(t *testing.T) {
				resp, err := http.ReadResponse(bufio.NewReader(sized{bytes.NewReader(raw), n}), nil)
				if err != nil {
					t.Fatal(err)
				}
				s := newSeen()
				s.rec.HTTPStatus = resp.StatusCode
				if s.st.isStream(resp) {
					s.st.read(resp.Body, nil, func(error) {})
				} else {
					s.st.refused(resp, nil, func(error) {})
				}
				s.st.close(context.Background(), nil)
				s.check(t, w)
			})
		}
	}
}

// TestSockets writes the same replies to the socket of a client, as they are, and
// bodies under a plain head.
func TestSockets(t *testing.T) {
	names := append(samples(t, "*.http", 8), samples(t, "*.sse", 18)...)
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(name) == ".sse" {
			raw = append([]byte("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n"), raw...)
		}
		w := readWant(t, name)
		t.Run(filepath.Base(name), func(t *testing.T) {
			closed := make(chan struct{})
			url := rawServer(t, func(c net.Conn, req *http.Request) {
				defer close(closed)
				if got := req.Header.Get("Accept-Encoding"); got != "identity" {
					t.Errorf("Accept-Encoding: %q", got)
				}
				c.Write(raw)
				if w.HoldOpenS > 0 {
					// Held until the client closes it; a client that waits for us never gets on.
					c.SetReadDeadline(time.Now().Add(time.Duration(w.HoldOpenS) * time.Second))
					if _, err := c.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
						t.Errorf("the client did not close the connection: %v", err)
					}
				}
			})
			s := newSeen()
			start := time.Now()
			s.st.call.Clock = func() int64 { return time.Since(start).Nanoseconds() }
			s.st.call.Body = []byte(`{}`)
			c := New(url, "", 1, nil)
			defer c.Close()
			c.exchange(t.Context(), s.st)
			s.st.close(t.Context(), nil)
			s.check(t, w)
			if w.HoldOpenS > 0 && time.Since(start) > 2*time.Second {
				t.Error("waited for the end of the connection")
			}
			<-closed
			times := []int64{}
			for _, p := range []*int64{s.rec.SentNs, s.rec.FirstByteNs} {
				if p != nil {
					times = append(times, *p)
				}
			}
			for _, c := range s.rec.Chunks {
				times = append(times, c.AtNs)
			}
			times = append(times, *s.rec.EndNs)
			if s.rec.SentNs == nil || !slices.IsSorted(times) {
				t.Errorf("times are out of order: %v", times)
			}
		})
	}
}

// rawServer answers each connection's first request with what handle writes, then
// closes it.
func rawServer(t *testing.T, handle func(net.Conn, *http.Request)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				io.Copy(io.Discard, req.Body)
				handle(c, req)
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestReal is a speculative stream that vLLM 0.32.0 sent: 60 tokens in 18 output events.
func TestReal(t *testing.T) {
	body, err := os.ReadFile(filepath.Join("testdata", "speculative-ngram.sse"))
	if err != nil {
		t.Fatal(err)
	}
	s := newSeen()
	s.st.read(bytes.NewReader(body), nil, func(error) {})
	s.st.close(context.Background(), nil)
	if s.rec.Outcome != record.OutcomeCompleted || s.outputs != 18 || str64(s.rec.CompletionTokens) != "60" ||
		str64(s.rec.PromptTokens) != "24" || !s.rec.RunningUsage || s.rec.FinishReason != "length" {
		t.Errorf("outputs %d, record %+v", s.outputs, s.rec)
	}
	// All came in one read.
	if n := int(s.rec.Chunks[0].ReadEvents); n != s.st.events {
		t.Errorf("%d events in the read, want %d", n, s.st.events)
	}
}

package openai

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/sse"
)

// One event of each sort.
const (
	roleEvent   = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	textEvent   = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	finishEvent = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	errorEvent  = `data: {"error":{"message":"boom","code":500}}` + "\n\n"
	doneEvent   = "data: [DONE]\n\n"
	streamHead  = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
)

func call(live *Live) Call {
	start := time.Now()
	return Call{Path: ChatPath, Body: []byte(`{}`), Live: live,
		Clock: func() int64 { return time.Since(start).Nanoseconds() }}
}

// streamRaw makes one request to a server that writes raw to the socket.
func streamRaw(t *testing.T, raw string, key string, secrets ...string) record.Request {
	t.Helper()
	url := rawServer(t, func(c net.Conn, _ *http.Request) { io.WriteString(c, raw) })
	c := New(url, key, 1, nil)
	defer c.Close()
	var rec record.Request
	cl := call(nil)
	cl.Secrets = secrets
	c.Stream(t.Context(), cl, &rec)
	return rec
}

func TestOutcomes(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, textEvent+finishEvent+doneEvent)
	z.Close()
	const plainHead = "HTTP/1.1 200 OK\r\nconnection: close\r\n"
	for name, c := range map[string]struct {
		reply   string
		kind    record.FailureKind
		message string
	}{
		"done":                                 {streamHead + "\r\n" + textEvent + doneEvent, "", ""},
		"finish_reason and a clean end":        {streamHead + "\r\n" + textEvent + finishEvent, "", ""},
		"finish_reason and a broken chunk":     {streamHead + "transfer-encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(textEvent+finishEvent), textEvent+finishEvent), record.FailTruncated, "connection broke"},
		"length not reached":                   {streamHead + "content-length: 9999\r\n\r\n" + textEvent + finishEvent, record.FailTruncated, "connection broke"},
		"no content type":                      {plainHead + "\r\n" + textEvent + doneEvent, "", ""},
		"choices but no text":                  {streamHead + "\r\n" + roleEvent + finishEvent + doneEvent, "", ""},
		"nothing":                              {streamHead + "\r\n", record.FailTruncated, "without finish_reason"},
		"no event":                             {streamHead + "\r\n<p>Welcome\n", record.FailEncoding, "no event"},
		"closed before a reply":                {"", record.FailConnect, "EOF"},
		"half a head":                          {"HTTP/1.1 200 OK\r\ncontent-ty", record.FailConnect, "malformed"},
		"no HTTP":                              {"220 mail.example.com\r\n\r\n", record.FailConnect, "malformed"},
		"a page":                               {plainHead + "content-type: text/html\r\n\r\n<h1>Sign in</h1>", record.FailEncoding, "text/html: <h1>Sign in"},
		"JSON instead of a stream":             {plainHead + "content-type: application/json\r\n\r\n{\"choices\":[]}", record.FailEncoding, "no event stream"},
		"an error as JSON":                     {plainHead + "content-type: application/json\r\n\r\n{\"error\":{\"message\":\"boom\",\"code\":7}}", record.FailInBand, "boom"},
		"compressed although it was not asked": {streamHead + "content-encoding: gzip\r\n\r\n" + zipped.String(), record.FailEncoding, "compressed (gzip)"},
		"error after output":                   {streamHead + "\r\n" + textEvent + errorEvent + finishEvent + doneEvent, record.FailInBand, "boom"},
		"error then cut":                       {streamHead + "\r\n" + textEvent + errorEvent, record.FailInBand, "boom"},
		"error is a string":                    {streamHead + "\r\ndata: {\"error\":\"boom\"}\n\n", record.FailInBand, "boom"},
		"error has no message":                 {streamHead + "\r\ndata: {\"error\":{\"a\":1}}\n\n", record.FailInBand, `{"a":1}`},
		"error is null":                        {streamHead + "\r\n" + strings.Replace(textEvent, "{", `{"error":null,`, 1) + doneEvent, "", ""},
		"redirect":                             {"HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n", record.FailHTTP, ""},
		"FastAPI's error":                      {"HTTP/1.1 404 Not Found\r\nconnection: close\r\n\r\n{\"detail\":\"Not Found\"}", record.FailHTTP, "Not Found"},
		"older vLLM's error":                   {"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n{\"object\":\"error\",\"message\":\"boom\",\"code\":400}", record.FailHTTP, "boom"},
		"error text":                           {"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n <h1>Bad</h1>\n", record.FailHTTP, "<h1>Bad</h1>"},
		"an event too large":                   {streamHead + "\r\ndata: " + strings.Repeat("x", sse.MaxEvent+1), record.FailEncoding, "larger than 16 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			rec := streamRaw(t, c.reply, "")
			want := record.OutcomeCompleted
			if c.kind != "" {
				want = record.OutcomeFailed
			}
			if rec.Outcome != want || rec.FailureKind != c.kind || !strings.Contains(rec.Message, c.message) || c.message == "" && rec.Message != "" {
				t.Errorf("got %s %s %q, want %s %s %q", rec.Outcome, rec.FailureKind, rec.Message, want, c.kind, c.message)
			}
			if rec.EndNs == nil {
				t.Error("no end")
			}
		})
	}
}

func TestNoConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // now nobody listens there
	c := New("http://"+l.Addr().String(), "", 1, nil)
	defer c.Close()
	var rec record.Request
	var live Live
	c.Stream(t.Context(), call(&live), &rec)
	if rec.Outcome != record.OutcomeFailed || rec.FailureKind != record.FailConnect || rec.SentNs != nil || rec.EndNs == nil ||
		!strings.Contains(rec.Message, "connection refused") || live.Open.Load() != 0 || live.Failed.Load() != 1 {
		t.Errorf("%+v", rec)
	}
	if err := c.Warm(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Warm: %v", err)
	}
}

func TestSecretsAreRemoved(t *testing.T) {
	const key, other = "sk-key-0123456789", "hf_other"
	reply := "HTTP/1.1 401 Unauthorized\r\nconnection: close\r\n\r\n" +
		`{"error":{"message":"key ` + key + ` and ` + other + ` are wrong ` + strings.Repeat("é", 989) + key + strings.Repeat("x", 3000) + `"}}`
	rec := streamRaw(t, reply, key, other, "")
	if !strings.HasPrefix(rec.Message, "key <redacted> and <redacted> are wrong é") {
		t.Errorf("message %.80q", rec.Message)
	}
	if len(rec.Message) > maxMessage || strings.Contains(rec.Message, "sk-") || strings.Contains(rec.Message, other) {
		t.Errorf("message of %d bytes ends %q", len(rec.Message), rec.Message[len(rec.Message)-40:])
	}
}

// TestCancelled: what the caller ends is cancelled, and no failure; what a limit
// ends is a timeout. In both cases the server sees the connection go.
func TestCancelled(t *testing.T) {
	for name, c := range map[string]struct {
		cause   error
		early   bool // before the reply
		outcome string
		kind    record.FailureKind
	}{
		"in the stream":          {errors.New("the window is over"), false, record.OutcomeCancelled, ""},
		"before the reply":       {errors.New("the window is over"), true, record.OutcomeCancelled, ""},
		"limit in the stream":    {context.DeadlineExceeded, false, record.OutcomeFailed, record.FailTimeout},
		"limit before the reply": {fmt.Errorf("scout: %w", context.DeadlineExceeded), true, record.OutcomeFailed, record.FailTimeout},
		"without a cause":        {nil, false, record.OutcomeCancelled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			gone := make(chan struct{})
			url := rawServer(t, func(conn net.Conn, _ *http.Request) {
				defer close(gone)
				if c.early {
					cancel(c.cause)
				} else {
					io.WriteString(conn, streamHead+"\r\n"+roleEvent+textEvent)
				}
				conn.Read(make([]byte, 1)) // until the client lets go
			})
			client := New(url, "", 1, nil)
			defer client.Close()
			var rec record.Request
			var live Live
			cl := call(&live)
			cl.OnFirst = func() {
				if live.Open.Load() != 1 || live.Active.Load() != 1 {
					t.Errorf("open %d, active %d", live.Open.Load(), live.Active.Load())
				}
				cancel(c.cause)
			}
			client.Stream(ctx, cl, &rec)
			<-gone
			if rec.Outcome != c.outcome || rec.FailureKind != c.kind || (rec.Message != "") != (c.kind != "") {
				t.Errorf("%s %s %q", rec.Outcome, rec.FailureKind, rec.Message)
			}
			if rec.SentNs == nil && !c.early || rec.EndNs == nil || live.Open.Load() != 0 || live.Active.Load() != 0 {
				t.Errorf("sent %v, end %v, open %d, active %d", rec.SentNs, rec.EndNs, live.Open.Load(), live.Active.Load())
			}
			if !c.early && (len(rec.Chunks) != 1 || live.LastOutputNs.Load() != rec.Chunks[0].AtNs) {
				t.Errorf("chunks %v, last output %d", rec.Chunks, live.LastOutputNs.Load())
			}
		})
	}
}

// TestErrorThenSilence: after an error in the stream nobody waits long for its end,
// and the request ended when the error came.
func TestErrorThenSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		go io.WriteString(w, textEvent+errorEvent)
		s := newSeen()
		start := time.Now()
		s.st.call.Clock = func() int64 { return time.Since(start).Nanoseconds() }
		s.st.read(r, nil, func(error) { r.Close() })
		s.st.close(t.Context(), nil)
		if s.rec.FailureKind != record.FailInBand || *s.rec.EndNs != 0 || time.Since(start) != afterError {
			t.Errorf("%s, end %d, after %v", s.rec.FailureKind, *s.rec.EndNs, time.Since(start))
		}
	})
}

// TestStamps: events of one socket read share its stamp and know how many they are.
func TestStamps(t *testing.T) {
	first := make(chan struct{})
	url := rawServer(t, func(c net.Conn, _ *http.Request) {
		io.WriteString(c, streamHead+"connection: close\r\n\r\n"+roleEvent+textEvent)
		<-first // the client has seen it
		io.WriteString(c, textEvent+textEvent+textEvent+finishEvent)
		io.WriteString(c, doneEvent)
	})
	c := New(url, "", 1, nil)
	defer c.Close()
	var rec record.Request
	cl := call(nil)
	cl.OnFirst = func() { close(first) }
	c.Stream(t.Context(), cl, &rec)
	if rec.Outcome != record.OutcomeCompleted || len(rec.Chunks) != 4 {
		t.Fatalf("%+v", rec)
	}
	ch := rec.Chunks
	if *rec.SentNs > *rec.FirstByteNs || *rec.FirstByteNs != ch[0].AtNs || ch[0].ReadEvents != 2 {
		t.Errorf("sent %d, first byte %d, first chunk %+v", *rec.SentNs, *rec.FirstByteNs, ch[0])
	}
	if ch[1].AtNs <= ch[0].AtNs || ch[1].AtNs != ch[2].AtNs || ch[2].AtNs != ch[3].AtNs || ch[1].ReadEvents < 4 || ch[1].ReadEvents != ch[3].ReadEvents {
		t.Errorf("chunks %+v", ch)
	}
}

// TestOneReadManyBuffers: a socket read that is larger than the decoder's free space
// is still one read.
func TestOneReadManyBuffers(t *testing.T) {
	const n = 400 // about 34 KB
	url := rawServer(t, func(c net.Conn, _ *http.Request) {
		io.WriteString(c, streamHead+"connection: close\r\n\r\n"+strings.Repeat(textEvent, n)+doneEvent)
	})
	c := New(url, "", 1, nil)
	defer c.Close()
	var rec record.Request
	c.Stream(t.Context(), call(nil), &rec)
	// The kernel may cut the write; but then at most in a few pieces.
	groups := map[int64]int{}
	for _, ch := range rec.Chunks {
		groups[ch.AtNs]++
	}
	for _, ch := range rec.Chunks {
		if got := groups[ch.AtNs]; int(ch.ReadEvents) != got && int(ch.ReadEvents) != got+1 { // + [DONE]
			t.Fatalf("%d events in the read, %d chunks with its stamp", ch.ReadEvents, got)
		}
	}
	if len(rec.Chunks) != n || len(groups) > 8 {
		t.Errorf("%d chunks in %d reads", len(rec.Chunks), len(groups))
	}
}

// server is a plain HTTP server that counts its connections.
func server(t *testing.T, h http.HandlerFunc) (url string, conns *atomic.Int64) {
	t.Helper()
	conns = new(atomic.Int64)
	s := httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, conns
}

func TestConnectionsAreReused(t *testing.T) {
	url, conns := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, textEvent+finishEvent+doneEvent)
	})
	c := New(url+"/v1/", "", 1, nil)
	defer c.Close()
	for range 3 {
		var rec record.Request
		c.Stream(t.Context(), call(nil), &rec)
		if rec.Outcome != record.OutcomeCompleted {
			t.Fatalf("%+v", rec)
		}
		c.drains.Wait()
	}
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for three requests", n)
	}
}

func TestWarm(t *testing.T) {
	const n = 16
	var open sync.WaitGroup
	open.Add(n)
	url, conns := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" {
			w.WriteHeader(http.StatusNotFound) // any reply will do
			return
		}
		open.Done()
		open.Wait() // all at once
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, textEvent+doneEvent)
	})
	c := New(url, "", n, nil)
	defer c.Close()
	if err := c.Warm(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if got := conns.Load(); got != n {
		t.Errorf("%d connections, want %d", got, n)
	}
	var streams sync.WaitGroup
	for range n {
		streams.Go(func() {
			var rec record.Request
			c.Stream(t.Context(), call(nil), &rec)
			if rec.Outcome != record.OutcomeCompleted {
				t.Errorf("%+v", rec)
			}
		})
	}
	streams.Wait()
	if got := conns.Load(); got != n {
		t.Errorf("%d connections after the streams, want still %d", got, n)
	}
}

func TestQuestions(t *testing.T) {
	const key = "sk-0123456789"
	var tokenized string
	url, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" && r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"error":"Unauthorized"}`)
			return
		}
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"tiny","max_model_len":8192},{"id":"b","max_model_len":null},{"id":"c","max_model_len":-1}]}`)
		case "/version":
			io.WriteString(w, `{"version":"0.32.0"}`)
		case "/tokenize":
			b, _ := io.ReadAll(r.Body)
			tokenized = string(b)
			io.WriteString(w, `{"count":20,"max_model_len":8192,"tokens":[1,2,3]}`)
		case "/metrics":
			io.WriteString(w, "vllm:num_requests_running 1\n")
		default:
			http.NotFound(w, r)
		}
	})
	ctx := t.Context()
	c := New(url, key, 1, nil)
	defer c.Close()
	models, err := c.Models(ctx)
	if err != nil || len(models) != 3 || models[0].ID != "tiny" || str64(models[0].MaxModelLen) != "8192" || models[1].MaxModelLen != nil || models[2].MaxModelLen != nil {
		t.Errorf("models %+v, %v", models, err)
	}
	if v, err := c.Version(ctx); v != "0.32.0" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	if b, err := c.Metrics(ctx); !strings.Contains(string(b), "running 1") || err != nil {
		t.Errorf("metrics %q, %v", b, err)
	}
	n, err := c.TokenizeChat(ctx, "tiny", Message{Role: "user", Content: Quote("a \"b\"")})
	if n != 20 || err != nil || tokenized != `{"add_generation_prompt":true,"model":"tiny","messages":[{"role":"user","content":"a \"b\""}]}` {
		t.Errorf("%d, %v, asked %s", n, err, tokenized)
	}
	n, err = c.TokenizeText(ctx, "tiny", Quote("a"))
	if n != 20 || err != nil || tokenized != `{"add_special_tokens":false,"model":"tiny","prompt":"a"}` {
		t.Errorf("%d, %v, asked %s", n, err, tokenized)
	}
	if _, err := c.get(ctx, "/other", nil, maxReply); !errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnauthorized) {
		t.Errorf("what is not there: %v", err)
	}

	wrong := New(url, "sk-wrong", 1, nil)
	defer wrong.Close()
	_, err = wrong.Models(ctx)
	if !errors.Is(err, ErrUnauthorized) || !strings.Contains(err.Error(), "401 (API key): Unauthorized") || strings.Contains(err.Error(), "sk-") {
		t.Errorf("wrong key: %v", err)
	}

	ctx, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("nobody waits any more"))
	if _, err := c.Version(ctx); err == nil || err.Error() != "/version: nobody waits any more" {
		t.Errorf("cancelled: %v", err)
	}
}

func TestBadAnswers(t *testing.T) {
	for name, c := range map[string]struct{ reply, want string }{
		"no JSON":  {"<html>", "not what the API says"},
		"no count": {"{}", "has no count"},
		"words":    {`{"count":"seven"}`, "not what the API says"},
		"half":     {`{"count":7.5}`, "not what the API says"},
		"too much": {`{"count":1e40}`, "not what the API says"},
		"huge":     {`{"count":1}` + strings.Repeat(" ", 2<<20), "larger than"},
	} {
		t.Run(name, func(t *testing.T) {
			url, _ := server(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, c.reply) })
			client := New(url, "", 1, nil)
			defer client.Close()
			if _, err := client.TokenizeText(t.Context(), "m", Quote("a")); !errors.Is(err, ErrReply) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestReplyTooLong(t *testing.T) {
	const limit = 1 << 20
	url, _ := server(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, limit+1)) })
	c := New(url, "", 1, nil)
	defer c.Close()
	if _, err := c.get(t.Context(), "/metrics", nil, limit); err == nil || err.Error() != "/metrics: the reply is not what the API says: it is larger than 1 MiB" {
		t.Error(err)
	}
	if b, err := c.get(t.Context(), "/metrics", nil, limit+1); err != nil || len(b) != limit+1 {
		t.Error(len(b), err)
	}
}

// TestForeignTransport: a round tripper that tells nothing still gives a record.
func TestForeignTransport(t *testing.T) {
	c := New("http://example.invalid", "", 1, roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(textEvent + doneEvent))}, nil
	}))
	defer c.Close()
	var rec record.Request
	c.Stream(t.Context(), call(nil), &rec)
	if rec.Outcome != record.OutcomeCompleted || rec.SentNs == nil || *rec.SentNs > *rec.FirstByteNs || rec.Chunks[0].ReadEvents != 2 {
		t.Errorf("%+v", rec)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRequestBodies(t *testing.T) {
	temp, topP, seed := 0.0, 0.95, int64(1)
	prompt := "a \"b\" \n <é> \u2028 \x00 \xff"
	clean := strings.ToValidUTF8(prompt, "\uFFFD")
	full := Options{Model: "m\"", MaxTokens: 8, Temperature: &temp, TopP: &topP, Seed: &seed, IgnoreEOS: true}
	for _, c := range []struct {
		name string
		body []byte
		want string
	}{
		{"chat", ChatBody(full, Message{"system", Quote("s")}, Message{"user", Quote(prompt)}),
			`{"model":"m\"","max_tokens":8,"temperature":0,"top_p":0.95,"seed":1,"ignore_eos":true,"stream":true,
			"stream_options":{"include_usage":true,"continuous_usage_stats":true},
			"messages":[{"role":"system","content":"s"},{"role":"user","content":` + jsonString(t, clean) + `}]}`},
		{"least", ChatBody(Options{Model: "m", MaxTokens: 1}),
			`{"model":"m","max_tokens":1,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"messages":[]}`},
	} {
		var got, want any
		if err := json.Unmarshal(c.body, &got); err != nil {
			t.Errorf("%s: %v in %s", c.name, err, c.body)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s:\ngot  %v\nwant %v", c.name, got, want)
		}
	}
}

func jsonString(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTransport: nothing between us and the engine but a socket.
func TestTransport(t *testing.T) {
	tr := newTransport(7)
	if tr.Proxy != nil || !tr.DisableCompression || tr.MaxIdleConnsPerHost != 7 || tr.MaxConnsPerHost != 0 || tr.ResponseHeaderTimeout != 0 ||
		tr.Protocols.HTTP2() || !tr.Protocols.HTTP1() {
		t.Errorf("%+v", tr)
	}
}

// roundTrips answers from a list of functions, one for each request.
type roundTrips struct {
	answers []func() (*http.Response, error)
	bodies  []string
}

func (r *roundTrips) RoundTrip(req *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	r.bodies = append(r.bodies, string(b))
	answer := r.answers[0]
	r.answers = r.answers[1:]
	return answer()
}

// TestClosedWhileIdle is the one failure after which a request is sent again: no
// server has seen it. All others are data.
func TestClosedWhileIdle(t *testing.T) {
	fail := func(text string) func() (*http.Response, error) {
		return func() (*http.Response, error) { return nil, errors.New(text) }
	}
	good := func() (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body: io.NopCloser(strings.NewReader("data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"))}, nil
	}
	const idle = "http: server closed idle connection"
	for _, c := range []struct {
		name    string
		answers []func() (*http.Response, error)
		outcome string
		sends   int
	}{
		{"once", []func() (*http.Response, error){fail(idle), good}, record.OutcomeCompleted, 2},
		{"twice is a failure", []func() (*http.Response, error){fail(idle), fail(idle), good}, record.OutcomeFailed, 2},
		{"reset is a failure", []func() (*http.Response, error){fail("connection reset by peer"), good}, record.OutcomeFailed, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt := &roundTrips{answers: c.answers}
			var rec record.Request
			New("http://server", "", 1, rt).Stream(t.Context(), Call{Path: ChatPath, Body: []byte("{}"), Clock: func() int64 { return 1 }}, &rec)
			if rec.Outcome != c.outcome || len(rt.bodies) != c.sends {
				t.Errorf("outcome %s (%s), sent %d times", rec.Outcome, rec.Message, len(rt.bodies))
			}
			for _, b := range rt.bodies {
				if b != "{}" {
					t.Errorf("sent %q", b)
				}
			}
		})
	}
}

package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/sse"
)

// Live is what the streams of a trial are doing now. They all write it; anybody may
// read it. It is for waiting, progress and stall limits: results come from the
// records.
type Live struct {
	Open         atomic.Int64 // requests begun and not ended
	Active       atomic.Int64 // of those, the ones that had their first output
	Tokens       atomic.Int64 // by the usage seen so far
	Outputs      atomic.Int64 // output events
	LastOutputNs atomic.Int64 // stamp of the newest, by the call's clock; 0 before it
	Completed    atomic.Int64 // requests that ended well by themselves
	Failed       atomic.Int64
}

// Call is one request to make.
type Call struct {
	Path string // ChatPath
	Body []byte // not modified; many calls may share it
	// Clock gives nanoseconds since the start of the trial. It is monotonic and may be
	// called from other goroutines.
	Clock func() int64
	Live  *Live // may be nil
	// OnFirst is called once, on the goroutine of Stream, at the first output event.
	// It may be nil and must not block.
	OnFirst func()
	// OnText is called with the text of each output event, on the goroutine of Stream.
	// The bytes are valid during the call only. It may be nil and must not block.
	OnText func(channel record.Channel, text []byte)
	// Chunks is how many output events are expected, to make room for; 0: some.
	Chunks int
	// Secrets are removed from the message that is kept. The API key always is.
	Secrets []string
}

const (
	someChunks = 512
	mostChunks = 1 << 16
	// afterError is how long a stream is read on after an error in it, to see its
	// [DONE].
	afterError = time.Second
	// afterDone is how long a connection may take to say that the reply is over, to
	// be used again.
	afterDone = 100 * time.Millisecond
	// faultLimit is for reading the body of an error.
	faultLimit = 10 * time.Second
)

// Stream makes the request and reads it to its end. It fills everything of rec but
// Index, Stream, Generation, Role and DueNs.
//
// When ctx is cancelled the outcome is cancelled and the cause is left to the
// caller, unless the cause is [context.DeadlineExceeded]: then the request failed
// with kind timeout.
func (c *Client) Stream(ctx context.Context, call Call, rec *record.Request) {
	st := newStream(&call, rec)
	if l := call.Live; l != nil {
		l.Open.Add(1)
	}
	c.exchange(ctx, st)
	st.close(ctx, append([]string{c.key}, call.Secrets...))
}

// exchange makes the request and leaves its end in st.
func (c *Client) exchange(parent context.Context, st *stream) {
	ctx, cancel := context.WithCancelCause(parent)
	handedOver := false // to drain
	defer func() {
		if !handedOver {
			cancel(nil)
		}
	}()

	resp, conn, err := c.send(ctx, st)
	if closedWhileIdle(err) {
		resp, conn, err = c.send(ctx, st)
	}
	if err != nil {
		st.fail(st.now(), record.FailConnect, err.Error())
		return
	}
	st.rec.HTTPStatus = resp.StatusCode
	if !st.isStream(resp) {
		st.refused(resp, conn, cancel)
		resp.Body.Close()
		return
	}
	st.read(resp.Body, conn, cancel)
	if st.done && !st.failed() {
		handedOver = true
		c.drains.Add(1)
		go func() {
			defer c.drains.Done()
			defer cancel(nil)
			drain(resp.Body, cancel)
		}()
		return
	}
	resp.Body.Close()
}

// closedWhileIdle says that a kept connection had been closed by the server before
// the request was on it, so no server has seen it: the one case in which it is sent
// again. Everything else that fails is data.
func closedWhileIdle(err error) bool {
	// net/http does not export the error.
	return err != nil && err.Error() == "http: server closed idle connection"
}

// send makes the request once and stamps it.
func (c *Client) send(ctx context.Context, st *stream) (*http.Response, *stampConn, error) {
	var conn *stampConn
	req, err := c.request(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			if conn = stamped(info.Conn); conn != nil {
				conn.use(&st.call.Clock)
			}
		},
	}), http.MethodPost, st.call.Path, newBody(st.call.Body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", "text/event-stream")

	sent := st.now() // for a transport that is not ours
	resp, err := c.streams.RoundTrip(req)
	if conn != nil {
		// Taken now: once the reply is read, the connection can be another call's.
		sent = conn.sent.Load()
	}
	if sent >= 0 && (conn != nil || err == nil) {
		st.rec.SentNs = ptr(sent)
	}
	return resp, conn, err
}

// drain sees whether the reply is over, so that the connection can serve the next
// request. If it is not, or anything follows, the connection is closed. Nobody
// waits for it.
func drain(body io.ReadCloser, cancel context.CancelCauseFunc) {
	defer body.Close()
	timer := time.AfterFunc(afterDone, func() { cancel(nil) })
	defer timer.Stop()
	var b [64]byte
	for {
		// A body that is read to its end gives its connection back; one that is
		// closed before closes it.
		if n, err := body.Read(b[:]); n > 0 || err != nil {
			return
		}
	}
}

// stream is the state of one request.
type stream struct {
	call *Call
	rec  *record.Request
	dec  sse.Decoder

	events   int // event index of the next
	done     bool
	ended    bool  // EndNs is set
	finished bool  // some finish_reason
	choices  bool  // some choice
	outputs  int   // output events
	running  bool  // usage comes with choices that have not ended
	tokens   int64 // of the last usage; none is like 0

	chunk   chunk
	scratch []byte

	// observe, if not nil, sees each event: for tests.
	observe func(index int, c *chunk, output bool)
}

func newStream(call *Call, rec *record.Request) *stream {
	n := call.Chunks
	if n <= 0 {
		n = someChunks
	}
	rec.Chunks = make([]record.Chunk, 0, min(n, mostChunks))
	return &stream{call: call, rec: rec}
}

func (st *stream) now() int64   { return st.call.Clock() }
func (st *stream) failed() bool { return st.rec.FailureKind != "" }

// fail sets how the request failed, once: what follows a failure is its echo.
func (st *stream) fail(at int64, kind record.FailureKind, message string) {
	if st.failed() {
		return
	}
	st.rec.FailureKind = kind
	st.rec.Message = message
	st.end(at)
}

func (st *stream) end(at int64) {
	if !st.ended {
		st.ended = true
		st.rec.EndNs = ptr(at)
	}
}

// isStream says whether the reply is one that can be read as events. Servers that
// send no content type, or a plain one, get the benefit of the doubt.
func (st *stream) isStream(resp *http.Response) bool {
	if resp.StatusCode != http.StatusOK {
		return false
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return false
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return kind != "application/json" && kind != "text/html"
}

// refused reads a reply that is no stream.
func (st *stream) refused(resp *http.Response, conn *stampConn, cancel context.CancelCauseFunc) {
	timer := time.AfterFunc(faultLimit, func() { cancel(nil) })
	defer timer.Stop()
	b := make([]byte, maxFault)
	n, err := io.ReadAtLeast(resp.Body, b, 1)
	if n > 0 {
		at, _ := st.stamp(conn, 0)
		st.rec.FirstByteNs = ptr(at)
	}
	if err == nil {
		more, _ := io.ReadFull(resp.Body, b[n:]) // what came is what there is to say
		n += more
	}
	b = b[:n]
	at := st.now()
	if resp.StatusCode != http.StatusOK {
		f := faultOf(b)
		st.rec.ErrorCode = resp.StatusCode
		if f.code != 0 {
			st.rec.ErrorCode = f.code
		}
		if s, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 64); err == nil && s >= 0 {
			st.rec.RetryAfterSeconds = &s
		}
		st.fail(at, record.FailHTTP, f.message)
		return
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		st.fail(at, record.FailEncoding, "the reply is compressed ("+e+") although identity was asked for")
		return
	}
	var c chunk
	if parseAny(b, &c) && c.failed {
		st.rec.ErrorCode = c.fault.code
		st.fail(at, record.FailInBand, c.fault.message)
		return
	}
	st.fail(at, record.FailEncoding, "the reply is no event stream but "+
		resp.Header.Get("Content-Type")+": "+string(b))
}

// read takes the events of the body until the request ends.
func (st *stream) read(body io.Reader, conn *stampConn, cancel context.CancelCauseFunc) {
	var (
		group   = int64(-1) // number of the socket read that the events below came with
		first   int         // its first chunk
		events  int32       // its events
		inError *time.Timer // bounds reading on after an error
		bytesIn bool        // any byte
		readErr error
	)
	defer func() {
		if inError != nil {
			inError.Stop()
		}
	}()
	for reads := int64(0); readErr == nil && !st.done; reads++ {
		buf := st.dec.Buffer()
		var n int
		n, readErr = body.Read(buf)
		if n <= 0 {
			continue
		}
		at, id := st.stamp(conn, reads)
		if !bytesIn {
			bytesIn = true
			st.rec.FirstByteNs = ptr(at)
		}
		if id != group {
			group, first, events = id, len(st.rec.Chunks), 0
		}
		st.dec.Commit(n)
		for !st.done {
			data, err := st.dec.Next()
			if err != nil {
				st.fail(at, record.FailEncoding, err.Error())
				return
			}
			if data == nil {
				break
			}
			events++
			st.event(data, at)
		}
		for i := first; i < len(st.rec.Chunks); i++ {
			st.rec.Chunks[i].ReadEvents = events
		}
		if st.failed() && inError == nil {
			inError = time.AfterFunc(afterError, func() { cancel(nil) })
		}
	}
	if st.done {
		return
	}
	at := st.now()
	switch {
	case readErr != io.EOF:
		st.fail(at, record.FailTruncated, "the connection broke: "+readErr.Error())
	case st.finished:
		st.end(at)
	case bytesIn && st.events == 0:
		st.fail(at, record.FailEncoding, "the reply has no event in it")
	default:
		st.fail(at, record.FailTruncated, "the stream ended without finish_reason and [DONE]")
	}
}

// stamp gives the time and the number of the socket read that brought the newest
// bytes; without a connection of ours, that is now, and the number of the body's
// read.
func (st *stream) stamp(conn *stampConn, reads int64) (at, id int64) {
	if conn == nil {
		return st.now(), reads
	}
	return conn.at.Load(), conn.reads.Load()
}

var doneData = []byte("[DONE]")

// event takes the data of one event.
func (st *stream) event(data []byte, at int64) {
	index := st.events
	st.events++
	c := &st.chunk
	if bytes.Equal(data, doneData) {
		st.done = true
		st.end(at)
		return
	}
	if !parseChunk(data, c) {
		st.rec.BadFrames++
		return
	}
	if c.failed {
		st.rec.ErrorCode = c.fault.code
		st.fail(at, record.FailInBand, c.fault.message)
	}
	if c.badUsage {
		st.rec.BadFrames++ // what else it says counts
	}
	if c.choices > 0 {
		st.choices = true
	}
	if !c.finish.empty() {
		st.finished = true
		st.rec.FinishReason = string(c.finish.appendTo(nil))
	}

	channel := record.ChannelNone
	switch {
	case !c.content.empty():
		channel = record.ChannelContent
	case !c.thinking.empty():
		channel = record.ChannelReasoning
	case c.tools:
		channel = record.ChannelTool
	}
	output := channel != record.ChannelNone
	grew := st.usage(c)
	if !output && grew && st.running && c.choices > 0 {
		output = true // a token without visible text
	}
	if st.observe != nil {
		st.observe(index, c, output)
	}
	if !output && !grew {
		return
	}
	st.rec.Chunks = append(st.rec.Chunks, record.Chunk{
		AtNs: at, Tokens: c.tokens, HasTokens: c.hasTokens, Output: output, Channel: channel,
	})
	if output {
		st.output(c, at)
	}
}

// usage takes the numbers of an event, and says whether the count of tokens changed.
func (st *stream) usage(c *chunk) (changed bool) {
	if c.hasPrompt {
		st.rec.PromptTokens = keep(st.rec.PromptTokens, c.prompt)
	}
	if c.hasCache {
		st.rec.CachedTokens = keep(st.rec.CachedTokens, c.cached)
	}
	if !c.hasTokens {
		return false
	}
	if c.choices > 0 && c.unended {
		// Together with a finish_reason it could be the only usage of the stream.
		st.running = true
		st.rec.RunningUsage = true
	}
	st.rec.CompletionTokens = keep(st.rec.CompletionTokens, c.tokens)
	changed = c.tokens != st.tokens
	if l := st.call.Live; l != nil {
		l.Tokens.Add(max(0, c.tokens-st.tokens))
	}
	st.tokens = c.tokens
	return changed
}

func (st *stream) output(c *chunk, at int64) {
	st.outputs++
	if l := st.call.Live; l != nil {
		if st.outputs == 1 {
			l.Active.Add(1)
		}
		l.Outputs.Add(1)
		for {
			was := l.LastOutputNs.Load()
			if at <= was || l.LastOutputNs.CompareAndSwap(was, at) {
				break
			}
		}
	}
	if st.outputs == 1 && st.call.OnFirst != nil {
		st.call.OnFirst()
	}
	if st.call.OnText != nil {
		st.tap(record.ChannelContent, c.content)
		st.tap(record.ChannelReasoning, c.thinking)
		st.tap(record.ChannelTool, c.toolArgs)
	}
}

func (st *stream) tap(channel record.Channel, t text) {
	if !t.empty() {
		st.scratch = t.appendTo(st.scratch[:0])
		st.call.OnText(channel, st.scratch)
	}
}

// close decides the outcome.
func (st *stream) close(ctx context.Context, secrets []string) {
	rec := st.rec
	broke := rec.FailureKind == record.FailConnect || rec.FailureKind == record.FailTruncated
	switch {
	case ctx.Err() != nil && broke:
		// It broke because the caller let go.
		rec.FailureKind, rec.Message = "", ""
		rec.Outcome = record.OutcomeCancelled
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			rec.FailureKind, rec.Message = record.FailTimeout, "the limit passed"
			rec.Outcome = record.OutcomeFailed
		}
	case st.failed():
		rec.Outcome = record.OutcomeFailed
	case !st.choices:
		rec.FailureKind, rec.Message = record.FailNoOutput, "the stream ended without a choice in it"
		rec.Outcome = record.OutcomeFailed
	default:
		rec.Outcome = record.OutcomeCompleted
	}
	st.end(st.now())
	rec.Message = bounded(rec.Message, secrets)
	rec.FinishReason = bounded(rec.FinishReason, secrets)
	l := st.call.Live
	if l == nil {
		return
	}
	l.Open.Add(-1)
	if st.outputs > 0 {
		l.Active.Add(-1)
	}
	switch rec.Outcome {
	case record.OutcomeCompleted:
		l.Completed.Add(1)
	case record.OutcomeFailed:
		l.Failed.Add(1)
	}
}

// ContextLength says whether the server refused the request because prompt and
// output together are longer than the model allows. That is not over capacity of
// the KV cache.
func ContextLength(rec *record.Request) bool {
	if rec.FailureKind != record.FailHTTP && rec.FailureKind != record.FailInBand {
		return false
	}
	m := strings.ToLower(rec.Message)
	return strings.Contains(m, "maximum context length") ||
		strings.Contains(m, "context_length_exceeded") ||
		strings.Contains(m, "maximum model length") ||
		strings.Contains(m, "max_model_len")
}

// faultOf reads the body of an error: {"error": object or string}, the flat object
// of older vLLM, FastAPI's {"detail": …}, or text.
func faultOf(body []byte) fault {
	top, ok := object(body)
	if !ok {
		return fault{message: string(bytes.TrimSpace(body))}
	}
	if e, ok := top["error"]; ok && string(e) != "null" {
		return readFault(e)
	}
	if d := str(top["detail"]); d != "" {
		return fault{message: d}
	}
	return readFault(json.RawMessage(body))
}

// bounded makes a text from outside fit to be kept: secrets replaced, at most
// 2 KiB, valid UTF-8. In this order: half a secret would not be found.
func bounded(s string, secrets []string) string {
	if s == "" {
		return ""
	}
	s = record.NewRedactor(secrets...).Redact(s)
	if len(s) > maxMessage {
		cut := maxMessage - len("…")
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// newBody is a body that the transport can send without a copy and again.
func newBody(b []byte) *bytes.Reader { return bytes.NewReader(b) }

func ptr[T any](v T) *T { return &v }

// keep sets a pointer without a new allocation for each event.
func keep(p *int64, v int64) *int64 {
	if p == nil {
		p = new(int64)
	}
	*p = v
	return p
}

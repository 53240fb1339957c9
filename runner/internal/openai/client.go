package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

const (
	connectLimit = 30 * time.Second
	// idleLimit is below the 5 s after which uvicorn, and so vLLM, closes a silent
	// connection: a request sent into that moment would fail for no fault of the
	// engine.
	idleLimit  = 4 * time.Second
	bufferSize = 64 << 10 // of each connection, in both directions
)

// Bounds of replies that are read whole.
const (
	maxReply     = 8 << 20  // models, version, metrics
	maxTokenized = 1 << 20  // /tokenize, and 16 times what was asked: it lists the tokens too
	maxFault     = 64 << 10 // of an error's body
	maxMessage   = 2 << 10  // of what is kept of it
)

// Client talks to one server. It is safe for concurrent use.
type Client struct {
	base    string
	key     string
	streams http.RoundTripper
	control http.RoundTripper // apart, so that a scrape never takes a stream's connection
	drains  sync.WaitGroup
}

// New returns a client of the server at baseURL ("http://127.0.0.1:8000"; a
// trailing slash or /v1 does not matter). maxConns is how many connections are kept
// for streams; more can be open. With rt nil the client has its own transports:
// HTTP/1.1, no compression, no proxy, no limit of connections, no limit of time but
// 30 s for connecting.
func New(baseURL, apiKey string, maxConns int, rt http.RoundTripper) *Client {
	base := strings.TrimRight(baseURL, "/")
	base = strings.TrimRight(strings.TrimSuffix(base, "/v1"), "/")
	c := &Client{base: base, key: apiKey, streams: rt, control: rt}
	if rt == nil {
		c.streams = newTransport(max(maxConns, 1))
		c.control = newTransport(2)
	}
	return c
}

func newTransport(idle int) *http.Transport {
	dialer := &net.Dialer{Timeout: connectLimit}
	t := &http.Transport{
		DialContext:           stampDial(dialer.DialContext),
		TLSHandshakeTimeout:   connectLimit,
		DisableCompression:    true, // a compressed stream comes out in lumps
		MaxIdleConns:          0,    // no limit
		MaxIdleConnsPerHost:   idle,
		IdleConnTimeout:       idleLimit,
		ReadBufferSize:        bufferSize,
		WriteBufferSize:       bufferSize,
		ResponseHeaderTimeout: 0, // a long prompt is minutes of silence
		Protocols:             new(http.Protocols),
	}
	// One stream, one connection: with HTTP/2 streams would wait for each other.
	t.Protocols.SetHTTP1(true)
	return t
}

// Close lets go of all connections. Calls in progress are the caller's to end.
func (c *Client) Close() {
	c.drains.Wait()
	for _, rt := range []http.RoundTripper{c.streams, c.control} {
		if t, ok := rt.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	// A transport that is not ours would ask for gzip by itself.
	req.Header.Set("Accept-Encoding", "identity")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return req, nil
}

// Errors that a [*StatusError] can be, for errors.Is.
var (
	ErrUnauthorized = errors.New("the server wants another API key")
	ErrNotFound     = errors.New("the server does not have this")
)

// ErrReply is every error of a reply that came with 200 and is not what the API says.
var ErrReply = errors.New("the reply is not what the API says")

// StatusError is a reply that is not 200.
type StatusError struct {
	Path    string
	Status  int
	Message string // the server's: untrusted, at most 2 KiB, the API key removed
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("%s: HTTP status %d", e.Path, e.Status)
	if e.Status == http.StatusUnauthorized {
		s += " (API key)"
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Is makes 401 [ErrUnauthorized] and 404 [ErrNotFound].
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrUnauthorized:
		return e.Status == http.StatusUnauthorized
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	}
	return false
}

// get reads the whole reply of a request that is no stream. The deadline is the
// context's.
func (c *Client) get(ctx context.Context, path string, body io.Reader, limit int64) ([]byte, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.control.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, withCause(ctx, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, maxFault))
		return nil, &StatusError{Path: path, Status: resp.StatusCode,
			Message: bounded(faultOf(b).message, []string{c.key})}
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, withCause(ctx, err))
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: %w: it is larger than %d MiB", path, ErrReply, limit>>20)
	}
	return b, nil
}

// withCause puts the reason for which the caller gave up in the place of "context
// canceled".
func withCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c *Client) getJSON(ctx context.Context, path string, body io.Reader, limit int64, into any) error {
	b, err := c.get(ctx, path, body, limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w: %w", path, ErrReply, err)
	}
	return nil
}

// Model is one that the server lists.
type Model struct {
	ID          string
	MaxModelLen *int64 // vLLM tells it, others do not
}

// Models asks GET /v1/models.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	var reply struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen *int64 `json:"max_model_len"`
		} `json:"data"`
	}
	if err := c.getJSON(ctx, "/v1/models", nil, maxReply, &reply); err != nil {
		return nil, err
	}
	models := make([]Model, len(reply.Data))
	for i, m := range reply.Data {
		models[i] = Model{ID: m.ID}
		if m.MaxModelLen != nil && *m.MaxModelLen > 0 {
			models[i].MaxModelLen = m.MaxModelLen
		}
	}
	return models, nil
}

// Version asks GET /version, which vLLM has.
func (c *Client) Version(ctx context.Context) (string, error) {
	var reply struct {
		Version string `json:"version"`
	}
	err := c.getJSON(ctx, "/version", nil, maxReply, &reply)
	return reply.Version, err
}

// Metrics asks GET /metrics and returns the body, whatever it is.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	return c.get(ctx, "/metrics", nil, maxReply)
}

// TokenizeChat asks the server how many prompt tokens the messages are, with its
// chat template and what that puts in front of the answer. A server without
// /tokenize gives an error that is [ErrNotFound].
func (c *Client) TokenizeChat(ctx context.Context, model string, messages ...Message) (int64, error) {
	b := append([]byte(`{"add_generation_prompt":true,"model":`), Quote(model).quoted...)
	return c.tokenize(ctx, appendMessages(b, messages))
}

// TokenizeText asks how many tokens a text is by itself, without special tokens.
func (c *Client) TokenizeText(ctx context.Context, model string, text Text) (int64, error) {
	b := append([]byte(`{"add_special_tokens":false,"model":`), Quote(model).quoted...)
	b = append(b, `,"prompt":`...)
	b = append(b, text.quoted...)
	return c.tokenize(ctx, append(b, '}'))
}

// tokenize gives the count as the server says it: who asked knows what it can be.
func (c *Client) tokenize(ctx context.Context, body []byte) (int64, error) {
	var reply struct {
		Count *int64 `json:"count"`
	}
	if err := c.getJSON(ctx, "/tokenize", newBody(body), maxTokenized+16*int64(len(body)), &reply); err != nil {
		return 0, err
	}
	if reply.Count == nil {
		return 0, fmt.Errorf("/tokenize: %w: it has no count", ErrReply)
	}
	return *reply.Count, nil
}

// Warm opens n connections for streams, so that no request of a wave has the
// connecting in its time. It asks GET /health and takes any reply. Connections that
// are not used within 4 s are closed again, so it is called right before the wave.
func (c *Client) Warm(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A request that ends before another begins would hand its connection on. So
	// each waits until all have one.
	var missing sync.WaitGroup
	missing.Add(n)
	all := make(chan struct{})
	go func() { missing.Wait(); close(all) }()

	errs := make(chan error, n)
	for range n {
		go func() {
			arrive := sync.OnceFunc(missing.Done)
			defer arrive()
			err := c.touch(ctx, func() {
				arrive()
				select {
				case <-all:
				case <-ctx.Done():
				}
			})
			if err != nil {
				cancel(err)
			}
			errs <- err
		}()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return fmt.Errorf("opening %d connections: %w", n, first)
	}
	return nil
}

func (c *Client) touch(ctx context.Context, connected func()) error {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected() },
	})
	req, err := c.request(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return err
	}
	resp, err := c.streams.RoundTrip(req)
	if err != nil {
		return withCause(ctx, err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)) // or it could not be used again
	return err
}

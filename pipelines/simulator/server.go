package simulator

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Version is what /version answers. It is no vLLM's, so that nobody takes one for
// the other.
const Version = "0.0.0+speedmatrix.simulator"

// maxBodyBytes bounds a request: the longest context as text, several times over.
const maxBodyBytes = 64 << 20

// Options of a [Server].
type Options struct {
	// Truth, if not nil, gets what really happened, in JSON lines; see truth.go.
	Truth io.Writer
	// Faults to commit.
	Faults Faults
	// Exit, if not nil, is called once when a fault makes the engine die. The server
	// has then stopped answering; what a process does about it is the caller's.
	Exit func()
	// Logf, if not nil, gets what an engine would log.
	Logf func(format string, args ...any)
}

// Server is a running engine. Make it with [New] and end it with [Server.Close].
type Server struct {
	profile Profile
	opts    Options
	start   time.Time
	words   []string

	mu    sync.Mutex // guards sched, hung and totals
	sched *scheduler
	hung  bool
	done  totals

	kick    chan struct{} // something changed before the pacer's next wake-up
	closing chan struct{} // Close was called
	died    chan struct{} // a fault ended the engine
	dieOnce sync.Once
	endOnce sync.Once
	pacer   sync.WaitGroup

	ids         atomic.Uint64
	completions atomic.Int64
	truthMu     sync.Mutex

	httpMu sync.Mutex
	http   *http.Server
	served chan struct{}
}

// New starts an engine without a socket: [Server.Handler] answers for it at once,
// [Server.Start] gives it an address.
func New(p Profile, opts Options) (*Server, error) {
	if err := p.complete(); err != nil {
		return nil, err
	}
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	s := &Server{
		profile: p, opts: opts, start: time.Now(), words: makeWords(),
		kick: make(chan struct{}, 1), closing: make(chan struct{}), died: make(chan struct{}),
	}
	s.sched = newScheduler(&s.profile, s.emit)
	s.done.init()
	s.truthStart()
	s.pacer.Go(s.pace)
	return s, nil
}

// Start listens on addr ("127.0.0.1:0": a free port) and serves until Close, the
// end of ctx, or a fault. It returns the base URL.
func (s *Server) Start(ctx context.Context, addr string) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("simulator: listen on %s: %w", addr, err)
	}
	srv := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	s.httpMu.Lock()
	if s.http != nil {
		s.httpMu.Unlock()
		l.Close()
		return "", errors.New("simulator: started twice")
	}
	s.http, s.served = srv, served
	s.httpMu.Unlock()
	go func() {
		defer close(served)
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Logf("serve: %v", err)
		}
	}()
	go func() {
		select {
		case <-ctx.Done():
		case <-s.died:
		case <-s.closing:
		}
		srv.Close()
	}()
	return "http://" + l.Addr().String(), nil
}

// Close ends the server and everything it runs. It can be called more than once.
func (s *Server) Close() error {
	s.endOnce.Do(func() { close(s.closing) })
	s.pacer.Wait()
	s.httpMu.Lock()
	srv, served := s.http, s.served
	s.httpMu.Unlock()
	if srv != nil {
		srv.Close()
		<-served
	}
	return nil
}

// Exited is closed when a fault ended the engine.
func (s *Server) Exited() <-chan struct{} { return s.died }

func (s *Server) die(reason string) {
	s.dieOnce.Do(func() {
		s.opts.Logf("engine dies: %s", reason)
		close(s.died)
		if s.opts.Exit != nil {
			go s.opts.Exit()
		}
	})
}

func (s *Server) now() time.Duration { return time.Since(s.start) }

// Handler answers requests for the engine.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.completion(w, r, true) })
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.completion(w, r, false) })
	mux.HandleFunc("POST /tokenize", s.tokenize)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"version": Version})
	})
	ok := func(w http.ResponseWriter, r *http.Request) {}
	mux.HandleFunc("GET /health", ok)
	mux.HandleFunc("/ping", ok)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-s.died:
			panic(http.ErrAbortHandler)
		case <-s.closing:
			panic(http.ErrAbortHandler)
		default:
		}
		if d := s.opts.Faults.StartupDelay; s.now() < d {
			unavailable(w)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/v1/") && !s.authorized(r) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) authorized(r *http.Request) bool {
	if s.profile.APIKey == "" {
		return true
	}
	got := r.Header.Get("Authorization")
	return subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+s.profile.APIKey)) == 1
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil { // our own types; cannot fail
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b)
}

// apiError answers as vLLM does.
func apiError(w http.ResponseWriter, status int, kind, param, format string, a ...any) {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	b := body{Message: fmt.Sprintf(format, a...), Type: kind, Code: status}
	if param != "" {
		b.Param = &param
	}
	writeJSON(w, status, map[string]body{"error": b})
}

func unavailable(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "2")
	apiError(w, http.StatusServiceUnavailable, "ServiceUnavailableError", "", "The server is overloaded. Please retry later.")
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Root        string `json:"root"`
		MaxModelLen int    `json:"max_model_len"`
	}
	var data []model
	for _, name := range s.profile.Models {
		data = append(data, model{name, "model", s.start.Unix(), "vllm", s.profile.Models[0], s.profile.MaxModelLen})
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// content is a message's content: a string, null, or parts of which the texts count.
type content string

func (c *content) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var parts []struct{ Type, Text string }
		if err := json.Unmarshal(b, &parts); err != nil {
			return err
		}
		var all strings.Builder
		for _, p := range parts {
			if p.Type != "text" {
				return fmt.Errorf("content part of type %q: this engine reads text only", p.Type)
			}
			all.WriteString(p.Text)
		}
		*c = content(all.String())
		return nil
	}
	return json.Unmarshal(b, (*string)(c))
}

// promptField is the prompt of /v1/completions and /tokenize: a text, one text in a
// list, or token ids.
type promptField struct {
	set  bool
	text string
	ids  []int
}

func (p *promptField) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	p.set = true
	if b[0] != '[' {
		return json.Unmarshal(b, &p.text)
	}
	if json.Unmarshal(b, &p.ids) == nil {
		return nil
	}
	p.ids = nil
	var texts []string
	if err := json.Unmarshal(b, &texts); err != nil || len(texts) != 1 {
		return errors.New("prompt: a text, a list of one text, or a list of token ids")
	}
	p.text = texts[0]
	return nil
}

// body is what is read of a request; other fields are accepted and have no effect,
// as sampling parameters have none on an engine without a model.
type body struct {
	Model    string `json:"model"`
	Messages []struct {
		Role    string  `json:"role"`
		Content content `json:"content"`
	} `json:"messages"`
	Prompt              promptField `json:"prompt"`
	MaxTokens           *int        `json:"max_tokens"`
	MaxCompletionTokens *int        `json:"max_completion_tokens"`
	IgnoreEOS           bool        `json:"ignore_eos"`
	Seed                *int64      `json:"seed"`
	N                   *int        `json:"n"`
	Stream              bool        `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	AddGenerationPrompt *bool `json:"add_generation_prompt"`

	came time.Duration // when its last byte was read
}

// read decodes a request and checks its model; it answers itself if it cannot.
func (s *Server) read(w http.ResponseWriter, r *http.Request) (*body, bool) {
	raw, err := readAll(http.MaxBytesReader(w, r.Body, maxBodyBytes), r.ContentLength)
	if err != nil {
		apiError(w, http.StatusBadRequest, "BadRequestError", "", "the request's body could not be read: %v", err)
		return nil, false
	}
	b := body{came: s.now()}
	if err := json.Unmarshal(raw, &b); err != nil {
		apiError(w, http.StatusBadRequest, "Bad Request", "", "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'ctx': {'error': %q}}]", err.Error())
		return nil, false
	}
	if b.Model != "" && !slices.Contains(s.profile.Models, b.Model) {
		apiError(w, http.StatusNotFound, "NotFoundError", "model", "The model `%s` does not exist.", b.Model)
		return nil, false
	}
	return &b, true
}

func readAll(r io.Reader, size int64) ([]byte, error) {
	var buf bytes.Buffer
	if size > 0 && size <= maxBodyBytes {
		buf.Grow(int(size) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(r)
	return buf.Bytes(), err
}

// count makes the prompt of a request; chat says which field holds it.
func (s *Server) count(b *body, chat, wantIDs bool) (prompt, error) {
	c := newCounter(s.profile.BlockTokens, wantIDs)
	switch {
	case chat && len(b.Messages) == 0:
		return prompt{}, errors.New("messages: at least one is needed")
	case chat:
		for _, m := range b.Messages {
			c.message(m.Role, string(m.Content))
		}
		if b.AddGenerationPrompt == nil || *b.AddGenerationPrompt {
			c.generation()
		}
	case !b.Prompt.set:
		return prompt{}, errors.New("prompt: is missing")
	case b.Prompt.ids != nil:
		for _, id := range b.Prompt.ids {
			if id < 0 || id >= vocabulary {
				return prompt{}, fmt.Errorf("prompt: token id %d is out of vocabulary", id)
			}
			c.id(id)
		}
	default:
		c.text(b.Prompt.text)
	}
	return c.prompt, nil
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	b, ok := s.read(w, r)
	if !ok {
		return
	}
	p, err := s.count(b, !b.Prompt.set, true)
	if err != nil {
		apiError(w, http.StatusBadRequest, "BadRequestError", "", "%v", err)
		return
	}
	// The ids are written by hand: a long prompt has hundreds of thousands.
	out := make([]byte, 0, 64+7*len(p.ids))
	out = fmt.Appendf(out, `{"count":%d,"max_model_len":%d,"tokens":[`, p.tokens, s.profile.MaxModelLen)
	for i, id := range p.ids {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(id), 10)
	}
	out = append(out, `],"token_strs":null}`...)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	w.Write(out)
}

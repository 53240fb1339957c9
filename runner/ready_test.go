package runner_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// An engine that is up is seen at once: nothing is waited for before the first look.
func TestReadyAtOnce(t *testing.T) {
	e := serve(t, profile(), simulator.Faults{})
	begun := time.Now()
	if err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("took %v", took)
	}
}

func TestReadyLater(t *testing.T) {
	t.Parallel()
	e := serve(t, profile(), simulator.Faults{StartupDelay: 300 * time.Millisecond})
	if err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{}); err != nil {
		t.Fatal(err)
	}
	if e.Launch.KVCapacityTokens == nil || e.Launch.KVCapacitySource == "unknown" {
		t.Errorf("launch: %+v", e.Launch)
	}
}

// hanging takes requests of one path and never answers them.
func hanging(path string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != path {
			return false
		}
		io.Copy(io.Discard, r.Body) // or the end of the connection is not seen
		<-r.Context().Done()
		return true
	}
}

func TestNeverReady(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v1/chat/completions" {
				return false
			}
			w.WriteHeader(status)
			w.Write([]byte(body))
			return true
		}
	}
	for _, c := range []struct {
		name   string
		change func(*simulator.Profile)
		faults simulator.Faults
		first  func(http.ResponseWriter, *http.Request) bool
		key    string
		model  string // "-": the plan names none
		start  time.Duration
		want   []string // in the message
		not    string
	}{
		{name: "no key", change: func(p *simulator.Profile) { p.APIKey = "sk-right" }, want: []string{"401, API key", "wants one"}},
		{name: "wrong key", change: func(p *simulator.Profile) { p.APIKey = "sk-right" }, key: "sk-wrong",
			want: []string{"401, API key", "another one"}, not: "sk-"},
		{name: "wrong model name", model: "bench", want: []string{`"bench"`, `"tiny"`}},
		{name: "the completion fails", first: answer(500, `{"error":{"message":"CUDA out of memory"}}`), want: []string{"500", "CUDA out of memory"}},
		{name: "a completion without output", first: answer(200, "data: [DONE]\n\n"), want: []string{"no_output"}},
		{name: "the connection is dropped", first: func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v1/chat/completions" {
				return false
			}
			panic(http.ErrAbortHandler)
		}, want: []string{"(connect)", "EOF"}},
		{name: "the completion never comes", first: hanging("/v1/chat/completions"),
			want: []string{"limits.start", "the first completion has not come back: no byte of a reply for "}},
		{name: "the completion never ends", first: func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v1/chat/completions" {
				return false
			}
			w.Write([]byte(": wait\n\n"))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}, want: []string{"its stream had not ended "}},
		{name: "no model", first: answering("/v1/models", `{"data":[]}`), model: "-", want: []string{"serves no model"}, not: `""`},
		{name: "two models, none named", first: answering("/v1/models", `{"data":[{"id":"a"},{"id":"b"}]}`), model: "-",
			want: []string{"names no model", `"a", "b"`}, not: `""`},
		{name: "503, then silence", first: func() func(http.ResponseWriter, *http.Request) bool {
			var asked atomic.Int32
			silent := hanging("/v1/models")
			return func(w http.ResponseWriter, r *http.Request) bool {
				if asked.Add(1) > 2 {
					return silent(w, r)
				}
				w.WriteHeader(503)
				return true
			}
		}(), start: 1500 * time.Millisecond, want: []string{"limits.start", "/v1/models: it has not answered for 1."}, not: "503"},
		{name: "never up", faults: simulator.Faults{StartupDelay: time.Hour}, want: []string{"limits.start", "503"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pr := profile()
			if c.change != nil {
				c.change(&pr)
			}
			if c.first == nil {
				c.first = func(http.ResponseWriter, *http.Request) bool { return false }
			}
			e := behind(t, pr, c.faults, c.first)
			e.APIKey = c.key
			p := thePlan()
			p.Identity.Limits.StartNs = int64(500 * time.Millisecond)
			if c.start > 0 {
				p.Identity.Limits.StartNs = int64(c.start)
			}
			switch c.model {
			case "":
			case "-":
				p.Identity.Model.ID = ""
			default:
				p.Identity.Model.Served = []string{c.model}
			}
			err := runner.WaitReady(t.Context(), e, p, runner.Options{})
			if err == nil {
				t.Fatal("it was ready")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if c.not != "" && strings.Contains(err.Error(), c.not) {
				t.Errorf("%q says %q", err, c.not)
			}
		})
	}
}

// The end of the process is seen at once, with its last lines.
func TestExitBeforeReady(t *testing.T) {
	t.Parallel()
	exited := make(chan struct{})
	var polls atomic.Int32
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool {
		if polls.Add(1) == 2 {
			close(exited)
		}
		w.WriteHeader(503)
		return true
	})
	e.Exited, e.ExitReason = exited, func() string { return "exit status 1: out of memory" }
	err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{})
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailEngineExit || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("error %v", err)
	}
}

func TestReadyCancelled(t *testing.T) {
	t.Parallel()
	e := behind(t, profile(), simulator.Faults{}, func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(503); return true })
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("signal")
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	if err := runner.WaitReady(ctx, e, thePlan(), runner.Options{}); err != cause {
		t.Errorf("error %v", err)
	}
	drain := make(chan struct{})
	time.AfterFunc(50*time.Millisecond, func() { close(drain) })
	if err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{Drain: drain}); err != runner.ErrDrained {
		t.Errorf("error %v", err)
	}
}

// Where a server is said to be there, nobody waits half an hour for it.
func TestNothingListens(t *testing.T) {
	t.Parallel()
	e := behind(t, profile(), simulator.Faults{}, func(http.ResponseWriter, *http.Request) bool { return false })
	e.BaseURL = "http://127.0.0.1:1"
	e.ConnectWithin = 100 * time.Millisecond
	err := runner.WaitReady(t.Context(), e, thePlan(), runner.Options{})
	if err == nil || !strings.Contains(err.Error(), "check its address") || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
}

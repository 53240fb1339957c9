package attach

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

const secret = "sk-very-secret"

func TestBaseURL(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{"http://127.0.0.1:8000", "http://127.0.0.1:8000", ""},
		{"http://127.0.0.1:8000/", "http://127.0.0.1:8000", ""},
		{"http://127.0.0.1:8000/v1", "http://127.0.0.1:8000", ""},
		{"https://gpu.example/team/v1/", "https://gpu.example/team", ""},
		{"http://[::1]:8000", "http://[::1]:8000", ""},
		{"", "", "no URL"},
		{"127.0.0.1:8000", "", "did you mean http://127.0.0.1:8000?"},
		{"localhost:8000", "", "did you mean http://localhost:8000?"},
		{"[::1]:8000/v1", "", "did you mean http://[::1]:8000/v1?"},
		{"127.0.0.1:8000?key", "", "cannot be read"},
		{"ftp://x", "", "must begin with http"},
		{"http://", "", "no host"},
		{"http://me:" + secret + "@host", "", "user name or password"},
		{"http://host?key=" + secret, "", "query or fragment"},
		{"http://host/%zz" + secret, "", "cannot be read"},
		{"http://ho st/", "", "cannot be read"},
	} {
		got, err := BaseURL(c.in)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %q, %v; want %q, %q", c.in, got, err, c.want, c.err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the error quotes the secret: %v", c.in, err)
		}
	}
}

func FuzzBaseURL(f *testing.F) {
	f.Add("http://127.0.0.1:8000/v1")
	f.Add("https://a/b//v1//")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := BaseURL(s)
		if err != nil {
			return
		}
		if strings.HasSuffix(got, "/") {
			t.Fatalf("%q ends with a slash", got)
		}
		if u, err := url.Parse(got); err != nil || u.Host == "" {
			t.Fatalf("%q became %q: %v", s, got, err)
		}
	})
}

// kept is a sink in memory.
type kept struct {
	launches []record.Launch
	trials   []record.Trial
}

func (k *kept) Launched(l record.Launch) error { k.launches = append(k.launches, l); return nil }
func (k *kept) Trial(t record.Trial) error     { k.trials = append(k.trials, t); return nil }
func (k *kept) Progress(runner.Progress)       {}

func onePrefill(t *testing.T) *plan.Plan {
	t.Helper()
	p := &plan.Plan{Identity: plan.Identity{
		MethodVersion: runner.MethodVersion, Engine: plan.Engine{Source: "attach"},
		Model: plan.Model{ID: "simulated"}, Prompts: "shared", MaxOutput: 16,
		Capacity: plan.Capacity{Rule: "worst_case"},
		Limits:   plan.Limits{StartNs: int64(2 * time.Second), StallNs: int64(5 * time.Second), IdleNs: int64(5 * time.Second)},
		Steps:    []plan.Step{{ID: "prefill-256-r1", Phase: record.PhasePrefill, ContextTokens: 256, ContextLabel: "256", Concurrency: 1, Repeat: 1}},
	}}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

func engine(t *testing.T) string {
	t.Helper()
	p := simulator.DefaultProfile()
	p.APIKey = secret
	s, err := simulator.New(p, simulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	u, err := s.Start(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestExecute(t *testing.T) {
	var k kept
	err := Executor{}.Execute(t.Context(), pipelines.Job{Plan: onePrefill(t), Launch: 1, AttachURL: engine(t) + "/v1/", APIKey: secret}, &k)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.trials) != 1 || len(k.launches) < 2 || k.launches[0].Executor != "attach" || k.launches[len(k.launches)-1].EndedAt == nil {
		t.Errorf("trials %+v, launches %+v", k.trials, k.launches)
	}
}

// Wherever a redirect points, and whenever it comes, the key stays with the server
// that was attached to.
func TestNoRedirectTakesTheKeyAway(t *testing.T) {
	var visits atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		visits.Add(1)
		if strings.Contains(r.Header.Get("Authorization"), secret) {
			t.Errorf("the key came to another host, at %s", r.URL.Path)
		}
		io.WriteString(w, "{}")
	}))
	defer other.Close()
	real, err := url.Parse(engine(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(real)
	for _, c := range []struct {
		name, path, want string
	}{
		{"from the start", "/v1/models", "redirects to"},
		{"completions only", "/v1/chat/completions", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			visits.Store(0)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == c.path {
					http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
					return
				}
				proxy.ServeHTTP(w, r)
			}))
			defer front.Close()
			err := Executor{}.Execute(t.Context(), pipelines.Job{Plan: onePrefill(t), Launch: 1, AttachURL: front.URL, APIKey: secret}, &kept{})
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
				t.Errorf("error: %v", err)
			}
			if visits.Load() != 0 {
				t.Errorf("the other host was visited %d times", visits.Load())
			}
		})
	}
}

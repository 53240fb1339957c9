package runner_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// saying serves a simulated engine whose events are changed on their way.
func saying(t *testing.T, tokenizes bool, change func(event string) string) *runner.Engine {
	t.Helper()
	s, err := simulator.New(profile(), simulator.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine := s.Handler()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/tokenize" && !tokenizes:
			http.NotFound(w, r)
		case r.URL.Path == chatPath:
			engine.ServeHTTP(&changer{w, change}, r)
		default:
			engine.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		s.Close()
		front.CloseClientConnections()
		front.Close()
	})
	return &runner.Engine{BaseURL: front.URL, Launch: record.Launch{Number: 1}}
}

type changer struct {
	http.ResponseWriter
	change func(string) string
}

func (c *changer) Write(p []byte) (int, error) {
	_, err := c.ResponseWriter.Write([]byte(c.change(string(p))))
	return len(p), err
}

func (c *changer) Unwrap() http.ResponseWriter { return c.ResponseWriter }
func (c *changer) Flush()                      { c.ResponseWriter.(http.Flusher).Flush() }

var completionTokens = regexp.MustCompile(`"completion_tokens":(\d+)`)

// counts gives every count of tokens another form.
func counts(f func(n int) string) func(string) string {
	return func(event string) string {
		return completionTokens.ReplaceAllStringFunc(event, func(m string) string {
			n, _ := strconv.Atoi(m[strings.IndexByte(m, ':')+1:])
			return `"completion_tokens":` + f(n)
		})
	}
}

func prompts(s string) func(string) string {
	re := regexp.MustCompile(`"prompt_tokens":\d+`)
	return func(event string) string { return re.ReplaceAllString(event, `"prompt_tokens":`+s) }
}

// What a server says of tokens is believed only as far as it can be right. Where it says
// nothing, its /tokenize counts the text; where that cannot be had, people are told.
func TestUsage(t *testing.T) {
	t.Parallel()
	constant := func(s string) func(int) string { return func(int) string { return s } }
	fell := counts(func(n int) string { return fmt.Sprint(1500 - n) })
	for _, c := range []struct {
		name   string
		change func(string) string
		mute   bool // no /tokenize
		status record.Status
		text   string // in the reason or a warning
		source string // of decode's tokens
	}{
		{"as it is", func(s string) string { return s }, false, record.Valid, "", record.TokensRunning},
		{"null", counts(constant("null")), false, record.Valid, "2 of 2 requests: /tokenize counted their text", record.TokensRetokenise},
		{"negative", counts(func(n int) string { return fmt.Sprint(-n) }), false, record.Valid, "/tokenize counted their text", record.TokensRetokenise},
		{"half", counts(func(n int) string { return fmt.Sprint(n) + ".5" }), false, record.Valid, "/tokenize counted their text", record.TokensRetokenise},
		{"words", counts(func(n int) string { return fmt.Sprintf("%q", fmt.Sprint(n)) }), false, record.Valid, "/tokenize counted their text", record.TokensRetokenise},
		{"40 digits", counts(constant(strings.Repeat("9", 40))), false, record.Valid, "/tokenize counted their text", record.TokensRetokenise},
		{"null, and no /tokenize", counts(constant("null")), true, record.Valid, "how many tokens came is not known", record.TokensUnknown},
		{"negative, and no /tokenize", counts(func(n int) string { return fmt.Sprint(-n) }), true, record.Failed, "cannot be right: its count stood still at 0 tokens", record.TokensUnknown},
		{"words, and no /tokenize", counts(constant(`"some"`)), true, record.Failed, "cannot be right: there is no whole number of tokens in it", record.TokensUnknown},
		{"falling", fell, false, record.Failed, "cannot be right: its count of the tokens of a stream went back from 1500 to 1499", ""},
		{"standing still", counts(constant("7")), false, record.Failed, "cannot be right: its count stood still at 7 tokens", ""},
		{"more than asked", counts(constant("9223372036854775807")), false, record.Failed, "cannot be right: it counts 9223372036854775807 tokens where at most 2000 were asked", ""},
		{"a prompt of 1", prompts("1"), false, record.Failed, "cannot be right: 1 prompt tokens, where /tokenize counts 1024 for the same prompt", ""},
		{"a prompt of 1, and no /tokenize", prompts("1"), true, record.Failed, "cannot be right: 1 prompt tokens for ", ""},
		{"a prompt of 1e18", prompts("1000000000000000000"), true, record.Failed, "cannot be right: 1000000000000000000 prompt tokens for ", ""},
		{"a prompt of null", prompts("null"), false, record.Valid, "", record.TokensRunning},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := &sink{t: t}
			if err := s.measure(t.Context(), saying(t, !c.mute, c.change), thePlan(prefill(1024), decode(1024, 2)), runner.Options{}); err != nil {
				t.Fatal(err)
			}
			tr := &s.trials[1]
			all := tr.Reason + "\n" + strings.Join(tr.Warnings, "\n")
			if busy(tr) {
				return
			}
			if tr.Status != c.status || (tr.FailureKind == record.FailEncoding) != (c.status == record.Failed) || !strings.Contains(all, c.text) {
				t.Errorf("%s, want %s: %s", describe(tr), c.status, c.text)
			}
			if first := &s.trials[0]; strings.Contains(c.name, "a prompt") && first.Status != c.status && !busy(first) {
				t.Errorf("prefill: %s", describe(first))
			}
			if c.source == "" {
				return
			}
			row := metric.Cell(tr, 0)
			rate, ok := row.Value(metric.OutputTokensPerSecond)
			if row.TokenSource != c.source || ok != (c.source != record.TokensUnknown) || ok && (rate < 300 || rate > 500) {
				t.Errorf("tokens by %s, %v a second", row.TokenSource, rate)
			}
			if c.source == record.TokensUnknown && tr.Reason == "" {
				t.Errorf("no reason: %s", describe(tr))
			}
		})
	}
}

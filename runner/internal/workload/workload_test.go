package workload

import (
	"context"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// Tokenizers that count in ways that real ones do.
var tokenizers = []struct {
	name  string
	count func(s string) int64
}{
	{"a word is a token", func(s string) int64 { return int64(len(strings.Fields(s))) }},
	{"four bytes are a token", func(s string) int64 { return int64(len(s)+3) >> 2 }},
	{"long words are more", func(s string) int64 {
		var n int64
		for _, w := range strings.Fields(s) {
			n += 1 + int64(len(w))>>2
		}
		return n
	}},
	{"a filler word is two", func(s string) int64 {
		return int64(len(strings.Fields(s)) + strings.Count(s, " a "))
	}},
	{"a character is a token", func(s string) int64 { return int64(utf8.RuneCountInString(s)) }},
}

func TestBuildExact(t *testing.T) {
	const template = 12 // tokens around a message
	for _, tok := range tokenizers {
		t.Run(tok.name, func(t *testing.T) {
			var calls, counted int
			b := NewBuilder(func(_ context.Context, s string) (int64, error) {
				calls++
				counted += len(s)
				return tok.count(s) + template, nil
			})
			for _, tokens := range []int{512, 4096, 8192, 32768, 131072} {
				for _, task := range []Task{Prefill, Decode} {
					for _, nonce := range []string{"one", "two", "three and longer"} {
						calls, counted = 0, 0
						p, err := b.Build(t.Context(), tokens, task, nonce)
						if err != nil {
							t.Fatal(err)
						}
						actual := tok.count(p.Text()) + template
						if p.Tokens == nil || p.Exact && *p.Tokens != actual {
							t.Fatalf("%d %q: says %v tokens, is %d", tokens, nonce, p.Tokens, actual)
						}
						// Where no word is one token, an odd length cannot be had.
						if Off(tokens, actual) && abs(actual-int64(tokens)) > 1 {
							t.Errorf("%d %q: %d tokens is more than 0.1 %% off", tokens, nonce, actual)
						}
						if calls > MaxCalls {
							t.Errorf("%d %q: %d calls", tokens, nonce, calls)
						}
						if nonce != "one" && tokens >= headOnly && counted > 200 {
							t.Errorf("%d %q: %d bytes were counted for a length that was known", tokens, nonce, counted)
						}
						if !strings.HasPrefix(p.Text(), "["+nonce+"]") {
							t.Errorf("%q is not in front: %q", nonce, p.Text()[:40])
						}
						if got := strings.Contains(p.Text(), "very long and detailed story"); got != (task == Decode) {
							t.Errorf("task %d: request present: %v", task, got)
						}
					}
				}
			}
			if n, ok := b.Overhead(); !ok || n < template || n > template+1 {
				t.Errorf("overhead is %d, %v", n, ok)
			}
		})
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	build := func(nonce string) string {
		b := NewBuilder(func(_ context.Context, s string) (int64, error) { return int64(len(strings.Fields(s))), nil })
		p, err := b.Build(t.Context(), 1000, Decode, nonce)
		if err != nil {
			t.Fatal(err)
		}
		return p.Text()
	}
	if first, again := build("x"), build("x"); first != again {
		t.Error("the same nonce gave two texts")
	}
	if build("x") == build("y") {
		t.Error("two nonces gave one text")
	}
}

func TestNonce(t *testing.T) {
	seen := map[string]bool{}
	for _, parts := range [][]string{{"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}, {}} {
		n := Nonce(parts...)
		if seen[n] || len(n) != 16 || n != Nonce(parts...) {
			t.Errorf("Nonce(%q) = %q", parts, n)
		}
		seen[n] = true
	}
}

func TestShortest(t *testing.T) {
	b := NewBuilder(func(_ context.Context, s string) (int64, error) { return int64(len(strings.Fields(s))) + 10, nil })
	for _, tokens := range []int{0, 1, 16} {
		p, err := b.Build(t.Context(), tokens, Decode, "n")
		if err != nil {
			t.Fatal(err)
		}
		if p.Tokens == nil || *p.Tokens > 60 {
			t.Errorf("%d: %v tokens", tokens, *p.Tokens)
		}
		if !strings.Contains(p.Text(), "go on without stopping") {
			t.Errorf("%d: no request in %q", tokens, p.Text())
		}
		if got := Off(tokens, *p.Tokens); got != (tokens > 0) {
			t.Errorf("%d: off is %v", tokens, got)
		}
	}
}

func TestServerCannotCount(t *testing.T) {
	b := NewBuilder(func(context.Context, string) (int64, error) { return 0, ErrNoCounter })
	p, err := b.Build(t.Context(), 4000, Prefill, "n")
	if err != nil {
		t.Fatal(err)
	}
	if p.Tokens != nil || !b.Estimated() {
		t.Fatalf("an estimate must say so: %v", p.Tokens)
	}
	// The server turns out to have two tokens for a word: the next one is right.
	tokens := func(s string) int64 { return 2 * int64(len(strings.Fields(s))) }
	b.Observe(p, tokens(p.Text()))
	p, err = b.Build(t.Context(), 4000, Prefill, "m")
	if err != nil {
		t.Fatal(err)
	}
	if n := tokens(p.Text()); n < 3900 || n > 4100 {
		t.Errorf("after one observation: %d tokens for 4000", n)
	}
}

func TestCounterFails(t *testing.T) {
	boom := errors.New("boom")
	b := NewBuilder(func(context.Context, string) (int64, error) { return 0, boom })
	if _, err := b.Build(t.Context(), 4000, Prefill, "n"); !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
}

func TestOff(t *testing.T) {
	for _, c := range []struct {
		asked int
		got   int64
		want  bool
	}{
		{8192, 8192, false}, {8192, 8200, false}, {8192, 8201, true}, {8192, 8183, true},
		{100, 101, true}, {0, 60, false},
	} {
		if Off(c.asked, c.got) != c.want {
			t.Errorf("Off(%d, %d) = %v", c.asked, c.got, !c.want)
		}
	}
}

package workload

import (
	"context"
	"errors"
	"math"
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

// Whatever a server says its texts are long, the builder ends, within its calls and
// within the memory that the length asked for may take.
func TestCounterLies(t *testing.T) {
	calls := 0
	words := func(s string) int64 { return int64(len(strings.Fields(s))) }
	for _, c := range []struct {
		name      string
		count     func(s string) int64
		estimated bool
	}{
		{"always 7", func(string) int64 { return 7 }, true},
		{"always 40", func(string) int64 { return 40 }, true},
		{"always 4096", func(string) int64 { return 4096 }, true}, // until the text is long
		{"none", func(string) int64 { return 0 }, true},
		{"less than none", func(string) int64 { return -5 }, true},
		{"1e18", func(string) int64 { return 1e18 }, true},
		{"the largest there is", func(string) int64 { return math.MaxInt64 }, true},
		{"the smallest there is", func(string) int64 { return math.MinInt64 }, true},
		{"true, then 7", func(s string) int64 {
			if calls > 3 {
				return 7
			}
			return words(s)
		}, true},
		{"now much, now little", func(s string) int64 {
			if calls%2 == 0 {
				return int64(len(s)) + 60_000
			}
			return int64(len(s))>>6 + 1
		}, false},
		{"less for a longer text", func(s string) int64 { return max(int64(len(s))>>6+1, 60_000-int64(len(s))) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			const tokens = 32768
			calls = 0
			b := NewBuilder(func(_ context.Context, s string) (int64, error) {
				calls++
				if len(s) > 64*tokens+16<<10 {
					t.Fatalf("call %d: a text of %d bytes for %d tokens", calls, len(s), tokens)
				}
				return c.count(s), nil
			})
			for _, nonce := range []string{"one", "two", "three"} {
				before := calls
				p, err := b.Build(t.Context(), tokens, Decode, nonce)
				if err != nil {
					t.Fatal(err)
				}
				if n := len(p.Text()); n > 64*tokens+16<<10 || n > p.bytes()*2 {
					t.Errorf("the prompt has %d bytes, about %d were said", n, p.bytes())
				}
				if calls-before > MaxCalls {
					t.Errorf("%d calls", calls-before)
				}
			}
			if b.Estimated() != c.estimated || (b.Why() != nil) != c.estimated {
				t.Errorf("estimated: %v (%v)", b.Estimated(), b.Why())
			}
			if c.estimated {
				if p, _ := b.Build(t.Context(), tokens, Prefill, "four"); p.Tokens != nil || words(p.Text()) < tokens/2 || words(p.Text()) > tokens {
					t.Errorf("the estimate has %d words, and %v tokens", words(p.Text()), p.Tokens)
				}
				if why := b.Why().Error(); !errors.Is(b.Why(), ErrNoCounter) || !strings.Contains(why, "bytes: that cannot be used") {
					t.Errorf("why: %s", why)
				}
			}
			for _, lie := range []int64{-1, 0, 1, math.MaxInt64} {
				b.Observe(b.Sample(), lie)
			}
			if p, _ := b.Build(t.Context(), tokens, Prefill, "five"); len(p.Text()) > 64*tokens+16<<10 {
				t.Errorf("after lies of usage: %d bytes", len(p.Text()))
			}
		})
	}
}

func TestTooLong(t *testing.T) {
	b := NewBuilder(func(context.Context, string) (int64, error) { return 0, ErrNoCounter })
	if _, err := b.Build(t.Context(), math.MaxInt, Prefill, "n"); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("error %v", err)
	}
}

// Who gives up need not wait for the next count.
func TestBuildEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("drained")
	calls := 0
	b := NewBuilder(func(_ context.Context, s string) (int64, error) {
		calls++
		cancel(cause)
		return int64(len(s)), nil
	})
	if _, err := b.Build(ctx, 4000, Prefill, "n"); !errors.Is(err, cause) || calls != 1 {
		t.Errorf("%d calls, error %v", calls, err)
	}
}

func TestLengthOff(t *testing.T) {
	n := int64(1000)
	counted, guessed := Prompt{Tokens: &n}, Prompt{shape: shape{words: 1000}}
	for _, c := range []struct {
		p    Prompt
		got  int64
		want bool
	}{
		{counted, 1000, false}, {counted, 901, false}, {counted, 1100, false}, {counted, 899, true}, {counted, 1101, true},
		{counted, 1, true}, {counted, math.MaxInt64, true},
		{guessed, 1000, false}, {guessed, 300, false}, {guessed, 4000, false}, {guessed, 1, true}, {guessed, math.MaxInt64, true},
	} {
		if got := c.p.LengthOff(c.got); got != c.want {
			t.Errorf("%v tokens: %v", c.got, got)
		}
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

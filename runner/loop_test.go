package runner

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLoopGuard(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = 'a' + byte(r.IntN(26))
		}
		return string(b)
	}
	for _, c := range []struct {
		name   string
		text   string
		period int // 0: no loop
	}{
		{"nothing", "", 0},
		{"no repetition", text(50_000), 0},
		{"two words for ever", text(300) + strings.Repeat(" yes no", 2000), 7},
		{"one character", strings.Repeat("x", 9000), 1},
		{"a paragraph, eight times", text(5000) + strings.Repeat(text(1000), 8), 1000},
		{"a paragraph, three times", text(5000) + strings.Repeat(text(4000), 3), 0},
		{"too short", text(20_000) + strings.Repeat(" yes no", 500), 0},
		{"the same but for a number", func() string {
			var sb strings.Builder
			for i := range 2000 {
				fmt.Fprintf(&sb, "Chapter %d of the long story. ", i)
			}
			return sb.String()
		}(), 0},
		// It came out of the cycle again, but the trial had one.
		{"a loop in the middle", strings.Repeat("abc ", 5000) + text(30_000), 4},
	} {
		for _, piece := range []int{1, 5, 700, 40_000} {
			t.Run(fmt.Sprintf("%s/%d", c.name, piece), func(t *testing.T) {
				var g loopGuard
				for s := c.text; s != ""; {
					n := min(piece, len(s))
					g.add([]byte(s[:n]))
					s = s[n:]
				}
				// A loop in the middle can be inside one piece that is looked at as
				// one: streams come in small ones.
				if g.period != c.period && piece < 40_000 {
					t.Errorf("period %d over %d bytes, want %d", g.period, g.bytes, c.period)
				}
				if g.period > 0 && (g.bytes < loopBytes || g.bytes < loopCycles*g.period) {
					t.Errorf("period %d over only %d bytes", g.period, g.bytes)
				}
			})
		}
	}
}

func BenchmarkLoopGuard(b *testing.B) {
	var g loopGuard
	r := rand.New(rand.NewPCG(1, 2))
	token := []byte(" word")
	for b.Loop() {
		token[1] = 'a' + byte(r.IntN(26))
		g.add(token)
	}
}

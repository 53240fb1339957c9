package runner

// loopGuard watches the text of one stream for exact repetition: the last bytes
// are the same text at least loopCycles times over, and at least loopBytes long.
// Models that are kept from ending fall into such cycles; a draft model then
// guesses every token, and the speed is not that of real text.
//
// It is used by the one goroutine that reads the stream.
type loopGuard struct {
	tail  []byte // the last bytes, up to twice loopTail
	fresh int    // bytes since the last check
	pi    []int32

	period int // of the loop that was found; 0: none
	bytes  int // how much of the tail repeats
}

const (
	// loopTail bounds what is looked at, and so the longest period: a fourth of it.
	loopTail = 16 << 10
	// loopCheck is how often the tail is looked at, in bytes: one pass over the
	// tail for so many new bytes costs a few nanoseconds a byte.
	loopCheck = 4 << 10
)

// reset begins a new text.
func (g *loopGuard) reset() { g.tail, g.fresh, g.period, g.bytes = g.tail[:0], 0, 0, 0 }

// add takes more text. Once a loop was found it stays found.
func (g *loopGuard) add(text []byte) {
	if g.period > 0 {
		return
	}
	g.tail = append(g.tail, text...)
	if len(g.tail) > 2*loopTail { // seldom, so that a token costs no copy of the tail
		g.tail = append(g.tail[:0], g.tail[len(g.tail)-loopTail:]...)
	}
	g.fresh += len(text)
	if g.fresh >= loopCheck {
		g.fresh = 0
		g.period, g.bytes = g.check()
	}
}

// check finds the longest end of the tail that is one text over and over. It is
// the failure function of Knuth, Morris and Pratt over the tail read backwards:
// pi[i] is the length of the longest proper border of the last i+1 bytes, so
// i+1-pi[i] is their smallest period.
func (g *loopGuard) check() (period, size int) {
	tail := g.tail[max(0, len(g.tail)-loopTail):]
	n := len(tail)
	if n < loopBytes {
		return 0, 0
	}
	if g.pi == nil {
		g.pi = make([]int32, loopTail)
	}
	pi := g.pi
	pi[0] = 0
	at := func(i int) byte { return tail[n-1-i] }
	for i := 1; i < n; i++ {
		k := pi[i-1]
		for k > 0 && at(i) != at(int(k)) {
			k = pi[k-1]
		}
		if at(i) == at(int(k)) {
			k++
		}
		pi[i] = k
		if p := i + 1 - int(k); i+1 >= loopBytes && i+1 >= loopCycles*p {
			period, size = p, i+1
		}
	}
	return period, size
}

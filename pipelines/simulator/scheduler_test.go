package simulator

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// line is a profile in round numbers: prefill 1,000 tokens/s, a step of 10 ms for
// each running request, blocks of 10 tokens, 5 ms base latency.
func line(slots, kv int) *Profile {
	p := &Profile{
		Models: []string{"m"}, MaxModelLen: 1000, Slots: slots, KVTokens: kv, BlockTokens: 10,
		PrefixCaching: true, BaseTTFTMs: 5,
		Prefill: []PrefillPoint{{0, 1000}},
		Decode:  DecodeTable{Active: []int{1, 100}, Rows: []DecodeRow{{0, Millis(10, 1000)}}},
	}
	if err := p.complete(); err != nil {
		panic(err)
	}
	return p
}

// bench runs a scheduler by hand and writes down what came out.
type bench struct {
	*scheduler
	names map[*request]string
	out   []string
}

func newBench(p *Profile) *bench {
	b := &bench{names: map[*request]string{}}
	b.scheduler = newScheduler(p, func(r *request, n int, at time.Duration) {
		b.out = append(b.out, fmt.Sprintf("%s%d@%d", b.names[r], r.generated, at.Milliseconds()))
	})
	return b
}

// add submits a request at a time in milliseconds. Equal texts are equal prompts.
func (b *bench) add(name, text string, tokens, max, ms int) *request {
	c := newCounter(b.profile.BlockTokens, false)
	for i := range tokens {
		c.text(fmt.Sprintf(" %s", text[i%len(text):i%len(text)+1]))
	}
	r := &request{prompt: c.prompt, max: max}
	b.names[r] = name
	b.advance(time.Duration(ms) * time.Millisecond)
	b.submit(r, time.Duration(ms)*time.Millisecond)
	return r
}

func (b *bench) until(ms int) string {
	b.advance(time.Duration(ms) * time.Millisecond)
	s := strings.Join(b.out, " ")
	b.out = nil
	return s
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestOneRequest(t *testing.T) {
	b := newBench(line(4, 10000))
	b.add("a", "x", 20, 4, 100) // prefill 20 ms, base 5 ms, then 10 ms a token
	want(t, "one request", b.until(1000), "a1@125 a2@135 a3@145 a4@155")
	if b.running() != 0 || b.kv.held != 0 {
		t.Errorf("running %d, blocks %d afterwards", b.running(), b.kv.held)
	}
}

// A late caller sees the same times: nothing drifts.
func TestLateCaller(t *testing.T) {
	run := func(every int) string {
		b := newBench(line(4, 10000))
		b.add("a", "x", 20, 30, 0)
		b.add("b", "y", 30, 30, 0)
		var all []string
		for ms := every; ms <= 2100; ms += every {
			if s := b.until(ms); s != "" {
				all = append(all, s)
			}
		}
		return strings.Join(all, " ")
	}
	if a, b := run(1), run(700); a != b {
		t.Errorf("called each millisecond:\n%s\nseldom:\n%s", a, b)
	}
}

// Prefill is one request at a time, in order; a joins before b and they share
// steps, which take twice as long.
func TestPrefillIsSerialAndStepsAreShared(t *testing.T) {
	b := newBench(line(4, 10000))
	b.add("a", "x", 20, 5, 0)
	b.add("b", "y", 20, 3, 0)
	// a: 20+5 = 25. b: 40+5 = 45. Steps of a alone end 35, 45; at 45 the step goes
	// first, the next one began without b and takes 10; then both take 20.
	want(t, "two requests", b.until(1000), "a1@25 a2@35 a3@45 b1@45 a4@55 a5@75 b2@75 b3@85")
}

func TestSlotsQueue(t *testing.T) {
	b := newBench(line(2, 10000))
	for i := range 5 {
		b.add(string(rune('a'+i)), string(rune('a'+i)), 10, 3, 0)
	}
	b.until(30)
	if b.running() != 2 || len(b.waiting) != 3 {
		t.Errorf("running %d, waiting %d, want 2 and 3", b.running(), len(b.waiting))
	}
	out := b.until(5000)
	var firsts []string
	for _, e := range strings.Fields(out) {
		if e[1] == '1' {
			firsts = append(firsts, e[:1])
		}
	}
	want(t, "order of first tokens after the first two", strings.Join(firsts, ""), "cde")
}

func TestPrefixCache(t *testing.T) {
	for _, caching := range []bool{true, false} {
		p := line(8, 1000)
		p.PrefixCaching = caching
		b := newBench(p)
		b.add("a", "abc", 100, 1, 0)
		b.until(200)
		r := b.add("b", "abc", 100, 50, 200)
		c := b.add("c", "abc", 100, 50, 200)
		d := b.add("d", "abd", 100, 50, 200)
		out := b.until(600)
		cached, first, held := 90, "b1@215", 9+2*1+10+3
		if !caching {
			cached, first, held = 0, "b1@305", 0
		}
		if r.cached != cached || c.cached != cached || d.cached != 0 {
			t.Errorf("caching %v: cached %d, %d, %d", caching, r.cached, c.cached, d.cached)
		}
		if !strings.HasPrefix(out, first) {
			t.Errorf("caching %v: %s, want %s first", caching, out, first)
		}
		// The shared prefix is held once; the rest by each, and what each generated.
		if caching && (b.kv.held < held || b.kv.held > held+6) {
			t.Errorf("%d blocks held, want about %d", b.kv.held, held)
		}
		if hit := b.stats.hitTokens; hit != int64(2*cached) {
			t.Errorf("caching %v: %d hit tokens", caching, hit)
		}
	}
}

// Two requests whose output does not fit together: the younger is preempted, comes
// back with its prompt cached, and both end complete.
func TestPreemption(t *testing.T) {
	p := line(4, 1000)
	p.MaxModelLen = 200
	p.KVTokens = 250
	b := newBench(p)
	old := b.add("a", "x", 60, 120, 0)
	young := b.add("b", "y", 60, 120, 0)
	out := b.until(60_000)
	if old.preempts != 0 || young.preempts == 0 || b.stats.preemptions == 0 {
		t.Errorf("preempted %d and %d times, %d in all", old.preempts, young.preempts, b.stats.preemptions)
	}
	if old.generated != 120 || young.generated != 120 {
		t.Errorf("generated %d and %d\n%s", old.generated, young.generated, out)
	}
	if b.kv.held != 0 || b.running() != 0 || len(b.waiting) != 0 {
		t.Errorf("left behind: %d blocks, %d running, %d waiting", b.kv.held, b.running(), len(b.waiting))
	}
	if int64(240) != b.stats.generatedTokens {
		t.Errorf("%d tokens counted", b.stats.generatedTokens)
	}
}

func TestHeadOfLineWaitsForMemory(t *testing.T) {
	b := newBench(line(8, 1000))
	b.add("a", "x", 600, 5, 0)
	b.add("b", "y", 600, 1, 0)
	b.add("c", "z", 10, 1, 0) // would fit, but came later
	b.until(640)
	if len(b.waiting) != 2 {
		t.Fatalf("%d waiting, want 2", len(b.waiting))
	}
	want(t, "then", b.until(5000), "a5@645 b1@1250 c1@1260")
}

func TestCancel(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, at := range []int{0, 10, 22, 26, 33, 500} { // waiting or prefill, landing, decoding, finished
		b := newBench(line(1, 1000))
		a := b.add("a", "x", 20, 3, 0)
		next := b.add("b", "y", 20, 3, 0)
		b.until(at)
		b.cancel(a, ms(at))
		b.cancel(a, ms(at)) // twice is once
		b.until(5000)
		if next.generated != 3 || b.kv.held != 0 || b.running() != 0 {
			t.Errorf("cancelled at %d ms: the next has %d tokens, %d blocks held, %d running", at, next.generated, b.kv.held, b.running())
		}
	}
	b := newBench(line(1, 1000))
	b.add("a", "x", 20, 3, 0)
	waiting := b.add("b", "y", 20, 3, 0)
	b.cancel(waiting, 0)
	if b.until(5000); len(b.waiting) != 0 || waiting.generated != 0 {
		t.Errorf("cancelled in the queue: %d waiting, %d tokens", len(b.waiting), waiting.generated)
	}
}

func TestSpeculation(t *testing.T) {
	p := line(4, 1000)
	p.TokensPerChunk = 4
	b := newBench(p)
	b.add("a", "x", 20, 11, 0)
	want(t, "four tokens a step", b.until(1000), "a1@25 a5@65 a9@105 a11@145")
	if b.stats.drafts != 3 || b.stats.accepted != 7 {
		t.Errorf("%d drafts, %d accepted", b.stats.drafts, b.stats.accepted)
	}
}

// Whatever happens, memory is neither lost nor given twice, slots are kept, and
// everything ends.
func TestSchedulerInvariants(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := line(1+rnd.IntN(6), 1000+10*rnd.IntN(100))
		p.PrefixCaching = rnd.IntN(3) > 0
		p.TokensPerChunk = 1 + rnd.IntN(3)
		b := newBench(p)
		var all []*request
		check := func() {
			t.Helper()
			own, shared := 0, map[*block]int{}
			for _, r := range all {
				own += r.kv.private
				for _, k := range r.kv.shared {
					shared[k]++
				}
				if (r.kv.blocks() > 0) != (r.place == inPrefill || r.place == inLanding || r.place == inDecoding) {
					t.Fatalf("seed %d: a request in place %d holds %d blocks", seed, r.place, r.kv.blocks())
				}
				if r.place >= inPrefill && r.kv.blocks()*10 < r.length()-1 {
					t.Fatalf("seed %d: %d tokens in %d blocks", seed, r.length(), r.kv.blocks())
				}
			}
			for k, n := range shared {
				if k.refs != n {
					t.Fatalf("seed %d: a block with %d refs is held %d times", seed, k.refs, n)
				}
			}
			if held := own + len(shared); held != b.kv.held || held+b.kv.nidle > b.kv.total || len(b.kv.cached) != len(shared)+b.kv.nidle {
				t.Fatalf("seed %d: %d blocks held, counted %d; %d idle, %d cached of %d", seed, held, b.kv.held, b.kv.nidle, len(b.kv.cached), b.kv.total)
			}
			if b.running() > p.Slots {
				t.Fatalf("seed %d: %d running in %d slots", seed, b.running(), p.Slots)
			}
		}
		now := 0
		for range 60 {
			switch {
			case rnd.IntN(3) > 0 || len(all) == 0:
				n := 1 + rnd.IntN(500)
				all = append(all, b.add("r", []string{"abc", "abd", "x"}[rnd.IntN(3)], n, 1+rnd.IntN(1000-n), now))
			default:
				b.advance(time.Duration(now) * time.Millisecond)
				b.cancel(all[rnd.IntN(len(all))], time.Duration(now)*time.Millisecond)
			}
			check()
			now += rnd.IntN(400)
			b.until(now)
			check()
		}
		b.until(1 << 31)
		check()
		if b.running() != 0 || len(b.waiting) != 0 || slices.ContainsFunc(all, func(r *request) bool { return r.place != nowhere }) {
			t.Fatalf("seed %d: %d running and %d waiting for ever", seed, b.running(), len(b.waiting))
		}
	}
}

package simulator

import (
	"flag"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const published = "testdata/rtx-pro-6000-qwen3.5-4b.txt"

// publishedCells reads the "All measurements" table of a published page, as far as
// [Fit] needs it.
func publishedCells(t *testing.T, file string) []Measured {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	num := func(s string) float64 {
		scale := 1.0
		if n, ok := strings.CutSuffix(s, "K"); ok {
			s, scale = n, 1000
		}
		v, err := strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
		if err != nil {
			return 0 // an em dash
		}
		return v * scale
	}
	var out []Measured
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(f) != 12 || strings.TrimSpace(f[0]) == "Phase" {
			continue
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		k, _ := strings.CutSuffix(f[1], "K")
		out = append(out, Measured{
			Prefill: f[0] == "Prefill", Context: int(num(k)) * 1024, Concurrency: int(num(f[2])),
			TotalRate: num(f[4]), TTFT: time.Duration(num(strings.TrimSuffix(f[6], " ms")) * 1e6),
			Active: num(f[8]), Queued: f[3] == "Requests queued", OverKV: f[3] == "Over capacity",
		})
	}
	return out
}

var update = flag.Bool("update", false, "write the fitted profile of the repository again")

const fittedComment = `The speed of a published page, as a profile of the simulator: Qwen3.5-4B on an RTX
PRO 6000 Blackwell Server Edition, vLLM 0.30.1rc1.dev452+g73a583112, BF16 with
speculative decoding, fitted by simulator.Fit from the page's table of measurements
and reproducing its totals. Nulls are cells that were over capacity there. What is
measured with it is a simulation.

Written by a test: go test ./pipelines/simulator -run TestFit -update`

// The fitted profile gives the published totals again: each cell is simulated by
// the scheduler itself, over a window of 30 s after the streams are ready.
func TestFitReproducesThePublishedPage(t *testing.T) {
	const maxOutput = 4096
	cells := publishedCells(t, published)
	if len(cells) != 55 {
		t.Fatalf("%d rows, want 55", len(cells))
	}
	p, err := Fit(cells, maxOutput)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cells {
		switch {
		case c.Prefill:
			s := newScheduler(&p, func(*request, int, time.Duration) {})
			r := &request{prompt: prompt{tokens: c.Context}, max: 1}
			s.submit(r, 0)
			s.advance(time.Hour)
			if off := math.Abs(r.first.Seconds()/c.TTFT.Seconds() - 1); off > 0.05 {
				t.Errorf("prefill %d: TTFT %v, published %v", c.Context, r.first, c.TTFT)
			}
		case c.OverKV:
			if need := (c.Context + maxOutput) * c.Concurrency; need <= p.KVTokens {
				t.Errorf("%d × %d fits: %d of %d tokens", c.Context, c.Concurrency, need, p.KVTokens)
			}
		default:
			got, active := simulate(&p, c.Context, c.Concurrency, maxOutput, 30*time.Second)
			if off := math.Abs(got/c.TotalRate - 1); off > 0.05 {
				t.Errorf("%d × %d: %.1f tokens/s, published %.1f", c.Context, c.Concurrency, got, c.TotalRate)
			}
			if math.Abs(active-c.Active) > 1.5 {
				t.Errorf("%d × %d: %.1f active, published %.1f", c.Context, c.Concurrency, active, c.Active)
			}
			if need := (c.Context + maxOutput) * c.Concurrency; need > p.KVTokens {
				t.Errorf("%d × %d does not fit: %d of %d tokens", c.Context, c.Concurrency, need, p.KVTokens)
			}
		}
	}

	p.Models = []string{"qwen"}
	y, err := p.YAML(fittedComment)
	if err != nil {
		t.Fatal(err)
	}
	const file = "../../experiments/profiles/rtx-pro-6000-qwen3.5-4b.yaml"
	if *update {
		if err := os.WriteFile(file, y, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	stored, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(stored), string(y)); d != "" {
		t.Errorf("the stored profile is not what Fit gives now (-update writes it):\n%s", d)
	}
}

// simulate is a closed loop of n streams with one cached prompt: tokens/s and mean
// running requests over a window.
func simulate(p *Profile, context, n, maxOutput int, window time.Duration) (rate, active float64) {
	c := newCounter(p.BlockTokens, false)
	for i := range context {
		c.id(i % vocabulary)
	}
	var s *scheduler
	open, opened := time.Duration(0), false
	tokens, started := 0, 0
	s = newScheduler(p, func(r *request, k int, at time.Duration) {
		if r.generated == k {
			started++
		}
		if opened && at >= open && at < open+window {
			tokens += k
		}
		if r.place == nowhere && r.max > 1 {
			s.waiting = append(s.waiting, &request{prompt: c.prompt, max: maxOutput, arrived: at, place: inWaiting})
		}
	})
	s.submit(&request{prompt: c.prompt, max: 1}, 0)
	s.advance(time.Hour) // the scout
	now := time.Hour
	started = 0
	for range n {
		s.submit(&request{prompt: c.prompt, max: maxOutput}, now)
	}
	for started < min(n, p.Slots) {
		now += 5 * time.Millisecond
		s.advance(now)
	}
	open, opened = now, true
	samples, sum := 0, 0
	for ; now < open+window; now += 10 * time.Millisecond {
		s.advance(now)
		samples++
		sum += len(s.decoding)
	}
	return float64(tokens) / window.Seconds(), float64(sum) / float64(samples)
}

func TestFitMistakes(t *testing.T) {
	decode := Measured{Context: 100, Concurrency: 1, TotalRate: 10, TTFT: time.Second}
	cold := Measured{Prefill: true, Context: 100, Concurrency: 1, TotalRate: 100, TTFT: time.Second}
	for _, c := range []struct {
		name  string
		cells []Measured
		want  string
	}{
		{"nothing", nil, "no decode cell"},
		{"no prefill", []Measured{decode}, "no prefill cell"},
		{"no decode", []Measured{cold}, "no decode cell"},
		{"no requests", []Measured{decode, {Context: 1, TotalRate: 1}}, "× 0 requests"},
	} {
		if _, err := Fit(c.cells, 10); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if _, err := Fit([]Measured{decode, cold}, 10); err != nil {
		t.Errorf("the least that is needed: %v", err)
	}
}

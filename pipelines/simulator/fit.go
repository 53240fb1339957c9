package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Measured is one row of a measured or published table, as far as a profile can be
// fitted from it.
type Measured struct {
	Prefill     bool
	Context     int     // tokens
	Concurrency int     // requests at once
	TotalRate   float64 // tokens/s over all requests; prefill: prompt tokens/s; 0: unknown
	TTFT        time.Duration
	Active      float64 // average of running requests; 0: as many as asked
	Queued      bool    // requests waited
	OverKV      bool    // not run, because it would not fit the KV cache
}

// Fit makes a profile that reproduces a table:
//
//   - the time between tokens of a cell is its active requests ÷ its total rate, so
//     that the total comes out again; tokens that come several to a chunk are no
//     matter, as the table counts single ones;
//   - the base latency is the smallest TTFT of a single request whose prompt was
//     cached, and what grows with the concurrency is paid in the prefill stage one
//     request after another: a median request of a wave of C waits for C÷2 others,
//     so admission = (TTFT − base) ÷ (C ÷ 2), the median over a context's cells;
//   - the prefill rate is context ÷ (TTFT − base − admission) of the cold request;
//   - slots are the average active requests, rounded down, of the cells where
//     requests waited; without such cells the largest concurrency that ran;
//   - the KV cache lies between the largest cell that ran and the smallest that did
//     not fit, both counted as (context + maxOutput) × requests, in the middle.
func Fit(cells []Measured, maxOutput int) (Profile, error) {
	p := Profile{
		Models: []string{"simulated"}, PrefixCaching: true, BlockTokens: 16, TokensPerChunk: 1, Usage: UsageRunning,
	}
	f := fit{rows: map[int]map[int]float64{}, waves: map[int][]Measured{}}
	for _, c := range cells {
		if c.Context < 0 || c.Concurrency < 1 {
			return Profile{}, fmt.Errorf("fit: a cell of context %d × %d requests", c.Context, c.Concurrency)
		}
		if !c.Prefill {
			f.decode(&p, c, maxOutput)
		} else if c.TotalRate > 0 && c.TTFT > 0 {
			p.MaxModelLen = max(p.MaxModelLen, c.Context+1)
		}
	}
	if len(f.rows) == 0 {
		return Profile{}, errors.New("fit: no decode cell has a total")
	}
	base := f.base()
	p.BaseTTFTMs = round(float64(base.Microseconds())/1000, 1)
	p.Decode = f.table()
	if p.Slots == 0 {
		p.Slots = slices.Max(p.Decode.Active)
	}
	p.Admission = f.admission(base)
	for _, c := range cells {
		if !c.Prefill || c.TotalRate <= 0 || c.TTFT <= 0 || c.Context == 0 {
			continue
		}
		// At least half of a TTFT is left to the prefill, whatever the latencies of
		// other cells say.
		pure := max(c.TTFT-base-p.admission(c.Context), c.TTFT/2)
		p.Prefill = append(p.Prefill, PrefillPoint{c.Context, round(float64(c.Context)/pure.Seconds(), 0)})
	}
	if len(p.Prefill) == 0 {
		return Profile{}, errors.New("fit: no prefill cell has a TTFT")
	}
	p.KVTokens = f.capacity(p.MaxModelLen)
	p.KVTokens += -p.KVTokens & (p.BlockTokens - 1)
	p.MaxModelLen = min(p.MaxModelLen, p.KVTokens)
	return p, p.complete()
}

// fit is what the decode cells of a table say.
type fit struct {
	ran, tooBig []int                   // tokens of KV cache that cells need at full length
	rows        map[int]map[int]float64 // context → active requests → ms between tokens
	waves       map[int][]Measured      // cells with a TTFT, by context
}

// decode takes one decode cell, and raises the profile's slots and model length to
// what it shows.
func (f *fit) decode(p *Profile, c Measured, maxOutput int) {
	need := (c.Context + maxOutput) * c.Concurrency
	if c.OverKV {
		f.tooBig = append(f.tooBig, need)
		return
	}
	if c.TotalRate <= 0 {
		return
	}
	f.ran = append(f.ran, need)
	active := float64(c.Concurrency)
	if c.Active > 0 {
		active = c.Active
	}
	n := c.Concurrency
	if c.Queued {
		n = max(1, int(active))
		if p.Slots == 0 || n < p.Slots {
			p.Slots = n
		}
	}
	if f.rows[c.Context] == nil {
		f.rows[c.Context] = map[int]float64{}
	}
	f.rows[c.Context][n] = 1000 * active / c.TotalRate
	p.MaxModelLen = max(p.MaxModelLen, c.Context+maxOutput)
	if c.TTFT > 0 {
		f.waves[c.Context] = append(f.waves[c.Context], c)
	}
}

// base is the smallest TTFT of a request that was alone; 0 if none was.
func (f *fit) base() time.Duration {
	base := time.Duration(math.MaxInt64)
	for _, cells := range f.waves {
		for _, c := range cells {
			if c.Concurrency == 1 {
				base = min(base, c.TTFT)
			}
		}
	}
	if base == math.MaxInt64 {
		return 0
	}
	return base
}

// table is the time between tokens as a profile has it.
func (f *fit) table() DecodeTable {
	var t DecodeTable
	for _, byN := range f.rows {
		for n := range byN {
			if !slices.Contains(t.Active, n) {
				t.Active = append(t.Active, n)
			}
		}
	}
	slices.Sort(t.Active)
	for context, byN := range f.rows {
		row := DecodeRow{Context: context}
		for _, n := range t.Active {
			var v *float64
			if ms, ok := byN[n]; ok {
				ms = round(ms, 3)
				v = &ms
			}
			row.Ms = append(row.Ms, v)
		}
		// A row that begins later borrows its first value: fewer requests are no slower.
		for i := range row.Ms {
			if row.Ms[0] == nil && row.Ms[i] != nil {
				row.Ms[0] = row.Ms[i]
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// admission is what a request of a wave costs the others, by context.
func (f *fit) admission(base time.Duration) []AdmissionPoint {
	var out []AdmissionPoint
	for context, cells := range f.waves {
		var each []float64
		for _, c := range cells {
			if c.Concurrency > 1 {
				wait := c.TTFT - base
				each = append(each, max(0, wait.Seconds()*1000/(float64(c.Concurrency)/2)))
			}
		}
		if len(each) > 0 {
			slices.Sort(each)
			out = append(out, AdmissionPoint{context, round(each[len(each)/2], 1)})
		}
	}
	slices.SortFunc(out, func(a, b AdmissionPoint) int { return cmp.Compare(a.Context, b.Context) })
	return out
}

// capacity lies in the middle between the largest cell that ran and the smallest
// that did not fit; it holds one request of the model length.
func (f *fit) capacity(modelLen int) int {
	tokens := max(slices.Max(f.ran), modelLen)
	if len(f.tooBig) > 0 {
		if least := slices.Min(f.tooBig); least > tokens {
			tokens = (tokens + least) / 2
		}
	}
	return tokens
}

func round(v float64, digits int) float64 {
	s := math.Pow(10, float64(digits))
	return math.Round(v*s) / s
}

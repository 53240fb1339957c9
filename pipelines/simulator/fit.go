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
	var fits, tooBig []int
	rows := map[int]map[int]float64{} // context → concurrency → ms
	waves := map[int][]Measured{}
	base := time.Duration(math.MaxInt64)
	for _, c := range cells {
		switch {
		case c.Context < 0 || c.Concurrency < 1:
			return Profile{}, fmt.Errorf("fit: a cell of context %d × %d requests", c.Context, c.Concurrency)
		case c.Prefill:
			if c.TotalRate > 0 && c.TTFT > 0 {
				p.MaxModelLen = max(p.MaxModelLen, c.Context+1)
			}
			continue
		}
		need := (c.Context + maxOutput) * c.Concurrency
		if c.OverKV {
			tooBig = append(tooBig, need)
			continue
		}
		if c.TotalRate <= 0 {
			continue
		}
		fits = append(fits, need)
		active := float64(c.Concurrency)
		if c.Active > 0 {
			active = c.Active
		}
		if rows[c.Context] == nil {
			rows[c.Context] = map[int]float64{}
		}
		n := c.Concurrency
		if c.Queued {
			n = max(1, int(active))
			if p.Slots == 0 || n < p.Slots {
				p.Slots = n
			}
		}
		rows[c.Context][n] = 1000 * active / c.TotalRate
		p.MaxModelLen = max(p.MaxModelLen, c.Context+maxOutput)
		if c.TTFT > 0 {
			waves[c.Context] = append(waves[c.Context], c)
			if c.Concurrency == 1 {
				base = min(base, c.TTFT)
			}
		}
	}
	if len(rows) == 0 {
		return Profile{}, errors.New("fit: no decode cell has a total")
	}
	if base == math.MaxInt64 {
		base = 0
	}
	p.BaseTTFTMs = round(float64(base.Microseconds())/1000, 1)

	for _, byN := range rows {
		for n := range byN {
			if !slices.Contains(p.Decode.Active, n) {
				p.Decode.Active = append(p.Decode.Active, n)
			}
		}
	}
	slices.Sort(p.Decode.Active)
	if p.Slots == 0 {
		p.Slots = slices.Max(p.Decode.Active)
	}
	for context, byN := range rows {
		row := DecodeRow{Context: context}
		for _, n := range p.Decode.Active {
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
		p.Decode.Rows = append(p.Decode.Rows, row)
	}

	for context, cells := range waves {
		var each []float64
		for _, c := range cells {
			if c.Concurrency > 1 {
				wait := c.TTFT - base
				each = append(each, max(0, wait.Seconds()*1000/(float64(c.Concurrency)/2)))
			}
		}
		if len(each) > 0 {
			slices.Sort(each)
			p.Admission = append(p.Admission, AdmissionPoint{context, round(each[len(each)/2], 1)})
		}
	}
	slices.SortFunc(p.Admission, func(a, b AdmissionPoint) int { return cmp.Compare(a.Context, b.Context) })

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

	p.KVTokens = max(slices.Max(fits), p.MaxModelLen)
	if len(tooBig) > 0 {
		if least := slices.Min(tooBig); least > p.KVTokens {
			p.KVTokens = (p.KVTokens + least) / 2
		}
	}
	p.KVTokens += -p.KVTokens & (p.BlockTokens - 1)
	p.MaxModelLen = min(p.MaxModelLen, p.KVTokens)
	return p, p.complete()
}

func round(v float64, digits int) float64 {
	s := math.Pow(10, float64(digits))
	return math.Round(v*s) / s
}

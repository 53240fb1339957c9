package runner

import (
	"math/rand/v2"
	"testing"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// What is counted again afterwards is exactly what package metric could not credit
// without it.
func TestCountedAsInMetric(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	seen := map[bool]int{}
	for range 5000 {
		r := record.Request{Role: record.RoleMeasured, Outcome: record.OutcomeCancelled, SentNs: ptr(int64(0)), EndNs: ptr(int64(1000))}
		if rnd.IntN(4) == 0 {
			r.Outcome = record.OutcomeCompleted
		}
		tokens := int64(0)
		for at := range int64(1 + rnd.IntN(12)) {
			c := record.Chunk{AtNs: at + 1, Output: rnd.IntN(5) > 0}
			if rnd.IntN(3) == 0 {
				tokens += int64(rnd.IntN(3))
				c.Tokens, c.HasTokens = tokens, true
				r.CompletionTokens, r.RunningUsage = ptr(c.Tokens), true
			}
			r.Chunks = append(r.Chunks, c)
		}
		if rnd.IntN(8) == 0 {
			r.CompletionTokens = ptr(tokens + int64(rnd.IntN(20)))
		}
		if _, ok := firstOutput(&r); !ok {
			continue
		}
		tr := record.Trial{Point: record.Point{Phase: record.PhaseDecode, Concurrency: 1}, Status: record.Valid,
			LaunchNs: ptr(int64(0)), WindowStartNs: ptr(int64(0)), WindowEndNs: ptr(int64(1000)), Requests: []record.Request{r}}
		row := metric.Cell(&tr, 0)
		known := row.TokenSource != record.TokensUnknown
		if known != counted(&r) {
			t.Fatalf("metric says %s, counted %v: %+v", row.TokenSource, counted(&r), r)
		}
		seen[known]++
	}
	if seen[true] < 500 || seen[false] < 500 {
		t.Errorf("cases: %v", seen)
	}
}

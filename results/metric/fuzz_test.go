package metric

import (
	"encoding/binary"
	"math"
	"testing"

	"speedmatrix/results/record"
)

// FuzzCell makes trials of nonsense: stored files may be damaged or somebody
// else's. Whatever they say, values are finite, shares are shares, and no tokens
// come out that no count told of.
func FuzzCell(f *testing.F) {
	f.Add([]byte{}, int64(0), int64(1e9))
	f.Add([]byte("\x01\x00\x00\x00\x00\x10\x00\x05\x03\x00\x00\x00\x00\x20\x00\x09\x01\x00\x00\x00\x00\x30\x00\x0c"), int64(0), int64(3e9))
	f.Add([]byte("\x03\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00\x00\x00\x00\x00\x0b\x00\x00\x00\x00\x01\x00\x01"), int64(math.MinInt64), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, data []byte, from, to int64) {
		tr := &record.Trial{StepID: "s", Point: record.Point{Phase: record.PhaseDecode, Concurrency: 1}, Status: record.Valid, WindowStartNs: &from, WindowEndNs: &to, LaunchNs: &to}
		var counted float64
		r := record.Request{Role: record.RoleMeasured, Outcome: record.OutcomeCompleted, SentNs: &from, EndNs: &to}
		for ; len(data) >= 8; data = data[8:] {
			flags, at, n := data[0], int64(int32(binary.BigEndian.Uint32(data[1:])))<<(data[5]%32), int64(int16(binary.BigEndian.Uint16(data[6:])))
			r.Chunks = append(r.Chunks, record.Chunk{AtNs: at, Tokens: n, HasTokens: flags&1 != 0, Output: flags&2 != 0, Channel: record.Channel(flags >> 6)})
			tr.Samples = append(tr.Samples, record.Sample{AtNs: at, Source: record.SourceMetrics, Name: record.SamplePrefixQueries, Value: float64(n)})
			if flags&4 != 0 {
				r.CompletionTokens, r.RunningUsage = &n, flags&8 != 0
			}
			if flags&16 != 0 {
				tr.Requests = append(tr.Requests, r)
				r = record.Request{Role: record.RoleMeasured, Outcome: record.OutcomeCancelled, SentNs: &at}
			}
		}
		tr.Requests = append(tr.Requests, r)
		for i := range tr.Requests {
			last := int64(0)
			for _, c := range tr.Requests[i].Chunks {
				if c.HasTokens {
					last = c.Tokens
				}
			}
			if n := tr.Requests[i].CompletionTokens; n != nil {
				last = *n
			}
			counted += math.Max(0, float64(last))
		}
		c := Cell(tr, 0)
		for name, v := range c.Values {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				t.Errorf("%s is %v", name, v)
			}
		}
		if n, ok := c.Value(OutputTokens); ok && (n < 0 || n > counted+1) {
			t.Errorf("%v tokens of %v", n, counted)
		}
		rate, ok1 := c.Value(OutputTokensPerSecond)
		peak, ok2 := c.Value(OutputTokensPerSecondPeak)
		if ok1 != ok2 || peak < rate*0.9 && rate > 10 {
			t.Errorf("peak %v %v, mean %v %v", peak, ok2, rate, ok1)
		}
	})
}

// Package stats describes a few repeated values by what was seen: their middle
// and their ends. It claims no more than that; with the handful of repeats that
// a matrix has, an interval would promise what the sample cannot keep.
package stats

import (
	"math"
	"slices"
)

// Sample describes the finite values of one metric over the repeats of a cell.
type Sample struct {
	N           int
	Median      float64
	Lowest      float64
	Highest     float64
	SpreadRatio float64 // (Highest − Lowest) ÷ Median; 0 if N < 2 or Median is 0
}

// Of describes values; ok is false if none is finite.
func Of(values []float64) (s Sample, ok bool) {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool {
		return math.IsNaN(x) || math.IsInf(x, 0)
	})
	if len(v) == 0 {
		return Sample{}, false
	}
	slices.Sort(v)
	mid := len(v) / 2
	s = Sample{N: len(v), Median: v[mid], Lowest: v[0], Highest: v[len(v)-1]}
	if len(v)%2 == 0 {
		s.Median = v[mid-1]/2 + v[mid]/2
	}
	if s.N > 1 && s.Median != 0 {
		s.SpreadRatio = (s.Highest - s.Lowest) / s.Median
	}
	return s, true
}

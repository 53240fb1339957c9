package metric

import (
	"math"
	"slices"
)

// Percentile returns the p-th percentile of the values, 0 ≤ p ≤ 100, by linear
// interpolation at (n − 1)·p/100. False: there are too few values for it to mean
// something: none, below 10 beyond the 75th, below 100 beyond the 95th.
func Percentile(values []float64, p float64) (float64, bool) {
	n := len(values)
	if n == 0 || p > 75 && n < 10 || p > 95 && n < 100 {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	at := float64(n-1) * p / 100
	lo := int(math.Floor(at))
	hi := min(lo+1, n-1)
	return sorted[lo] + (at-float64(lo))*(sorted[hi]-sorted[lo]), true
}

func percentileOf(p float64, sample func(*look) []float64) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) { return Percentile(sample(l), p) }
}

// countOf is the n of a sample; a sample without a value has no n to show.
func countOf(sample func(*look) []float64) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) {
		n := len(sample(l))
		return float64(n), n > 0
	}
}

func inverse(values []float64) []float64 {
	out := make([]float64, 0, len(values))
	for _, v := range values {
		if v > 0 {
			out = append(out, 1/v)
		}
	}
	return out
}

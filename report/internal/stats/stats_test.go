package stats

import (
	"math"
	"testing"
)

func TestOf(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		want   Sample
		ok     bool
	}{
		{"none", nil, Sample{}, false},
		{"none finite", []float64{math.NaN(), math.Inf(-1)}, Sample{}, false},
		{"one", []float64{4}, Sample{N: 1, Median: 4, Lowest: 4, Highest: 4}, true},
		{"odd", []float64{5, 4, 8}, Sample{N: 3, Median: 5, Lowest: 4, Highest: 8, SpreadRatio: 0.8}, true},
		{"even", []float64{4, 2}, Sample{N: 2, Median: 3, Lowest: 2, Highest: 4, SpreadRatio: 2.0 / 3}, true},
		{"zeros", []float64{0, 0}, Sample{N: 2}, true},
		{"one of two finite", []float64{math.NaN(), 7}, Sample{N: 1, Median: 7, Lowest: 7, Highest: 7}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Of(tt.values)
			if got != tt.want || ok != tt.ok {
				t.Errorf("Of(%v) = %+v, %v; want %+v, %v", tt.values, got, ok, tt.want, tt.ok)
			}
		})
	}
}

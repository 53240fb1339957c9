package chart

import (
	"math"

	"speedmatrix/report/unit"
)

// tick is a labelled place on an axis, in the axis's own coordinate.
type tick struct {
	at    float64
	label string
}

// scale maps values to an axis's coordinate and names its ticks.
type scale struct {
	lo, hi float64 // coordinates of the ends; lo < hi
	log    bool
	ticks  []tick
}

// place returns the coordinate of v.
func (s scale) place(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	return math.Min(math.Max(v, s.lo), s.hi)
}

// linear covers zero to at least top with about n round steps. A top of zero or
// less gives an axis to one: a chart of zeros shows that they are zeros.
func linear(top float64, n int) scale {
	if top <= 0 || !finite(top) {
		top = 1
	}
	step := roundStep(top / float64(n))
	steps := int(math.Ceil(top/step - 1e-9))
	s := scale{hi: float64(steps) * step}
	for i := range steps + 1 {
		v := float64(i) * step
		s.ticks = append(s.ticks, tick{v, unit.Compact(v)})
	}
	return s
}

// roundStep returns the smallest of 1, 2, 2.5 and 5 times a power of ten that is
// at least v.
func roundStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*power >= v*(1-1e-9) {
			return m * power
		}
	}
	return 10 * power
}

// logarithmic covers lo to hi, both above zero, with ticks at 1, 2 and 5 times
// the powers of ten, or at fewer of them where the span is long.
func logarithmic(lo, hi float64) scale {
	steps := []float64{1, 2, 5}
	switch decades := math.Log10(hi / lo); {
	case decades > 4:
		steps = []float64{1}
	case decades > 1.5:
		steps = []float64{1, 3}
	}
	var at []float64
	for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
		for _, m := range steps {
			at = append(at, m*math.Pow(10, e))
		}
	}
	// From the last tick not above lo to the first not below hi.
	first, last := 0, len(at)-1
	for i, v := range at {
		if v <= lo*(1+1e-9) {
			first = i
		}
	}
	for i := len(at) - 1; i > first; i-- {
		if at[i] >= hi*(1-1e-9) {
			last = i
		}
	}
	s := scale{log: true}
	for _, v := range at[first : last+1] {
		s.ticks = append(s.ticks, tick{math.Log10(v), unit.Compact(v)})
	}
	s.lo, s.hi = s.ticks[0].at, s.ticks[len(s.ticks)-1].at
	if s.lo == s.hi {
		s.hi++
	}
	return s
}

// thin drops labels so that no two are nearer than their width: size gives the
// length of a label along the axis, and pixels the length of one coordinate. The
// first and the last label stay. Ticks without a label remain as ticks.
func thin(ticks []tick, pixels float64, size func(string) int) []tick {
	const gap = 6
	if len(ticks) < 3 {
		return ticks
	}
	out := make([]tick, len(ticks))
	copy(out, ticks)
	far := func(a, b tick) bool {
		return math.Abs(b.at-a.at)*pixels >= float64(size(a.label)+size(b.label))/2+gap
	}
	last := out[len(out)-1]
	kept := out[0]
	for i := 1; i < len(out)-1; i++ {
		if far(kept, out[i]) && far(out[i], last) {
			kept = out[i]
			continue
		}
		out[i].label = ""
	}
	return out
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

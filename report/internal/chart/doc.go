// Package chart draws the charts of a page as SVG, with go-chart for the
// geometry of plot and axes.
//
// It knows nothing of runs or metrics: a caller hands it labels, values and the
// texts of the values. The flow is
//
//  1. [Bars] or [Lines] checks the values: what is not finite is a gap, never a
//     point at zero, and a chart without any value is [ErrNothing];
//  2. both axes get a range and ticks of their own, so that one value, equal
//     values, or zeros do not reach go-chart's automatic ranges, which fail or
//     blow up on them; lengths that are compared start at zero; ticks whose
//     labels would touch are thinned, with the first and the last kept;
//  3. go-chart lays the chart out and draws through canvas, a renderer of ours
//     in place of its own, which writes text unescaped and colours fixed.
//
// The SVG has role img, a title and a description; every shape has a class and
// takes its colour from currentColor, so that the page's theme decides. Equal
// input gives equal bytes.
//
// Classes: c-axis, c-grid, c-text, c-strong, and c-s0 to c-s7 for the series.
package chart

import "errors"

// ErrNothing is returned when there is no value to draw.
var ErrNothing = errors.New("no value to draw")

// Series is how many distinct series classes there are; more lines than that
// use them again with another dash.
const Series = 8

// Texts that every chart has.
type Texts struct {
	ID    string // unique on the page; of letters, digits and hyphens
	Title string
	Desc  string // what a person who does not see the chart is told
}

// Value is a number that may be absent.
type Value struct {
	V     float64
	Known bool
	Text  string // as people read it, with unit

	// Lo and Hi are the ends of the repeats; equal to V without repeats.
	Lo, Hi float64
}

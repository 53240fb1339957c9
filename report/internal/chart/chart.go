package chart

import (
	"fmt"
	"math"
	"strings"

	"github.com/golang/freetype/truetype"
	gochart "github.com/wcharczuk/go-chart/v2"
)

// Sizes, in pixels of the SVG; at 72 dots per inch a point is a pixel.
const (
	dpi       = 72
	width     = 720
	fontSize  = 13
	maxLabel  = 28 // runes of an axis label; the table beside the chart has it whole
	maxPoints = 20_000
)

// Bar is one bar of a bar chart.
type Bar struct {
	Label string // beside the bar
	Value Value
	Note  string // after the value
}

// BarChart compares lengths, so its axis starts at zero.
type BarChart struct {
	Texts
	Axis string // title of the value axis with unit and which way is better
	Bars []Bar
}

// Bars draws horizontal bars in the order given.
func Bars(b BarChart) (string, error) {
	top, known := 0.0, false
	for i := range b.Bars {
		v := &b.Bars[i].Value
		if v.Known = v.Known && finite(v.V) && v.V >= 0; v.Known {
			known = true
			tidyEnds(v)
			top = math.Max(top, math.Max(v.V, v.Hi))
		}
	}
	if !known {
		return "", ErrNothing
	}
	if len(b.Bars) > maxPoints {
		return "", fmt.Errorf("chart %s: %d bars, more than %d", b.ID, len(b.Bars), maxPoints)
	}
	f, err := gochart.GetDefaultFont()
	if err != nil {
		return "", fmt.Errorf("chart font: %w", err)
	}

	rowHeight := 32
	if len(b.Bars) > 24 {
		rowHeight = 14
	}
	right, left := 24, 0
	for i := range b.Bars {
		bar := &b.Bars[i]
		bar.Label = shorten(bar.Label)
		bar.Note = shorten(bar.Note)
		left = max(left, textWidth(f, dpi, fontSize, bar.Label))
		right = max(right, textWidth(f, dpi, fontSize, bar.Value.Text+"  "+bar.Note)*11/10+16)
	}
	plotHeight := rowHeight * len(b.Bars)
	const above, below = 6, 44
	x := linear(top, 7)
	// Row i is centred on coordinate n − i − ½, so that the first is on top.
	row := func(i int) float64 { return float64(len(b.Bars)-i) - 0.5 }
	y := scale{lo: 0, hi: float64(len(b.Bars))}
	for i, bar := range b.Bars {
		y.ticks = append(y.ticks, tick{row(i), bar.Label})
	}
	y.ticks = thin(y.ticks, float64(rowHeight), func(string) int { return fontSize - 4 })

	bars := drawn{name: "bars", paint: func(c *canvas, p plot) {
		for i, bar := range b.Bars {
			cy := p.y(row(i))
			half := rowHeight * 3 / 10
			end := p.x(0)
			if bar.Value.Known {
				end = p.x(x.place(bar.Value.V))
				c.class, c.stroke = "c-s0", 0
				if end > p.x(0) {
					c.MoveTo(p.x(0), cy-half)
					c.LineTo(end, cy-half)
					c.LineTo(end, cy+half)
					c.LineTo(p.x(0), cy+half)
					c.Close()
					c.Fill()
				}
				if bar.Value.Hi > bar.Value.Lo {
					whisker(c, p.x(x.place(bar.Value.Lo)), cy, p.x(x.place(bar.Value.Hi)), cy)
					end = max(end, p.x(x.place(bar.Value.Hi))+2)
				}
			}
			if rowHeight < fontSize+4 {
				continue
			}
			c.label(end+8, cy+5, fontSize, bar.Value.Text, bar.Note)
		}
	}}
	x.ticks = thin(x.ticks, float64(width-left-right-40)/(x.hi-x.lo), func(s string) int {
		return textWidth(f, dpi, fontSize, s)
	})
	ch := frame(f, plotHeight+above+below, x, y, b.Axis, grid(x, true, y), bars)
	ch.Background.Padding = gochart.Box{Top: above, Right: right, Bottom: 8, Left: 8}
	ch.YAxisSecondary.TickStyle.StrokeWidth = gochart.Disabled
	return render(ch, b.Texts)
}

// Point is one point of a line.
type Point struct {
	X     float64
	Value Value
}

// Line is one series.
type Line struct {
	Label  string
	Points []Point // ascending X; a point without a value is a gap
}

// LineChart shows how values move along an axis.
type LineChart struct {
	Texts
	XAxis string // title
	YAxis string // title with unit and which way is better
	Log   bool   // logarithmic values, if all are above zero
	Ticks []Tick // of the X axis
	Lines []Line
}

// Tick names a place on the X axis.
type Tick struct {
	X     float64
	Label string
}

// Lines draws one line a series, with its name at its last point.
func Lines(l LineChart) (string, error) {
	lo, hi := math.Inf(1), 0.0
	minX, maxX := math.Inf(1), math.Inf(-1)
	points := 0
	for _, line := range l.Lines {
		for i := range line.Points {
			p := &line.Points[i]
			p.Value.Known = p.Value.Known && finite(p.Value.V) && finite(p.X)
			if points++; !p.Value.Known {
				continue
			}
			tidyEnds(&p.Value)
			lo, hi = math.Min(lo, p.Value.Lo), math.Max(hi, p.Value.Hi)
			minX, maxX = math.Min(minX, p.X), math.Max(maxX, p.X)
		}
	}
	if math.IsInf(lo, 1) {
		return "", ErrNothing
	}
	if points > maxPoints {
		return "", fmt.Errorf("chart %s: %d points, more than %d", l.ID, points, maxPoints)
	}
	f, err := gochart.GetDefaultFont()
	if err != nil {
		return "", fmt.Errorf("chart font: %w", err)
	}
	for _, t := range l.Ticks {
		if finite(t.X) {
			minX, maxX = math.Min(minX, t.X), math.Max(maxX, t.X)
		}
	}
	if minX == maxX {
		minX, maxX = minX-1, maxX+1
	}

	y := linear(hi, 5)
	if l.Log && lo > 0 {
		y = logarithmic(lo, hi)
	}
	right := 24
	for i := range l.Lines {
		l.Lines[i].Label = shorten(l.Lines[i].Label)
		right = max(right, textWidth(f, dpi, fontSize, l.Lines[i].Label)*11/10+20)
	}
	x := scale{lo: minX, hi: maxX}
	for _, t := range l.Ticks {
		if finite(t.X) {
			x.ticks = append(x.ticks, tick{t.X, shorten(t.Label)})
		}
	}
	if len(x.ticks) == 0 {
		x.ticks = []tick{{minX, ""}, {maxX, ""}}
	}

	series := []gochart.Series{grid(y, false, x)}
	for i, line := range l.Lines {
		for _, part := range unbroken(line.Points) {
			s := gochart.ContinuousSeries{
				YAxis: gochart.YAxisSecondary,
				Style: gochart.Style{ClassName: seriesClass(i), StrokeWidth: 2, StrokeColor: gochart.ColorBlack, StrokeDashArray: dashOf(i)},
			}
			for _, p := range part {
				s.XValues = append(s.XValues, p.X)
				s.YValues = append(s.YValues, y.place(p.Value.V))
			}
			if len(part) > 1 {
				series = append(series, s)
			}
		}
	}
	series = append(series, drawn{name: "points", paint: func(c *canvas, p plot) {
		var names []nameTag
		for i, line := range l.Lines {
			last := -1
			for j, pt := range line.Points {
				if !pt.Value.Known {
					continue
				}
				last = j
				px, py := p.x(pt.X), p.y(y.place(pt.Value.V))
				if pt.Value.Hi > pt.Value.Lo {
					whisker(c, px, p.y(y.place(pt.Value.Lo)), px, p.y(y.place(pt.Value.Hi)))
				}
				c.dot(seriesClass(i), px, py, line.Label+": "+pt.Value.Text)
			}
			if last >= 0 {
				pt := line.Points[last]
				names = append(names, nameTag{line.Label, seriesClass(i), p.x(pt.X) + 9, p.y(y.place(pt.Value.V)) + 5,
					textWidth(f, dpi, fontSize, line.Label)})
			}
		}
		spread(names)
		for _, n := range names {
			c.class, c.fontSize = n.class+" c-name", fontSize
			c.Text(n.text, n.x, n.y)
		}
	}})

	x.ticks = thin(x.ticks, float64(width-right-60)/(maxX-minX), func(s string) int {
		return textWidth(f, dpi, fontSize, s)
	})
	const height = 380
	ch := frame(f, height, x, y, l.XAxis, series...)
	ch.Background.Padding = gochart.Box{Top: 36, Right: right, Bottom: 8, Left: 8}
	ch.YAxisSecondary.TickStyle.StrokeWidth = gochart.Disabled
	ch.Elements = []gochart.Renderable{func(r gochart.Renderer, _ gochart.Box, _ gochart.Style) {
		if c, ok := r.(*canvas); ok {
			c.class, c.fontSize = "c-text", fontSize
			c.Text(l.YAxis, 8, 18)
		}
	}}
	return render(ch, l.Texts)
}

// frame is the chart around the series: both axes with ranges and ticks of ours.
func frame(f *truetype.Font, height int, x, y scale, xTitle string, series ...gochart.Series) gochart.Chart {
	text := gochart.Style{ClassName: "c-text", FontSize: fontSize, Font: f}
	line := gochart.Style{ClassName: "c-axis", StrokeWidth: 1, FontSize: fontSize, Font: f}
	return gochart.Chart{
		Width: width, Height: height, DPI: dpi, Font: f,
		Background: gochart.Style{ClassName: hidden},
		Canvas:     gochart.Style{ClassName: hidden},
		XAxis: gochart.XAxis{
			Name: xTitle, NameStyle: text, Style: line,
			Range: newRange(x), GridMajorStyle: gochart.Hidden(), GridMinorStyle: gochart.Hidden(),
		},
		// go-chart's first Y axis is on the right; it only gets a range, because
		// without one it would fail on not having a series.
		YAxis: gochart.YAxis{Style: gochart.Hidden(), Range: &gochart.ContinuousRange{Min: 0, Max: 1}},
		YAxisSecondary: gochart.YAxis{
			Style: line, Range: newRange(y), GridMajorStyle: gochart.Hidden(), GridMinorStyle: gochart.Hidden(),
		},
		Series: series,
	}
}

func render(ch gochart.Chart, t Texts) (string, error) {
	var b strings.Builder
	if err := ch.Render(provider(t), &b); err != nil {
		return "", fmt.Errorf("chart %s: %w", t.ID, err)
	}
	return b.String(), nil
}

// grid draws one line a tick, the axis itself apart.
//
// Note: go-chart's own grid lines leave out the last tick and carry no class.
func grid(s scale, x bool, across scale) gochart.Series {
	return drawn{name: "grid", paint: func(c *canvas, p plot) {
		c.class, c.stroke, c.dash = "c-grid", 1, nil
		for _, t := range s.ticks {
			if t.at <= s.lo {
				continue
			}
			if x {
				c.MoveTo(p.x(t.at), p.y(across.lo))
				c.LineTo(p.x(t.at), p.y(across.hi))
			} else {
				c.MoveTo(p.x(across.lo), p.y(t.at))
				c.LineTo(p.x(across.hi), p.y(t.at))
			}
			c.Stroke()
		}
	}}
}

// plot maps coordinates to pixels.
type plot struct{ x, y func(float64) int }

// drawn is a series that paints itself.
type drawn struct {
	name  string
	paint func(*canvas, plot)
}

func (d drawn) GetName() string             { return d.name }
func (d drawn) GetYAxis() gochart.YAxisType { return gochart.YAxisSecondary }
func (d drawn) GetStyle() gochart.Style     { return gochart.Style{} }
func (d drawn) Validate() error             { return nil }
func (d drawn) Render(r gochart.Renderer, box gochart.Box, xr, yr gochart.Range, _ gochart.Style) {
	c, ok := r.(*canvas)
	if !ok {
		return
	}
	d.paint(c, plot{
		x: func(v float64) int { return box.Left + xr.Translate(v) },
		y: func(v float64) int { return box.Bottom - yr.Translate(v) },
	})
}

// whisker draws the span of the repeats, with end marks across it.
func whisker(c *canvas, x1, y1, x2, y2 int) {
	dx, dy := 0, 4
	if x1 == x2 {
		dx, dy = 4, 0
	}
	c.class, c.stroke, c.dash = "c-span", 1.5, nil
	c.MoveTo(x1, y1)
	c.LineTo(x2, y2)
	c.MoveTo(x1-dx, y1-dy)
	c.LineTo(x1+dx, y1+dy)
	c.MoveTo(x2-dx, y2-dy)
	c.LineTo(x2+dx, y2+dy)
	c.Stroke()
}

// nameTag is a line's name at its end.
type nameTag struct {
	text, class string
	x, y, width int
}

// spread moves names that would cover each other down, in the order in which
// they stand.
func spread(names []nameTag) {
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	for i := 1; i < len(order); i++ {
		for j := i; j > 0 && names[order[j]].y < names[order[j-1]].y; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	for i, a := range order {
		for _, b := range order[:i] {
			n, m := &names[a], names[b]
			if n.x < m.x+m.width+4 && m.x < n.x+n.width+4 && n.y < m.y+fontSize+1 {
				n.y = m.y + fontSize + 1
			}
		}
	}
}

// unbroken splits points at those without a value.
func unbroken(points []Point) [][]Point {
	var parts [][]Point
	var part []Point
	for _, p := range points {
		if p.Value.Known {
			part = append(part, p)
			continue
		}
		if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	if part != nil {
		parts = append(parts, part)
	}
	return parts
}

// tidyEnds gives a value without repeats its own ends.
func tidyEnds(v *Value) {
	if !finite(v.Lo) || !finite(v.Hi) || v.Lo > v.V || v.Hi < v.V {
		v.Lo, v.Hi = v.V, v.V
	}
}

// fixedRange is a range with ticks of its own.
//
// Note: an axis's Ticks field would do the same for the X axis, but go-chart
// takes the ends of the secondary Y axis from the ticks of the primary one.
type fixedRange struct {
	*gochart.ContinuousRange
	ticks []gochart.Tick
}

func newRange(s scale) fixedRange {
	r := fixedRange{ContinuousRange: &gochart.ContinuousRange{Min: s.lo, Max: s.hi}}
	for _, t := range s.ticks {
		r.ticks = append(r.ticks, gochart.Tick{Value: t.at, Label: t.label})
	}
	return r
}

func (r fixedRange) GetTicks(gochart.Renderer, gochart.Style, gochart.ValueFormatter) []gochart.Tick {
	return r.ticks
}

func seriesClass(i int) string { return fmt.Sprintf("c-s%d", i%Series) }

func dashOf(i int) []float64 {
	switch i / Series % 3 {
	case 1:
		return []float64{6, 4}
	case 2:
		return []float64{2, 3}
	}
	return nil
}

func shorten(s string) string {
	r := []rune(s)
	if len(r) <= maxLabel {
		return s
	}
	return string(r[:maxLabel-1]) + "…"
}

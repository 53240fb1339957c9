package chart

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
)

func known(v float64) Value {
	return Value{V: v, Known: true, Text: fmt.Sprint(v, " tok/s"), Lo: v, Hi: v}
}

// wellFormed fails the test unless svg is one XML element with the texts.
func wellFormed(t *testing.T, svg string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v\n%s", err, svg)
		}
	}
	for _, want := range []string{`role="img"`, "<title id=", "<desc id=", "viewBox="} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in the SVG", want)
		}
	}
	for _, not := range []string{"NaN", "Inf", "rgba(", "style=", "#fff"} {
		if strings.Contains(svg, not) {
			t.Errorf("%q in the SVG", not)
		}
	}
}

// The inputs on which go-chart's own ranges fail, hang or blow up.
func TestBarsAwkward(t *testing.T) {
	tests := []struct {
		name   string
		values []Value
		bars   int // with a length
		err    error
	}{
		{"one value", []Value{known(5)}, 1, nil},
		{"equal values", []Value{known(5), known(5), known(5)}, 3, nil},
		{"zeros", []Value{known(0), known(0)}, 0, nil},
		{"nothing", nil, 0, ErrNothing},
		{"only gaps", []Value{{}, {}}, 0, ErrNothing},
		{"a gap", []Value{known(5), {}, known(7)}, 2, nil},
		{"not a number", []Value{{V: math.NaN(), Known: true}, known(3)}, 1, nil},
		{"infinite", []Value{{V: math.Inf(1), Known: true}, known(3)}, 1, nil},
		{"far apart", []Value{known(1e-9), known(1e12)}, 2, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := BarChart{Texts: Texts{ID: "b", Title: "t", Desc: "d"}, Axis: "tok/s, higher is better"}
			for i, v := range tt.values {
				b.Bars = append(b.Bars, Bar{Label: fmt.Sprint(i), Value: v})
			}
			svg, err := Bars(b)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			wellFormed(t, svg)
			if got := strings.Count(svg, `class="c-s0"`); got != tt.bars {
				t.Errorf("%d bars, want %d", got, tt.bars)
			}
			if !strings.Contains(svg, ">0</text>") {
				t.Error("the axis does not show zero")
			}
		})
	}
}

func TestLinesAwkward(t *testing.T) {
	many := make([]Value, 200)
	for i := range many {
		many[i] = known(float64(i))
	}
	many[100] = known(1e6)
	tests := []struct {
		name   string
		values []Value
		log    bool
		dots   int
		err    error
	}{
		{"one value", []Value{known(5)}, true, 1, nil},
		{"equal values", []Value{known(5), known(5)}, true, 2, nil},
		{"zeros", []Value{known(0), known(0)}, true, 2, nil},
		{"zero on a logarithm", []Value{known(0), known(100)}, true, 2, nil},
		{"only gaps", []Value{{}}, false, 0, ErrNothing},
		{"a gap", []Value{known(5), {}, known(7)}, false, 2, nil},
		{"not a number", []Value{known(1), {V: math.NaN(), Known: true}}, false, 1, nil},
		{"200 points, one far out", many, true, 200, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := LineChart{Texts: Texts{ID: "l", Title: "t", Desc: "d"}, Log: tt.log, YAxis: "tok/s", XAxis: "requests"}
			line := Line{Label: "8K"}
			for i, v := range tt.values {
				line.Points = append(line.Points, Point{X: float64(i), Value: v})
				l.Ticks = append(l.Ticks, Tick{X: float64(i), Label: fmt.Sprint(i)})
			}
			l.Lines = []Line{line}
			svg, err := Lines(l)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			wellFormed(t, svg)
			if got := strings.Count(svg, "<circle"); got != tt.dots {
				t.Errorf("%d points, want %d", got, tt.dots)
			}
		})
	}
}

// A missing point interrupts the line; it is not bridged, nor drawn at zero.
func TestGap(t *testing.T) {
	parts := unbroken([]Point{{X: 0, Value: known(1)}, {X: 1, Value: known(2)}, {X: 2}, {X: 3, Value: known(4)}})
	if len(parts) != 2 || len(parts[0]) != 2 || len(parts[1]) != 1 {
		t.Errorf("parts %v", parts)
	}
}

func TestTextIsEscaped(t *testing.T) {
	const hostile = `R&D <test> "]]>` + "\x1b[31m</svg><script>alert(1)</script>"
	texts := Texts{ID: `x" onload="alert(1)`, Title: hostile, Desc: hostile}
	v := known(3)
	v.Text = hostile
	bars, err := Bars(BarChart{Texts: texts, Axis: hostile, Bars: []Bar{{Label: hostile, Value: v, Note: hostile}}})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := Lines(LineChart{Texts: texts, XAxis: hostile, YAxis: hostile,
		Ticks: []Tick{{X: 0, Label: hostile}}, Lines: []Line{{Label: hostile, Points: []Point{{Value: v}}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, svg := range []string{bars, lines} {
		wellFormed(t, svg)
		if strings.Contains(svg, "<script") || strings.Contains(svg, "<test>") || strings.Contains(svg, "onload=") {
			t.Errorf("markup came through:\n%s", svg)
		}
		if !strings.Contains(svg, "R&amp;D &lt;test&gt;") {
			t.Error("the name is not shown")
		}
	}
}

func TestTicksAreThinned(t *testing.T) {
	var ticks []tick
	for i := range 64 {
		ticks = append(ticks, tick{float64(i), fmt.Sprintf("label %d", i)})
	}
	got := thin(ticks, 10, func(s string) int { return 7 * len(s) })
	if len(got) != 64 {
		t.Fatalf("%d ticks, want all 64 marks", len(got))
	}
	if got[0].label == "" || got[63].label == "" {
		t.Error("the first and the last label must stay")
	}
	end := math.Inf(-1)
	for _, k := range got {
		if k.label == "" {
			continue
		}
		half := float64(7*len(k.label)) / 2
		if k.at*10-half < end {
			t.Errorf("label %q covers the one before", k.label)
		}
		end = k.at*10 + half
	}
}

func TestScales(t *testing.T) {
	label := func(s scale) (out []string) {
		for _, k := range s.ticks {
			out = append(out, k.label)
		}
		return out
	}
	tests := []struct {
		s    scale
		want string
	}{
		{linear(32_900, 5), "[0 10K 20K 30K 40K]"},
		{linear(0, 5), "[0 0.2 0.4 0.6 0.8 1]"},
		{linear(2186, 5), "[0 500 1,000 1,500 2,000 2,500]"},
		{logarithmic(28.4, 2777), "[10 30 100 300 1,000 3,000]"},
		{logarithmic(50, 50), "[50 100]"},
		{logarithmic(1, 1e6), "[1 10 100 1,000 10K 100K 1M]"},
	}
	for _, tt := range tests {
		if got := fmt.Sprint(label(tt.s)); got != tt.want {
			t.Errorf("ticks %s, want %s", got, tt.want)
		}
		if tt.s.lo >= tt.s.hi {
			t.Errorf("empty scale %+v", tt.s)
		}
	}
}

func TestSameBytes(t *testing.T) {
	draw := func() string {
		svg, err := Lines(LineChart{Texts: Texts{ID: "l"}, Log: true, Lines: []Line{
			{Label: "a", Points: []Point{{X: 0, Value: known(1)}, {X: 1, Value: known(40)}}},
			{Label: "b", Points: []Point{{X: 0, Value: known(1)}, {X: 1, Value: known(41)}}}}})
		if err != nil {
			t.Fatal(err)
		}
		return svg
	}
	first := draw()
	for range 5 {
		if draw() != first {
			t.Fatal("equal input gives other bytes")
		}
	}
}

func TestNamesDoNotCover(t *testing.T) {
	names := []nameTag{{"a", "", 10, 100, 20}, {"b", "", 12, 103, 20}, {"c", "", 11, 96, 20}, {"d", "", 300, 100, 20}}
	spread(names)
	for i, a := range names {
		for _, b := range names[:i] {
			if a.x < b.x+b.width && b.x < a.x+a.width && a.y < b.y+fontSize && b.y < a.y+fontSize {
				t.Errorf("%s at %d covers %s at %d", a.text, a.y, b.text, b.y)
			}
		}
	}
	if names[3].y != 100 {
		t.Error("a name that stands alone was moved")
	}
}

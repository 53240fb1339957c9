// Package html renders a page as one HTML file that opens anywhere: style,
// script, charts and tables are inside, and nothing is fetched.
//
// It knows the model of a page and nothing of runs. All values pass through
// html/template, which escapes them for the place where they stand; the only
// markup it takes as made are our own style and script, the charts (escaped by
// package chart) and the notes (Markdown, made safe in notes.go).
//
// Everything can be read without the script, which adds the choice of theme and
// metric, sorting and copying. A content security policy in the page allows our
// style and script by their hashes, and nothing else.
package html

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"speedmatrix/report"
	"speedmatrix/report/internal/chart"
)

//go:embed page.tmpl page.css page.js
var assets embed.FS

// shades is the number of steps of the heat scale, and of classes for it.
const shades = 32

// Render writes the page. Equal pages give equal bytes.
func Render(w io.Writer, p *report.Page) error {
	v, err := newView(p)
	if err != nil {
		return err
	}
	t, err := template.New("page.tmpl").Funcs(template.FuncMap{
		"heat": heatClass, "steps": func() []int { return steps(16) }, "dict": dict, "words": words,
		"long": long, "scrolls": scrolls,
	}).ParseFS(assets, "page.tmpl")
	if err != nil {
		return fmt.Errorf("page template: %w", err)
	}
	if err := t.Execute(w, v); err != nil {
		return fmt.Errorf("render page %q: %w", p.RunID, err)
	}
	return nil
}

// view is what the template sees: the page, and what is markup already.
type view struct {
	*report.Page
	Policy   string
	Style    template.HTML
	Script   template.HTML
	Bars     template.HTML
	Lines    template.HTML
	NotesDoc template.HTML
}

func newView(p *report.Page) (*view, error) {
	css, err := assets.ReadFile("page.css")
	if err != nil {
		return nil, err
	}
	js, err := assets.ReadFile("page.js")
	if err != nil {
		return nil, err
	}
	style, script := squeeze(string(css))+heatStyle(), strings.TrimSpace(string(js))
	v := &view{
		Page:   p,
		Policy: fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; img-src data:; base-uri 'none'; form-action 'none'", hash(style), hash(script)),
		// Our own files; neither holds a value from data.
		Style:  template.HTML("<style>" + style + "</style>"),
		Script: template.HTML("<script>" + script + "</script>"),
	}
	if v.NotesDoc, err = notes(p.Notes); err != nil {
		return nil, err
	}
	if v.Bars, err = bars(p.Prefill); err != nil {
		return nil, err
	}
	if v.Lines, err = lines(p.Scaling); err != nil {
		return nil, err
	}
	return v, nil
}

// hash is the source expression of an inline element's content.
func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// squeeze takes comments and indentation out of the style.
func squeeze(css string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(css, "/*")
		b.WriteString(before)
		if !found {
			break
		}
		_, css, _ = strings.Cut(rest, "*/")
	}
	var lines []string
	for l := range strings.Lines(b.String()) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "\n")
}

// heatStyle is one class a step of the scale.
func heatStyle() string {
	var b strings.Builder
	for i, s := range chart.Shades(shades) {
		fmt.Fprintf(&b, "\n.h%d{background-color:%s;color:%s}", i, s.Background, s.Text)
	}
	return b.String()
}

// heatClass names the step of a place on the scale; empty without one.
func heatClass(at *float64) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("h%d", int(math.Round(min(max(*at, 0), 1)*(shades-1))))
}

// steps are n classes over the whole scale, for its legend.
func steps(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i * (shades - 1) / (n - 1)
	}
	return out
}

// long reports whether a text is longer than any word of ours; it then gets a box
// that wraps it.
func long(s string) bool { return utf8.RuneCountInString(s) > 28 }

// scrolls reports whether a list may be wider than a window, and so needs a
// scroller of its own.
func scrolls(t *report.Table) bool {
	return t.Wide() || slices.ContainsFunc(t.Rows, func(r report.Row) bool {
		return slices.ContainsFunc(r.Fields, func(f report.Number) bool { return long(f.Text) })
	})
}

// dict passes several values to a template.
func dict(pairs ...any) (map[string]any, error) {
	m := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		k, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("key %v is no string", pairs[i])
		}
		m[k] = pairs[i+1]
	}
	return m, nil
}

// piece is a part of a command that a line break should not part.
type piece struct {
	Text string
	Word bool
}

// words splits a command at its blanks, so that no line ends within a flag. All
// pieces together are the command.
func words(command string) []piece {
	var out []piece
	for command != "" {
		blank := command[0] == ' ' || command[0] == '\n' || command[0] == '\t'
		end := strings.IndexFunc(command, func(r rune) bool { return (r == ' ' || r == '\n' || r == '\t') != blank })
		if end < 0 {
			end = len(command)
		}
		out = append(out, piece{Text: command[:end], Word: strings.HasPrefix(command, "-")})
		command = command[end:]
	}
	return out
}

func bars(p *report.Prefill) (template.HTML, error) {
	if p == nil {
		return "", nil
	}
	c := chart.BarChart{
		Texts: chart.Texts{ID: "chart-prefill", Title: "Prefill: " + p.Caption,
			Desc: "One bar a context length; the same numbers are in the table beside it."},
		Axis: p.Axis,
	}
	for _, b := range p.Bars {
		v, known := value(b.Rate)
		bar := chart.Bar{Label: b.Context, Value: chart.Value{V: v, Known: known, Text: b.Rate.Text, Lo: v, Hi: v}}
		if b.Spread != nil {
			bar.Value.Lo, _ = value(b.Spread.Lowest)
			bar.Value.Hi, _ = value(b.Spread.Highest)
		}
		if b.TTFT.Known() {
			bar.Note = b.TTFT.Text + " TTFT"
		} else if b.Status != "" {
			bar.Note = b.Status
		}
		c.Bars = append(c.Bars, bar)
	}
	return drawn(chart.Bars(c))
}

func lines(s *report.Scaling) (template.HTML, error) {
	if s == nil {
		return "", nil
	}
	c := chart.LineChart{
		Texts: chart.Texts{ID: "chart-scaling", Title: s.Title, Desc: s.Desc},
		XAxis: s.XAxis, YAxis: s.YAxis, Log: s.Log,
	}
	for _, t := range s.Ticks {
		c.Ticks = append(c.Ticks, chart.Tick{X: t.X, Label: t.Label})
	}
	for _, l := range s.Lines {
		line := chart.Line{Label: l.Context}
		for _, p := range l.Points {
			line.Points = append(line.Points, chart.Point{X: p.X,
				Value: chart.Value{V: p.V, Known: p.Known, Text: p.Text, Lo: p.Lo, Hi: p.Hi}})
		}
		c.Lines = append(c.Lines, line)
	}
	return drawn(chart.Lines(c))
}

// drawn takes a chart as markup; a chart with nothing to draw is left out.
func drawn(svg string, err error) (template.HTML, error) {
	if errors.Is(err, chart.ErrNothing) {
		return "", nil
	}
	return template.HTML(svg), err
}

// value reads the exact text of a number back.
func value(n report.Number) (float64, bool) {
	var v float64
	if !n.Known() {
		return 0, false
	}
	if _, err := fmt.Sscan(n.Exact, &v); err != nil {
		return 0, false
	}
	return v, true
}

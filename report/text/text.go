// Package text renders the short form of a page for a terminal: title, marks,
// headline numbers, prefill, and the decode matrix in columns of fixed width.
//
// It knows the model of a page and nothing of runs. Nothing it writes can command
// a terminal: every value loses its control characters here, whatever its origin.
package text

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/mattn/go-runewidth"

	"speedmatrix/report"
	"speedmatrix/report/plain"
)

// Render writes the page's short form. Equal pages give equal bytes.
func Render(w io.Writer, p *report.Page) error {
	d := doc{width: runewidth.Condition{}}
	d.line("%s", plain.Line(p.Title))
	for _, l := range []string{p.Subject, p.Axes} {
		if l = plain.Line(l); l != "" {
			d.line("%s", l)
		}
	}
	var marks []string
	for _, m := range p.Marks {
		marks = append(marks, plain.Line(m.Text))
	}
	if len(marks) > 0 {
		d.line("%s", strings.Join(marks, " · "))
	}

	var heads [][]string
	for _, h := range p.Headlines {
		value := h.Value.Text
		if h.Value.Known() {
			value += " " + h.Unit
		}
		heads = append(heads, []string{h.Label, value, h.Condition})
	}
	d.line("")
	d.columns(heads, []bool{false, true, false})
	if s := plain.Line(p.Repeats); s != "" {
		d.line("  %s", s)
	}

	if p.Prefill != nil {
		d.line("")
		d.line("Prefill: %s", plain.Line(p.Prefill.Caption))
		var rows [][]string
		for _, b := range p.Prefill.Bars {
			ttft := b.TTFT.Text
			if b.TTFT.Known() {
				ttft += " TTFT"
			}
			rows = append(rows, []string{b.Context, b.Rate.Text, ttft, b.Status})
		}
		d.columns(rows, []bool{true, true, true, false})
	}
	if p.Decode != nil {
		d.matrix(p.Decode)
	}
	if len(p.Findings) > 0 {
		d.line("")
		d.line("What does not add up, and limits:")
		for _, f := range p.Findings {
			d.line("  %s", strings.TrimSpace(plain.Line(f.Where)+"  "+plain.Line(f.Text)))
		}
	}
	if _, err := w.Write(d.b.Bytes()); err != nil {
		return fmt.Errorf("write run %q: %w", p.RunID, err)
	}
	return nil
}

type doc struct {
	b     bytes.Buffer
	width runewidth.Condition // fixed, so that the locale changes nothing
}

func (d *doc) line(format string, args ...any) {
	d.b.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	d.b.WriteByte('\n')
}

// matrix writes the totals. A cell that is not valid carries a letter, and the
// letters are explained below: the words would not fit beside each other.
func (d *doc) matrix(m *report.Matrix) {
	d.line("")
	d.line("Sustained decode: %s", plain.Line(m.Caption))
	head, right := []string{"Context"}, []bool{true}
	for _, c := range m.Columns {
		head, right = append(head, c+"  "), append(right, true)
	}
	rows := [][]string{head}
	var words []string
	for _, r := range m.Rows {
		row := []string{r.Context}
		for _, c := range r.Cells {
			mark := " "
			if s := plain.Line(c.Status); s != "" {
				i := slices.Index(words, s)
				if i < 0 {
					i = len(words)
					words = append(words, s)
				}
				mark = letter(i)
			}
			row = append(row, c.Values[0].Text+" "+mark)
		}
		rows = append(rows, row)
	}
	d.columns(rows, right)
	for i, w := range words {
		d.line("  %s  %s", letter(i), w)
	}
}

// letter names the i-th status: a to z, then what is left over shares one sign.
func letter(i int) string {
	if i < 26 {
		return string(rune('a' + i))
	}
	return "*"
}

// columns writes rows with two blanks between columns as wide as they need.
func (d *doc) columns(rows [][]string, right []bool) {
	widths := make([]int, len(right))
	for _, r := range rows {
		for i := range r {
			// Line would trim the blanks that align a letter's column.
			clean := plain.Line(r[i])
			if tail := len(r[i]) - len(strings.TrimRight(r[i], " ")); tail > 0 {
				clean += strings.Repeat(" ", tail)
			}
			r[i] = clean
			widths[i] = max(widths[i], d.width.StringWidth(clean))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", widths[i]-d.width.StringWidth(c))
			if right[i] {
				b.WriteString("  " + pad + c)
			} else {
				b.WriteString("  " + c + pad)
			}
		}
		d.line("%s", b.String())
	}
}

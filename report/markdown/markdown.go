// Package markdown renders a page as GitHub-flavoured Markdown: the same facts,
// numbers and order as the HTML page, without its charts.
//
// It knows the model of a page and nothing of runs. Every value from data goes
// through one of three functions, one a context: inline (running text, lists,
// headings), cell (a table) and fence (a code block). Notes, which are Markdown
// themselves, are quoted, with their raw HTML made visible; see notes.go.
package markdown

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"speedmatrix/report"
)

// MaxBytes is what GitHub still shows in an issue or a comment. A longer page is
// written without the columns and the list that the published pages have not, and
// if that is not enough without the end of its list, and says so.
const MaxBytes = 60_000

// Render writes the page. Equal pages give equal bytes.
func Render(w io.Writer, p *report.Page) error {
	var d doc
	for _, d = range []doc{{}, {short: true}, {short: true, most: 200}} {
		d.page(p)
		if d.b.Len() < MaxBytes {
			break
		}
	}
	if _, err := w.Write(d.b.Bytes()); err != nil {
		return fmt.Errorf("render Markdown of run %q: %w", p.RunID, err)
	}
	return nil
}

// doc collects blocks, each with an empty line after it.
type doc struct {
	b     bytes.Buffer
	short bool // leave out what the published pages have not
	most  int  // rows of the list of measurements; 0: all
}

func (d *doc) block(format string, args ...any) { fmt.Fprintf(&d.b, format+"\n\n", args...) }

func (d *doc) heading(text string) { d.block("## %s", inline(text)) }

func (d *doc) page(p *report.Page) {
	d.block("# %s", inline(p.Title))
	for _, line := range []string{p.Subject, p.Axes, strings.Join(p.Byline, " · ")} {
		if line != "" {
			d.block("%s", inline(line))
		}
	}
	if len(p.Marks) > 0 {
		var marks []string
		for _, m := range p.Marks {
			marks = append(marks, "**"+inline(m.Text)+"**")
		}
		d.block("%s", strings.Join(marks, " · "))
		var why []string
		for _, m := range p.Marks {
			if m.Tone == report.ToneCaution {
				why = append(why, "- "+inline(m.Text)+": "+inline(m.Why))
			}
		}
		d.list(why)
	}
	heads := headlines(p)
	d.table(heads[0], nil, heads[1:])
	if p.Repeats != "" {
		d.block("%s", inline(p.Repeats))
	}

	for _, f := range p.Facts {
		d.heading(f.Title)
		d.fields(f.Fields)
	}
	if p.Command != "" {
		d.heading("Launch command")
		d.code("sh", p.Command)
	}
	if p.Prefill != nil {
		d.prefill(p.Prefill)
	}
	if p.Decode != nil {
		d.matrix(p.Decode)
	}
	for _, l := range p.Legend {
		d.block("%s", inline(l))
	}
	if len(p.Findings) > 0 {
		d.heading("What does not add up, and limits")
		var items []string
		for _, f := range p.Findings {
			item := "- "
			if f.Where != "" {
				item += "**" + inline(f.Where) + "** "
			}
			items = append(items, item+inline(f.Text))
			for _, part := range f.Parts {
				items = append(items, "  - **"+inline(part.Where)+"** "+inline(part.Text))
			}
		}
		d.list(items)
	}
	if n := notes(p.Notes); n != "" {
		d.heading("Notes")
		d.block("%s", n)
	}
	if p.Measurements != nil {
		d.heading("All measurements")
		d.measurements(p.Measurements)
		if len(p.Legend) > 0 {
			d.block("%s", inline(p.Legend[0]))
		}
		if p.More != nil && !d.short {
			d.measurements(p.More)
		}
	}
	if p.Reference != nil && !d.short {
		d.heading("In the reference tool's scope")
		d.measurements(p.Reference)
	}
	if len(p.Environment) > 0 {
		d.heading("Environment")
		var rows [][]string
		for _, c := range p.Environment {
			rows = append(rows, []string{c.Label, c.Claimed, c.Found})
		}
		d.table([]string{"What", "Claimed", "Found"}, nil, rows)
	}
	if len(p.Launches) > 0 {
		d.heading("Launches")
		for _, l := range p.Launches {
			d.block("### %s", inline(l.Title))
			d.fields(l.Fields)
			if l.LogTail != "" {
				d.code("text", l.LogTail)
			}
		}
	}
	d.heading("Plan and method")
	d.fields(p.Plan)
	if len(p.Unpinned) > 0 {
		d.block("### What is not pinned")
		var items []string
		for _, u := range p.Unpinned {
			items = append(items, "- "+inline(u))
		}
		d.list(items)
	}
	if len(p.Downloads) > 0 {
		d.heading("Downloads")
		var items []string
		for _, f := range p.Downloads {
			item := fmt.Sprintf("- [%s](%s)", inline(f.Label), destination(f.Href))
			if f.Note != "" {
				item += ": " + inline(f.Note)
			}
			items = append(items, item)
		}
		d.list(items)
		d.block("These files lie beside this page: send the folder, not the page alone, if they are wanted.")
	}
	if p.Again != "" {
		d.heading("Make it again")
		d.code("sh", p.Again)
	}
}

func headlines(p *report.Page) [][]string {
	rows := make([][]string, 3)
	for _, h := range p.Headlines {
		value := h.Value.Text
		if h.Value.Known() {
			value += " " + h.Unit
		}
		rows[0], rows[1], rows[2] = append(rows[0], h.Label), append(rows[1], value), append(rows[2], h.Condition)
	}
	return rows
}

func (d *doc) fields(fields []report.Field) {
	var items []string
	for _, f := range fields {
		items = append(items, "- **"+inline(f.Label)+":** "+inline(f.Value))
	}
	d.list(items)
}

func (d *doc) list(items []string) {
	if len(items) > 0 {
		d.block("%s", strings.Join(items, "\n"))
	}
}

func (d *doc) code(language, text string) {
	f := fence(text)
	d.block("%s%s\n%s\n%s", f, language, text, f)
}

// table writes a table; right tells which columns are numbers, nil that all are
// text. All texts are escaped here.
func (d *doc) table(head []string, right []bool, rows [][]string) {
	line := func(cells []string) {
		d.b.WriteByte('|')
		for _, c := range cells {
			d.b.WriteByte(' ')
			d.b.WriteString(cell(c))
			d.b.WriteString(" |")
		}
		d.b.WriteByte('\n')
	}
	line(head)
	d.b.WriteByte('|')
	for i := range head {
		if i < len(right) && right[i] {
			d.b.WriteString("---:|")
		} else {
			d.b.WriteString("---|")
		}
	}
	d.b.WriteByte('\n')
	for _, r := range rows {
		line(r)
	}
	d.b.WriteByte('\n')
}

func (d *doc) prefill(p *report.Prefill) {
	d.heading("Prefill")
	d.block("%s", inline(p.Caption))
	var rows [][]string
	for _, b := range p.Bars {
		rate := b.Rate.Text
		if b.Spread != nil {
			rate += " (" + b.Spread.Lowest.Text + "–" + b.Spread.Highest.Text + ")"
		}
		if b.Status != "" {
			rate += ", " + b.Status
		}
		rows = append(rows, []string{b.Context, rate, b.TTFT.Text})
	}
	d.table([]string{"Context", "tok/s", "TTFT"}, []bool{true, true, true}, rows)
}

func (d *doc) matrix(m *report.Matrix) {
	d.heading("Sustained decode")
	d.block("%s", inline(m.Caption))
	head, right := []string{"Context"}, []bool{true}
	for _, c := range m.Columns {
		head, right = append(head, c), append(right, true)
	}
	var rows [][]string
	for _, r := range m.Rows {
		row := []string{r.Context}
		for _, c := range r.Cells {
			var parts []string
			total, ttft := c.Values[0], c.Values[2]
			if total.Known() {
				parts = append(parts, total.Text)
			}
			if c.Spread != nil {
				parts = append(parts, c.Spread.Lowest.Text+"–"+c.Spread.Highest.Text)
			}
			if c.Status != "" {
				parts = append(parts, c.Status)
			}
			if ttft.Known() {
				of := ""
				if c.TTFTOf != "" {
					of = " (" + c.TTFTOf + ")"
				}
				parts = append(parts, ttft.Text+" TTFT"+of)
			}
			if len(parts) == 0 {
				parts = []string{total.Text}
			}
			row = append(row, strings.Join(parts, " · "))
		}
		rows = append(rows, row)
	}
	d.table(head, right, rows)
}

func (d *doc) measurements(t *report.Table) {
	d.block("%s", inline(t.Lead))
	if t.Caption != "All measurements" {
		d.block("**%s**", inline(t.Caption))
	}
	var head []string
	var right []bool
	for _, c := range t.Columns {
		if c.Extra && d.short {
			continue
		}
		head, right = append(head, c.Label), append(right, c.Numeric)
	}
	var rows [][]string
	list := t.Rows
	if d.most > 0 && len(list) > d.most {
		list = list[:d.most]
		d.block("The first %d of %d rows; all are in the HTML page and in cells.parquet.", d.most, len(t.Rows))
	}
	for _, r := range list {
		var row []string
		for i, f := range r.Fields {
			if t.Columns[i].Extra && d.short {
				continue
			}
			row = append(row, f.Text)
		}
		rows = append(rows, row)
	}
	d.table(head, right, rows)
	if d.short && t.Wide() {
		d.block("This list is shortened; the other columns are in the HTML page and in cells.parquet.")
	}
}

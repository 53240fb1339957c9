package published

import (
	"fmt"
	"slices"
	"strings"

	"speedmatrix/results/record"
)

// One part of the page held against another: bars and matrix decide between the
// readings of the list, and what contradicts it is a finding.

// barLabel returns the context of a prefill bar, "8K context2,1863,727 ms TTFT",
// or "" if the line is none.
func barLabel(text string) string {
	label, rest, ok := strings.Cut(text, " context")
	if _, isLabel := parseContext(label); !ok || !isLabel || !strings.HasSuffix(rest, "TTFT") {
		return ""
	}
	return label
}

// matchBars holds the prefill bars against the prefill rows of the list.
func (p *Page) matchBars(d *document, readings [][]*row, errs *mistakes) [][]*row {
	for _, l := range d.get(secPrefill).lines {
		label := barLabel(l.text)
		if label == "" {
			continue
		}
		all := barReadings(squeeze(l.text[len(label)+len(" context"):]))
		i := slices.IndexFunc(readings, func(rows []*row) bool {
			return len(rows) > 0 && rows[0].phase == record.PhasePrefill && rows[0].label == label
		})
		if i < 0 {
			errs.add(l.no, "the prefill at %s is not in the list %q", label, secList)
			continue
		}
		var bars [][2]number
		var rows []*row
		for _, bar := range all {
			for _, r := range readings[i] {
				if total, ttft := r.n[mTotal], r.n[mTTFT]; total != nil && ttft != nil && same(bar[0], *total) && same(bar[1], *ttft) {
					bars = append(bars, bar)
					if !slices.Contains(rows, r) {
						rows = append(rows, r)
					}
				}
			}
		}
		switch {
		case len(rows) > 0:
			readings[i] = rows
		case len(all) == 1 && len(readings[i]) == 1:
			r := readings[i][0]
			bars = all
			p.found(record.Finding{Kind: "bars_vs_list", Where: r.where(), StepID: r.stepID(1),
				Text: fmt.Sprintf("the prefill section shows %s tok/s and %s, the list shows %s and %s",
					all[0][0].text, spaced(all[0][1].text), show(r.n[mTotal]), show(r.n[mTTFT]))})
		default:
			errs.add(l.no, "the prefill at %s can be read in %d ways, and none agrees with line %d: %q", label, len(all),
				readings[i][0].no, clip(l.text, 120))
			continue
		}
		p.Bars = append(p.Bars, Bar{Label: label, TokensPerSecond: bars[0][0].value, TTFTSeconds: bars[0][1].value})
	}
	return readings
}

// place is where a row of the list stands in the matrix.
type place struct {
	label    string
	requests int
}

// axes are the rows and columns that the list gives the matrix.
type axes struct {
	labels   []string
	levels   []int
	at       map[place]int  // index in the readings
	repeated map[place]bool // the matrix shows the middle of them
}

func axesOf(readings [][]*row) axes {
	x := axes{at: map[place]int{}, repeated: map[place]bool{}}
	for i, rows := range readings {
		if len(rows) == 0 || rows[0].phase != record.PhaseDecode {
			continue
		}
		r := rows[0]
		k := place{r.label, r.requests}
		if _, ok := x.at[k]; ok {
			x.repeated[k] = true
		}
		x.at[k] = i
		if !slices.Contains(x.labels, r.label) {
			x.labels = append(x.labels, r.label)
		}
		if !slices.Contains(x.levels, r.requests) {
			x.levels = append(x.levels, r.requests)
		}
	}
	return x
}

// matchMatrix holds the matrix against the decode rows of the list, and drops
// readings of the list that the matrix rules out.
func (p *Page) matchMatrix(d *document, readings [][]*row, errs *mistakes) [][]*row {
	x := axesOf(readings)
	for _, t := range d.get(secDecode).tables {
		if len(t.header) == 1 && t.header[0] == "Context"+joinInts(x.levels, "") {
			for _, tr := range t.rows {
				p.matchGlued(tr, x, readings, errs)
			}
			continue
		}
		header, ok := matrixHeader(t.header)
		if !ok {
			continue
		}
		for _, tr := range t.rows {
			p.matchCells(d, tr, header, x, readings, errs)
		}
	}
	return readings
}

// matchGlued matches a row of the matrix that has lost its separators, and leaves
// in readings what agrees with it.
func (p *Page) matchGlued(tr tableRow, x axes, readings [][]*row, errs *mistakes) {
	if len(tr.glued) > maxGlued {
		errs.add(tr.no, "the row has %d bytes, more than a row can have (%d)", len(tr.glued), maxGlued)
		return
	}
	fits := map[string][][]*row{}
	for _, label := range x.labels {
		rest, ok := strings.CutPrefix(tr.glued, label)
		if !ok {
			continue
		}
		var cells [][]*row
		for _, c := range x.levels {
			if i, ok := x.at[place{label, c}]; ok {
				cells = append(cells, readings[i])
			} else {
				cells = append(cells, nil)
			}
		}
		if fit := fitMatrixRow(rest, cells, &p.work); fit != nil {
			fits[label] = fit
		}
	}
	if len(fits) != 1 {
		errs.add(tr.no, "the row of the matrix agrees with the list in %d ways: %q", len(fits), clip(tr.glued, 120))
		return
	}
	for label, fit := range fits {
		for j, c := range x.levels {
			readings[x.at[place{label, c}]] = fit[j]
		}
	}
}

// matchCells matches a row of the matrix whose cells are apart.
func (p *Page) matchCells(d *document, tr tableRow, header []int, x axes, readings [][]*row, errs *mistakes) {
	if len(tr.cells) != len(header)+1 {
		if d.glued {
			errs.add(tr.no, "the row of the matrix has %d cells, its header has %d", len(tr.cells), len(header)+1)
		}
		return
	}
	for j, c := range header {
		k := place{tr.cells[0].text, c}
		i, ok := x.at[k]
		if x.repeated[k] {
			continue
		}
		if !ok {
			if d.glued {
				errs.add(tr.no, "the matrix has %s × %d, the list has not", clip(tr.cells[0].text, 20), c)
			}
			continue
		}
		readings[i] = p.matchCell(d, tr.no, tr.cells[j+1].text, readings[i], errs)
	}
}

// matchCell holds one cell of the matrix against the readings of its row.
func (p *Page) matchCell(d *document, no int, text string, rows []*row, errs *mistakes) []*row {
	s := squeeze(text)
	if len(s) > maxGlued {
		errs.add(no, "the cell has %d bytes, more than a cell can have (%d)", len(s), maxGlued)
		return rows
	}
	var whole []matrixCell
	for _, c := range matrixCells(s, 0) {
		if c.end == len(s) {
			whole = append(whole, c)
		}
	}
	var keep []*row
	for _, r := range rows {
		if slices.ContainsFunc(whole, func(c matrixCell) bool { return c.agrees(r) }) {
			keep = append(keep, r)
		}
	}
	switch {
	case len(keep) > 0:
		return keep
	case len(whole) == 1 && len(rows) == 1:
		r := rows[0]
		listed := matrixCell{status: r.status, total: r.n[mTotal], ttft: r.n[mTTFT]}
		p.found(record.Finding{Kind: "matrix_vs_list", Where: r.where(), StepID: r.stepID(1),
			Text: fmt.Sprintf("the matrix shows %s, the list shows %s", whole[0], listed)})
	case d.glued && len(rows) > 0:
		errs.add(no, "the cell %q of the matrix can be read in %d ways, and none agrees with line %d of the list", clip(text, 60), len(whole), rows[0].no)
	}
	return rows
}

// found keeps what one part of the page says against another.
func (p *Page) found(f record.Finding) {
	if len(p.findings) < 1000 {
		p.findings = append(p.findings, f)
	}
}

// checkHeadline holds the line below the title against the list.
func (p *Page) checkHeadline(h *headline) {
	if h == nil {
		return
	}
	var labels []string
	var levels []int
	for _, r := range p.rows {
		if r.phase != record.PhaseDecode {
			continue
		}
		if !slices.Contains(labels, r.label) {
			labels = append(labels, r.label)
		}
		if !slices.Contains(levels, r.requests) {
			levels = append(levels, r.requests)
		}
	}
	if len(labels) == 0 {
		return
	}
	first, last := labels[0], labels[len(labels)-1]
	lo, hi := slices.Min(levels), slices.Max(levels)
	if h.hasContexts(len(labels), p.Run.Engine.Quantization) && h.first == first && h.last == last &&
		h.levels == len(levels) && h.low == lo && h.high == hi {
		return
	}
	p.found(record.Finding{Kind: "headline_vs_list", Where: fmt.Sprintf("line %d", h.no),
		Text: fmt.Sprintf("the line below the title does not say what the list has: %d contexts (%s–%s) × %d concurrency levels (%d–%d)",
			len(labels), first, last, len(levels), lo, hi)})
}

func show(n *number) string {
	if n == nil {
		return dash
	}
	return spaced(n.text)
}

// spaced puts back the space before a unit that squeezed text has lost.
func spaced(s string) string {
	n := len(s)
	for n > 0 && (s[n-1] == 'm' || s[n-1] == 's') {
		n--
	}
	if n == len(s) {
		return s
	}
	return strings.TrimSpace(s[:n]) + " " + s[n:]
}

// showReadings shows rows with their separators.
func showReadings(rows []*row) string {
	var out []string
	for _, r := range rows[:min(4, len(rows))] {
		var parts []string
		for _, n := range r.n {
			parts = append(parts, show(n))
		}
		out = append(out, strings.Join(parts, " | "))
	}
	if len(rows) > 4 {
		out = append(out, "…")
	}
	return strings.Join(out, "; ")
}

func (h head) String() string { return fmt.Sprintf("%s × %d", h.label, h.requests) }

// ways says how many readings there are, and shows the first of them.
func ways[T any](n int, readings []T) string {
	if n == 0 {
		return "0 ways"
	}
	text := fmt.Sprintf("%d ways: %v", n, readings[0])
	for _, r := range readings[1:min(4, n)] {
		text += fmt.Sprintf("; %v", r)
	}
	return text
}

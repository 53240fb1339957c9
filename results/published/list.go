package published

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"speedmatrix/results/record"
)

// The list "All measurements": rows whose cells are apart, and rows that have lost
// their separators.

// listTable finds the table of all measurements.
func listTable(d *document, errs *mistakes) *table {
	sec := d.get(secList)
	for i := range sec.tables {
		t := &sec.tables[i]
		if len(t.header) > 0 && strings.HasPrefix(squeeze(t.header[0]), "Phase") {
			if len(t.rows) == 0 {
				errs.add(t.no, "the table %q has no rows", secList)
				return nil
			}
			return t
		}
	}
	errs.add(sec.no, "no table %q with the columns %s", secList, strings.Join(columnNames(), ", "))
	return nil
}

// readRows reads a table whose cells are apart.
func readRows(t *table, errs *mistakes) [][]*row {
	var at []int // column of the table for each column that we know
	for _, name := range columnNames() {
		i := slices.Index(t.header, name)
		if i < 0 {
			errs.add(t.no, "the table %q has no column %q", secList, name)
		}
		at = append(at, i)
	}
	if slices.Contains(at, -1) {
		return nil
	}
	var out [][]*row
	for _, tr := range t.rows {
		if len(tr.cells) < len(at) {
			errs.add(tr.no, "the row has %d cells, the table has %d columns", len(tr.cells), len(t.header))
			continue
		}
		cells := make([]cell, len(at))
		for i, col := range at {
			if col < len(tr.cells) {
				cells[i] = tr.cells[col]
			}
		}
		if r := readRow(tr.no, cells, errs); r != nil {
			out = append(out, []*row{r})
		}
	}
	return out
}

// readRow reads a row of twelve cells; nil if something in it is unreadable.
func readRow(no int, cells []cell, errs *mistakes) *row {
	r := &row{no: no}
	good := true
	bad := func(column int, what string) {
		errs.add(no, "%s: %q is no %s", columnNames()[column], clip(cells[column].text, 60), what)
		good = false
	}
	var rest string
	var ok bool
	if r.phase, rest, ok = cutPhase(squeeze(cells[0].text)); !ok || rest != "" {
		bad(0, "phase: Prefill or Sustained decode")
	}
	r.label = cells[1].text
	if r.context, ok = parseContext(r.label); !ok {
		bad(1, "context such as 0, 512 or 8K")
	}
	if r.requests, ok = parseRequests(strings.ReplaceAll(cells[2].text, ",", "")); !ok {
		bad(2, "number of requests")
	}
	if r.status, r.reason, ok = parseStatus(cells[3].text); !ok {
		bad(3, "status of the pages")
	}
	for m := range numMetrics {
		c := cells[4+m]
		if c.text == dash {
			if c.exact != "" {
				errs.add(no, "%s: nothing is printed but data-value is %q", columnNames()[4+m], c.exact)
				good = false
			}
			continue
		}
		n, ok := parseNumber(c.text, metrics[m].quantity)
		if !ok {
			bad(4+m, "number such as "+example(m))
			continue
		}
		if c.exact != "" {
			v, ok := parseExact(c.exact, c.text)
			if !ok || !same(n, number{value: v}) {
				errs.add(no, "%s: data-value %q does not round to %q", columnNames()[4+m], c.exact, c.text)
				good = false
				continue
			}
			n.value = v
		}
		r.n[m] = &n
	}
	if !good {
		return nil
	}
	return r
}

// parseExact reads a data-value: a plain decimal in the unit of the text beside
// it, K spelled out.
func parseExact(exact, text string) (float64, bool) {
	if strings.Trim(exact, "0123456789.") != "" {
		return 0, false
	}
	if strings.HasSuffix(text, "ms") {
		exact += "e-3"
	}
	v, err := strconv.ParseFloat(exact, 64)
	return v, err == nil
}

func example(m int) string {
	return [numMetrics]string{"2,777.1", "208.2", "56 ms", "4.8 ms", "127.4", "4", "83,240", "30.0 s"}[m]
}

// parseStatus reads the words of a status; what follows them is its reason:
// "Failed (engine_exit)".
func parseStatus(s string) (st record.Status, reason string, ok bool) {
	for _, st := range record.Statuses {
		rest, found := strings.CutPrefix(s, st.Words())
		if !found {
			continue
		}
		rest = strings.TrimSpace(rest)
		if rest == "" {
			return st, "", true
		}
		if inner, ok := strings.CutPrefix(rest, "("); ok {
			if inner, ok = strings.CutSuffix(inner, ")"); ok {
				return st, clip(inner, maxText), true
			}
		}
	}
	return "", "", false
}

// splitRows reads a list that has lost its separators: every reading of every
// row that the grammar and the axes allow, without those whose own numbers
// contradict each other if another reading is left.
func (p *Page) splitRows(d *document, t *table, h *headline, errs *mistakes) [][]*row {
	type part struct {
		no         int
		phase      string
		head, rest string // digits of context and requests, and what follows
		heads      []head
	}
	var parts []part
	decode := 0
	for _, tr := range t.rows {
		phase, rest, _ := cutPhase(tr.glued)
		if phase == record.PhaseDecode {
			decode++
		}
		n := 0
		for n < len(rest) && (isDigit(rest[n]) || rest[n] == 'K' || rest[n] == 'M') {
			n++
		}
		if len(tr.glued) > maxGlued || n > maxHead {
			errs.add(tr.no, "the row has %d bytes, %d of them for context and requests: more than a row can have", len(tr.glued), n)
			continue
		}
		parts = append(parts, part{tr.no, phase, rest[:n], rest[n:], splitHead(rest[:n])})
	}
	levels := concurrencies(d, decode, h, errs)
	if levels == nil {
		return nil
	}

	// A label belongs to the axis if the list has it at every concurrency.
	times := map[string]map[int]bool{}
	for _, pt := range parts {
		if pt.phase != record.PhaseDecode {
			continue
		}
		for _, hd := range pt.heads {
			if slices.Contains(levels, hd.requests) {
				if times[hd.label] == nil {
					times[hd.label] = map[int]bool{}
				}
				times[hd.label][hd.requests] = true
			}
		}
	}
	bars := map[string]bool{}
	for _, l := range d.get(secPrefill).lines {
		if label := barLabel(l.text); label != "" {
			bars[label] = true
		}
	}
	taken := map[record.Point]int{} // line
	out := make([][]*row, 0, len(parts))
	for _, pt := range parts {
		var heads []head
		for _, hd := range pt.heads {
			if pt.phase == record.PhaseDecode && slices.Contains(levels, hd.requests) && len(times[hd.label]) == len(levels) ||
				pt.phase == record.PhasePrefill && bars[hd.label] {
				heads = append(heads, hd)
			}
		}
		if len(heads) != 1 {
			errs.add(pt.no, "%q is context and requests, and can be read in %s with the axes of the page", pt.head, ways(len(heads), heads))
			continue
		}
		hd := heads[0]
		key := record.Point{Phase: pt.phase, ContextLabel: hd.label, Concurrency: hd.requests}
		if other, dup := taken[key]; dup {
			errs.add(pt.no, "context %s with %d requests already stands in line %d", hd.label, hd.requests, other)
		}
		taken[key] = pt.no
		status, numbers, ok := cutStatus(pt.rest)
		if !ok {
			errs.add(pt.no, "no known status in %q", clip(pt.rest, 120))
			continue
		}
		all, more := splitNumbers(numbers, &p.work)
		if len(all) == 0 || more {
			errs.add(pt.no, "the numbers of the row cannot be told apart: %q", clip(numbers, 120))
			continue
		}
		var rows []*row
		for _, n := range all {
			rows = append(rows, &row{no: pt.no, phase: pt.phase, label: hd.label, context: hd.context,
				requests: hd.requests, status: status, n: n})
		}
		// One reading alone is what the page says, even if it contradicts itself:
		// that is then a finding.
		if len(rows) > 1 {
			rows = slices.DeleteFunc(rows, func(r *row) bool { return !r.plausible() })
			if len(rows) == 0 {
				errs.add(pt.no, "the row can be read in %d ways, and in none is tokens ÷ time the total: %q", len(all), clip(numbers, 120))
			}
		}
		out = append(out, rows)
	}
	return out
}

// concurrencies reads the axis of requests from the matrix: its header is all
// levels without separators.
func concurrencies(d *document, decode int, h *headline, errs *mistakes) []int {
	for _, t := range d.get(secDecode).tables {
		digits := ""
		if n := len(t.header); n == 1 {
			digits = strings.TrimPrefix(t.header[0], "Context")
		} else if levels, ok := matrixHeader(t.header); ok {
			return levels
		}
		if len(t.rows) == 0 || digits == "" {
			continue
		}
		if decode%len(t.rows) != 0 {
			errs.add(t.no, "the list has %d rows of sustained decode, which is no multiple of the %d contexts of the matrix", decode, len(t.rows))
			return nil
		}
		all := splitAxis(digits, decode/len(t.rows))
		if h != nil {
			all = slices.DeleteFunc(all, func(a []int) bool {
				return len(a) != h.levels || a[0] != h.low || a[len(a)-1] != h.high
			})
		}
		if len(all) != 1 {
			errs.add(t.no, "%q are the numbers of requests, and can be read in %s", digits, ways(len(all), all))
			return nil
		}
		return all[0]
	}
	errs.add(d.get(secDecode).no, "the list has no separators, and there is no matrix to read the numbers of requests from")
	return nil
}

// matrixHeader reads the header of a matrix with separators.
func matrixHeader(header []string) ([]int, bool) {
	if len(header) < 2 || header[0] != "Context" {
		return nil, false
	}
	var levels []int
	for _, s := range header[1:] {
		n, ok := parseRequests(s)
		if !ok {
			return nil, false
		}
		levels = append(levels, n)
	}
	return levels, true
}

// plausible says whether the numbers of a row can be those of one measurement.
// It decides between readings only; it never rejects what a page clearly says.
func (r *row) plausible() bool {
	if total, tokens, t := r.n[mTotal], r.n[mTokens], r.n[mMeasured]; total != nil && tokens != nil && t != nil &&
		!totalFits(*total, *tokens, *t) {
		return false
	}
	if each, gap := r.n[mEach], r.n[mGap]; each != nil && gap != nil {
		if x := each.value * gap.value; x < 0.25 || x > 4 { // both are medians, so it need not be 1
			return false
		}
	}
	if done, tokens := r.n[mCompleted], r.n[mTokens]; done != nil && tokens != nil && tokens.value > 0 && done.value > tokens.value {
		return false
	}
	return r.n[mActive] == nil || r.n[mActive].value <= float64(r.requests)+r.n[mActive].half
}

// totalFits says whether some total, tokens and time that print like these are
// total = tokens ÷ time.
func totalFits(total, tokens, t number) bool {
	lo, hi := t.interval()
	least, most := tokens.value/hi, math.Inf(1) // a time that prints as 0 can be as short as one likes
	if lo > 0 {
		most = tokens.value / lo
	}
	a, b := total.interval()
	const slack = 1e-6
	return least*(1-slack) <= b && a <= most*(1+slack)
}

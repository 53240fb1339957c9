package published

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"speedmatrix/results/record"
)

// build makes a page of a document.
func (p *Page) build(d *document, errs *mistakes) {
	p.work = pageBudget
	h := p.readHead(d, errs)
	p.readFields(d, errs)
	p.readCommand(d, errs)
	for _, name := range []string{secPrefill, secDecode, secList} {
		for _, l := range d.get(name).lines {
			p.addFootnote(name, l.text)
		}
	}

	list := listTable(d, errs)
	if list == nil {
		return
	}
	if len(list.rows) > maxRows {
		errs.add(list.no, "%d rows are more than a page can have (%d)", len(list.rows), maxRows)
		return
	}
	before := len(errs.list) + errs.extra
	var readings [][]*row // of each row of the list
	if list.rows[0].cells != nil {
		readings = readRows(list, errs)
	} else {
		readings = p.splitRows(d, list, h, errs)
	}
	if len(errs.list)+errs.extra > before {
		return // what the rest of the page would say against the list follows from that
	}
	readings = p.matchBars(d, readings, errs)
	readings = p.matchMatrix(d, readings, errs)
	for _, rows := range readings {
		switch len(rows) {
		case 0: // said where it was lost
		case 1:
			p.rows = append(p.rows, rows[0])
		default:
			errs.add(rows[0].no, "the row can be read in %d ways and nothing on the page decides: %s",
				len(rows), showReadings(rows))
		}
	}
	p.checkHeadline(h)
}

// headline is what the line below the title says about the matrix.
type headline struct {
	no          int
	contexts    string // a number, maybe glued to what stands before it
	first, last string
	levels      int
	low, high   int
}

// readHead takes title, author and tool from what stands above the first
// section. Site navigation above the words "Speed test matrix" is not the page's.
func (p *Page) readHead(d *document, errs *mistakes) *headline {
	lines := d.head
	for i, l := range lines {
		if l.text == "Speed test matrix" {
			lines = lines[i+1:]
			break
		}
	}
	title := d.title
	if title == "" || title == "Speed test matrix" {
		if len(lines) == 0 {
			return nil
		}
		title, lines = lines[0].text, lines[1:]
	}
	if len(title) > maxText {
		errs.add(0, "the title has %d bytes, more than a title can have (%d)", len(title), maxText)
		return nil
	}
	p.Run.Title = title
	var h *headline
	for _, l := range lines {
		if g := parseHeadline(l); g != nil && h == nil {
			h = g
		}
		if author, tool, ok := parseByline(l.text); ok && p.Run.Author == "" {
			p.Run.Author = clip(author, maxText)
			p.Run.Load.BenchmarkTool = clip(tool, maxText)
		}
	}
	return h
}

// parseHeadline reads "… 6 contexts (0–248K) × 8 concurrency levels (1–128) …".
func parseHeadline(l line) *headline {
	before, rest, ok := strings.Cut(l.text, " contexts (")
	if !ok {
		if before, rest, ok = strings.Cut(l.text, " context ("); !ok {
			return nil
		}
	}
	axis, rest, ok := strings.Cut(rest, ") × ")
	if !ok {
		return nil
	}
	levels, rest, ok := strings.Cut(rest, " concurrency level")
	if !ok {
		return nil
	}
	_, rest, ok = strings.Cut(rest, "(")
	if !ok {
		return nil
	}
	span, _, ok := strings.Cut(rest, ")")
	if !ok {
		return nil
	}
	h := &headline{no: l.no, contexts: before}
	h.first, h.last = cutSpan(axis)
	lo, hi := cutSpan(span)
	var ok1, ok2, ok3 bool
	h.levels, ok1 = parseRequests(levels)
	h.low, ok2 = parseRequests(lo)
	h.high, ok3 = parseRequests(hi)
	if !ok1 || !ok2 || !ok3 {
		return nil
	}
	return h
}

// cutSpan splits "1–128"; a span of one value is that value twice.
func cutSpan(s string) (lo, hi string) {
	lo, hi, ok := strings.Cut(s, "–")
	if !ok {
		return s, s
	}
	return lo, hi
}

// hasContexts says whether the headline can mean n contexts. The number can be
// glued to the quantization before it.
func (h *headline) hasContexts(n int, quantization string) bool {
	text := strconv.Itoa(n)
	before, ok := strings.CutSuffix(h.contexts, text)
	if !ok {
		return false
	}
	if quantization != "" && strings.HasSuffix(strings.TrimRight(before, " ·"), quantization) {
		return true
	}
	return before == "" || !isDigit(before[len(before)-1])
}

// parseByline reads "by @name llm-inference-bench v0.8.0 Measured", spaces lost
// or not.
func parseByline(s string) (author, tool string, ok bool) {
	const name = "llm-inference-bench"
	s, ok = strings.CutPrefix(s, "by ")
	if !ok {
		return "", "", false
	}
	author, rest, ok := strings.Cut(s, name)
	author = strings.TrimRight(author, " ·")
	if !ok {
		author, _, _ = strings.Cut(s, " · ")
		return strings.TrimSpace(author), "", true
	}
	version := strings.TrimPrefix(strings.TrimSpace(rest), "v")
	n := 0
	for n < len(version) && (isDigit(version[n]) || version[n] == '.') {
		n++
	}
	if n == 0 {
		return author, "", true
	}
	return author, name + " v" + version[:n], true
}

// readFields fills the blocks about hardware, engine and run.
func (p *Page) readFields(d *document, errs *mistakes) {
	hw, en, lo := &p.Run.Hardware, &p.Run.Engine, &p.Run.Load
	targets := map[string]map[string]*string{
		secHardware: {"Type": &hw.Type, "GPU": &hw.GPU, "VRAM": &hw.VRAM, "CPU": &hw.CPU, "RAM": &hw.RAM, "OS": &hw.OS},
		secEngine: {"Engine": &en.Engine, "Version": &en.Version, "Quantization": &en.Quantization, "Backend": &en.Backend,
			"Repository": &en.Repository, "Build": &en.Build, "Commit": &en.Commit},
		secRun: {"Served model": &lo.ServedModel, "Model": &lo.Model, "Revision": &lo.Revision,
			"Benchmark tool": &lo.BenchmarkTool, "Decode test": &lo.DecodeTest, "Prefill mode": &lo.PrefillMode,
			"Time per measurement": &lo.TimePerMeasure, "Max output": &lo.MaxOutput},
	}
	for _, sec := range []string{secHardware, secEngine, secRun} {
		seen := map[string]bool{}
		for _, f := range d.get(sec).fields {
			if len(f.value) > maxText || len(f.label) > maxText {
				errs.add(f.no, "the field %s has %d bytes, more than a field can have (%d)", clip(f.label, 60), len(f.value), maxText)
				continue
			}
			target := targets[sec][f.label]
			switch {
			case f.value == dash || f.value == "":
			case target == nil:
				if len(p.Other) < 200 {
					p.Other = append(p.Other, record.Field{Label: f.label, Value: f.value})
				}
			case seen[f.label]:
				errs.add(f.no, "the field %s stands twice in the section %s", f.label, sec)
			default:
				*target = f.value
				seen[f.label] = true
				p.readQuantity(f, errs)
			}
		}
	}
}

// readQuantity reads the fields that are numbers.
func (p *Page) readQuantity(f field, errs *mistakes) {
	switch f.label {
	case "Time per measurement":
		n, ok := parseNumber(f.value, seconds)
		if !ok || n.value <= 0 || n.value > 7*24*3600 {
			errs.add(f.no, "time per measurement %q is no time such as 30 s", clip(f.value, 60))
			return
		}
		p.Experiment.Duration = time.Duration(n.value * float64(time.Second)).Round(time.Millisecond)
	case "Max output":
		text, _, _ := strings.Cut(f.value, " ")
		n, ok := parseNumber(text, count)
		if !ok || n.value < 1 || n.value > maxContext {
			errs.add(f.no, "max output %q is no number of tokens such as 4,096 tokens", clip(f.value, 60))
			return
		}
		p.Experiment.MaxOutput = int(n.value)
	}
}

// readCommand keeps the launch command word for word.
func (p *Page) readCommand(d *document, errs *mistakes) {
	s := d.get(secCommand)
	text := strings.Trim(strings.Join(s.code, "\n"), "\n")
	text = strings.TrimRight(text, " \t\n")
	if len(text) > maxCommand {
		errs.add(s.no, "the launch command has %d bytes, more than a command can have (%d)", len(text), maxCommand)
		return
	}
	p.Run.Command.Text = text
	for l := range strings.Lines(text) {
		if c, ok := strings.CutPrefix(strings.TrimSpace(l), "#"); ok {
			p.Run.Command.Comments = append(p.Run.Command.Comments, strings.TrimSpace(c))
		}
	}
}

// addFootnote keeps a sentence that stands beside the tables.
func (p *Page) addFootnote(sec, text string) {
	if l := lead(sec); l != "" && strings.HasPrefix(text, l) || !strings.HasSuffix(text, ".") || len(text) > maxText ||
		len(p.Footnotes) >= 100 || slices.Contains(p.Footnotes, text) {
		return
	}
	p.Footnotes = append(p.Footnotes, text)
}

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

// matchMatrix holds the matrix against the decode rows of the list, and drops
// readings of the list that the matrix rules out.
func (p *Page) matchMatrix(d *document, readings [][]*row, errs *mistakes) [][]*row {
	type key struct {
		label    string
		requests int
	}
	at, repeated := map[key]int{}, map[key]bool{}
	var labels []string
	var levels []int
	for i, rows := range readings {
		if len(rows) == 0 || rows[0].phase != record.PhaseDecode {
			continue
		}
		r := rows[0]
		k := key{r.label, r.requests}
		if _, ok := at[k]; ok {
			repeated[k] = true // the matrix shows the middle of them
		}
		at[k] = i
		if !slices.Contains(labels, r.label) {
			labels = append(labels, r.label)
		}
		if !slices.Contains(levels, r.requests) {
			levels = append(levels, r.requests)
		}
	}
	for _, t := range d.get(secDecode).tables {
		if len(t.header) == 1 && t.header[0] == "Context"+joinInts(levels, "") {
			for _, tr := range t.rows {
				if len(tr.glued) > maxGlued {
					errs.add(tr.no, "the row has %d bytes, more than a row can have (%d)", len(tr.glued), maxGlued)
					continue
				}
				fits := map[string][][]*row{}
				for _, label := range labels {
					rest, ok := strings.CutPrefix(tr.glued, label)
					if !ok {
						continue
					}
					var cells [][]*row
					for _, c := range levels {
						if i, ok := at[key{label, c}]; ok {
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
					continue
				}
				for label, fit := range fits {
					for j, c := range levels {
						readings[at[key{label, c}]] = fit[j]
					}
				}
			}
			continue
		}
		header, ok := matrixHeader(t.header)
		if !ok {
			continue
		}
		for _, tr := range t.rows {
			if len(tr.cells) != len(header)+1 {
				if d.glued {
					errs.add(tr.no, "the row of the matrix has %d cells, its header has %d", len(tr.cells), len(header)+1)
				}
				continue
			}
			for j, c := range header {
				k := key{tr.cells[0].text, c}
				i, ok := at[k]
				if repeated[k] {
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
	}
	return readings
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

package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"speedmatrix/report/internal/group"
	"speedmatrix/report/internal/stats"
	"speedmatrix/report/plain"
	"speedmatrix/report/unit"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// column is one number of a cell on a page: which metric, by phase, and how it
// is written.
type column struct {
	label   string
	decode  string // metric; empty: the phase has none
	prefill string
	factor  float64 // from the metric's unit to the text's
	format  unit.Format
}

func (c column) metric(phase string) string {
	if phase == record.PhasePrefill {
		return c.prefill
	}
	return c.decode
}

// columns are the numbers of the published pages, in one of the two scopes.
type columns struct {
	total, request, ttft, tpot, active, completed, tokens, seconds column
}

// columnsOf returns the reference tool's scope, or our own.
func columnsOf(reference bool) columns {
	pick := func(name string) string {
		if m, ok := metric.ByName(name); reference && ok {
			return m.Twin
		}
		return name
	}
	return columns{
		total:     column{"Total tok/s", pick(metric.OutputTokensPerSecond), pick(metric.PrefillTokensPerSecond), 1, unit.Rate},
		request:   column{"Per request tok/s", pick(metric.RequestTokensPerSecond), "", 1, unit.Rate},
		ttft:      column{"TTFT", pick(metric.TTFT), pick(metric.TTFT), 1000, unit.Milliseconds},
		tpot:      column{"Time between tokens", pick(metric.TPOT), "", 1000, unit.FineMilliseconds},
		active:    column{"Average active requests", pick(metric.ActiveRequests), "", 1, unit.Tenths},
		completed: column{"Completed requests", pick(metric.CompletedRequests), pick(metric.CompletedRequests), 1, unit.Count},
		tokens:    column{"Output tokens", pick(metric.OutputTokens), "", 1, unit.Count},
		seconds:   column{"Measured for", pick(metric.WindowSeconds), "", 1, unit.Seconds},
	}
}

func (c columns) list() []column {
	return []column{c.total, c.request, c.ttft, c.tpot, c.active, c.completed, c.tokens, c.seconds}
}

// noFirstToken is the column of ours that stands beside the published ones: TTFT
// says nothing of these requests.
func noFirstToken() column {
	return column{"No first token", metric.NoFirstTokenRequests, metric.NoFirstTokenRequests, 1, unit.Count}
}

// extraColumns are the numbers of ours that the published pages have not. Each
// is shown if any trial has it.
func extraColumns() []column {
	both := func(label, name string, factor float64, f unit.Format) column {
		return column{label, name, name, factor, f}
	}
	return []column{
		both("Prompt tokens", metric.PromptTokens, 1, unit.Count),
		both("TTFT n", metric.TTFTN, 1, unit.Count),
		both("TTFT p90", metric.TTFTP90, 1000, unit.Milliseconds),
		both("TTFT, launch wave", metric.TTFTWave, 1000, unit.Milliseconds),
		both("TTFT, steady", metric.TTFTSteady, 1000, unit.Milliseconds),
		both("Time between tokens p90", metric.TPOTP90, 1000, unit.FineMilliseconds),
		both("Waiting share", metric.WaitingRatio, 100, unit.Percent),
		both("Most waiting requests", metric.WaitingMax, 1, unit.Count),
		both("Failed requests", metric.FailedRequests, 1, unit.Count),
		both("Preemptions", metric.Preemptions, 1, unit.Count),
		both("Prompt cache share", metric.PrefixHitRatio, 100, unit.Percent),
		both("Tokens per chunk", metric.TokensPerChunkMean, 1, unit.Ratio),
		both("Client lag p99", metric.ClientLagP99, 1000, unit.FineMilliseconds),
		both("Client CPU share", metric.ClientCPU, 100, unit.Percent),
	}
}

// of returns a trial's number in a column.
func (c column) of(t *record.Cell) Number {
	name := c.metric(t.Phase)
	if name == "" {
		return unit.Absent()
	}
	v, ok := t.Value(name)
	if !ok {
		return unit.Absent()
	}
	return c.format(v * c.factor)
}

// sample describes a column over a cell's trials. Trials whose status has no
// numbers do not count; what a published page printed beside such a status stays
// in the list of measurements.
func (b *builder) sample(c group.Cell, col column) (stats.Sample, bool) {
	var values []float64
	for i := range c.Trials {
		t := &c.Trials[i]
		if v, ok := t.Value(col.metric(t.Phase)); ok && metric.HasNumbers(t.Status) {
			values = append(values, v*col.factor)
		}
	}
	return stats.Of(values)
}

// number is the middle of a column over a cell's trials.
func (b *builder) number(c group.Cell, col column) Number {
	s, ok := b.sample(c, col)
	if !ok {
		return unit.Absent()
	}
	return col.format(s.Median)
}

func (b *builder) spread(c group.Cell, col column, format unit.Format) *Spread {
	s, ok := b.sample(c, col)
	if !ok || s.N < 2 {
		return nil
	}
	lo, hi := format(s.Lowest), format(s.Highest)
	return &Spread{N: s.N, Lowest: lo, Highest: hi,
		Text: fmt.Sprintf("median of %d, %s to %s (%.1f %%)", s.N, lo.Text, hi.Text, 100*s.SpreadRatio)}
}

// statusWords says how a cell ended; empty if every trial is valid.
func statusWords(c group.Cell) string {
	var kinds []record.Status
	count := make(map[record.Status]int)
	for _, t := range c.Trials {
		if count[t.Status]++; count[t.Status] == 1 {
			kinds = append(kinds, t.Status)
		}
	}
	var words []string
	for _, k := range kinds {
		switch {
		case k == record.Valid:
		case len(kinds) == 1:
			words = append(words, plain.Line(k.Words()))
		default:
			words = append(words, fmt.Sprintf("%s (%d of %d)", plain.Line(k.Words()), count[k], len(c.Trials)))
		}
	}
	return strings.Join(words, ", ")
}

func (b *builder) prefill() *Prefill {
	p := &Prefill{Caption: b.say("prompt tok/s by context length"), Axis: b.say("prompt tok/s, higher is better")}
	prompt := column{prefill: metric.PromptTokens, factor: 1, format: unit.Count}
	rate := b.cols.total
	rate.format = unit.BarRate
	for _, c := range b.cells {
		if c.Phase != record.PhasePrefill {
			continue
		}
		p.Bars = append(p.Bars, Bar{
			Anchor: b.anchors[c.Point], Context: c.ContextLabel,
			Rate: b.number(c, rate), TTFT: b.number(c, b.cols.ttft), PromptTokens: b.number(c, prompt),
			Status: statusWords(c), Spread: b.spread(c, rate, unit.BarRate),
		})
	}
	if len(p.Bars) == 0 {
		return nil
	}
	return p
}

// logFrom is the span of values from which colours and axes are logarithmic.
const logFrom = 20

func (b *builder) matrix() *Matrix {
	labels, concurrency := b.contexts(record.PhaseDecode)
	if len(labels) == 0 {
		return nil
	}
	m := &Matrix{Caption: b.say("total tok/s · rows are context length, columns are simultaneous requests")}
	at := make(map[record.Point]group.Cell)
	for _, c := range b.cells {
		if c.Phase == record.PhaseDecode {
			// Two lengths may share a label only on a page that does not add up; the
			// first then stands in the matrix, and both in the list.
			key := record.Point{ContextLabel: c.ContextLabel, Concurrency: c.Concurrency}
			if _, taken := at[key]; !taken {
				at[key] = c
			}
		}
	}
	for _, n := range concurrency {
		m.Columns = append(m.Columns, unit.Decimal(float64(n), 0))
	}
	shown := []struct {
		HeatMetric
		col column
	}{
		{HeatMetric{Key: "total", Label: "Total", Unit: "tok/s"}, b.cols.total},
		{HeatMetric{Key: "request", Label: "Per request", Unit: "tok/s"}, b.cols.request},
		{HeatMetric{Key: "ttft", Label: "TTFT", Unit: "ms", LowerIsBetter: true}, b.cols.ttft},
		{HeatMetric{Key: "tpot", Label: "Time between tokens", Unit: "ms", LowerIsBetter: true}, b.cols.tpot},
	}
	var ends [][2]float64 // lowest and highest of each metric
	for _, s := range shown {
		lo, hi := math.Inf(1), math.Inf(-1)
		for _, c := range at {
			if v, ok := b.sample(c, s.col); ok {
				lo, hi = min(lo, v.Median), max(hi, v.Median)
			}
		}
		s.Lowest, s.Highest = s.col.format(lo), s.col.format(hi)
		s.Log = spansFar(lo, hi)
		m.Metrics = append(m.Metrics, s.HeatMetric)
		ends = append(ends, [2]float64{lo, hi})
	}
	for _, label := range labels {
		row := MatrixRow{Context: label}
		if label == "0" {
			row.Why = b.contextWhy(label)
		}
		for _, n := range concurrency {
			c, ok := at[record.Point{ContextLabel: label, Concurrency: n}]
			if !ok {
				row.Cells = append(row.Cells, MatrixCell{Values: absentValues(len(shown))})
				continue
			}
			cell := MatrixCell{Anchor: b.anchors[c.Point], Status: statusWords(c), Spread: b.spread(c, b.cols.total, b.cols.total.format)}
			cell.Hatch = cell.Status != ""
			cell.TTFTOf, cell.Flag = ttftOf(c), b.flag(c)
			for i, s := range shown {
				v := HeatValue{Number: unit.Absent()}
				if smp, ok := b.sample(c, s.col); ok {
					v.Number = s.col.format(smp.Median)
					v.Heat = heat(smp.Median, ends[i][0], ends[i][1], m.Metrics[i])
				}
				cell.Values = append(cell.Values, v)
			}
			row.Cells = append(row.Cells, cell)
		}
		m.Rows = append(m.Rows, row)
	}
	return m
}

// ttftOf says of how many requests a cell's TTFT is, "8 of 16", if some got no
// first token.
func ttftOf(c group.Cell) string {
	with, without := 0.0, 0.0
	for i := range c.Trials {
		t := &c.Trials[i]
		n, known := t.Value(metric.TTFTN)
		none, ok := t.Value(metric.NoFirstTokenRequests)
		if known && ok && metric.HasNumbers(t.Status) {
			with, without = with+n, without+none
		}
	}
	if without <= 0 || with <= 0 {
		return ""
	}
	return unit.Decimal(with, 0) + " of " + unit.Decimal(with+without, 0)
}

func absentValues(n int) []HeatValue {
	out := make([]HeatValue, n)
	for i := range out {
		out[i].Number = unit.Absent()
	}
	return out
}

func spansFar(lo, hi float64) bool { return lo > 0 && !math.IsInf(hi, 0) && hi > logFrom*lo }

// heat places v on a metric's scale from lo to hi, 1 best. Where all values are
// equal there is nothing to tell apart, and all are in the middle.
func heat(v, lo, hi float64, m HeatMetric) *float64 {
	if m.Log {
		v, lo, hi = math.Log(v), math.Log(lo), math.Log(hi)
	}
	h := 0.5
	if hi > lo {
		h = min(max((v-lo)/(hi-lo), 0), 1)
	}
	if m.LowerIsBetter {
		h = 1 - h
	}
	return &h
}

func (b *builder) scaling() *Scaling {
	labels, concurrency := b.contexts(record.PhaseDecode)
	if len(concurrency) < 2 {
		return nil
	}
	s := &Scaling{
		Title: b.say("Total tok/s over simultaneous requests, one line a context"),
		XAxis: "simultaneous requests (log scale)",
	}
	doubles := true
	for i, n := range concurrency {
		doubles = doubles && (i == 0 || n == 2*concurrency[i-1])
	}
	if doubles {
		s.XAxis = "simultaneous requests (each step doubles)"
	}
	x := func(n int) float64 { return math.Log2(float64(max(n, 1))) }
	for _, n := range concurrency {
		s.Ticks = append(s.Ticks, ScalingTick{x(n), unit.Decimal(float64(n), 0)})
	}
	lo, hi, numbers := math.Inf(1), math.Inf(-1), 0
	var ends []string
	for _, label := range labels {
		line := ScalingLine{Context: label}
		var last string
		for _, n := range concurrency {
			p := ScalingPoint{X: x(n)}
			i := slices.IndexFunc(b.cells, func(c group.Cell) bool {
				return c.Phase == record.PhaseDecode && c.ContextLabel == label && c.Concurrency == n
			})
			if i >= 0 {
				if v, ok := b.sample(b.cells[i], b.cols.total); ok {
					p.V, p.Lo, p.Hi, p.Known = v.Median, v.Lowest, v.Highest, true
					text := unit.Rate(v.Median).Text + " tok/s"
					p.Text = fmt.Sprintf("%s at %s", text, plural(n, "request", "requests"))
					if w := statusWords(b.cells[i]); w != "" {
						p.Text += ", " + w
					}
					p.Text = b.say(p.Text)
					last = fmt.Sprintf("%s: %s at %d", label, text, n)
					lo, hi, numbers = min(lo, v.Lowest), max(hi, v.Highest), numbers+1
				}
			}
			line.Points = append(line.Points, p)
		}
		if last != "" {
			ends = append(ends, last)
		}
		s.Lines = append(s.Lines, line)
	}
	if numbers == 0 {
		return nil
	}
	s.Log = spansFar(lo, hi)
	s.YAxis = "total tok/s, higher is better"
	if s.Log {
		s.YAxis = "total tok/s (log scale), higher is better"
	}
	s.YAxis = b.say(s.YAxis)
	s.Desc = "The last point of each line. " + strings.Join(ends, "; ") + ". All values are in the table of sustained decode."
	return s
}

const latencyLead = "Latencies are medians. Total tok/s is output across all simultaneous requests."

const prefillLead = " In prefill rows it is prompt tokens."

func (b *builder) measurements() *Table {
	if len(b.trials) == 0 {
		return nil
	}
	t := b.table(b.cols.list())
	t.ID, t.Caption, t.Lead = "measurements", b.say("All measurements"), latencyLead
	if labels, _ := b.contexts(record.PhasePrefill); len(labels) > 0 {
		t.Lead += prefillLead
	}
	for i := range t.Rows {
		t.Rows[i].Anchor = b.anchors[b.trials[i].Point]
		if n := b.seenBefore(i); n > 0 {
			t.Rows[i].Anchor += fmt.Sprintf("-r%d", n+1)
		}
	}
	if b.run.Kind != record.Published {
		t.Lead += " Every number of a decode cell is over its window; TTFT is over the requests launched for the cell and their successors."
		b.addTexts(t, "Reason", "No first token", "Repeat", "Warnings")
	}
	return t
}

// more is the list of what few readers need: the same rows, in further columns.
func (b *builder) more() *Table {
	if b.run.Kind == record.Published || len(b.trials) == 0 {
		return nil
	}
	t := b.table(nil)
	t.ID, t.Caption, t.Lead = "more", b.say("More per cell"), "The same rows as above, in further columns."
	n := len(t.Columns)
	b.addExtra(t)
	if len(t.Columns) == n {
		return nil
	}
	return t
}

// seenBefore counts the trials of the same cell above row i.
func (b *builder) seenBefore(i int) int {
	n := 0
	for _, t := range b.trials[:i] {
		if t.Point == b.trials[i].Point {
			n++
		}
	}
	return n
}

// reference is the list as the reference tool would print it from the same
// events, for a like-for-like look at a published page.
func (b *builder) reference() *Table {
	cols := columnsOf(true)
	if b.run.Kind == record.Published || !slices.ContainsFunc(b.trials, func(c record.Cell) bool {
		return slices.ContainsFunc(cols.list(), func(k column) bool { return k.of(&c).Known() })
	}) {
		return nil
	}
	t := b.table(cols.list())
	t.ID = "reference"
	t.Caption = b.say("The same events in the reference tool's scope")
	t.Lead = "What llm-inference-bench would print: whole-cell latencies, completed requests since launch, tokens credited when their usage arrives. Compare these, not the numbers above, with a page made by that tool."
	return t
}

// table is a list with a row a trial, and these columns beside what names it.
func (b *builder) table(list []column) *Table {
	t := &Table{Columns: []Column{
		{Label: "Phase"}, {Label: "Context", Numeric: true}, {Label: "Requests at once", Numeric: true}, {Label: "Status"},
	}}
	for _, c := range list {
		t.Columns = append(t.Columns, Column{Label: c.label, Why: why(c), Numeric: true})
	}
	for i := range b.trials {
		c := &b.trials[i]
		row := Row{Fields: []Number{
			{Text: plain.Line(record.PhaseWords(c.Phase))},
			{Text: c.ContextLabel, Exact: fmt.Sprint(c.ContextTokens)},
			unit.Count(float64(c.Concurrency)),
			{Text: plain.Line(c.Status.Words())},
		}}
		if slices.Contains(record.Statuses, c.Status) {
			row.Status = c.Status
		}
		for _, col := range list {
			row.Fields = append(row.Fields, col.of(c))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// addExtra adds the columns that the published pages have not.
func (b *builder) addExtra(t *Table) {
	for _, col := range extraColumns() {
		var fields []Number
		for i := range b.trials {
			fields = append(fields, col.of(&b.trials[i]))
		}
		if slices.ContainsFunc(fields, Number.Known) {
			t.add(Column{Label: col.label, Why: why(col), Numeric: true}, fields)
		}
	}
	b.addTexts(t, "Repeat", "Launch", "Token source")
}

// addTexts adds those of our columns of words, and of numbers that name a trial,
// that have something to tell, in the order of their labels here.
func (b *builder) addTexts(t *Table, labels ...string) {
	_, most := b.repeats()
	for _, label := range labels {
		column := Column{Label: label}
		var of func(*record.Cell) Number
		switch label {
		case "Reason":
			of = func(c *record.Cell) Number {
				parts := []string{plain.Line(string(c.FailureKind)), reasonWords(plain.Line(c.Reason))}
				return text(strings.Join(slices.Compact(slices.DeleteFunc(parts, func(s string) bool { return s == "" })), ": "))
			}
		case "Warnings":
			of = func(c *record.Cell) Number { return text(strings.Join(c.Warnings, "; ")) }
		case "No first token":
			col := noFirstToken()
			column.Why, column.Numeric = why(col), true
			of = func(c *record.Cell) Number { return col.of(c) }
		case "Repeat":
			column.Numeric = true
			of = func(c *record.Cell) Number {
				if most < 2 {
					return unit.Absent()
				}
				return unit.Count(float64(c.Repeat))
			}
		case "Launch":
			column.Numeric = true
			of = func(c *record.Cell) Number {
				if c.Launch == 0 || len(b.run.Launches) < 2 {
					return unit.Absent()
				}
				return unit.Count(float64(c.Launch))
			}
		case "Token source":
			column.Why = "where the counts of output tokens come from"
			of = func(c *record.Cell) Number { return text(tokenWords(c.TokenSource)) }
		}
		var fields []Number
		told := false
		for i := range b.trials {
			f := of(&b.trials[i])
			told = told || f.Text != unit.Dash
			fields = append(fields, f)
		}
		if told {
			t.add(column, fields)
		}
	}
}

// reasonWords writes a reason that is a word of the record as people say it.
func reasonWords(reason string) string {
	switch reason {
	case record.ReasonPredicted:
		return "predicted from the KV cache size"
	case record.ReasonNoOutput:
		return "sent, and not one token came"
	}
	return reason
}

// tokenWords says where counts of output tokens come from.
func tokenWords(source string) string {
	switch source {
	case record.TokensRunning:
		return "the server's usage while it streamed"
	case record.TokensFinal:
		return "the server's usage at the end"
	case record.TokensRetokenise:
		return "the text, counted by the server's tokenizer"
	case record.TokensUnknown:
		return "not known"
	case record.TokensPublished:
		return "the published page"
	}
	return source
}

func text(s string) Number { return Number{Text: cmp.Or(plain.Line(s), unit.Dash)} }

func (t *Table) add(c Column, fields []Number) {
	c.Extra = true
	t.Columns = append(t.Columns, c)
	for i := range t.Rows {
		t.Rows[i].Fields = append(t.Rows[i].Fields, fields[i])
	}
}

// why is the definition of a column's metric.
func why(c column) string {
	m, ok := metric.ByName(cmp.Or(c.decode, c.prefill))
	if !ok {
		return ""
	}
	if p, ok := metric.ByName(c.prefill); ok && c.decode != "" && c.prefill != c.decode {
		return "decode: " + m.Definition + "; prefill: " + p.Definition
	}
	return m.Definition
}

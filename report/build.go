package report

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"speedmatrix/report/internal/group"
	"speedmatrix/report/plain"
	"speedmatrix/report/unit"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// maxCells bounds a page; the largest matrix anyone reads is far smaller.
const maxCells = 20_000

// Build makes the page of a run.
func Build(src Source) (*Page, error) {
	run := src.Record()
	var trials []record.Cell
	for c, err := range src.Cells() {
		if err != nil {
			return nil, fmt.Errorf("read cells of run %q: %w", run.ID, err)
		}
		if len(trials) == maxCells {
			return nil, fmt.Errorf("run %q has more than %d cells, too many for a page", run.ID, maxCells)
		}
		c.ContextLabel = plain.Line(c.ContextLabel)
		if c.ContextLabel == "" {
			c.ContextLabel = unit.Decimal(float64(c.ContextTokens), 0)
		}
		trials = append(trials, c)
	}
	slices.SortStableFunc(trials, func(a, b record.Cell) int { return cmp.Compare(a.Seq, b.Seq) })

	b := builder{run: run, trials: trials, anchors: make(map[record.Point]string)}
	b.cells = group.Cells(trials)
	b.cols = columnsOf(run.Kind == record.Published)
	b.nameAnchors()
	b.found = b.findings()

	p := &Page{
		RunID:     plain.Line(run.ID),
		Title:     cmp.Or(plain.Line(run.Title), plain.Line(run.Name), plain.Line(run.ID), "Run without a title"),
		Subject:   dots(run.Engine.Engine, run.Engine.Version, run.Engine.Quantization),
		Axes:      b.axes(),
		Byline:    b.byline(),
		Simulated: run.Kind == record.Simulated,
		Marks:     b.marks(),
		Headlines: b.headlines(),
		Repeats:   b.repeatWords(),
		Facts:     b.facts(),
		Command:   b.command(),
		Prefill:   b.prefill(),
		Decode:    b.matrix(),
		Legend:    b.legend(),
		Scaling:   b.scaling(),
		Findings:  b.found,
		Notes:     plain.Block(run.Notes),

		Measurements: b.measurements(),
		More:         b.more(),
		Reference:    b.reference(),

		Environment: b.environment(),
		Launches:    b.launches(),
		Plan:        b.plan(),
		Downloads:   b.downloads(),
		Again:       plain.Block(run.Again),
	}
	for _, s := range run.Unpinned {
		p.Unpinned = append(p.Unpinned, plain.Line(s))
	}
	return p, nil
}

// builder holds what the parts of a page share.
type builder struct {
	run     record.Run
	trials  []record.Cell // page order
	cells   []group.Cell  // page order, repeats together
	cols    columns
	anchors map[record.Point]string
	found   []Finding
}

// say adds to a caption that its numbers are simulated.
func (b *builder) say(caption string) string {
	if b.run.Kind == record.Simulated {
		return caption + " · SIMULATED"
	}
	return caption
}

// nameAnchors gives each cell an anchor that stays the same when cells are added:
// decode-8k-c16, prefill-64k.
func (b *builder) nameAnchors() {
	used := make(map[string]bool)
	for _, c := range b.cells {
		phase := "other" // so that no anchor is one of the page's own
		if c.Phase == record.PhasePrefill || c.Phase == record.PhaseDecode {
			phase = c.Phase
		}
		name := phase + "-" + slug(c.ContextLabel)
		if c.Phase != record.PhasePrefill || c.Concurrency != 1 {
			name += "-c" + strconv.Itoa(c.Concurrency)
		}
		unique := name
		for n := 2; used[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", name, n)
		}
		used[unique] = true
		b.anchors[c.Point] = unique
	}
}

// slug keeps letters and digits, in lower case.
func slug(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, s)
	s = strings.Trim(s, "-")
	if s == "" {
		return "x"
	}
	return s[:min(len(s), 40)]
}

// contexts returns the contexts of a phase by length, and its concurrencies.
func (b *builder) contexts(phase string) (labels []string, concurrency []int) {
	type context struct {
		tokens int
		label  string
	}
	var all []context
	for _, c := range b.cells {
		if c.Phase != phase {
			continue
		}
		if k := (context{c.ContextTokens, c.ContextLabel}); !slices.Contains(all, k) {
			all = append(all, k)
		}
		if !slices.Contains(concurrency, c.Concurrency) {
			concurrency = append(concurrency, c.Concurrency)
		}
	}
	slices.SortStableFunc(all, func(a, b context) int { return cmp.Compare(a.tokens, b.tokens) })
	for _, c := range all {
		if !slices.Contains(labels, c.label) {
			labels = append(labels, c.label)
		}
	}
	slices.Sort(concurrency)
	return labels, concurrency
}

func (b *builder) axes() string {
	var parts []string
	if labels, conc := b.contexts(record.PhaseDecode); len(labels) > 0 {
		levels := make([]string, len(conc))
		for i, c := range conc {
			levels[i] = strconv.Itoa(c)
		}
		parts = append(parts, fmt.Sprintf("%s × %s",
			span(labels, "context", "contexts"), span(levels, "concurrency level", "concurrency levels")))
	}
	if labels, _ := b.contexts(record.PhasePrefill); len(labels) > 0 {
		parts = append(parts, "prefill at "+strings.Join(labels, ", "))
	}
	return strings.Join(parts, " · ")
}

// span writes "6 contexts (8K–251K)".
func span(labels []string, one, many string) string {
	if len(labels) == 1 {
		return fmt.Sprintf("1 %s (%s)", one, labels[0])
	}
	return fmt.Sprintf("%d %s (%s–%s)", len(labels), many, labels[0], labels[len(labels)-1])
}

func (b *builder) byline() []string {
	var line []string
	if a := plain.Line(b.run.Author); a != "" {
		line = append(line, "by "+a)
	}
	tool := plain.Line(strings.TrimSpace(b.run.Tool.Name + " " + b.run.Tool.Version))
	if t := plain.Line(b.run.Load.BenchmarkTool); b.run.Kind == record.Published && t != "" {
		tool = t
	}
	if tool != "" {
		line = append(line, tool)
	}
	if !b.run.StartedAt.IsZero() {
		what := "started "
		if b.run.Kind == record.Published {
			what = "imported "
		}
		line = append(line, what+stamp(b.run.StartedAt))
	}
	return line
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 UTC") }

func (b *builder) marks() []Mark {
	var m []Mark
	switch b.run.Kind {
	case record.Simulated:
		m = append(m, Mark{"SIMULATED", "Every number on this page comes from the embedded simulator, not from a real engine.", ToneCaution, ""})
	case record.Published:
		why := "Read from a published page; nothing on this page was measured here."
		if s := plain.Line(b.run.Source); s != "" {
			why = "Read from the published page " + s + "; nothing on this page was measured here."
		}
		m = append(m, Mark{"PUBLISHED", why, ToneNeutral, ""})
	case record.Measured:
		m = append(m, Mark{"MEASURED", "Measured on a real engine by the program named on this page.", ToneGood, ""})
	}
	if n := len(b.run.Unpinned); n > 0 {
		m = append(m, Mark{"UNPINNED", plural(n, "part", "parts") + " of this run can change before it is made again; see Plan and method.", ToneCaution, ""})
	} else if b.run.Kind != record.Published && b.run.PlanDigest != "" {
		m = append(m, Mark{"PINNED", "The plan holds no tag, branch or default.", ToneGood, ""})
	}
	if b.run.Interrupted {
		m = append(m, Mark{"INTERRUPTED", "The run was ended before all cells were measured.", ToneCaution, ""})
	}
	if n := len(b.run.Launches); n > 1 {
		text, why := fmt.Sprintf("%d LAUNCHES", n), "The engine was started more than once; cells of one launch share its state."
		if !slices.ContainsFunc(b.run.Launches, func(l record.Launch) bool { return l.Executor != attached }) {
			text, why = fmt.Sprintf("MEASURED IN %d SESSIONS", n), "The server was there already and was measured in more than one sitting; it was not started for them, and may have changed between them."
		}
		m = append(m, Mark{text, why, ToneCaution, "#launches"})
	}
	if lo, hi := b.repeats(); hi > 0 {
		text, why := fmt.Sprintf("n = %d", hi), "Each cell was measured that many times."
		switch {
		case hi == 1:
			why = "Each cell was measured once, so no spread is known."
		case lo != hi:
			text, why = fmt.Sprintf("n = %d–%d", lo, hi), "How often a cell was measured; the median is shown."
		}
		m = append(m, Mark{text, why, ToneNeutral, ""})
	}
	limited := 0
	for _, t := range b.trials {
		if t.Status == record.ClientLimited {
			limited++
		}
	}
	if limited > 0 {
		m = append(m, Mark{"CLIENT LIMITED", plural(limited, "trial was", "trials were") + " limited by this client, not by the engine.", ToneCaution, ""})
	}
	if n := len(b.run.Findings); n > 0 && len(b.found) > 0 {
		m = append(m, Mark{plural(n, "FINDING", "FINDINGS"), "What does not add up, and what limits the numbers, is listed on this page.", ToneCaution, "#findings"})
	}
	return m
}

// attached is the executor of a server that was there already.
const attached = "attach"

// repeatWords says how often each cell was measured.
func (b *builder) repeatWords() string {
	lo, hi := b.repeats()
	switch {
	case hi == 0:
		return ""
	case hi == 1:
		return "n = 1: each cell was measured once; there is no spread."
	case lo == hi:
		return fmt.Sprintf("n = %d: each cell was measured %d times; the median is shown.", hi, hi)
	}
	return fmt.Sprintf("n = %d–%d: cells were measured %d to %d times; the median is shown.", lo, hi, lo, hi)
}

// repeats returns the smallest and the largest number of trials of a cell.
func (b *builder) repeats() (lo, hi int) {
	for i, c := range b.cells {
		n := len(c.Trials)
		if i == 0 || n < lo {
			lo = n
		}
		hi = max(hi, n)
	}
	return lo, hi
}

func (b *builder) headlines() []Headline {
	type best struct {
		cell  group.Cell
		value float64
	}
	pick := func(ok func(group.Cell) bool, better func(a, b best) bool) *best {
		var found *best
		for _, c := range b.cells {
			if !ok(c) {
				continue
			}
			s, known := b.sample(c, b.cols.total)
			if !known {
				continue
			}
			if k := (best{c, s.Median}); found == nil || better(k, *found) {
				found = &k
			}
		}
		return found
	}
	larger := func(a, b best) bool { return a.value > b.value }
	is := func(phase string, valid bool) func(group.Cell) bool {
		return func(c group.Cell) bool { return c.Phase == phase && (!valid || statusWords(c) == "") }
	}
	// A number that nothing is said against comes first; one that has to be read
	// with care stands only where there is no other, and with its words.
	top, topLabel := pick(is(record.PhaseDecode, true), larger), "Highest decode total"
	queued := pick(func(c group.Cell) bool {
		return c.Phase == record.PhaseDecode && slices.ContainsFunc(c.Trials, func(t record.Cell) bool { return t.Status == record.Queued })
	}, larger)
	switch {
	case top == nil:
		top = pick(is(record.PhaseDecode, false), larger)
	case queued != nil && queued.value > top.value:
		topLabel += ", nothing queued"
	}
	alone := pick(func(c group.Cell) bool {
		return c.Phase == record.PhaseDecode && c.Concurrency == 1 && statusWords(c) == ""
	}, larger)
	prefill := cmp.Or(pick(is(record.PhasePrefill, true), larger), pick(is(record.PhasePrefill, false), larger))

	entry := func(label string, f *best, condition func(group.Cell) []string) Headline {
		h := Headline{Label: label, Value: unit.Absent(), Unit: "tok/s", Condition: "no cell has this number"}
		if f != nil {
			h.Value, h.Anchor = unit.Rate(f.value), b.anchors[f.cell.Point]
			parts := append([]string{contextWords(f.cell.ContextLabel)}, condition(f.cell)...)
			if w := statusWords(f.cell); w != "" {
				parts = append(parts, w)
			}
			if len(f.cell.Trials) > 1 {
				parts = append(parts, fmt.Sprintf("median of %d", len(f.cell.Trials)))
			}
			h.Condition = strings.Join(parts, " · ")
		}
		h.Condition = b.say(h.Condition)
		return h
	}
	withTTFT := func(c group.Cell, parts ...string) []string {
		if n := b.number(c, b.cols.ttft); n.Known() {
			parts = append(parts, n.Text+" TTFT")
		}
		return parts
	}
	return []Headline{
		entry(topLabel, top, func(c group.Cell) []string {
			return withTTFT(c, plural(c.Concurrency, "request", "requests")+" at once")
		}),
		entry("One request alone", alone, func(c group.Cell) []string {
			if n := b.number(c, b.cols.tpot); n.Known() {
				return []string{"decode", n.Text + " between tokens"}
			}
			return []string{"decode"}
		}),
		entry("Fastest prefill", prefill, func(c group.Cell) []string { return withTTFT(c) }),
	}
}

func contextWords(label string) string {
	if label == "0" {
		return "context 0"
	}
	return label + " context"
}

func (b *builder) facts() []Block {
	r := b.run
	return slices.DeleteFunc([]Block{
		{"hardware", "Hardware", fields(
			"Type", r.Hardware.Type, "GPU", r.Hardware.GPU, "VRAM", r.Hardware.VRAM,
			"CPU", r.Hardware.CPU, "RAM", r.Hardware.RAM, "OS", r.Hardware.OS)},
		{"engine", "Engine", fields(
			"Engine", r.Engine.Engine, "Version", r.Engine.Version, "Quantization", r.Engine.Quantization,
			"Backend", r.Engine.Backend, "Repository", r.Engine.Repository, "Build", r.Engine.Build, "Commit", r.Engine.Commit)},
		{"run", "Run", fields(
			"Served model", r.Load.ServedModel, "Revision", r.Load.Revision, "Benchmark tool", r.Load.BenchmarkTool,
			"Decode test", r.Load.DecodeTest, "Prefill mode", r.Load.PrefillMode,
			"Time per measurement", r.Load.TimePerMeasure, "Max output", r.Load.MaxOutput, "Model", r.Load.Model)},
	}, func(bl Block) bool { return len(bl.Fields) == 0 })
}

// fields pairs labels with values and leaves out those without a value.
func fields(pairs ...string) []Field {
	var out []Field
	for i := 0; i+1 < len(pairs); i += 2 {
		if v := plain.Line(pairs[i+1]); v != "" {
			out = append(out, Field{plain.Line(pairs[i]), v})
		}
	}
	return out
}

// command is the launch command with its comments above it. The comments are
// part of the text where it was kept as written.
func (b *builder) command() string {
	text := plain.Block(b.run.Command.Text)
	if text == "" {
		return ""
	}
	var missing []string
	for _, c := range b.run.Command.Comments {
		c = plain.Line(c)
		if bare := strings.TrimSpace(strings.TrimLeft(c, "#")); bare != "" && !strings.Contains(text, bare) {
			missing = append(missing, "# "+bare)
		}
	}
	return strings.Join(append(missing, text), "\n")
}

// weight orders findings: first what contradicts itself or spoils a number, last
// what the status of a cell says already.
func weight(kind string) int {
	switch kind {
	case "not_run_but_ran", "window_before_ready", "total_vs_tokens", "capacity_rule",
		"engine_version", "engine_commit", "launches_differ":
		return 0
	case promptLength:
		return 2
	case "unpinned":
		return 3
	case "active_below_asked":
		return 4
	}
	return 1
}

// promptLength is the kind of finding of which a page has one a prefill row; they
// are one line on the page.
const promptLength = "prompt_length"

func (b *builder) findings() []Finding {
	sorted := slices.Clone(b.run.Findings)
	sorted = slices.DeleteFunc(sorted, func(f record.Finding) bool { return plain.Block(f.Text) == "" })
	slices.SortStableFunc(sorted, func(a, b record.Finding) int { return cmp.Compare(weight(a.Kind), weight(b.Kind)) })
	var out []Finding
	for i := 0; i < len(sorted); {
		n := 1
		for sorted[i].Kind == promptLength && i+n < len(sorted) && sorted[i+n].Kind == promptLength {
			n++
		}
		f := Finding{Where: plain.Line(sorted[i].Where), Text: plain.Block(sorted[i].Text)}
		if n > 1 {
			f = b.promptLengths(sorted[i : i+n])
		}
		f.Anchor = fmt.Sprintf("finding-%d", len(out)+1)
		out = append(out, f)
		i += n
	}
	return out
}

// promptLengths sums up findings of prompts that are not as long as their labels.
func (b *builder) promptLengths(list []record.Finding) Finding {
	sum := Finding{}
	short := true
	var lengths []string
	for _, f := range list {
		sum.Parts = append(sum.Parts, Finding{Where: plain.Line(f.Where), Text: plain.Block(f.Text)})
		for _, c := range b.cells {
			if !names(f, c) {
				continue
			}
			label := float64(c.ContextTokens)
			n, ok := b.promptTokens(c)
			if !ok || label == 0 {
				continue
			}
			short = short && n < label
			lengths = append(lengths, fmt.Sprintf("%s %s (%.1f %%)", c.ContextLabel, unit.Decimal(n, 0), 100*math.Abs(n-label)/label))
		}
	}
	sum.Text = "Prompts are shorter than their labels"
	if !short || len(lengths) == 0 {
		sum.Text = "Prompts are not as long as their labels"
	}
	if len(lengths) > 0 {
		sum.Text += ": " + strings.Join(lengths, ", ")
	}
	return sum
}

// promptTokens is the true length of a cell's prompt: as the server counted it, or
// else as its prefill rate and TTFT imply it.
func (b *builder) promptTokens(c group.Cell) (float64, bool) {
	length := column{prefill: metric.PromptTokens, decode: metric.PromptTokens, factor: 1, format: unit.Count}
	if s, ok := b.sample(c, length); ok {
		return s.Median, true
	}
	if c.Phase != record.PhasePrefill {
		return 0, false
	}
	rate, known := b.sample(c, b.cols.total)
	ttft, ok := b.sample(c, b.cols.ttft)
	return rate.Median * ttft.Median / b.cols.ttft.factor, known && ok
}

// names reports whether a finding is about a cell: by a step of it, or by its
// phase, context and requests.
func names(f record.Finding, c group.Cell) bool {
	if f.StepID != "" && slices.ContainsFunc(c.Trials, func(t record.Cell) bool { return t.StepID == f.StepID }) {
		return true
	}
	where := c.Phase + " " + c.ContextLabel
	if c.Phase == record.PhaseDecode {
		where += fmt.Sprintf(" × %d", c.Concurrency)
	}
	return f.Where == where
}

// flag is the mark of a cell that findings name.
func (b *builder) flag(c group.Cell) *Flag {
	var flag *Flag
	for _, f := range b.found {
		for _, raw := range b.run.Findings {
			if plain.Block(raw.Text) != f.Text || plain.Line(raw.Where) != f.Where || !names(raw, c) {
				continue
			}
			if flag == nil {
				flag = &Flag{Anchor: f.Anchor, Text: plain.Line(f.Text)}
			} else {
				flag.Text += "; " + plain.Line(f.Text)
			}
			break
		}
	}
	return flag
}

// Explanations of statuses. Those of queued and over capacity are the words of
// the published pages.
const (
	explainTTFT = "TTFT is measured after the benchmark warms the server's prompt cache, so it mostly excludes prefill."
	// measuredTTFT is what holds for a page of ours. It ends in one of two ways: where
	// some requests got no first token, that has to be said.
	measuredTTFT  = "TTFT is measured after the server's prompt cache is warmed, so it mostly leaves out prefill"
	waitTTFT      = "; in queued cells it includes the wait."
	explainNoTTFT = ". TTFT counts requests that got a first token; in queued cells it includes the wait, and requests that waited the whole window have none."
	explainK      = "In context lengths K is 1,024 tokens; in tok/s K is 1,000."
)

func explain(s record.Status) string {
	switch s {
	case record.Queued:
		return "Requests queued: the server could not run all requests at once, so some waited in a queue."
	case record.OverCapacity:
		return "Over capacity: not run because this many requests at this context would exceed the server's KV cache."
	case record.NotReady:
		return "Not ready: the streams never all ran at once within the limit, so there is no number."
	case record.Underfilled:
		return "Underfilled: nothing waited, yet fewer streams were decoding than asked."
	case record.ClientLimited:
		return "Client limited: the measuring program was the limit, so the numbers are its own."
	case record.Failed:
		return "Failed: an error ended the measurement; its kind is in the list of measurements."
	case record.Loop:
		return "Repetition loop: the model repeated itself exactly, so the numbers mean nothing."
	case record.Skipped:
		return "Skipped: not run; the reason is in the list of measurements."
	case record.Interrupted:
		return "Interrupted: ended in the middle by a person or a signal."
	}
	return ""
}

func (b *builder) legend() []string {
	var words []string
	for _, s := range record.Statuses {
		occurs := slices.ContainsFunc(b.trials, func(c record.Cell) bool { return c.Status == s })
		if text := explain(s); occurs && text != "" {
			words = append(words, text)
		}
	}
	// A cell that was sent and gave nothing is over capacity for another reason
	// than the words say.
	if b.run.Kind != record.Published && slices.ContainsFunc(b.trials, func(c record.Cell) bool {
		return c.Status == record.OverCapacity && c.Reason == record.ReasonNoOutput
	}) {
		words = append(words, "Over capacity with the reason “"+reasonWords(record.ReasonNoOutput)+"”: it was tried and did not fit.")
	}
	var out []string
	if len(words) > 0 {
		out = append(out, strings.Join(words, " "))
	}
	if labels, _ := b.contexts(record.PhaseDecode); len(labels) > 0 {
		if b.run.Kind == record.Published {
			out = append(out, "As the published pages say: "+explainTTFT)
		} else if slices.ContainsFunc(b.cells, func(c group.Cell) bool { return ttftOf(c) != "" }) {
			out = append(out, measuredTTFT+explainNoTTFT)
		} else {
			out = append(out, measuredTTFT+waitTTFT)
		}
	}
	if len(b.trials) > 0 {
		out = append(out, explainK)
	}
	if slices.ContainsFunc(b.cells, func(c group.Cell) bool { return c.ContextLabel == "0" }) {
		out = append(out, "Context 0 is "+b.contextWhy("0")+".")
	}
	return out
}

// contextWhy says what the context 0 is.
func (b *builder) contextWhy(label string) string {
	for _, c := range b.cells {
		if c.ContextLabel != label {
			continue
		}
		if n, ok := b.promptTokens(c); ok {
			return fmt.Sprintf("a short prompt of %s tokens", unit.Decimal(n, 0))
		}
	}
	return "a short prompt whose length is not known"
}

// foundLabel gives what was found the label of what is claimed.
func foundLabel(label string) string {
	if label == "GPU 0" {
		return "GPU"
	}
	return label
}

func (b *builder) environment() []Compared {
	var found []Field
	add := func(fields []Field) {
		for _, f := range fields {
			if f.Label != "" && !slices.ContainsFunc(found, func(o Field) bool { return strings.EqualFold(o.Label, f.Label) }) {
				found = append(found, f)
			}
		}
	}
	// What the engine said of itself when it was last started, then the machine.
	if n := len(b.run.Launches); n > 0 {
		l := b.run.Launches[n-1]
		add(fields("Version", l.Version, "Served model", strings.Join(l.Models, ", "), "KV capacity", capacity(l)))
		for _, s := range l.Settings {
			add(fields(s.Label, s.Value))
		}
	}
	for _, f := range b.run.Found {
		add([]Field{{foundLabel(plain.Line(f.Label)), cmp.Or(plain.Line(f.Value), unit.Dash)}})
	}
	if len(found) == 0 {
		return nil
	}
	var claimed []Field
	for _, bl := range b.facts() {
		if bl.ID != "run" {
			claimed = append(claimed, bl.Fields...)
		}
	}
	claimed = append(claimed, fields("Served model", b.run.Load.ServedModel)...)
	var out []Compared
	for _, c := range claimed {
		row := Compared{c.Label, c.Value, unit.Dash}
		if i := slices.IndexFunc(found, func(f Field) bool { return strings.EqualFold(f.Label, c.Label) }); i >= 0 {
			row.Found = found[i].Value
			found = slices.Delete(found, i, i+1)
		}
		out = append(out, row)
	}
	for _, f := range found {
		out = append(out, Compared{f.Label, unit.Dash, f.Value})
	}
	return out
}

// capacity is the size of a launch's KV cache, and how it is known.
func capacity(l record.Launch) string {
	if l.KVCapacityTokens == nil {
		return ""
	}
	text := unit.Decimal(float64(*l.KVCapacityTokens), 0) + " tokens"
	if src := plain.Line(l.KVCapacitySource); src != "" {
		text += " (" + sourceWords(src) + ")"
	}
	return text
}

// sourceWords says how the size of a KV cache is known.
func sourceWords(source string) string {
	switch source {
	case "label":
		return "from the server's metrics"
	case "blocks":
		return "counted in blocks by the server's metrics"
	case "log":
		return "from the engine's log"
	case "experiment":
		return "given by the experiment"
	case "option":
		return "given on the command line"
	case "unknown":
		return "source not known"
	}
	return "source: " + source
}

func (b *builder) launches() []Launch {
	var out []Launch
	for _, l := range b.run.Launches {
		text := func(v *int64) string {
			if v == nil {
				return ""
			}
			return unit.Decimal(float64(*v), 0) + " tokens"
		}
		ready := ""
		if l.ReadySeconds != nil {
			ready = unit.Seconds(*l.ReadySeconds).Text
		}
		var perEngine []string
		for _, v := range l.KVCapacityPerEngine {
			perEngine = append(perEngine, unit.Decimal(float64(v), 0))
		}
		if len(perEngine) < 2 {
			perEngine = nil
		}
		ended := ""
		if l.EndedAt != nil {
			ended = stamp(*l.EndedAt)
		}
		metrics := "not available"
		if l.MetricsAvailable {
			metrics = "available"
		}
		engines := ""
		if l.Engines > 1 {
			engines = strconv.Itoa(l.Engines)
		}
		one := Launch{
			Title: fmt.Sprintf("Launch %d", l.Number),
			Fields: fields("Executor", l.Executor, "Started", stamp(l.StartedAt), "Ready after", ready,
				"Ended", ended, "Exit", cmp.Or(l.ExitStatus, exitOf(l)),
				"Version", l.Version, "Models", strings.Join(l.Models, ", "), "Longest context", text(l.MaxModelLen),
				"Server metrics", metrics, "Data-parallel engines", engines,
				"KV capacity", capacity(l), "KV capacity per engine", strings.Join(perEngine, ", "),
				"Command as run", strings.Join(l.Argv, " "), "Environment", strings.Join(l.Env, " ")),
			LogTail: plain.Block(strings.Join(l.LogTail, "\n")),
		}
		for _, s := range l.Settings {
			one.Fields = append(one.Fields, fields(s.Label, s.Value)...)
		}
		out = append(out, one)
	}
	return out
}

// exitOf says how a launch without an exit status ended.
func exitOf(l record.Launch) string {
	switch {
	case l.Executor == attached:
		return "was there before and stays"
	case l.EndedAt != nil:
		return "stopped by this program"
	}
	return ""
}

func (b *builder) plan() []Field {
	r := b.run
	var out []Field
	for _, f := range r.Plan {
		if f.Value != r.PlanDigest { // it stands below, by its own name
			out = append(out, fields(f.Label, f.Value)...)
		}
	}
	by, finished := "Measured by", ""
	if r.Kind == record.Published {
		by = "Imported by"
	} else if r.FinishedAt != nil && !r.StartedAt.IsZero() {
		finished = fmt.Sprintf("%s, after %s", stamp(*r.FinishedAt), r.FinishedAt.Sub(r.StartedAt).Round(time.Second))
	}
	tool := plain.Line(strings.TrimSpace(r.Tool.Name + " " + r.Tool.Version))
	if c := plain.Line(r.Tool.Commit); c != "" {
		tool += ", commit " + c
		if r.Tool.Dirty {
			tool += " with local changes"
		}
	}
	out = append(out, fields("Run", r.ID, "Method version", r.MethodVersion, "Plan digest", r.PlanDigest,
		by, tool, "Attached to", r.Attach, "Finished", finished, "Resumed from", r.ResumedFrom, "Again of", r.RerunOf,
		"Overrides", strings.Join(r.Overrides, ", "), "Client headroom", b.headroom(), "Source", r.Source)...)
	// A plan may name what stands here too; the first is kept.
	seen := make(map[string]bool)
	return slices.DeleteFunc(out, func(f Field) bool {
		twice := seen[f.Label]
		seen[f.Label] = true
		return twice
	})
}

// headroom says how far the measuring program was from being the limit.
func (b *builder) headroom() string {
	cpu, lag := math.Inf(-1), math.Inf(-1)
	for i := range b.trials {
		if v, ok := b.trials[i].Value(metric.ClientCPU); ok {
			cpu = max(cpu, v)
		}
		if v, ok := b.trials[i].Value(metric.ClientLagP99); ok {
			lag = max(lag, v)
		}
	}
	var parts []string
	if !math.IsInf(cpu, 0) {
		parts = append(parts, fmt.Sprintf("processor share at most %.1f %%", 100*cpu))
	}
	if !math.IsInf(lag, 0) {
		parts = append(parts, fmt.Sprintf("lag (p99) at most %.2f ms", 1000*lag))
	}
	return strings.Join(parts, ", ")
}

func (b *builder) downloads() []Download {
	about := map[string]string{
		"run.json":         "the record of the run",
		"plan.json":        "everything pinned, every cell in order",
		"experiment.yaml":  "what was asked for",
		"cells.parquet":    "one row a trial",
		"requests.parquet": "one row a request",
		"chunks.parquet":   "one row an output event; every metric can be computed from it again",
		"samples.parquet":  "server and machine over time",
	}
	paths := []string{"run.json"}
	notes := map[string]string{}
	for _, f := range b.run.Files {
		// The page lies in report/ of the run's directory.
		if f.Path != path.Clean(f.Path) || !localPath(f.Path) || strings.HasPrefix(f.Path, "report/") || f.Path == "run.json" {
			continue
		}
		paths = append(paths, f.Path)
		notes[f.Path] = size(f.Bytes)
	}
	var out []Download
	for _, p := range paths {
		note := about[p]
		if strings.HasPrefix(p, "logs/") {
			note = "log"
		}
		if s := notes[p]; s != "" {
			note = strings.TrimPrefix(note+", "+s, ", ")
		}
		segments := strings.Split(p, "/")
		for i, s := range segments {
			segments[i] = url.PathEscape(s)
		}
		out = append(out, Download{plain.Line(p), "../" + strings.Join(segments, "/"), note})
	}
	return out
}

// localPath reports whether a slash-separated path stays below its start.
func localPath(p string) bool {
	return p != "" && p != ".." && !strings.HasPrefix(p, "../") && !strings.HasPrefix(p, "/") && !strings.ContainsAny(p, "\\\x00")
}

func size(bytes int64) string {
	switch {
	case bytes <= 0:
		return ""
	case bytes < 1000:
		return strconv.FormatInt(bytes, 10) + " B"
	case bytes < 1_000_000:
		return fmt.Sprintf("%.1f kB", float64(bytes)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func dots(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p = plain.Line(p); p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, " · ")
}

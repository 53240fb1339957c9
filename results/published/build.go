package published

import (
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

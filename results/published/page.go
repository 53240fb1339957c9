package published

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// Format is the kind of a file.
type Format string

const (
	Text     Format = "text"
	HTML     Format = "html"
	Markdown Format = "markdown"
	JSON     Format = "llm-inference-bench" // its --output file
)

// Page is a published page, read.
type Page struct {
	Format Format
	// Run has Kind, Title, Author, Tool, Hardware, Engine, Load, Command.Text and
	// Comments, MethodVersion, Unpinned and Source. Identity, times and files are
	// for the one who stores it. Command.Text is as published: whoever stores it
	// removes secrets.
	Run   record.Run
	Cells []record.Cell // in the order of the page
	Bars  []Bar         // the prefill section, where the page has one
	// Experiment is what it takes to measure the same.
	Experiment Experiment
	// Footnotes are the sentences around the tables, in order, each once.
	Footnotes []string
	// Other are fields that speedmatrix has no place for.
	Other []record.Field

	rows     []*row           // printed numbers, one for each of Cells
	findings []record.Finding // seen while reading: one part of the page against another
	work     budget           // left for reading text without separators
	kv       int64            // KV capacity in tokens that the file states; 0: none
}

// Bar is one context of the prefill section: the values of the list in short.
type Bar struct {
	Label           string
	TokensPerSecond float64
	TTFTSeconds     float64
}

// Experiment is what a page says about how to measure the same again. An empty
// field is one that the page does not state.
type Experiment struct {
	Name         string // made from the title
	Title        string
	Notes        string
	Author       string
	Hardware     record.Hardware
	Engine       record.Engine
	Model        string // as given to the engine, if the page names it apart from the command
	ServedModel  string
	Revision     string
	Quantization string
	Command      string // verbatim, comment lines and environment included

	Contexts    []Context
	Concurrency []int
	Prefill     []Context
	Duration    time.Duration
	MaxOutput   int

	// The KV capacity in tokens is at least CapacityLow and less than CapacityHigh,
	// see [ImpliedCapacity]. 0: the page does not imply it.
	CapacityLow, CapacityHigh int64
	// KVCapacity is the capacity that the file states; 0: it states none.
	KVCapacity int64
}

// Context is a length in tokens and its label on the page; K is 1,024.
type Context struct {
	Tokens int
	Label  string
}

// The numbers of a row, in the order of the pages' columns.
const (
	mTotal = iota
	mEach
	mTTFT
	mGap
	mActive
	mCompleted
	mTokens
	mMeasured
	numMetrics
)

// numbers are the numbers of a row; nil: absent.
type numbers [numMetrics]*number

// metrics says how each number is printed and what it is stored as. Published
// numbers are those of the reference tool, so they have its names.
var metrics = [numMetrics]struct {
	quantity quantity
	name     string
}{
	mTotal:     {rate, metric.RefOutputTokensPerSecond}, // prefill: RefPrefillTokensPerSecond
	mEach:      {rate, metric.RefRequestTokensPerSecond},
	mTTFT:      {seconds, metric.RefTTFT},
	mGap:       {seconds, metric.RefTPOT},
	mActive:    {mean, metric.RefActiveRequests},
	mCompleted: {count, metric.RefCompletedRequests},
	mTokens:    {count, metric.RefOutputTokens},
	mMeasured:  {seconds, metric.RefWindowSeconds},
}

// row is one row of "All measurements" as printed.
type row struct {
	no       int
	phase    string
	label    string
	context  int
	requests int
	status   record.Status
	reason   string
	n        numbers

	promptTokens *float64 // JSON only
	notReady     string   // JSON only: why the window opened although the streams were not ready
}

// where names a row for people.
func (r *row) where() string {
	if r.phase == record.PhasePrefill {
		return "prefill " + r.label
	}
	return fmt.Sprintf("decode %s × %d", r.label, r.requests)
}

// stepID is the name that a plan gives to the cell.
func (r *row) stepID(repeat int) string {
	if r.phase == record.PhasePrefill {
		return fmt.Sprintf("%s-%s-r%d", r.phase, strings.ToLower(r.label), repeat)
	}
	return fmt.Sprintf("%s-%s-c%d-r%d", r.phase, strings.ToLower(r.label), r.requests, repeat)
}

// ran says whether the row shows that requests were sent.
func (r *row) ran() bool {
	return r.status != record.OverCapacity && r.status != record.Skipped ||
		r.n[mActive] != nil || r.n[mMeasured] != nil || r.n[mTokens] != nil
}

// Read reads a published page or a file of llm-inference-bench. The name is what
// messages and Run.Source call the file. Everything that is unreadable is said at
// once, in an [*Error].
func Read(name string, data []byte) (*Page, error) {
	errs := &mistakes{file: name}
	switch {
	case len(data) > maxBytes:
		return nil, fmt.Errorf("%s: %d bytes are more than a page can have (%d)", name, len(data), maxBytes)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, fmt.Errorf("%s: the file is empty", name)
	case !utf8.Valid(data):
		return nil, fmt.Errorf("%s: not UTF-8 text: save the page as text, HTML or Markdown", name)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	format := detect(data)
	p := &Page{Format: format}
	if format == JSON {
		p.readBenchJSON(data, errs)
	} else {
		lines := splitLines(string(data))
		if len(lines) > maxLines {
			return nil, fmt.Errorf("%s: %d lines are more than a page can have (%d)", name, len(lines), maxLines)
		}
		var d *document
		switch format {
		case HTML:
			d = readHTML(data, errs)
		case Markdown:
			d = readMarkdown(lines)
		default:
			d = readText(lines, errs)
		}
		p.build(d, errs)
	}
	if err := errs.err(); err != nil {
		return nil, err
	}
	p.finish(name)
	return p, nil
}

// detect tells the kind of a file by its beginning and its headings.
func detect(data []byte) Format {
	text := bytes.TrimSpace(data)
	switch {
	case text[0] == '{':
		return JSON
	case text[0] == '<':
		return HTML
	}
	for l := range bytes.Lines(text) {
		if m := mdHeading.FindSubmatch(bytes.TrimRight(l, "\r\n")); m != nil && slices.Contains(sectionNames(), string(m[2])) {
			return Markdown
		}
	}
	return Text
}

// finish makes of the rows what the rest of the program works with.
func (p *Page) finish(source string) {
	p.Run.SchemaVersion = record.SchemaVersion
	p.Run.Kind = record.Published
	p.Run.Source = source
	p.Run.Name = slug(p.Run.Title)
	if p.Run.Load.BenchmarkTool != "" {
		p.Run.Tool.Name, p.Run.Tool.Version, _ = strings.Cut(p.Run.Load.BenchmarkTool, " ")
		p.Run.Tool.Version = strings.TrimPrefix(p.Run.Tool.Version, "v")
		p.Run.MethodVersion = p.Run.Load.BenchmarkTool
	}
	p.Run.Unpinned = unpinned(p)

	seen := map[record.Point]int{}
	for i, r := range p.rows {
		c := record.Cell{Seq: i, Status: r.status, Reason: r.reason, TokenSource: record.TokensPublished}
		c.Point = record.Point{Phase: r.phase, ContextTokens: r.context, ContextLabel: r.label, Concurrency: r.requests}
		seen[c.Point]++
		c.Repeat = seen[c.Point]
		c.StepID = r.stepID(c.Repeat)
		put := func(name string, v float64) {
			if c.Values == nil {
				c.Values = map[string]float64{}
			}
			c.Values[name] = v
		}
		for m, n := range r.n {
			if n == nil {
				continue
			}
			name := metrics[m].name
			if m == mTotal && r.phase == record.PhasePrefill {
				name = metric.RefPrefillTokensPerSecond
			}
			put(name, n.value)
		}
		if r.promptTokens != nil {
			put(metric.PromptTokens, *r.promptTokens)
		}
		if r.status == record.OverCapacity && c.Reason == "" {
			c.Reason = record.ReasonPredicted
			if r.ran() {
				c.Reason = record.ReasonNoOutput
			}
		}
		p.Cells = append(p.Cells, c)
	}

	e := &p.Experiment
	e.Name, e.Title, e.Notes, e.Author = p.Run.Name, p.Run.Title, p.Run.Notes, p.Run.Author
	e.Hardware, e.Engine, e.Command = p.Run.Hardware, p.Run.Engine, p.Run.Command.Text
	e.Model, e.ServedModel, e.Revision = p.Run.Load.Model, p.Run.Load.ServedModel, p.Run.Load.Revision
	e.Quantization = p.Run.Engine.Quantization
	for _, r := range p.rows {
		at := Context{r.context, r.label}
		if r.phase == record.PhasePrefill {
			if !slices.Contains(e.Prefill, at) {
				e.Prefill = append(e.Prefill, at)
			}
			continue
		}
		if !slices.Contains(e.Contexts, at) {
			e.Contexts = append(e.Contexts, at)
		}
		if !slices.Contains(e.Concurrency, r.requests) {
			e.Concurrency = append(e.Concurrency, r.requests)
		}
	}
	if e.MaxOutput > 0 {
		e.CapacityLow, e.CapacityHigh = ImpliedCapacity(p.Cells, e.MaxOutput)
	}
	e.KVCapacity = p.kv
}

// slug makes a name of a title: lower case, digits, letters, dots and hyphens.
func slug(title string) string {
	var b strings.Builder
	gap := false
	for _, c := range strings.ToLower(title) {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '.' && b.Len() > 0:
			if gap && b.Len() > 0 {
				b.WriteByte('-')
			}
			gap = false
			b.WriteRune(c)
		default:
			gap = true
		}
		if b.Len() >= 60 {
			break
		}
	}
	if name := strings.Trim(b.String(), "-."); name != "" {
		return name
	}
	return "published"
}

// ImpliedCapacity returns what a matrix says about the KV capacity in tokens, by
// the rule (context + max output) × requests ≤ capacity: at least low, since that
// cell ran, and less than high, since that one did not. A cell that ran without a
// token ran. 0: no cell says it. If low ≥ high, no one capacity explains the
// matrix.
func ImpliedCapacity(cells []record.Cell, maxOutput int) (low, high int64) {
	for i := range cells {
		c := &cells[i]
		if c.Phase != record.PhaseDecode {
			continue
		}
		need := (int64(c.ContextTokens) + int64(maxOutput)) * int64(c.Concurrency)
		switch {
		case c.Status == record.OverCapacity && !hasRun(c):
			if high == 0 || need < high {
				high = need
			}
		case c.Status != record.Skipped:
			low = max(low, need)
		}
	}
	return low, high
}

// hasRun says whether a cell's values show that requests were sent.
func hasRun(c *record.Cell) bool {
	for _, name := range []string{metric.RefActiveRequests, metric.RefWindowSeconds, metric.RefOutputTokens} {
		if _, ok := c.Value(name); ok {
			return true
		}
	}
	return c.Reason == record.ReasonNoOutput
}

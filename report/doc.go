// Package report makes the model of a page: everything that a renderer shows, as
// text and in order.
//
// It does not know where a run is stored, how it was measured, or what a page
// looks like. It reads no file and no clock, so one store gives one page, byte
// for byte. The flow is
//
//  1. a [Source] hands over the run and its cells;
//  2. [Build] takes what is not text out of every value (terminal controls,
//     direction overrides), puts the cells in page order, repeats of a cell
//     together, and writes each number both as people read it and as it is;
//  3. a renderer (html, markdown, text) escapes the values for its own format
//     and lays them out.
//
// The order of sections, the labels and the first twelve columns of the list of
// measurements are those of the published pages that this project continues.
//
// A published run shows the metrics of the reference tool's scope, which is what
// its page printed; a measured run shows its own, and the reference tool's beside
// them.
package report

import (
	"iter"
	"slices"

	"speedmatrix/report/unit"
	"speedmatrix/results/record"
)

// Source is a run as [Build] reads it. Record is called once, Cells once, on the
// caller's goroutine; an error ends the cells and the page.
type Source interface {
	Record() record.Run
	Cells() iter.Seq2[record.Cell, error]
}

// Number is a number as people read it (Text) and as it is (Exact).
type Number = unit.Number

// Page is the model of a run's page. All text is plain: free of control
// characters, bounded, and not escaped for any format.
type Page struct {
	RunID     string
	Title     string
	Subject   string   // "vllm · 0.32.0 · FP8 dynamic"
	Axes      string   // "6 contexts (8K–251K) × 8 concurrency levels (1–128) · prefill at 8K, 16K"
	Byline    []string // author, tool, date
	Simulated bool     // every number on the page must say so
	Marks     []Mark
	Headlines []Headline
	Repeats   string // a sentence: how often a cell was measured; empty without cells

	Facts    []Block // Hardware, Engine, Run
	Command  string  // the launch command, shell lines with their comments
	Prefill  *Prefill
	Decode   *Matrix
	Legend   []string // one paragraph each: what the words on the page mean
	Scaling  *Scaling
	Findings []Finding
	Notes    string // Markdown, untrusted

	Measurements *Table
	More         *Table // the same rows in columns that few readers need
	Reference    *Table // the same rows as the reference tool would print them

	Environment []Compared
	Launches    []Launch
	Plan        []Field
	Unpinned    []string // sentences
	Downloads   []Download
	Again       string // the command that makes the run again
}

// Tone of a mark.
const (
	ToneNeutral = "neutral"
	ToneGood    = "good"
	ToneCaution = "caution"
)

// Mark is a badge: what a reader must know before any number.
type Mark struct {
	Text string // "SIMULATED"
	Why  string // a sentence
	Tone string
	Href string // "#findings": where there is more; empty if nowhere
}

// Headline is one of the numbers at the top, with its conditions.
type Headline struct {
	Label     string
	Value     Number
	Unit      string
	Condition string
	Anchor    string // of the cell; empty without a number
}

// Field is a label with its text.
type Field struct{ Label, Value string }

// Block is a titled list.
type Block struct {
	ID, Title string
	Fields    []Field
}

// Compared is something claimed beside what was found.
type Compared struct{ Label, Claimed, Found string }

// Prefill is the prefill section.
type Prefill struct {
	Caption string
	Axis    string // title of the chart's axis
	Bars    []Bar
}

// Bar is one context of the prefill section.
type Bar struct {
	Anchor       string // of its row in the measurements
	Context      string
	Rate         Number // tok/s, written as on a bar
	TTFT         Number
	PromptTokens Number // true length
	Status       string // words; empty if valid
	Spread       *Spread
}

// Spread is what the repeats of a cell gave.
type Spread struct {
	N               int
	Lowest, Highest Number
	Text            string // "median of 3, 190.1 to 195.3 (2.7 %)"
}

// Matrix is the heat matrix of sustained decode.
type Matrix struct {
	Caption string
	Columns []string // simultaneous requests
	Metrics []HeatMetric
	Rows    []MatrixRow
}

// Flagged reports whether a finding names any of the cells.
func (m *Matrix) Flagged() bool {
	return slices.ContainsFunc(m.Rows, func(r MatrixRow) bool {
		return slices.ContainsFunc(r.Cells, func(c MatrixCell) bool { return c.Flag != nil })
	})
}

// HeatMetric is a number that the matrix can show, with the scale of its
// colours. The first of a matrix is the one shown without a choice.
type HeatMetric struct {
	Key   string // "total", "request", "ttft", "tpot"
	Label string
	Unit  string
	// LowerIsBetter: the scale is turned round, so that bright is better.
	LowerIsBetter bool
	Log           bool // values span more than twentyfold
	Lowest        Number
	Highest       Number
}

// MatrixRow is one context.
type MatrixRow struct {
	Context string
	Why     string       // what the context's label hides: "a short prompt of 152 tokens"
	Cells   []MatrixCell // one a column
}

// MatrixCell is one point of the matrix.
type MatrixCell struct {
	Anchor string // of its row in the measurements; empty if the plan has no such cell
	Status string // words; empty if valid
	Hatch  bool   // the status is one without numbers, or says to read them with care
	Values []HeatValue
	Spread *Spread // of the first metric
	// TTFTOf says how many requests the TTFT is of, "8 of 16", where some got no
	// first token.
	TTFTOf string
	Flag   *Flag // of the heaviest finding that names the cell; nil if none does
}

// Flag leads from a cell to what is found about it.
type Flag struct {
	Anchor string // of the finding
	Text   string // all findings about the cell
}

// HeatValue is one metric of a cell.
type HeatValue struct {
	Number
	// Heat is where the value is on its metric's scale: 0 worst, 1 best. Nil
	// without a number.
	Heat *float64
}

// Scaling is the chart of total tok/s over simultaneous requests.
type Scaling struct {
	Title, Desc string
	XAxis       string
	YAxis       string
	Log         bool
	Ticks       []ScalingTick
	Lines       []ScalingLine
}

// ScalingTick names a concurrency.
type ScalingTick struct {
	X     float64
	Label string
}

// ScalingLine is one context.
type ScalingLine struct {
	Context string
	Points  []ScalingPoint
}

// ScalingPoint is one cell; unknown where it has no number.
type ScalingPoint struct {
	X      float64
	V      float64
	Lo, Hi float64
	Known  bool
	Text   string
}

// Finding is something that does not add up, or that limits the numbers.
type Finding struct {
	Anchor string
	Where  string
	Text   string
	Parts  []Finding // of a finding that sums up several; without anchors
}

// Table is a list of measurements.
type Table struct {
	ID      string
	Caption string
	Lead    string
	Columns []Column
	Rows    []Row
}

// Wide reports whether the table has columns that the published pages have not.
func (t *Table) Wide() bool {
	return slices.ContainsFunc(t.Columns, func(c Column) bool { return c.Extra })
}

// Column of a table.
type Column struct {
	Label   string
	Why     string // definition
	Numeric bool
	Extra   bool // not on the published pages
}

// Row of a table; one field a column.
type Row struct {
	Anchor string
	Status record.Status // empty if it is none of the closed set
	Fields []Number      // of text columns only Text is set
}

// Launch is one start of the engine.
type Launch struct {
	Title   string
	Fields  []Field
	LogTail string
}

// Download is a file beside the page.
type Download struct {
	Label string
	Href  string // relative
	Note  string
}

package published

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Limits of one file. A page of a full matrix is under 60 KB.
const (
	maxBytes   = 8 << 20
	maxLines   = 200_000
	maxRows    = 10_000
	maxCells   = 256 // of one table row
	maxText    = 2 << 10
	maxCommand = 64 << 10
	maxGlued   = 1 << 10 // bytes of one row without separators
	maxHead    = 32      // bytes of its context and requests
	maxErrors  = 50
)

// document is a page before it is understood: text by section. Everything
// carries the line of the file it stands on.
type document struct {
	head     []line // what stands before the first section
	title    string // of the first top heading, if the format has headings
	sections map[string]*section
	glued    bool // the format can lose separators (text as copied from a page)
}

type line struct {
	no   int
	text string
}

type section struct {
	no       int
	fields   []field
	lines    []line // prose, prefill bars
	tables   []table
	code     []string
	codeDone bool // a code block was read; further ones are ignored
}

type field struct {
	no           int
	label, value string
}

type table struct {
	no     int
	header []string
	rows   []tableRow
}

type tableRow struct {
	no    int
	cells []cell // nil if the row has lost its separators
	glued string // then: the row, without any space
}

type cell struct {
	text  string
	exact string // value of data-value; empty if there is none
}

// Names of the sections, in the order of the pages.
const (
	secHardware = "Hardware"
	secEngine   = "Engine"
	secRun      = "Run"
	secCommand  = "Launch command"
	secPrefill  = "Prefill"
	secDecode   = "Sustained decode"
	secList     = "All measurements"
)

func sectionNames() []string {
	return []string{secHardware, secEngine, secRun, secCommand, secPrefill, secDecode, secList}
}

// fieldLabels are the labels of a section's fields; nil if it has none.
func fieldLabels(sec string) []string {
	switch sec {
	case secHardware:
		return []string{"Type", "GPU", "VRAM", "CPU", "RAM", "OS"}
	case secEngine:
		return []string{"Engine", "Version", "Quantization", "Backend", "Repository", "Build", "Commit"}
	case secRun:
		return []string{"Served model", "Model", "Revision", "Benchmark tool", "Decode test",
			"Prefill mode", "Time per measurement", "Max output"}
	}
	return nil
}

// lead is the prose that follows a heading on the pages. Text that lost its
// line breaks has the next block straight behind it.
func lead(sec string) string {
	switch sec {
	case secPrefill:
		return "prompt tok/s by context length"
	case secDecode:
		return "total tok/s"
	case secList:
		return "Latencies are medians."
	}
	return ""
}

// columnNames are the first twelve columns of "All measurements".
func columnNames() []string {
	return []string{"Phase", "Context", "Requests at once", "Status", "Total tok/s", "Per request tok/s",
		"TTFT", "Time between tokens", "Average active requests", "Completed requests", "Output tokens", "Measured for"}
}

func (d *document) section(name string, no int) *section {
	if d.sections == nil {
		d.sections = map[string]*section{}
	}
	s := d.sections[name]
	if s == nil {
		s = &section{no: no}
		d.sections[name] = s
	}
	return s
}

// get returns a section, empty if the page has none.
func (d *document) get(name string) *section {
	if s := d.sections[name]; s != nil {
		return s
	}
	return &section{}
}

// mistakes collects what is wrong with a file, so that all of it is said at once.
type mistakes struct {
	file  string
	list  []mistake
	extra int
}

type mistake struct {
	no   int // line; 0: the whole file
	text string
}

func (m *mistakes) add(no int, format string, args ...any) {
	if len(m.list) == maxErrors {
		m.extra++
		return
	}
	m.list = append(m.list, mistake{no, fmt.Sprintf(format, args...)})
}

// An Error is everything that made a file unreadable, one message each, in the
// order of the file: "file:line: cause".
type Error struct{ Messages []string }

func (e *Error) Error() string { return strings.Join(e.Messages, "\n") }

func (m *mistakes) err() error {
	if len(m.list) == 0 {
		return nil
	}
	slices.SortStableFunc(m.list, func(a, b mistake) int { return cmp.Compare(a.no, b.no) })
	e := &Error{}
	for _, k := range m.list {
		place := m.file
		if k.no > 0 {
			place = fmt.Sprintf("%s:%d", m.file, k.no)
		}
		e.Messages = append(e.Messages, place+": "+k.text)
	}
	if m.extra > 0 {
		e.Messages = append(e.Messages, fmt.Sprintf("%s: and %d more", m.file, m.extra))
	}
	return e
}

// collapse makes every run of white space one space.
func collapse(s string) string { return strings.Join(strings.Fields(s), " ") }

// squeeze removes all white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// clip bounds a piece of the file that is quoted in a message or kept as text.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n
	for cut > 0 && s[cut]&0xC0 == 0x80 { // not in the middle of a rune
		cut--
	}
	return s[:cut] + "…"
}

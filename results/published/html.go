package published

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// htmlReader makes a document of a stream of tokens. It reads tokens, not a
// tree: that is linear in the size of the file whatever is nested in what, and
// every token has its line.
type htmlReader struct {
	d       *document
	names   []string
	line    int
	section string // current; "" before the first
	ignored bool   // below a heading that is no section

	heading int // level of the open heading, 0 if none
	skip    atom.Atom
	pre     int
	text    strings.Builder // of the block that is open
	textNo  int
	label   string // of the last dt
	inLabel bool
	inValue bool

	tables int // depth of nesting; only the outermost is read
	table  *table
	row    *tableRow
	inHead bool // the row has th cells only
	cell   *cell
}

// readHTML reads a page with the sections of the pages as headings, their fields
// as definition lists, and tables.
func readHTML(data []byte, errs *mistakes) *document {
	r := &htmlReader{d: &document{}, names: sectionNames(), line: 1}
	z := html.NewTokenizer(bytes.NewReader(data))
	z.SetMaxBuf(maxBytes)
	for {
		kind := z.Next()
		if kind == html.ErrorToken {
			if err := z.Err(); !errors.Is(err, io.EOF) {
				errs.add(r.line, "not readable as HTML: %v", err)
			}
			r.flush()
			return r.d
		}
		breaks := bytes.Count(z.Raw(), []byte("\n"))
		switch kind {
		case html.TextToken:
			r.addText(string(z.Text()))
		case html.StartTagToken, html.SelfClosingTagToken:
			name, more := z.TagName()
			tag := atom.Lookup(name)
			exact := ""
			for more {
				var key, val []byte
				key, val, more = z.TagAttr()
				if string(key) == "data-value" {
					exact = clip(strings.TrimSpace(string(val)), 64)
				}
			}
			r.start(tag, exact, kind == html.SelfClosingTagToken)
		case html.EndTagToken:
			name, _ := z.TagName()
			r.end(atom.Lookup(name))
		}
		r.line += breaks
	}
}

func (r *htmlReader) addText(s string) {
	if r.skip != 0 {
		return
	}
	if r.text.Len() == 0 {
		r.textNo = r.line
	}
	r.text.WriteString(s)
}

// isSkipped says whether what an element holds is never text of the page.
func isSkipped(tag atom.Atom) bool {
	switch tag {
	case atom.Script, atom.Style, atom.Svg, atom.Template, atom.Noscript, atom.Title, atom.Textarea, atom.Select:
		return true
	}
	return false
}

// isBlock says whether an element begins and ends a line of text.
func isBlock(tag atom.Atom) bool {
	switch tag {
	case atom.P, atom.Div, atom.Li, atom.Ul, atom.Ol, atom.Br, atom.Hr, atom.Section, atom.Article, atom.Header,
		atom.Footer, atom.Nav, atom.Main, atom.Aside, atom.Figure, atom.Figcaption, atom.Details, atom.Summary,
		atom.Blockquote, atom.Dl, atom.Caption, atom.Form, atom.Body, atom.Head, atom.Html, atom.Address:
		return true
	}
	return false
}

func headingLevel(tag atom.Atom) int {
	switch tag {
	case atom.H1:
		return 1
	case atom.H2:
		return 2
	case atom.H3:
		return 3
	case atom.H4:
		return 4
	case atom.H5:
		return 5
	case atom.H6:
		return 6
	}
	return 0
}

func (r *htmlReader) start(tag atom.Atom, exact string, selfClosing bool) {
	if r.skip != 0 {
		return
	}
	if isSkipped(tag) {
		if !selfClosing {
			r.skip = tag
		}
		return
	}
	if exact != "" && r.cell != nil && r.cell.exact == "" {
		r.cell.exact = exact
	}
	if r.tables > 0 {
		switch tag {
		case atom.Table:
			r.tables++
		case atom.Tr:
			if r.tables == 1 {
				r.endRow()
				r.row, r.inHead = &tableRow{no: r.line}, true
			}
		case atom.Td, atom.Th:
			if r.tables == 1 {
				r.endCell()
				if r.row == nil {
					r.row, r.inHead = &tableRow{no: r.line}, true
				}
				r.cell = &cell{exact: exact}
				r.inHead = r.inHead && tag == atom.Th
			}
		default:
			if isBlock(tag) || headingLevel(tag) > 0 {
				r.addText(" ")
			}
		}
		return
	}
	if r.pre > 0 {
		switch tag {
		case atom.Pre:
			r.pre++
		case atom.Br:
			r.addText("\n")
		}
		return
	}
	if r.heading > 0 || r.inLabel {
		if isBlock(tag) {
			r.addText(" ")
		}
		if tag != atom.Dd && tag != atom.Dt && tag != atom.Table {
			return
		}
	}
	switch {
	case tag == atom.Table:
		r.flush()
		r.tables, r.table = 1, &table{no: r.line}
	case tag == atom.Pre:
		r.flush()
		r.pre = 1
	case tag == atom.Dt:
		r.flush()
		r.inLabel = true
	case tag == atom.Dd:
		r.flush()
		r.inValue = true
	case headingLevel(tag) > 0:
		r.flush()
		r.heading = headingLevel(tag)
	case r.inValue && isBlock(tag):
		r.addText(" ")
	case isBlock(tag):
		r.flush()
	}
}

func (r *htmlReader) end(tag atom.Atom) {
	if r.skip != 0 {
		if tag == r.skip {
			r.skip = 0
		}
		return
	}
	if r.tables > 0 {
		switch tag {
		case atom.Table:
			r.tables--
			if r.tables == 0 {
				r.endTable()
			}
		case atom.Tr, atom.Thead, atom.Tbody:
			if r.tables == 1 {
				r.endRow()
			}
		case atom.Td, atom.Th:
			if r.tables == 1 {
				r.endCell()
			}
		default:
			if isBlock(tag) {
				r.addText(" ")
			}
		}
		return
	}
	if r.pre > 0 {
		if tag == atom.Pre {
			if r.pre--; r.pre == 0 {
				r.endPre()
			}
		}
		return
	}
	switch {
	case headingLevel(tag) > 0, tag == atom.Dt, tag == atom.Dd, tag == atom.Dl:
		r.flush()
	case isBlock(tag):
		if r.heading > 0 || r.inLabel || r.inValue {
			r.addText(" ")
		} else {
			r.flush()
		}
	}
}

// flush ends the block of text that is open and puts it where it belongs.
func (r *htmlReader) flush() {
	if r.tables > 0 {
		r.endTable()
	}
	if r.pre > 0 {
		r.endPre()
	}
	text := collapse(r.text.String())
	r.text.Reset()
	heading, inLabel, inValue := r.heading, r.inLabel, r.inValue
	r.heading, r.inLabel, r.inValue = 0, false, false
	if heading > 0 && slices.Contains(r.names, text) {
		r.section, r.ignored = text, false
		r.d.section(text, r.textNo)
		return
	}
	if heading > 0 && r.section != "" {
		r.ignored = true
		return
	}
	if text == "" || r.ignored {
		return
	}
	if r.section == "" {
		if heading == 1 && r.d.title == "" {
			r.d.title = text
		}
		r.d.addHead(r.textNo, text)
		return
	}
	s := r.d.sections[r.section]
	switch {
	case inLabel:
		r.label = strings.TrimSuffix(text, ":")
	case inValue:
		if r.label != "" && len(s.fields) < maxRows {
			s.fields = append(s.fields, field{r.textNo, r.label, text})
		}
		r.label = ""
	default:
		s.addLine(r.textNo, text)
	}
}

func (r *htmlReader) endPre() {
	code := r.text.String()
	r.text.Reset()
	r.pre = 0
	if r.section == secCommand && !r.ignored {
		r.d.sections[r.section].addCode(splitLines(strings.TrimPrefix(code, "\n")))
	}
}

func (r *htmlReader) endCell() {
	text := collapse(r.text.String())
	r.text.Reset()
	if r.cell == nil {
		return
	}
	r.cell.text = text
	if r.row != nil && len(r.row.cells) < maxCells {
		r.row.cells = append(r.row.cells, *r.cell)
	}
	r.cell = nil
}

func (r *htmlReader) endRow() {
	r.endCell()
	row := r.row
	r.row = nil
	if row == nil || r.table == nil || len(row.cells) == 0 {
		return
	}
	if r.table.header == nil && r.inHead && len(r.table.rows) == 0 {
		for _, c := range row.cells {
			r.table.header = append(r.table.header, c.text)
		}
		return
	}
	if len(r.table.rows) <= maxRows {
		r.table.rows = append(r.table.rows, *row)
	}
}

func (r *htmlReader) endTable() {
	r.endRow()
	t := r.table
	r.tables, r.table = 0, nil
	if t == nil || r.section == "" || r.ignored {
		return
	}
	if t.header == nil && len(t.rows) > 0 { // a header of plain cells
		for _, c := range t.rows[0].cells {
			t.header = append(t.header, c.text)
		}
		t.rows = t.rows[1:]
	}
	s := r.d.sections[r.section]
	if len(s.tables) < 64 {
		s.tables = append(s.tables, *t)
	}
}

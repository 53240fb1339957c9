package published

import (
	"html"
	"regexp"
	"slices"
	"strings"
)

// splitLines cuts data into lines without their ends.
func splitLines(s string) []string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.ReplaceAll(s, "\r", "\n")
	return strings.Split(s, "\n")
}

// readText reads a page as it is copied from a browser or saved by a text
// extractor. There is no markup: a heading is known by its words and its place,
// and line breaks between blocks may be missing.
func readText(lines []string, errs *mistakes) *document {
	d := &document{glued: true}
	names := sectionNames()
	cur := -1 // index of the section we are in
	for i := 0; i < len(lines); {
		text := strings.TrimSpace(lines[i])
		if n := headingAt(names, cur, text); n >= 0 {
			cur = n
			d.section(names[n], i+1)
			i++
			continue
		}
		if cur < 0 {
			d.addHead(i+1, text)
			i++
			continue
		}
		s := d.sections[names[cur]]
		switch names[cur] {
		case secHardware, secEngine, secRun:
			i = readPair(s, names, cur, lines, i, errs)
		case secCommand:
			end, head := commandEnd(lines, i, names, cur)
			s.code = slices.Clone(lines[i:end])
			i = end
			if head != "" { // the next heading is glued to the last line
				s.code = append(s.code, strings.TrimSuffix(strings.TrimRight(lines[end], " \t"), head))
				cur = slices.Index(names, head)
				d.section(head, end+1)
				i++
			}
		default:
			i = readBlock(s, names[cur], lines, i)
		}
	}
	return d
}

// headingAt returns the index of the section that a line opens, if it is one
// that comes after the current one, or −1.
func headingAt(names []string, cur int, text string) int {
	for n := cur + 1; n < len(names); n++ {
		if text == names[n] {
			return n
		}
	}
	return -1
}

func (d *document) addHead(no int, text string) {
	if text != "" && len(d.head) < 1000 {
		d.head = append(d.head, line{no, text})
	}
}

// readPair reads a label and, on the next line that is not empty, its value:
// "- Type", "- Discrete GPU".
func readPair(s *section, names []string, cur int, lines []string, i int, errs *mistakes) int {
	label := listItem(lines[i])
	if label == "" {
		return i + 1
	}
	if !slices.Contains(fieldLabels(names[cur]), label) {
		errs.add(i+1, "%q is no field of the section %s; known are %s", clip(label, 60), names[cur],
			strings.Join(fieldLabels(names[cur]), ", "))
		// Labels and values can no longer be told apart: go on at the next heading.
		for i++; i < len(lines) && headingAt(names, cur, strings.TrimSpace(lines[i])) < 0; i++ {
		}
		return i
	}
	no := i + 1
	for i++; i < len(lines); i++ {
		if value := listItem(lines[i]); value != "" {
			s.fields = append(s.fields, field{no, label, value})
			return i + 1
		}
	}
	errs.add(no, "the field %s has no value", label)
	return i
}

func listItem(s string) string {
	s = strings.TrimSpace(s)
	if r, ok := strings.CutPrefix(s, "- "); ok {
		return strings.TrimSpace(r)
	}
	return s
}

// commandEnd finds where the launch command ends: before a later heading, or in
// a line whose end is one, which shows by the prose on the next line.
func commandEnd(lines []string, i int, names []string, cur int) (end int, glued string) {
	for ; i < len(lines); i++ {
		text := strings.TrimSpace(lines[i])
		if headingAt(names, cur, text) >= 0 {
			return i, ""
		}
		for _, name := range names[cur+1:] {
			if strings.HasSuffix(text, name) && i+1 < len(lines) &&
				strings.HasPrefix(strings.TrimSpace(lines[i+1]), lead(name)) {
				return i, name
			}
		}
	}
	return i, ""
}

// isSeparatorRow says whether a line is the second of a table with pipes.
func isSeparatorRow(s string) bool {
	s = strings.TrimSpace(s)
	return strings.Contains(s, "|") && strings.Contains(s, "-") && strings.Trim(s, "|-: \t") == ""
}

// readBlock reads one line of prose or one table of the sections with numbers.
func readBlock(s *section, name string, lines []string, i int) int {
	text := strings.TrimSpace(lines[i])
	if bar := strings.IndexByte(text, '|'); bar >= 0 && i+1 < len(lines) && isSeparatorRow(lines[i+1]) {
		// Prose can be glued in front of the header.
		s.addLine(i+1, strings.TrimSpace(text[:bar]))
		return readPipes(s, text[bar:], lines, i, plainCell)
	}
	squeezed := squeeze(text)
	switch {
	case name == secDecode && len(squeezed) > len("Context") && strings.HasPrefix(squeezed, "Context") && allDigits(squeezed[len("Context"):]):
		return readGlued(s, squeezed, lines, i, func(row string) bool { return isDigit(row[0]) })
	case name == secList && squeezed == squeeze(strings.Join(columnNames(), "")):
		return readGlued(s, squeezed, lines, i, func(row string) bool {
			_, _, ok := cutPhase(row)
			return ok
		})
	}
	if l := lead(name); name == secPrefill && strings.HasPrefix(text, l) && len(text) > len(l) {
		s.addLine(i+1, l)
		text = text[len(l):]
	}
	s.addLine(i+1, text)
	return i + 1
}

func (s *section) addLine(no int, text string) {
	if text != "" && len(s.lines) < maxRows {
		s.lines = append(s.lines, line{no, text})
	}
}

// readPipes reads a table whose header is in line i and whose cells are
// separated by pipes.
func readPipes(s *section, header string, lines []string, i int, unescape func(string) string) int {
	t := table{no: i + 1, header: pipeCells(header, unescape)}
	for i += 2; i < len(lines); i++ {
		row := strings.TrimSpace(lines[i])
		if !strings.HasPrefix(row, "|") {
			break
		}
		tr := tableRow{no: i + 1}
		for _, c := range pipeCells(row, unescape) {
			tr.cells = append(tr.cells, cell{text: c})
		}
		t.rows = append(t.rows, tr)
	}
	s.tables = append(s.tables, t)
	return i
}

// pipeCells splits a table row at the pipes that are not escaped.
func pipeCells(row string, unescape func(string) string) []string {
	row = strings.TrimSpace(row)
	row = strings.TrimPrefix(row, "|")
	var cells []string
	start := 0
	for i := 0; i < len(row) && len(cells) < maxCells; i++ {
		switch row[i] {
		case '\\':
			i++
		case '|':
			cells = append(cells, unescape(row[start:i]))
			start = i + 1
		}
	}
	if rest := strings.TrimSpace(row[start:]); rest != "" {
		cells = append(cells, unescape(rest))
	}
	return cells
}

func plainCell(s string) string { return collapse(s) }

// readGlued reads a table without separators: a row a line, while the lines
// look like rows.
func readGlued(s *section, header string, lines []string, i int, isRow func(string) bool) int {
	t := table{no: i + 1, header: []string{header}}
	for i++; i < len(lines); i++ {
		row := squeeze(lines[i])
		if row == "" || !isRow(row) {
			break
		}
		t.rows = append(t.rows, tableRow{no: i + 1, glued: row})
	}
	s.tables = append(s.tables, t)
	return i
}

var (
	mdHeading = regexp.MustCompile(`^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$`)
	mdField   = regexp.MustCompile(`^ {0,3}[-*+][ \t]+\*\*(.+?):\*\*[ \t]*(.*)$`)
	mdFence   = regexp.MustCompile("^ {0,3}(`{3,}|~{3,})")
)

// readMarkdown reads a page in our own Markdown: headings, fields as
// "- **Label:** value", tables with pipes, the command in a fence.
func readMarkdown(lines []string) *document {
	d := &document{}
	names := sectionNames()
	cur, ignored := "", false // ignored: below a heading that is no section of ours
	for i := 0; i < len(lines); {
		raw := lines[i]
		if m := mdFence.FindStringSubmatch(raw); m != nil {
			end := i + 1
			for end < len(lines) && !closesFence(lines[end], m[1]) {
				end++
			}
			if cur == secCommand && !ignored {
				d.section(cur, i+1).addCode(lines[i+1 : end])
			}
			i = end + 1
			continue
		}
		if m := mdHeading.FindStringSubmatch(raw); m != nil {
			text := unescapeMarkdown(m[2])
			switch {
			case slices.Contains(names, text):
				cur, ignored = text, false
				d.section(cur, i+1)
			case cur == "":
				if len(m[1]) == 1 && d.title == "" {
					d.title = text
				}
				d.addHead(i+1, text)
			default:
				ignored = true
			}
			i++
			continue
		}
		text := strings.TrimSpace(raw)
		switch {
		case text == "" || ignored:
		case cur == "":
			d.addHead(i+1, unescapeMarkdown(text))
		case strings.HasPrefix(text, "|") && i+1 < len(lines) && isSeparatorRow(lines[i+1]):
			i = readPipes(d.sections[cur], text, lines, i, unescapeMarkdown)
			continue
		default:
			s := d.sections[cur]
			if m := mdField.FindStringSubmatch(raw); m != nil {
				s.fields = append(s.fields, field{i + 1, unescapeMarkdown(m[1]), unescapeMarkdown(m[2])})
			} else {
				s.addLine(i+1, unescapeMarkdown(text))
			}
		}
		i++
	}
	return d
}

func closesFence(s, open string) bool {
	s = strings.TrimSpace(s)
	return len(s) >= len(open) && strings.Trim(s, open[:1]) == ""
}

// addCode keeps the first code block of a section.
func (s *section) addCode(lines []string) {
	if !s.codeDone {
		s.code, s.codeDone = slices.Clone(lines), true
	}
}

var mdTag = regexp.MustCompile(`^<[a-zA-Z/!][^<>]*>`)

// unescapeMarkdown undoes what a writer of Markdown does to plain text:
// backslashes before punctuation, entities, emphasis around the whole, one code
// span, and tags.
func unescapeMarkdown(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 2 && s[0] == '`' && s[len(s)-1] == '`' {
		fence := len(s) - len(strings.TrimLeft(s, "`"))
		if 2*fence < len(s) && strings.HasSuffix(s, s[:fence]) {
			// In a table a pipe is escaped even within a code span.
			return collapse(strings.ReplaceAll(s[fence:len(s)-fence], `\|`, "|"))
		}
	}
	for _, mark := range []string{"**", "__"} {
		if len(s) > 2*len(mark) && strings.HasPrefix(s, mark) && strings.HasSuffix(s, mark) && !strings.HasSuffix(s, `\`+mark) {
			s = s[len(mark) : len(s)-len(mark)]
		}
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\\' && i+1 < len(s) && isPunct(s[i+1]):
			b.WriteByte(s[i+1])
			i += 2
		case s[i] == '<' && mdTag.MatchString(s[i:]):
			b.WriteByte(' ')
			i += len(mdTag.FindString(s[i:]))
		case s[i] == '&':
			end := strings.IndexByte(s[i:min(len(s), i+40)], ';')
			if end < 0 {
				b.WriteByte('&')
				i++
				continue
			}
			b.WriteString(html.UnescapeString(s[i : i+end+1]))
			i += end + 1
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return collapse(b.String())
}

func isPunct(c byte) bool {
	return '!' <= c && c <= '/' || ':' <= c && c <= '@' || '[' <= c && c <= '`' || '{' <= c && c <= '~'
}

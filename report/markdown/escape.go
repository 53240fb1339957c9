package markdown

import (
	"strings"

	"speedmatrix/report/plain"
)

// special are the characters that start or end something inside a paragraph, by
// CommonMark or by GitHub's additions. A backslash before any of them makes it a
// character.
const special = "\\`*_[]<>&~#|$"

// inline makes text safe in a paragraph, a list item or a heading. The result is
// one line.
func inline(s string) string {
	var b strings.Builder
	s = plain.Line(s)
	for i, r := range s {
		if strings.ContainsRune(special, r) || opensBlock(s, i, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// opensBlock reports whether the character at i would make the line something
// else than text: a list, a heading underline.
func opensBlock(s string, i int, r rune) bool {
	switch r {
	case '-', '+', '=':
		return i == 0
	case '.', ')':
		number := i > 0 && i < 10 && strings.Trim(s[:i], "0123456789") == ""
		return number && (i+1 == len(s) || s[i+1] == ' ')
	}
	return false
}

// cell makes text safe in a table's cell. A pipe is escaped even inside code, and
// inline has escaped it already, so the table keeps its columns.
func cell(s string) string { return inline(s) }

// fence is a code fence that the text cannot end: longer than any run of
// backticks in it.
func fence(text string) string {
	longest, run := 0, 0
	for _, r := range text {
		if r == '`' {
			run++
			longest = max(longest, run)
		} else {
			run = 0
		}
	}
	return strings.Repeat("`", max(3, longest+1))
}

// destination makes a relative link's target of what is percent-encoded already.
func destination(href string) string {
	return strings.NewReplacer("(", "%28", ")", "%29", "<", "%3C", ">", "%3E", " ", "%20", "\\", "%5C", "|", "%7C", "`", "%60", "*", "%2A", "_", "%5F").Replace(href)
}

// Package plain makes text from outside fit to be shown anywhere: it takes out
// what is not text. It does not escape; each renderer does that for its own
// format.
package plain

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of one value on a page, in bytes.
const (
	MaxLine  = 4 << 10
	MaxBlock = 64 << 10
)

// Line returns s as one line: invalid UTF-8 is replaced, white space is folded
// into single spaces, and terminal controls, direction overrides and other
// invisible format characters are dropped.
func Line(s string) string {
	return strings.Join(strings.Fields(bound(keep(s, false), MaxLine)), " ")
}

// Block does the same but keeps line ends and indentation.
func Block(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Trim(bound(keep(s, true), MaxBlock), "\n")
}

func keep(s string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			if lines {
				return r
			}
			return ' '
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r):
			return -1
		case unicode.Is(unicode.Cf, r), unicode.Is(unicode.Co, r), unicode.Is(unicode.Noncharacter_Code_Point, r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// bound cuts s at a rune's boundary and says so.
func bound(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const mark = " …"
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}

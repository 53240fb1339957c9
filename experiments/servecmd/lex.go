package servecmd

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// span is a half-open range of bytes.
type span struct{ from, to int }

// word is one word of the command after quotes are removed.
type word struct {
	text string
	// live are the ranges of text that a shell would expand: $NAME, ${…}, and a
	// leading ~ with its user. Sorted, apart.
	live         []span
	line, column int
	// assign is the index of = if the word is NAME=… with NAME= unquoted; else 0.
	assign int
}

// isReference says whether the whole text is one $NAME or ${NAME}: the name of a
// value, not a value.
func (w word) isReference() bool {
	if len(w.live) != 1 || w.live[0] != (span{0, len(w.text)}) || w.text[0] != '$' {
		return false
	}
	return isName(strings.TrimSuffix(strings.TrimPrefix(w.text[1:], "{"), "}"))
}

// from returns the part of the word that starts at byte n.
func (w word) from(n int) word {
	out := word{text: w.text[n:], line: w.line, column: w.column + utf8.RuneCountInString(w.text[:n])}
	for _, s := range w.live {
		if s.from >= n {
			out.live = append(out.live, span{s.from - n, s.to - n})
		}
	}
	return out
}

// lexer splits text into words. Every byte is looked at a bounded number of
// times.
type lexer struct {
	src          string
	pos          int
	line, column int
	// compose: newlines are blanks, variables live in single quotes too, and $$ is
	// a dollar (compose substitutes before it splits).
	compose bool

	comments   []string
	unexpanded []string
	seen       map[string]bool // of unexpanded
	lenient    bool

	lines [][]word // words of each line that has some
	cur   []word

	// the word being read
	started                bool
	buf                    []byte
	live                   []span
	startLine, startColumn int
	assign                 int
	plain, afterEq         bool // nothing quoted so far; the last character was an unquoted =
}

type lexed struct {
	lines      [][]word
	comments   []string
	unexpanded []string
	lenient    bool
}

func lex(text string, compose bool) (lexed, *Error) {
	l := &lexer{src: strings.ReplaceAll(text, "\r\n", "\n"), line: 1, column: 1, compose: compose}
	if err := l.run(); err != nil {
		return lexed{}, err
	}
	return lexed{l.lines, l.comments, l.unexpanded, l.lenient}, nil
}

func (l *lexer) fail(kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Line: l.line, Column: l.column, Message: fmt.Sprintf(format, args...)}
}

func (l *lexer) at(i int) byte {
	if l.pos+i < len(l.src) {
		return l.src[l.pos+i]
	}
	return 0
}

func (l *lexer) rest() string { return l.src[l.pos:] }

// next returns the next character and steps over it. The caller has checked that
// there is one.
func (l *lexer) next() string {
	_, n := utf8.DecodeRuneInString(l.rest())
	s := l.src[l.pos : l.pos+n]
	l.pos += n
	if s == "\n" {
		l.line, l.column = l.line+1, 1
	} else {
		l.column++
	}
	return s
}

func (l *lexer) begin() {
	if !l.started {
		l.started, l.plain, l.assign, l.afterEq = true, true, 0, false
		l.buf, l.live = nil, nil
		l.startLine, l.startColumn = l.line, l.column
	}
}

func (l *lexer) end() {
	if l.started {
		l.cur = append(l.cur, word{string(l.buf), l.live, l.startLine, l.startColumn, l.assign})
		l.started = false
	}
}

func (l *lexer) endLine() {
	l.end()
	if len(l.cur) > 0 {
		l.lines = append(l.lines, l.cur)
		l.cur = nil
	}
}

// check refuses characters that cannot be part of a command, whatever the quotes.
func (l *lexer) check() *Error {
	r, n := utf8.DecodeRuneInString(l.rest())
	switch {
	case r == utf8.RuneError && n <= 1:
		return l.fail(BadCharacter, "a byte is no UTF-8")
	case r < ' ' && r != '\n' && r != '\t', r >= 0x7f && r < 0xa0, r == 0x2028, r == 0x2029:
		return l.fail(BadCharacter, "control character U+%04X", r)
	}
	return nil
}

func (l *lexer) run() *Error {
	for l.pos < len(l.src) {
		if err := l.check(); err != nil {
			return err
		}
		c := l.at(0)
		afterEq := l.started && l.afterEq
		l.afterEq = false
		switch c {
		case ' ', '\t':
			l.end()
			l.next()
		case '\n':
			l.next()
			if l.compose {
				l.end()
			} else {
				l.endLine()
			}
		case '#':
			if l.started {
				l.buf = append(l.buf, l.next()...)
				continue
			}
			if err := l.comment(); err != nil {
				return err
			}
		case '\\':
			if err := l.backslash(); err != nil {
				return err
			}
		case '\'':
			if err := l.singleQuotes(); err != nil {
				return err
			}
		case '"':
			if err := l.doubleQuotes(); err != nil {
				return err
			}
		case '$':
			l.begin()
			if err := l.dollar(false); err != nil {
				return err
			}
		case '{':
			if l.started && !afterEq {
				l.buf = append(l.buf, l.next()...)
				continue
			}
			l.begin()
			if err := l.braces(); err != nil {
				return err
			}
		case '~':
			l.tilde(afterEq)
		case '`', ';', '|', '&', '<', '>', '(', ')':
			if strings.HasPrefix(l.rest(), Placeholder) {
				l.begin()
				for range Placeholder {
					l.buf = append(l.buf, l.next()...)
				}
				continue
			}
			return l.operator()
		default:
			if err := l.ordinary(); err != nil {
				return err
			}
		}
	}
	l.endLine()
	return nil
}

func (l *lexer) ordinary() *Error {
	l.begin()
	r, _ := utf8.DecodeRuneInString(l.rest())
	switch r {
	case '\u201c', '\u201d', '\u2018', '\u2019':
		return l.fail(BadCharacter, "typographic quote U+%04X: write ' or \"", r)
	case '\u00a0', '\u2007', '\u202f', '\u3000', '\u200b', '\ufeff':
		return l.fail(BadCharacter, "U+%04X looks like a blank and is none: write a space", r)
	case '\u2010', '\u2011', '\u2012', '\u2013', '\u2014', '\u2212':
		if len(l.buf) == 0 {
			return l.fail(BadCharacter, "U+%04X is no hyphen: write -- before a flag", r)
		}
	case '=':
		if l.assign == 0 && l.plain && len(l.live) == 0 && isName(string(l.buf)) {
			l.assign = len(l.buf)
		}
		l.afterEq = true
	}
	l.buf = append(l.buf, l.next()...)
	return nil
}

func (l *lexer) comment() *Error {
	l.next() // #
	if l.at(0) == ' ' {
		l.next()
	}
	from := l.pos
	for l.pos < len(l.src) && l.at(0) != '\n' {
		if err := l.check(); err != nil {
			return err
		}
		l.next()
	}
	l.comments = append(l.comments, strings.TrimRight(l.src[from:l.pos], " \t"))
	return nil
}

func (l *lexer) backslash() *Error {
	rest := l.src[l.pos+1:]
	head := rest[:min(len(rest), 256)] // bounded: blanks at a line's end, not a document
	blanks := len(head) - len(strings.TrimLeft(head, " \t"))
	switch {
	case rest == "" || rest[0] == '\n':
		l.next()
		if rest != "" {
			l.next()
		}
		return nil
	case blanks > 0 && (blanks == len(rest) || rest[blanks] == '\n'):
		return l.fail(UnsupportedShell, "the backslash is followed by blanks, so it does not join the lines: remove them")
	}
	l.begin()
	l.plain = false
	l.next()
	if err := l.check(); err != nil {
		return err
	}
	l.buf = append(l.buf, l.next()...)
	return nil
}

func (l *lexer) singleQuotes() *Error {
	open := l.fail(Unbalanced, "the quote ' is not closed")
	l.begin()
	l.plain = false
	l.next()
	for l.pos < len(l.src) {
		if err := l.check(); err != nil {
			return err
		}
		switch c := l.at(0); {
		case c == '\'':
			l.next()
			return nil
		case c == '$' && l.compose:
			if err := l.dollar(true); err != nil {
				return err
			}
		default:
			l.buf = append(l.buf, l.next()...)
		}
	}
	return open
}

func (l *lexer) doubleQuotes() *Error {
	open := l.fail(Unbalanced, `the quote " is not closed`)
	l.begin()
	l.plain = false
	l.next()
	for l.pos < len(l.src) {
		if err := l.check(); err != nil {
			return err
		}
		switch l.at(0) {
		case '"':
			l.next()
			return nil
		case '`':
			return l.operator()
		case '$':
			if err := l.dollar(true); err != nil {
				return err
			}
		case '\\':
			switch l.at(1) {
			case '\n':
				l.next()
				l.next()
				continue
			case '"', '\\', '$', '`':
				l.next()
			}
			l.buf = append(l.buf, l.next()...)
		default:
			l.buf = append(l.buf, l.next()...)
		}
	}
	return open
}

// dollar reads a variable, or a dollar that is none.
func (l *lexer) dollar(quoted bool) *Error {
	if l.compose && l.at(1) == '$' {
		l.next()
		l.buf = append(l.buf, l.next()...)
		return nil
	}
	n, name := 0, ""
	switch c := l.at(1); {
	case c == '(':
		return l.operator()
	case c == '{':
		open := l.fail(Unbalanced, "${ is not closed")
		end := strings.IndexByte(l.src[l.pos:min(len(l.src), l.pos+4096)], '}') // a variable, not a document
		if end < 0 {
			return open
		}
		body := l.src[l.pos+2 : l.pos+end]
		name = body[:nameLen(body)]
		if name == "" || strings.ContainsAny(body, "`$\n\"'\\") {
			return l.fail(UnsupportedShell, "only ${NAME} and ${NAME:-text} are read, nothing nested or quoted")
		}
		n = end + 1
	case nameLen(l.src[l.pos+1:]) > 0:
		n = 1 + nameLen(l.src[l.pos+1:])
		name = l.src[l.pos+1 : l.pos+n]
	case c != 0 && strings.IndexByte("0123456789@*#?-$!", c) >= 0:
		n, name = 2, string(c)
	case !quoted && (c == '\'' || c == '"'):
		return l.fail(UnsupportedShell, "$%c quoting is not read: write the text itself in quotes", c)
	default:
		l.buf = append(l.buf, l.next()...)
		return nil
	}
	from := len(l.buf)
	for end := l.pos + n; l.pos < end; {
		if err := l.check(); err != nil {
			return err
		}
		l.buf = append(l.buf, l.next()...)
	}
	l.live = append(l.live, span{from, len(l.buf)})
	l.note(name)
	return nil
}

func (l *lexer) note(name string) {
	if l.seen == nil {
		l.seen = map[string]bool{}
	}
	if !l.seen[name] {
		l.seen[name] = true
		l.unexpanded = append(l.unexpanded, name)
	}
}

// tilde reads ~ and the user's name behind it, which a shell expands at the start
// of a word and of an assignment's value.
func (l *lexer) tilde(afterEq bool) {
	first := !l.started || afterEq && l.assign > 0 && l.assign == len(l.buf)-1
	l.begin()
	from := len(l.buf)
	l.buf = append(l.buf, l.next()...)
	for isUserByte(l.at(0)) {
		l.buf = append(l.buf, l.next()...)
	}
	end := l.pos == len(l.src) || strings.IndexByte("/ \t\n", l.at(0)) >= 0 || l.at(0) == ':' && l.assign > 0
	if first && end && !l.compose {
		l.live = append(l.live, span{from, len(l.buf)})
		l.note("~")
	}
}

// braces reads JSON that nobody quoted, from { to its }, as one piece.
func (l *lexer) braces() *Error {
	open := l.fail(Unbalanced, "the brace { is not closed")
	l.lenient = true
	depth, inString := 0, false
	for l.pos < len(l.src) {
		if err := l.check(); err != nil {
			return err
		}
		c := l.at(0)
		switch {
		case c == '$':
			if err := l.dollar(true); err != nil {
				return err
			}
			continue
		case c == '`':
			return l.operator()
		case inString && c == '\\' && l.at(1) != 0:
			l.buf = append(l.buf, l.next()...)
		case inString && c == '"':
			inString = false
		case inString:
		case c == '"':
			inString = true
		case c == '\\' && l.at(1) == '\n':
			l.next()
			l.next()
			continue
		case c == '\\' && l.at(1) != 0: // escaped one by one
			l.next()
			if err := l.check(); err != nil {
				return err
			}
		case strings.IndexByte(";|&<>()", c) >= 0:
			return l.operator()
		case c == '{':
			depth++
		case c == '}':
			depth--
		}
		if err := l.check(); err != nil {
			return err
		}
		l.buf = append(l.buf, l.next()...)
		if depth == 0 && c == '}' && !inString {
			return nil
		}
	}
	return open
}

// operator refuses what only a shell could carry out.
func (l *lexer) operator() *Error {
	op := string(l.at(0))
	switch {
	case op == "$":
		op = "$("
	case op == "<" || op == ">":
		if l.at(1) == l.at(0) {
			op += op
		}
		return l.fail(UnsupportedShell, "shell redirection %s: no command goes through a shell; quote it if it is text", op)
	case l.at(1) == l.at(0) && op != "`":
		op += op
	}
	return l.fail(UnsupportedShell, "shell syntax %s: no command goes through a shell; give one command, and quote what is text", op)
}

func isNameByte(c byte, first bool) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || !first && c >= '0' && c <= '9'
}

func isUserByte(c byte) bool {
	return isNameByte(c, false) || c == '-' || c == '.' || c == '+'
}

// nameLen returns the length of the variable name that s starts with.
func nameLen(s string) int {
	n := 0
	for n < len(s) && isNameByte(s[n], n == 0) {
		n++
	}
	return n
}

func isName(s string) bool { return s != "" && nameLen(s) == len(s) }

// unique returns the values of s without repetitions, in order.
func unique(s []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(s, func(v string) bool {
		if seen[v] {
			return true
		}
		seen[v] = true
		return false
	})
}

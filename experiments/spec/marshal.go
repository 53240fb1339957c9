package spec

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Marshal writes an experiment as canonical YAML: keys in the order of the
// format, values that are defaults left out. Parse reads it back to the same
// value; an experiment of which that is not true (it has mistakes, or text with
// control characters) gives an error.
func Marshal(e *Experiment) ([]byte, error) {
	out := []byte(writeFields(keys(e), 0))
	if _, err := Parse("experiment", out, Options{}); err != nil {
		return nil, fmt.Errorf("write experiment %q: %w", e.Name, err)
	}
	return out, nil
}

// writeFields writes the keys whose value is not the default.
func writeFields(fields []field, indent int) string {
	var b strings.Builder
	for _, f := range fields {
		s := f.value.write(indent)
		if s == "" || s == f.fixed {
			continue
		}
		if indent == 0 && b.Len() > 0 && strings.HasPrefix(s, "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(strings.Repeat(" ", indent) + f.name + ":" + s + "\n")
	}
	return b.String()
}

// writeText writes a text: plain where no YAML reader could take it for anything
// else, as a block where it has lines, else in double quotes.
func writeText(s string, indent int) string {
	switch {
	case s == "":
		return ""
	case plainText(s):
		return " " + s
	case blockText(s):
		mark, body := " |\n", strings.TrimSuffix(s, "\n")
		if body == s {
			mark = " |-\n"
		}
		pad := strings.Repeat(" ", indent+2)
		lines := strings.Split(body, "\n")
		for i, l := range lines {
			if l != "" {
				lines[i] = pad + l
			}
		}
		return mark + strings.Join(lines, "\n")
	}
	return " " + quoteText(s)
}

// plainText says whether a text can stand without quotes.
func plainText(s string) bool {
	for i, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case c >= '0' && c <= '9', c == '.', c == '_', c == '-', c == '/':
			if i == 0 && (c < '0' || c > '9') {
				return false
			}
		case c == ' ' || c == '(' || c == ')' || c == '+' || c == ';':
			if i == 0 || i == len(s)-1 && c == ' ' {
				return false
			}
		default:
			return false
		}
	}
	// Words and numbers that readers of YAML take for something else, and times.
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "inf", "nan":
		return false
	}
	return s[0] > '9' || strings.Count(s, ".") > 1 && !strings.ContainsAny(s, "eE+-_")
}

// blockText says whether a text can be a block: it has lines, the first of which
// shows the indentation, and no line that ends in blanks.
func blockText(s string) bool {
	if !strings.Contains(s, "\n") || s[0] == ' ' || s[0] == '\t' || s[0] == '\n' || strings.HasSuffix(s, "\n\n") {
		return false
	}
	for l := range strings.Lines(s) {
		l = strings.TrimSuffix(l, "\n")
		if strings.TrimRight(l, " \t") != l || strings.HasPrefix(l, "\t") {
			return false
		}
	}
	for _, c := range s {
		if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// quoteText writes a text in double quotes, in which JSON's escapes are YAML's.
func quoteText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case unicode.IsPrint(c):
			b.WriteRune(c)
		case c > 0xffff:
			fmt.Fprintf(&b, `\U%08X`, c)
		default:
			fmt.Fprintf(&b, `\u%04X`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// standardText is the default in words; empty: none.
func (f *field) standardText() string {
	if f.standard != "" {
		return f.standard
	}
	if _, ok := f.value.(*object); ok {
		return ""
	}
	s := strings.TrimSpace(f.fixed)
	if u, err := strconv.Unquote(s); err == nil {
		s = u
	}
	return s
}

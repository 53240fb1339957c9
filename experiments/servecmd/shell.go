package servecmd

import "strings"

// foldAt is the length of a line above which a command is written on
// continuation lines.
const foldAt = 100

// Shell returns the command as a shell text that can be run and published:
// comments first, env with its assignments, quotes only where a shell needs them,
// one flag a line if it is long, and no secret. Parse of it gives the same argv
// and env, but for what is redacted.
func (c *Command) Shell() string {
	env, argv, _ := c.redactedWords()
	var groups []string
	add := func(words ...string) { groups = append(groups, strings.Join(words, " ")) }
	if c.Image == "" {
		if len(env) > 0 {
			add("env")
			for i, w := range env {
				add(c.Env[i].Name + "=" + w.quote())
			}
		}
		groups = appendGroups(groups, argv, argsStart(c.Argv))
	} else {
		image := word{text: c.Image}
		if n := len(c.container); n > 0 && c.container[n-1].text == c.Image {
			image = c.container[n-1]
		}
		groups = appendGroups(groups, c.containerWords(), 0)
		for i, w := range env {
			add("-e", quoteText(c.Env[i].Name)+"="+w.quote())
		}
		add(image.quote())
		groups = appendGroups(groups, argv, argsStart(c.Argv))
	}
	var b strings.Builder
	for _, line := range c.scrub(c.Comments) {
		line = strings.TrimRight(strings.Join(strings.FieldsFunc(line, isControl), " "), " \t")
		b.WriteString(strings.TrimRight("# "+line, " "))
		b.WriteByte('\n')
	}
	length := 0
	for _, g := range groups {
		length += len(g) + 1
	}
	separator := " "
	if length > foldAt {
		separator = " \\\n  "
	}
	b.WriteString(strings.Join(groups, separator))
	b.WriteByte('\n')
	return b.String()
}

func isControl(r rune) bool {
	return r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029
}

// containerWords are docker run and its options, without the image and without
// secrets.
func (c *Command) containerWords() []word {
	if len(c.container) == 0 {
		return []word{{text: "docker"}, {text: "run"}}
	}
	words, _ := c.redactedContainer()
	return words
}

// appendGroups appends what belongs on one line each: the words up to the first
// flag behind start, then each flag with its values.
func appendGroups(groups []string, words []word, start int) []string {
	var line []string
	for i, w := range words {
		if i >= start && isFlag(w.text) && len(line) > 0 {
			groups = append(groups, strings.Join(line, " "))
			line = nil
		}
		line = append(line, w.quote())
	}
	if len(line) > 0 {
		groups = append(groups, strings.Join(line, " "))
	}
	return groups
}

// quote writes a word so that a shell reads it as it was meant.
func (w word) quote() string {
	if len(w.live) == 0 {
		return quoteText(w.text)
	}
	var b strings.Builder
	rest := w
	// A ~ is expanded outside quotes only, at the start or behind NAME=.
	if s := w.live[0]; w.text[s.from] == '~' {
		end := s.to
		if end < len(w.text) && (w.text[end] == '/' || w.text[end] == ':') {
			end++
		}
		b.WriteString(w.text[:end])
		if rest = w.from(end); rest.text == "" {
			return b.String()
		}
		if len(rest.live) == 0 {
			b.WriteString(quoteText(rest.text))
			return b.String()
		}
	} else if i := strings.IndexByte(w.text, '='); i > 0 && isName(w.text[:i]) && s.from > i {
		b.WriteString(w.text[:i+1]) // keeps an assignment one
		rest = w.from(i + 1)
	}
	b.WriteByte('"')
	at := 0
	for _, s := range rest.live {
		escape(&b, rest.text[at:s.from])
		b.WriteString(rest.text[s.from:s.to])
		if s.to < len(rest.text) && rest.text[s.to-1] != '}' && isNameByte(rest.text[s.to], false) {
			b.WriteString(`""`) // the name ends here
		}
		at = s.to
	}
	escape(&b, rest.text[at:])
	b.WriteByte('"')
	return b.String()
}

// escape writes text as it stands within double quotes.
func escape(b *strings.Builder, text string) {
	for i := 0; i < len(text); i++ {
		if strings.IndexByte("\"\\$`", text[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(text[i])
	}
}

func quoteText(s string) string {
	safe := s != "" && s[len(s)-1] != ':' // a line that starts with name: is YAML
	for i := 0; i < len(s) && safe; i++ {
		c := s[i]
		safe = isNameByte(c, false) || strings.IndexByte("-@%+=:,./", c) >= 0
	}
	switch {
	case safe:
		return s
	case !strings.Contains(s, "'"):
		return "'" + s + "'"
	case !strings.ContainsAny(s, "\"\\$`!"):
		return `"` + s + `"`
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

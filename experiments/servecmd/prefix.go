package servecmd

import (
	"fmt"
	"path"
	"strings"
)

func fail(w word, kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Line: w.line, Column: w.column, Message: fmt.Sprintf(format, args...)}
}

// parseShell reads a shell text: comments, export lines, then one command.
func (c *Command) parseShell(text string) *Error {
	lx, err := lex(text, false)
	if err != nil {
		return err
	}
	c.Comments, c.Unexpanded, c.Lenient = lx.comments, lx.unexpanded, lx.lenient
	lines := lx.lines
	for len(lines) > 0 && lines[0][0].text == "export" {
		for _, w := range lines[0][1:] {
			if w.assign == 0 {
				return fail(w, UnsupportedShell, "export takes NAME=value here")
			}
			c.setEnv(w, w.assign)
		}
		lines = lines[1:]
	}
	if len(lines) == 0 {
		return &Error{Kind: Empty, Line: 1, Column: 1, Message: "no program: expected a line such as vllm serve MODEL"}
	}
	if len(lines) > 1 {
		next := lines[1][0]
		switch {
		case strings.HasPrefix(next.text, "-"):
			return fail(next, UnsupportedShell, `a second line: the line before it needs a backslash (\) at its end`)
		case onlyAssignments(lines[0]):
			return fail(lines[0][0], UnsupportedShell, "a variable set on a line of its own is not given to the program: write it before the program, or export it")
		}
		return fail(next, UnsupportedShell, "a second command: expected one")
	}
	words := c.prefix(lines[0])
	if len(words) == 0 {
		return fail(lines[0][0], Empty, "assignments without a program: expected vllm serve MODEL after them")
	}
	for i := 0; i < len(words) && i < 2; i++ {
		if isContainerTool(words[i].text) && (i == 0 || path.Base(words[0].text) == "sudo") {
			return c.parseDocker(words, i)
		}
	}
	c.argv = words
	return checkProgram(words)
}

func onlyAssignments(line []word) bool {
	for _, w := range line {
		if w.assign == 0 {
			return false
		}
	}
	return true
}

// prefix takes the assignments, and env, off the front of a line.
func (c *Command) prefix(words []word) []word {
	env := false
	for len(words) > 0 {
		w := words[0]
		at := w.assign
		if env && at == 0 {
			// env looks at the word after the quotes are gone.
			if i := strings.IndexByte(w.text, '='); i > 0 && isName(w.text[:i]) {
				at = i
			}
		}
		switch {
		case at > 0:
			c.setEnv(w, at)
		case w.text == "env" || w.text == "/usr/bin/env":
			env = true
		default:
			return words
		}
		words = words[1:]
	}
	return nil
}

// setEnv notes NAME=value, w being the whole word and at the index of =. A later
// value of a name replaces the earlier one.
func (c *Command) setEnv(w word, at int) {
	v := EnvVar{w.text[:at], w.text[at+1:]}
	if i, ok := c.envIndex[v.Name]; ok {
		c.Env[i], c.env[i] = v, w.from(at+1)
		return
	}
	if c.envIndex == nil {
		c.envIndex = map[string]int{}
	}
	c.envIndex[v.Name] = len(c.Env)
	c.Env, c.env = append(c.Env, v), append(c.env, w.from(at+1))
}

// checkProgram refuses first words that are no program we could start: options
// of env, assignments, and shells that would read a command text of their own.
func checkProgram(words []word) *Error {
	w := words[0]
	if len(w.text) == 0 || w.text[0] == '-' {
		return fail(w, UnsupportedShell, "expected a program; options of env are not read")
	}
	if i := strings.IndexByte(w.text, '='); i > 0 && isName(w.text[:i]) {
		return fail(w, UnsupportedShell, "a quoted assignment is no program: leave its name unquoted")
	}
	switch path.Base(w.text) {
	case "sh", "bash", "zsh", "dash", "ksh", "fish", "eval", "exec", "source", ".":
		return fail(w, UnsupportedShell, "the command is given to a shell (%s): write the serve command itself", path.Base(w.text))
	}
	return nil
}

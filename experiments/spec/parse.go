package spec

import (
	"bytes"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Options of [Parse].
type Options struct {
	// Sets are the --set arguments, "path.to.key=value" with a value in YAML. They
	// are applied in their order before anything is checked, and recorded.
	Sets []string
	// CheckCommand, if not nil, is given engine.command and reports its mistakes;
	// line and column count from 1 within its text.
	CheckCommand func(text string, report func(line, column int, message string))
}

// Parse reads an experiment and fills in the defaults. File is the name that
// mistakes are told with; nothing is opened. An error is an [ErrorList] with
// every mistake.
func Parse(file string, data []byte, opt Options) (*Experiment, error) {
	r := &reader{file: file, opt: opt, at: map[string]*node{}}
	e := New()
	e.File, e.Raw = file, data
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // as some editors write it
	e.Overrides = append(e.Overrides, opt.Sets...)
	r.all = allNames("", keys(e))
	if len(data) <= MaxSize {
		r.lines = strings.Split(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
	}
	if root := r.tree(string(data), ""); root != nil {
		for _, s := range opt.Sets {
			r.apply(root, s)
		}
		if root.kind == nullNode && len(root.entries) == 0 {
			r.mistake(root, "", "the file holds no experiment: expected name, engine, matrix")
		} else {
			r.object(root, "", keys(e))
			r.cross(root, e)
		}
	}
	if len(r.mistakes) > 0 {
		if n := len(r.mistakes) - maxMistakes; n > 0 {
			r.mistakes = append(r.mistakes.sorted()[:maxMistakes],
				&Error{File: file, Line: 1, Column: 1, Cause: fmt.Sprintf("and %d more mistakes", n)})
			return nil, r.mistakes
		}
		return nil, r.mistakes.sorted()
	}
	return e, nil
}

// reader holds the state of one Parse.
type reader struct {
	file     string
	opt      Options
	lines    []string         // of the file
	all      []string         // the path of every key
	at       map[string]*node // value of each path that was read
	wrong    map[string]bool  // paths whose value had a mistake
	mistakes ErrorList
}

func (r *reader) mistake(n *node, field, format string, args ...any) *Error {
	e := &Error{File: r.file, Line: n.line, Column: n.column, Set: n.set, Field: field, Cause: fmt.Sprintf(format, args...)}
	if n.set != "" {
		e.File, e.Line, e.Column = "", 0, 0
	}
	r.mistakes = append(r.mistakes, e)
	if r.wrong == nil {
		r.wrong = map[string]bool{}
	}
	r.wrong[field] = true
	return e
}

// good says whether a path was given and its value had no mistake.
func (r *reader) good(path string) bool { return r.at[path] != nil && !r.wrong[path] }

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// object reads the keys of a mapping.
func (r *reader) object(n *node, path string, fields []field) {
	if n.kind != mappingNode {
		r.mistake(n, path, "expected keys with values%s", example(fields))
		return
	}
	seen := map[string]entry{}
	for _, e := range n.entries {
		place := &node{line: e.line, column: e.column, set: e.set}
		full := join(path, e.name)
		if first, ok := seen[e.name]; ok {
			r.mistake(place, full, "given twice, first in line %d", first.line)
			continue
		}
		seen[e.name] = e
		f := lookup(fields, e.name)
		if f == nil {
			r.unknown(place, path, e.name, fields)
			continue
		}
		r.at[full] = e.value
		if e.value.kind == nullNode {
			if e.value.text == "" { // else its mistake is told
				r.mistake(place, full, "has no value: give one, or leave the key out")
			}
			r.mark(full)
			continue
		}
		before := len(r.mistakes)
		f.value.read(r, e.value, full)
		if len(r.mistakes) > before {
			r.mark(full)
		}
	}
}

func (r *reader) mark(path string) {
	if r.wrong == nil {
		r.wrong = map[string]bool{}
	}
	r.wrong[path] = true
}

func example(fields []field) string {
	if len(fields) == 0 {
		return ""
	}
	return ", such as " + fields[0].name + ": …"
}

func lookup(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

func (r *reader) unknown(place *node, path, name string, fields []field) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	e := r.mistake(place, join(path, clip(name)), "unknown key")
	for _, full := range r.all { // a key in the wrong place
		if at, ok := strings.CutSuffix("."+full, "."+name); ok {
			e.Cause = fmt.Sprintf("%s stands %s, not %s", name, level(strings.TrimPrefix(at, ".")), level(path))
			return
		}
	}
	e.DidYouMean = nearest(name, names)
}

// level names the mapping at a path.
func level(path string) string {
	if path == "" {
		return "at the top level"
	}
	return "in " + path
}

// cross checks what no single key can tell.
func (r *reader) cross(root *node, e *Experiment) {
	place := func(paths ...string) *node {
		for _, p := range paths {
			if n := r.at[p]; n != nil {
				return n
			}
		}
		return root
	}
	missing := func(path, why string, near ...string) {
		if r.at[path] == nil {
			r.mistake(place(near...), path, "missing: %s", why)
		}
	}
	missing("name", "a short name for files and pages")
	if r.at["engine"] == nil {
		missing("engine", "where the server comes from (engine.source) and how it is started (engine.command)")
	} else if r.at["engine"].kind == mappingNode {
		r.source(e, place)
	}
	if r.at["matrix"] == nil {
		missing("matrix", "what to measure: contexts and concurrency, or prefill")
	} else if r.at["matrix"].kind == mappingNode {
		r.matrix(e, place)
	}
}

func (r *reader) source(e *Experiment, place func(...string) *node) {
	n := r.at["engine.source"]
	if n == nil {
		r.mistake(place("engine"), "engine.source", "missing: one of %s", strings.Join(sourceKinds, ", "))
		return
	}
	if n.kind != mappingNode {
		return
	}
	var given []string
	for _, k := range sourceKinds {
		if r.at["engine.source."+k] != nil {
			given = append(given, k)
		}
	}
	switch {
	case len(given) == 0 && !r.wrong["engine.source"]:
		r.mistake(n, "engine.source", "expected one of %s", strings.Join(sourceKinds, ", "))
	case len(given) > 1:
		r.mistake(n, "engine.source", "has %s: expected exactly one source", strings.Join(given, " and "))
	}
	if len(given) != 1 {
		return
	}
	if repo := r.at["engine.source.repo"]; repo != nil && given[0] != "commit" {
		r.mistake(repo, "engine.source.repo", "belongs to source commit, not to %s", given[0])
	}
	if b := r.at["engine.source.build"]; b != nil && given[0] != "commit" {
		r.mistake(b, "engine.source.build", "belongs to source commit, not to %s", given[0])
	}
	switch given[0] {
	case "commit":
		if e.Engine.Source.Repo == "" {
			e.Engine.Source.Repo = DefaultRepo
		}
		r.build(e.Engine.Source.Build)
	case "wheel":
		if w := r.at["engine.source.wheel"]; w.kind == mappingNode && r.at["engine.source.wheel.lock"] == nil {
			r.mistake(w, "engine.source.wheel.lock", "missing: the path of the lock with hashes")
		}
	}
	switch given[0] {
	case "image", "commit", "wheel", "host":
		if r.at["engine.command"] == nil {
			r.mistake(place("engine"), "engine.command", "missing: the serve command, as source %s starts the engine", given[0])
		}
	}
}

// build checks what goes together in engine.source.build.
func (r *reader) build(b *Build) {
	if b == nil {
		return
	}
	const path = "engine.source.build."
	if r.wrong[path+"way"] {
		return
	}
	for _, of := range []struct {
		way  string
		keys []string
	}{{"nightly", []string{"image"}}, {"wheel", []string{"base", "wheels"}}, {"dockerfile", []string{"dockerfile", "target", "args", "patches"}}} {
		for _, k := range of.keys {
			if n := r.at[path+k]; n != nil && b.Way != "auto" && b.Way != of.way {
				r.mistake(n, path+k, "has no effect with way %s: it belongs to way %s", b.Way, of.way)
			}
		}
	}
	// Auto takes the wheel only where it has both.
	for _, k := range [][2]string{{"base", "wheels"}, {"wheels", "base"}} {
		if r.at[path+k[0]] == nil && (b.Way == "wheel" || b.Way == "auto" && r.at[path+k[1]] != nil) {
			r.mistake(r.at["engine.source.build"], path+k[0], "missing: way wheel needs it")
		}
	}
}

func (r *reader) matrix(e *Experiment, place func(...string) *node) {
	m := &e.Matrix
	here := place("matrix")
	decode := []string{"matrix.contexts", "matrix.concurrency"}
	empty := [2]bool{len(m.Contexts) == 0, len(m.Concurrency) == 0}
	for i, path := range decode {
		other := 1 - i
		if empty[i] && !empty[other] && !r.wrong[path] && !r.wrong[decode[other]] {
			r.mistake(place(path, "matrix"), path, "missing: %s alone measures nothing", decode[other])
		}
	}
	if empty[0] && empty[1] && len(m.Prefill) == 0 && !r.wrong["matrix"] {
		r.mistake(here, "matrix", "is empty: give contexts and concurrency, or prefill")
	}
	if r.good("matrix.repeats") || r.at["matrix.repeats"] == nil {
		if trials := (len(m.Contexts)*len(m.Concurrency) + len(m.Prefill)) * m.Repeats; trials > maxTrials {
			r.mistake(here, "matrix", "has %d trials, at most %d are planned", trials, maxTrials)
		}
	}
	if seed := r.at["matrix.order_seed"]; seed != nil && m.Order != "seeded" && !r.wrong["matrix.order"] {
		r.mistake(seed, "matrix.order_seed", "has no effect without order: seeded")
	}
}

// command checks engine.command and puts its mistakes at their places in the file.
func (r *reader) command(n *node, path string) {
	if r.opt.CheckCommand == nil {
		return
	}
	r.opt.CheckCommand(n.text, func(line, column int, message string) {
		at := *n
		switch {
		case n.set != "":
		case n.style == literal:
			// The text starts in the line behind the mark; its indentation is that of
			// its first line that has any text.
			for i := n.line; i < len(r.lines); i++ {
				if s := strings.TrimLeft(r.lines[i], " "); s != "" {
					at.line, at.column = n.line+line, len(r.lines[i])-len(s)+column
					break
				}
			}
		case n.style == quoted && line == 1 && r.sameText(n, n.column):
			at.column += column
		case n.style == plain && line == 1 && r.sameText(n, n.column-1):
			at.column += column - 1
		}
		r.mistake(&at, path, "%s", message)
	})
}

// sameText says whether a scalar stands in one line of the file exactly as its
// text, from a column (counted from 0).
func (r *reader) sameText(n *node, column int) bool {
	if n.line > len(r.lines) {
		return false
	}
	line := []rune(r.lines[n.line-1])
	return column <= len(line) && strings.HasPrefix(string(line[column:]), n.text)
}

func checkName(s string) string {
	for i, c := range s {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || i > 0 && (c == '.' || c == '_' || c == '-')
		if !ok {
			return "expected only letters, digits and . _ - (a letter or digit first), as it names files"
		}
	}
	return ""
}

func checkURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "expected an address such as http://127.0.0.1:8000"
	case u.User != nil:
		return "holds a user or password: a key comes from an environment variable or a file"
	case u.RawQuery != "" || u.Fragment != "":
		return "expected an address without ? and #"
	}
	return ""
}

// checkImage wants what can be pulled, or a file.
func checkImage(s string) string {
	if path, ok := strings.CutPrefix(s, ArchivePrefix); ok {
		if path == "" {
			return "expected the path of a file behind " + ArchivePrefix
		}
		return "" // a path may have blanks
	}
	return checkWord(s)
}

// checkBase wants what can be pulled.
func checkBase(s string) string {
	if strings.HasPrefix(s, ArchivePrefix) {
		return "expected an image of a registry: an archive can be engine.source.image only"
	}
	return checkWord(s)
}

// checkNightly wants a repository, or a name that is another one for each commit.
func checkNightly(s string) string {
	// A colon before the last slash is a port.
	colon := strings.LastIndexByte(s, ':')
	tagged := colon > strings.LastIndexByte(s, '/')
	switch {
	case strings.ContainsRune(s, '@'), tagged != strings.Contains(s, CommitMark), tagged && !strings.Contains(s[colon:], CommitMark):
		return "expected a repository such as vllm/vllm-openai, or a name with " + CommitMark + " in its tag"
	}
	return checkWord(s)
}

// checkInside wants a path that stays in the folder that it is of.
func checkInside(s string) string {
	if !filepath.IsLocal(s) || strings.ContainsRune(s, '\\') {
		return "expected a path within the repository"
	}
	return ""
}

func checkWord(s string) string {
	if strings.ContainsAny(s, " \t") {
		return "expected one word, without blanks"
	}
	return ""
}

// checkText finds characters that no text of an experiment may have.
func checkText(s string, lines bool) string {
	for _, c := range s {
		switch {
		case c == '\n' && !lines:
			return "expected one line"
		case c == '\n' || c == '\t' && lines:
		case c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == utf8.RuneError:
			return fmt.Sprintf("holds the control character U+%04X", c)
		}
	}
	return ""
}

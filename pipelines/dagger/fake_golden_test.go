package dagger

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden scripts of queries anew")

// replacement puts a stable word where a value differs from run to run.
type replacement struct {
	pattern *regexp.Regexp
	word    string
}

// replace puts words for values in scripts: value, word, value, word, …
func (f *fake) replace(pairs ...string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		f.replacePattern(regexp.QuoteMeta(pairs[i]), pairs[i+1])
	}
}

// replacePattern is replace for all that a regular expression finds. Word may name its
// groups: ${1}.
func (f *fake) replacePattern(pattern, word string) {
	f.replaced = append(f.replaced, replacement{regexp.MustCompile(pattern), word})
}

// golden compares the script of all queries with testdata/golden/<name>.txt.
func (f *fake) golden(t *testing.T, name string) {
	t.Helper()
	got := f.script()
	file := filepath.Join("testdata", "golden", name+".txt")
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test ./pipelines/dagger -update writes it)", err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s differs from what was sent (-want +got); -update writes it:\n%s", file, d)
	}
}

// script is what was asked, in order of the questions, as a person would write it: an
// object is a block of its steps, and goes on from an earlier block where it can. Queries
// for ids leave no trace, so it does not matter in which order arguments were resolved.
func (f *fake) script() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := script{names: map[*node]string{}, counts: map[string]int{}}
	for _, r := range f.requests {
		for _, n := range r.asked {
			s.ask(n)
		}
	}
	text := s.b.String()
	for _, r := range f.replaced {
		text = r.pattern.ReplaceAllString(text, r.word)
	}
	return text
}

type script struct {
	b      strings.Builder
	names  map[*node]string
	counts map[string]int
	last   *node // whose block is open
}

func (s *script) ask(n *node) {
	if n == nil || n.parent != nil && strings.HasPrefix(n.parent.field, "[") {
		return
	}
	if n.field == "id" {
		if n = n.parent; n == nil || !slices.Contains(lists, n.field) {
			return
		}
	}
	at := n.parent
	s.define(at)
	if at == nil || at != s.last {
		s.blank()
		if at != nil {
			s.b.WriteString(strings.TrimPrefix(s.ref(at), "@") + "\n")
		}
		s.last = at
	}
	indent := "    → "
	if at == nil {
		indent = "→ "
	}
	s.b.WriteString(indent + s.line(n) + "\n")
}

func (s *script) blank() {
	if s.b.Len() > 0 {
		s.b.WriteString("\n")
	}
}

// isShort: it is written where it is used.
func isShort(n *node) bool { return len(n.chain()) <= 2 && n.up("container") == nil }

// define writes the block of an object that is long and has none, after those that it
// uses.
func (s *script) define(n *node) {
	if n == nil || isShort(n) || s.names[n] != "" {
		return
	}
	base := n.parent
	for ; base != nil && s.names[base] == ""; base = base.parent {
	}
	steps := n.chain()[len(base.chain()):]
	for _, step := range steps {
		for _, a := range step.args {
			objects(a.value, s.define)
		}
	}
	s.blank()
	kind := kindOf(n)
	s.counts[kind]++
	s.names[n] = fmt.Sprintf("%s-%d", kind, s.counts[kind])
	s.b.WriteString(s.names[n])
	if base != nil {
		s.b.WriteString(" = " + s.names[base])
	}
	s.b.WriteString("\n")
	for _, step := range steps {
		s.b.WriteString("    " + s.line(step) + "\n")
	}
	s.last = n
}

func objects(v any, f func(*node)) {
	switch v := v.(type) {
	case *node:
		f(v)
	case []any:
		for _, e := range v {
			objects(e, f)
		}
	}
}

func kindOf(n *node) string {
	switch n.field {
	case "asService", "service", "tunnel":
		return "service"
	case "file", "asTarball", "http":
		return "file"
	}
	if n.up("container", "dockerBuild") != nil && n.field != "directory" && n.field != "rootfs" {
		return "container"
	}
	return "directory"
}

// ref is how an object is written as an argument.
func (s *script) ref(n *node) string {
	if name := s.names[n]; name != "" {
		return "@" + name
	}
	return "@" + s.inline(n)
}

func (s *script) inline(n *node) string {
	var steps []string
	for _, n := range n.chain() {
		if len(n.args) == 1 {
			steps = append(steps, n.field+"("+s.value(n.args[0].value)+")")
			continue
		}
		steps = append(steps, s.line(n))
	}
	return strings.Join(steps, ".")
}

// line is a step with its arguments, in several lines where it is long.
func (s *script) line(n *node) string {
	if len(n.args) == 0 {
		return n.field
	}
	var args []string
	for _, a := range n.args {
		args = append(args, a.name+": "+s.value(a.value))
	}
	return n.field + "(" + strings.Join(args, ", ") + ")"
}

const maxShownValue = 200

func (s *script) value(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case *node:
		return s.ref(v)
	case string:
		return shown(v)
	case []any:
		var b strings.Builder
		b.WriteString("[")
		column := 0
		for i, e := range v {
			word := s.value(e)
			switch {
			case i == 0:
			case column+len(word) > 90:
				b.WriteString(",\n        ")
				column = 0
			default:
				b.WriteString(", ")
			}
			b.WriteString(word)
			column += len(word) + 2
		}
		return b.String() + "]"
	case map[string]any:
		var fields []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fields = append(fields, k+": "+s.value(v[k]))
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	return fmt.Sprint(v)
}

// shown is a string, or what kind of one it is where it is long.
func shown(v string) string {
	var object map[string]json.RawMessage
	switch {
	case json.Unmarshal([]byte(v), &object) == nil:
		return "<json with " + strings.Join(slices.Sorted(maps.Keys(object)), ", ") + ">"
	case len(v) > maxShownValue || strings.Contains(v, "\n"):
		first, _, _ := strings.Cut(v, "\n")
		return fmt.Sprintf("<text of %d lines: %q>", strings.Count(strings.TrimSuffix(v, "\n"), "\n")+1, first[:min(len(first), 60)])
	}
	return strconv.Quote(v)
}

// noSecret sees that no request held a value, in whatever writing.
func (f *fake) noSecret(t *testing.T, values ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, value := range values {
		for _, form := range writings(value) {
			for _, r := range f.requests {
				if strings.Contains(r.text, form) {
					t.Errorf("a query holds the secret %q (as %q):\n%.2000s", value, form, r.text)
				}
			}
		}
	}
}

// writings are the forms in which a value would still be readable.
func writings(value string) []string {
	quote := func(s string) string { q := strconv.Quote(s); return q[1 : len(q)-1] }
	b, _ := json.Marshal(value) // a string: cannot fail
	asJSON := string(b[1 : len(b)-1])
	out := []string{value, quote(value), asJSON, quote(quote(value)), quote(asJSON), // in a string of the query, and of a JSON in it
		url.QueryEscape(value), url.PathEscape(value), hex.EncodeToString([]byte(value))}
	for lead := range 3 {
		// Inside something longer it may begin at any of three places of a group; what is cut
		// off depends on its neighbours.
		b := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", lead) + value))
		b = b[[]int{0, 2, 3}[lead]:]
		b = b[:len(b)-(lead+len(value))%3]
		if len(b) >= 6 {
			out = append(out, b, strings.NewReplacer("+", "-", "/", "_").Replace(b))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// sent are all steps that match, whether or not anything was asked of them.
func (f *fake) sent(m matcher) []*node {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*node
	for _, n := range f.order {
		if m(n) {
			out = append(out, n)
		}
	}
	return out
}

// env are the variables of the commands and services that match; one that holds a secret
// has its uri as value.
func (f *fake) env(m matcher) []map[string]string {
	s := f.conn(nil)
	defer s.Close()
	var out []map[string]string
	for _, n := range f.sent(every(m, func(n *node) bool { return n.field == "withExec" || n.field == "asService" })) {
		st, err := s.state(n.parent)
		if err != nil {
			continue // it failed the test
		}
		maps.Copy(st.env, st.secrets)
		out = append(out, st.env)
	}
	return out
}

// fromByDigestOnly sees that no image was named by a tag.
func (f *fake) fromByDigestOnly(t *testing.T) {
	t.Helper()
	for _, n := range f.sent(step("from")) {
		if _, digest, _ := strings.Cut(n.text("address"), "@sha256:"); len(digest) != 64 {
			t.Errorf("an image is not named by its digest: %s", n.text("address"))
		}
	}
}

// noShell sees that no command was given to a shell.
func (f *fake) noShell(t *testing.T) {
	t.Helper()
	shells := []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "busybox"}
	for _, n := range f.sent(func(n *node) bool {
		return slices.Contains([]string{"withExec", "asService", "withEntrypoint", "withDefaultArgs"}, n.field)
	}) {
		for _, word := range n.words("args") {
			if slices.Contains(shells, path.Base(word)) {
				t.Errorf("a command goes through a shell: %q", n.words("args"))
			}
		}
	}
}

// noHostDirectory sees that no folder of this machine was handed over, but for those
// that are named.
func (f *fake) noHostDirectory(t *testing.T, but ...string) {
	t.Helper()
	for _, n := range f.sent(step("directory")) {
		if n.parent != nil && n.parent.field == "host" && !slices.Contains(but, n.text("path")) {
			t.Errorf("a folder of this machine is copied into the engine: %s", n.text("path"))
		}
	}
}

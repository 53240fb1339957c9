package spec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// value is what a key holds: how it is read, described and written.
type value interface {
	// read sets the value from n, or notes mistakes under path.
	read(r *reader, n *node, path string)
	// kind is its type in words, for FORMAT.md.
	kind() string
	// schema is its JSON Schema.
	schema() map[string]any
	// write is its YAML behind "key:", with the blank or line end before it, for a
	// key at the given indentation; empty if the value is not set.
	write(indent int) string
}

// scalar returns the text of a scalar; else it notes what was expected.
func (r *reader) scalar(n *node, path, expected string) (string, bool) {
	if n.kind != scalarNode {
		r.mistake(n, path, "expected %s", expected)
		return "", false
	}
	return n.text, true
}

// got words a wrong value.
func (r *reader) got(n *node, path, expected string) *Error {
	return r.mistake(n, path, "expected %s, got %q", expected, clip(n.text))
}

// object is a mapping.
type object struct {
	fields []field
	begin  func() // called when the key is there
}

func (o *object) read(r *reader, n *node, path string) {
	if o.begin != nil {
		o.begin()
	}
	r.object(n, path, o.fields)
}

func (o *object) kind() string { return "keys" }

func (o *object) schema() map[string]any {
	properties, required := map[string]any{}, []string{}
	for _, f := range o.fields {
		properties[f.name] = f.schema()
		if f.required {
			required = append(required, f.name)
		}
	}
	s := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func (o *object) write(indent int) string {
	if s := writeFields(o.fields, indent+2); s != "" {
		return "\n" + strings.TrimSuffix(s, "\n")
	}
	return ""
}

// text is a text, of one line if lines is not set.
type text struct {
	p       *string
	most    int // bytes
	lines   bool
	command bool
	check   func(string) string // returns what is wrong
}

func (v *text) read(r *reader, n *node, path string) {
	if n.boolean {
		r.mistake(n, path, "expected a text, got the truth value %s: put it in quotes", n.text)
		return
	}
	s, ok := r.scalar(n, path, "a text")
	if !ok {
		return
	}
	switch {
	case strings.TrimSpace(s) == "":
		r.mistake(n, path, "is empty: give a text, or leave the key out")
		return
	case len(s) > v.most:
		r.mistake(n, path, "has %d bytes, at most %d are read", len(s), v.most)
		return
	}
	cause := checkText(s, v.lines)
	if cause == "" && v.check != nil {
		cause = v.check(s)
	}
	if cause != "" {
		r.mistake(n, path, "%s", cause)
		return
	}
	*v.p = s
	if v.command {
		r.command(n, path)
	}
}

func (v *text) kind() string {
	if v.lines {
		return "text of many lines"
	}
	return "text"
}

func (v *text) schema() map[string]any {
	s := map[string]any{"type": "string", "minLength": 1}
	if !v.lines {
		s["type"] = []string{"string", "number"} // a version may look like a number
	}
	return s
}

func (v *text) write(indent int) string { return writeText(*v.p, indent) }

// choice is one of a few words.
type choice struct {
	p     *string
	words []string
}

func (v *choice) read(r *reader, n *node, path string) {
	s, ok := r.scalar(n, path, v.kind())
	if !ok {
		return
	}
	for _, w := range v.words {
		if s == w {
			*v.p = s
			return
		}
	}
	r.got(n, path, v.kind()).DidYouMean = nearest(s, v.words)
}

func (v *choice) kind() string           { return strings.Join(v.words, " or ") }
func (v *choice) schema() map[string]any { return map[string]any{"enum": v.words} }
func (v *choice) write(int) string       { return writeText(*v.p, 0) }

var wholeNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]{0,17})$`)

// whole reads a whole number within bounds.
func (r *reader) whole(n *node, path string, low, high int64) (int64, bool) {
	expected := fmt.Sprintf("a whole number from %d to %d", low, high)
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return 0, false
	}
	i, err := strconv.ParseInt(s, 10, 64)
	switch {
	case n.style != plain:
		r.mistake(n, path, "expected %s, got a text: leave the quotes out", expected)
	case !wholeNumber.MatchString(s) || err != nil || i < low || i > high:
		r.got(n, path, expected)
	default:
		return i, true
	}
	return 0, false
}

func wholeSchema(low, high int64) map[string]any {
	return map[string]any{"type": "integer", "minimum": low, "maximum": high}
}

// integer is a count.
type integer struct {
	p         *int
	low, high int64
}

func (v *integer) read(r *reader, n *node, path string) {
	if i, ok := r.whole(n, path, v.low, v.high); ok {
		*v.p = int(i)
	}
}
func (v *integer) kind() string           { return "whole number" }
func (v *integer) schema() map[string]any { return wholeSchema(v.low, v.high) }
func (v *integer) write(int) string       { return writeNumber(int64(*v.p)) }

// integer64 is a count that may be large; 0 is not given.
type integer64 struct {
	p         *int64
	low, high int64
}

func (v *integer64) read(r *reader, n *node, path string) {
	if i, ok := r.whole(n, path, v.low, v.high); ok {
		*v.p = i
	}
}
func (v *integer64) kind() string           { return "whole number" }
func (v *integer64) schema() map[string]any { return wholeSchema(v.low, v.high) }
func (v *integer64) write(int) string       { return writeNumber(*v.p) }

// tokens is a number of tokens, which may be written with K or M; 0 is not given.
type tokens[T int | int64] struct {
	p         *T
	low, high int64
}

func (v *tokens[T]) read(r *reader, n *node, path string) {
	expected := fmt.Sprintf("a number of tokens from %d to %d, such as 8192 or 8K (K = 1,024)", v.low, v.high)
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return
	}
	if n.style != plain && wholeNumber.MatchString(s) {
		r.mistake(n, path, "expected %s, got a text: leave the quotes out", expected)
		return
	}
	t, ok := tokenCount(s)
	if !ok || t < v.low || t > v.high {
		r.got(n, path, expected).DidYouMean = meantTokens(s, v.low, v.high)
		return
	}
	*v.p = T(t)
}
func (v *tokens[T]) kind() string { return "number of tokens" }
func (v *tokens[T]) schema() map[string]any {
	return map[string]any{"anyOf": []any{
		wholeSchema(v.low, v.high),
		map[string]any{"type": "string", "pattern": `^[1-9][0-9]*[KM]$`},
	}}
}
func (v *tokens[T]) write(int) string { return writeNumber(int64(*v.p)) }

// maxTokens is far above every count of tokens.
const maxTokens = 1 << 50

// tokenCount reads a number of tokens: K is 1,024 and M 1,024 K.
func tokenCount(s string) (int64, bool) {
	if !contextText.MatchString(s) || len(s) > 17 {
		return 0, false
	}
	shift := 0
	switch s[len(s)-1] {
	case 'K':
		shift = 10
	case 'M':
		shift = 20
	}
	t, err := strconv.ParseInt(strings.TrimRight(s, "KM"), 10, 64)
	if err != nil || t > maxTokens>>shift {
		return 0, false
	}
	return t << shift, true
}

// meantTokens is what to write for 8k, 8 K, 8KiB; empty if that is not clear.
func meantTokens(s string, low, high int64) string {
	short := strings.ToUpper(strings.NewReplacer(" ", "", "iB", "", "ib", "", "_", "", ",", "").Replace(s))
	if t, ok := tokenCount(short); short != s && ok && t >= low && t <= high {
		return short
	}
	return ""
}

func writeNumber(i int64) string {
	if i == 0 {
		return ""
	}
	return " " + strconv.FormatInt(i, 10)
}

// optionalInteger is a whole number, or absent.
type optionalInteger struct{ p **int64 }

const maxSeed = 1<<53 - 1 // exact in every JSON reader

func (v *optionalInteger) read(r *reader, n *node, path string) {
	if i, ok := r.whole(n, path, -maxSeed, maxSeed); ok {
		*v.p = &i
	}
}
func (v *optionalInteger) kind() string           { return "whole number" }
func (v *optionalInteger) schema() map[string]any { return wholeSchema(-maxSeed, maxSeed) }
func (v *optionalInteger) write(int) string {
	if *v.p == nil {
		return ""
	}
	return " " + strconv.FormatInt(**v.p, 10)
}

var decimalNumber = regexp.MustCompile(`^-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?$`)

// number is a decimal number, or absent.
type number struct {
	p         **float64
	low, high float64
}

func (v *number) read(r *reader, n *node, path string) {
	expected := fmt.Sprintf("a number from %g to %g", v.low, v.high)
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return
	}
	f, err := strconv.ParseFloat(s, 64)
	switch {
	case n.style != plain:
		r.mistake(n, path, "expected %s, got a text: leave the quotes out", expected)
	case !decimalNumber.MatchString(s) || err != nil || f < v.low || f > v.high:
		r.got(n, path, expected)
	default:
		*v.p = &f
	}
}
func (v *number) kind() string { return "number" }
func (v *number) schema() map[string]any {
	return map[string]any{"type": "number", "minimum": v.low, "maximum": v.high}
}
func (v *number) write(int) string {
	if *v.p == nil {
		return ""
	}
	return " " + strconv.FormatFloat(**v.p, 'g', -1, 64)
}

// boolean is true or false, or absent.
type boolean struct{ p **bool }

func (v *boolean) read(r *reader, n *node, path string) {
	s, ok := r.scalar(n, path, v.kind())
	if !ok {
		return
	}
	if !n.boolean || s != "true" && s != "false" {
		r.got(n, path, v.kind())
		return
	}
	b := s == "true"
	*v.p = &b
}
func (v *boolean) kind() string           { return "true or false" }
func (v *boolean) schema() map[string]any { return map[string]any{"type": "boolean"} }
func (v *boolean) write(int) string {
	if *v.p == nil {
		return ""
	}
	return " " + strconv.FormatBool(**v.p)
}

// duration is a time with its unit.
type duration struct {
	p         *time.Duration
	low, high time.Duration
}

const durationPattern = `^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`

var durationText = regexp.MustCompile(durationPattern)

func (v *duration) read(r *reader, n *node, path string) {
	expected := fmt.Sprintf("a time from %s to %s, such as 30s or 5m", writeDuration(v.low), writeDuration(v.high))
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return
	}
	if decimalNumber.MatchString(s) {
		r.mistake(n, path, "expected a time with its unit, got the number %s", s).DidYouMean = s + "s"
		return
	}
	d, err := time.ParseDuration(s)
	if !durationText.MatchString(s) || len(s) > 40 || err != nil || d < v.low || d > v.high {
		r.got(n, path, expected)
		return
	}
	*v.p = d
}
func (v *duration) kind() string { return "time" }
func (v *duration) schema() map[string]any {
	return map[string]any{"type": "string", "pattern": durationPattern}
}
func (v *duration) write(int) string {
	if *v.p == 0 && v.low > 0 {
		return ""
	}
	return " " + writeDuration(*v.p)
}

// writeDuration writes 30m, not 30m0s.
func writeDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// maxList is the length of the longest list.
const maxList = 1000

func (r *reader) list(n *node, path, of string) ([]*node, bool) {
	switch {
	case n.kind != listNode:
		e := r.mistake(n, path, "expected a list of %s", of)
		if n.kind == scalarNode && n.text != "" {
			e.DidYouMean = "[" + clip(n.text) + "]"
		}
		return nil, false
	case len(n.items) > maxList:
		r.mistake(n, path, "has %d values, at most %d are read", len(n.items), maxList)
		return nil, false
	}
	return n.items, true
}

// contexts is a list of lengths.
type contexts struct {
	p     *[]Context
	least int // 0 or 1
}

const contextPattern = `^(0|[1-9][0-9]*[KM]?)$`

var contextText = regexp.MustCompile(contextPattern)

func (v *contexts) read(r *reader, n *node, path string) {
	items, ok := r.list(n, path, "lengths")
	if !ok {
		return
	}
	var out []Context
	seen := map[int]string{}
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", path, i)
		c, ok := v.one(r, item, at)
		if !ok {
			continue
		}
		if first, twice := seen[c.Tokens]; twice {
			r.mistake(item, at, "%s stands twice, first as %s", c.Label, first)
			continue
		}
		seen[c.Tokens] = c.Label
		out = append(out, c)
	}
	*v.p = out
}

func (v *contexts) one(r *reader, n *node, path string) (Context, bool) {
	expected := fmt.Sprintf("a length in tokens from %d to %dM, such as 8K or 32768 (K = 1,024)", v.least, maxContext>>20)
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return Context{}, false
	}
	t, ok := tokenCount(s)
	if !ok || t < int64(v.least) || t > maxContext {
		r.got(n, path, expected).DidYouMean = meantTokens(s, int64(v.least), maxContext)
		return Context{}, false
	}
	return Context{Tokens: int(t), Label: s}, true
}

func (v *contexts) kind() string { return "list of lengths" }
func (v *contexts) schema() map[string]any {
	return map[string]any{"type": "array", "maxItems": maxList, "uniqueItems": true, "items": map[string]any{"anyOf": []any{
		wholeSchema(int64(v.least), maxContext),
		map[string]any{"type": "string", "pattern": contextPattern},
	}}}
}
func (v *contexts) write(int) string {
	labels := make([]string, len(*v.p))
	for i, c := range *v.p {
		labels[i] = c.Label
	}
	return writeList(labels)
}

// integers is a list of counts.
type integers struct {
	p         *[]int
	low, high int64
}

func (v *integers) read(r *reader, n *node, path string) {
	items, ok := r.list(n, path, "whole numbers")
	if !ok {
		return
	}
	var out []int
	seen := map[int64]bool{}
	for i, item := range items {
		at := fmt.Sprintf("%s[%d]", path, i)
		x, ok := r.whole(item, at, v.low, v.high)
		if !ok {
			continue
		}
		if seen[x] {
			r.mistake(item, at, "%d stands twice", x)
			continue
		}
		seen[x] = true
		out = append(out, int(x))
	}
	*v.p = out
}
func (v *integers) kind() string { return "list of whole numbers" }
func (v *integers) schema() map[string]any {
	return map[string]any{"type": "array", "maxItems": maxList, "uniqueItems": true, "items": wholeSchema(v.low, v.high)}
}
func (v *integers) write(int) string {
	texts := make([]string, len(*v.p))
	for i, x := range *v.p {
		texts[i] = strconv.Itoa(x)
	}
	return writeList(texts)
}

// texts is a list of texts, each of one line.
type texts struct {
	p     *[]string
	what  string
	check func(string) string // returns what is wrong
	key   func(string) string // the part that no two of them share
}

func (v *texts) read(r *reader, n *node, path string) {
	items, ok := r.list(n, path, v.what)
	if !ok {
		return
	}
	var out []string
	seen := map[string]bool{}
	for i, item := range items {
		one, at := "", fmt.Sprintf("%s[%d]", path, i)
		(&text{p: &one, most: 1000, check: v.check}).read(r, item, at)
		if one == "" {
			continue
		}
		key := v.key(one)
		if seen[key] {
			r.mistake(item, at, "%s stands twice", clip(key))
			continue
		}
		seen[key] = true
		out = append(out, one)
	}
	*v.p = out
}
func (v *texts) kind() string { return "list of texts" }
func (v *texts) schema() map[string]any {
	return map[string]any{"type": "array", "maxItems": maxList, "items": map[string]any{"type": "string", "minLength": 1, "maxLength": 1000}}
}
func (v *texts) write(int) string {
	out := make([]string, len(*v.p))
	for i, x := range *v.p {
		out[i] = quoteText(x)
	}
	return writeList(out)
}

// checkArg wants NAME=value.
func checkArg(s string) string {
	if name, _, ok := strings.Cut(s, "="); !ok || !argName.MatchString(name) {
		return fmt.Sprintf("expected NAME=value, got %q", clip(s))
	}
	return ""
}

func argKey(s string) string {
	name, _, _ := strings.Cut(s, "=")
	return name
}

var argName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func writeList(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return " [" + strings.Join(texts, ", ") + "]"
}

// percent is a ratio, written as 5% or 0.05; 0 is not given.
type percent struct{ p *float64 }

func (v *percent) read(r *reader, n *node, path string) {
	const expected = "a share above 0 and up to 100%, such as 5% or 0.05"
	s, ok := r.scalar(n, path, expected)
	if !ok {
		return
	}
	digits, isPercent := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(digits, 64)
	if isPercent {
		f /= 100
	}
	if !decimalNumber.MatchString(digits) || err != nil || f <= 0 || f > 1 {
		e := r.got(n, path, expected)
		if !isPercent && err == nil && f > 1 && f <= 100 {
			e.DidYouMean = s + "%"
		}
		return
	}
	*v.p = f
}
func (v *percent) kind() string { return "share" }
func (v *percent) schema() map[string]any {
	return map[string]any{"anyOf": []any{
		map[string]any{"type": "number", "exclusiveMinimum": 0, "maximum": 1},
		map[string]any{"type": "string", "pattern": `^[0-9]+(\.[0-9]+)?%$`},
	}}
}
func (v *percent) write(int) string {
	if *v.p == 0 {
		return ""
	}
	if s := strconv.FormatFloat(*v.p*100, 'g', 6, 64); !strings.Contains(s, "e") {
		if f, err := strconv.ParseFloat(s, 64); err == nil && f/100 == *v.p {
			return " " + s + "%"
		}
	}
	return " " + strconv.FormatFloat(*v.p, 'f', -1, 64)
}

package spec

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits on what is read. The YAML reader's time grows with the square of keys
// and of nesting, so both are bounded before it starts.
const (
	MaxSize  = 1 << 20 // bytes of a file, and of a --set
	maxKeys  = 2000
	maxDepth = 16
)

type nodeKind int

const (
	scalarNode nodeKind = iota
	nullNode
	mappingNode
	listNode
)

// node is a value of the file, or of a --set, with its place. The file is first
// made into nodes, then --set changes them, then they are read.
type node struct {
	kind         nodeKind
	line, column int
	set          string // path of the --set it comes from; empty: from the file

	text    string  // scalarNode, numbers as they were written
	style   style   // scalarNode
	boolean bool    // scalarNode, plain true or false
	entries []entry // mappingNode
	items   []*node // listNode
}

// style is how a scalar was written.
type style int

const (
	plain style = iota
	quoted
	literal // |
	folded  // >
)

type entry struct {
	name         string
	line, column int
	set          string
	value        *node
}

// tree makes nodes of YAML text. It returns nil if the text is no YAML; then a
// mistake has been noted.
func (r *reader) tree(text, set string) (root *node) {
	at := func(p *token.Position) *node {
		n := &node{line: 1, column: 1, set: set}
		if p != nil {
			n.line, n.column = max(p.Line, 1), max(p.Column, 1)
		}
		return n
	}
	defer func() {
		// The YAML reader is not ours and the text is a stranger's.
		if p := recover(); p != nil {
			r.mistake(at(nil), set, "this YAML cannot be read")
			root = nil
		}
	}()
	switch {
	case len(text) > MaxSize:
		r.mistake(at(nil), set, "%d bytes, at most %d are read", len(text), MaxSize)
		return nil
	case !utf8.ValidString(text):
		line := 1 + strings.Count(text[:invalidAt(text)], "\n")
		r.mistake(&node{line: line, column: 1, set: set}, set, "a byte is no UTF-8")
		return nil
	}
	tokens := lexer.Tokenize(text)
	if p, cause := bounds(tokens); cause != "" {
		r.mistake(at(p), set, "%s", cause)
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var bad interface {
			GetToken() *token.Token
			GetMessage() string
		}
		if errors.As(err, &bad) && bad.GetToken() != nil {
			n := at(bad.GetToken().Position)
			cause := notYAML(n, strings.Split(text, "\n"), bad.GetMessage())
			r.mistake(n, set, "%s", cause)
		} else {
			r.mistake(at(nil), set, "this YAML cannot be read")
		}
		return nil
	}
	var docs []ast.Node
	for _, d := range file.Docs {
		if d != nil && d.Body != nil {
			docs = append(docs, d.Body)
		}
	}
	switch len(docs) {
	case 0:
		return at(nil).as(nullNode)
	case 1:
		return r.node(docs[0], set, 0)
	}
	r.mistake(at(docs[1].GetToken().Position), set, "a second YAML document: expected one")
	return nil
}

var keyOfLine = regexp.MustCompile(`^[ \t]*(?:- )*([A-Za-z_]+):[ \t]+`)

// notYAML words what the YAML reader found at n, and moves n to where it is: the
// reader's words for the two commonest mistakes help nobody.
func notYAML(n *node, lines []string, message string) string {
	line := ""
	if n.line <= len(lines) {
		line = strings.TrimSuffix(lines[n.line-1], "\r")
	}
	text := strings.TrimLeft(line, " \t")
	switch indent := line[:len(line)-len(text)]; {
	case strings.Contains(indent, "\t"):
		n.column = strings.Index(indent, "\t") + 1
		return "a tab indents this line; YAML wants spaces"
	case strings.Contains(message, "tab character"), strings.Contains(message, "'\t'"):
		if before, _, ok := strings.Cut(line, "\t"); ok {
			n.column = utf8.RuneCountInString(before) + 1
		}
		return "not valid YAML: a tab stands here; YAML wants spaces"
	case strings.HasPrefix(message, "mapping value is not allowed"):
		key := keyOfLine.FindStringSubmatch(line)
		switch {
		case key == nil:
		case !strings.Contains(line[len(key[0]):], ": "):
			return "not valid YAML: a key stands in the text that begins here; look at the indentation of this line and the next"
		case key[1] == "command", key[1] == "notes":
			return fmt.Sprintf("not valid YAML: the text has a colon and a blank in it; put it under `%s: |`", key[1])
		default:
			return "not valid YAML: the text has a colon and a blank in it; put it in quotes"
		}
	}
	return "not valid YAML: " + message
}

func (n *node) as(k nodeKind) *node {
	n.kind = k
	return n
}

func invalidAt(s string) int {
	for i, c := range s {
		if c == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n <= 1 {
				return i
			}
		}
	}
	return len(s)
}

// bounds finds what would take the YAML reader too long: too many keys, or
// nesting in brackets, in dashes and in marks of one line.
func bounds(tokens token.Tokens) (at *token.Position, cause string) {
	keys, depth, line, marks, docs := 0, 0, 0, 0, 0
	for _, t := range tokens {
		if t.Position != nil && t.Position.Line != line {
			line, marks = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		case token.MappingValueType:
			keys++
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType:
			marks++
		case token.DocumentHeaderType, token.DocumentEndType:
			docs++
		}
		switch {
		case docs > 2:
			return t.Position, "a second YAML document: expected one"
		case depth > maxDepth || marks > maxDepth:
			return t.Position, "nested too deeply"
		case keys > maxKeys:
			return t.Position, fmt.Sprintf("more than %d keys", maxKeys)
		}
	}
	return nil, ""
}

// node makes a node of the YAML reader's. What YAML can do and an experiment
// never needs (anchors, aliases, merges, tags) is a mistake: an alias can make a
// small file a huge one.
func (r *reader) node(in ast.Node, set string, depth int) *node {
	n := &node{line: 1, column: 1, set: set}
	if in == nil {
		return n.as(nullNode)
	}
	if t := in.GetToken(); t != nil && t.Position != nil {
		n.line, n.column = max(t.Position.Line, 1), max(t.Position.Column, 1)
	}
	if depth > maxDepth {
		r.mistake(n, "", "nested too deeply")
		return n.as(nullNode)
	}
	switch in := in.(type) {
	case *ast.MappingNode:
		n.kind = mappingNode
		for _, kv := range in.Values {
			r.entry(n, kv, depth)
		}
		if len(n.entries) > 0 && !in.IsFlowStyle {
			n.line, n.column = n.entries[0].line, n.entries[0].column
		}
	case *ast.MappingValueNode:
		n.kind = mappingNode
		r.entry(n, in, depth)
		if len(n.entries) > 0 {
			n.line, n.column = n.entries[0].line, n.entries[0].column
		}
	case *ast.SequenceNode:
		n.kind = listNode
		for _, item := range in.Values {
			n.items = append(n.items, r.node(item, set, depth+1))
		}
	case *ast.StringNode:
		n.text = in.Value
		if t := in.Token.Type; t == token.SingleQuoteType || t == token.DoubleQuoteType {
			n.style = quoted
		}
	case *ast.LiteralNode:
		n.text, n.style = in.Value.Value, literal
		if strings.HasPrefix(in.Start.Value, ">") {
			n.style = folded
		}
	case *ast.BoolNode:
		n.text, n.boolean = in.GetToken().Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		n.text = in.GetToken().Value
	case *ast.AliasNode, *ast.AnchorNode, *ast.TagNode:
		r.mistake(n, "", "anchors, aliases and tags of YAML are not read: write the value out")
		n.kind = nullNode
		n.set = set
		n.text = "!" // the mistake is told already
	default:
		n.kind = nullNode
	}
	return n
}

func (r *reader) entry(n *node, kv *ast.MappingValueNode, depth int) {
	e := entry{line: n.line, column: n.column, set: n.set}
	if t := kv.Key.GetToken(); t != nil && t.Position != nil {
		e.line, e.column = max(t.Position.Line, 1), max(t.Position.Column, 1)
	}
	switch k := kv.Key.(type) {
	case *ast.StringNode:
		e.name = k.Value
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		e.name = k.GetToken().Value
	default:
		r.mistake(&node{line: e.line, column: e.column, set: n.set}, "", "expected a plain name as key")
		return
	}
	e.value = r.node(kv.Value, n.set, depth+1)
	n.entries = append(n.entries, e)
}

// apply puts the value of a --set into the tree, making the mappings on its way.
func (r *reader) apply(root *node, set string) {
	path, text, ok := strings.Cut(set, "=")
	place := &node{set: path}
	if !ok || path == "" {
		place.set = clip(set)
		r.mistake(place, place.set, "expected path.to.key=value")
		return
	}
	names := strings.Split(path, ".")
	if len(path) > 200 || len(names) > maxDepth {
		place.set = clip(path)
		r.mistake(place, place.set, "the path is too long")
		return
	}
	value := r.tree(text, path)
	if value == nil {
		return
	}
	n := root
	for i, name := range names {
		if n.kind != mappingNode {
			*n = node{kind: mappingNode, line: n.line, column: n.column, set: path}
		}
		last := i == len(names)-1
		at := -1
		kept := n.entries[:0]
		for _, e := range n.entries {
			if e.name != name {
				kept = append(kept, e)
			} else if at < 0 {
				at = len(kept)
				kept = append(kept, e)
			} else if !last {
				kept = append(kept, e)
			}
		}
		n.entries = kept
		if at < 0 {
			at = len(n.entries)
			n.entries = append(n.entries, entry{name: name, set: path, value: &node{kind: mappingNode, set: path}})
		}
		if last {
			n.entries[at].value, n.entries[at].set = value, path
		}
		n = n.entries[at].value
	}
}

// clip shortens a text of the file for a message, and shows no control character.
func clip(s string) string {
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			return '�'
		}
		return c
	}, s)
	if c := []rune(s); len(c) > 40 {
		return string(c[:39]) + "…"
	}
	return s
}

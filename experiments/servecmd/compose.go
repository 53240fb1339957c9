package servecmd

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
	yamllexer "github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxCompose is the length in bytes of the longest compose text: files of people
// have a few KiB, and YAML is costly to read.
const maxCompose = 64 << 10

var yamlKey = regexp.MustCompile(`^\s*[A-Za-z0-9_.-]+:(\s|$)`)

// looksLikeCompose says whether the first line that is no comment is a key of
// YAML. No shell command starts so.
func looksLikeCompose(text string) bool {
	for line := range strings.Lines(text) {
		s := strings.TrimSpace(line)
		if s == "" || s[0] == '#' || s == "---" {
			continue
		}
		return yamlKey.MatchString(line)
	}
	return false
}

// parseCompose reads a service of docker compose. The text is a file with
// services:, one service under its name, or the body of a service. Keys that are
// read:
//
//	image                   required
//	command, entrypoint     text (split into words as a shell does) or list
//	environment             map, or list of NAME=value and NAME
//	ports, volumes          lists of text; ports also with target and published
//	ipc, shm_size, network_mode, gpus, runtime
//	deploy                  its GPU devices
//
// Keys that do not touch the server (container_name, restart, healthcheck, …) are
// passed over; any other key gives the warning compose_keys_ignored. $NAME is a
// variable in every kind of quotes, and $$ is a dollar, as in compose.
func (c *Command) parseCompose(text string) *Error {
	if len(text) > maxCompose {
		return &Error{Kind: TooLong, Line: 1, Column: 1,
			Message: fmt.Sprintf("the compose text has %d bytes, at most %d are read", len(text), maxCompose)}
	}
	tokens := yamllexer.Tokenize(text)
	c.Comments = yamlComments(tokens)
	service, err := findService(tokens)
	if err != nil {
		return err
	}
	s := composeService{command: c, words: map[string][]word{}}
	for _, kv := range service {
		if err := s.key(kv); err != nil {
			return err
		}
	}
	return s.finish(service[0])
}

// yamlComments are the comments of a YAML text, without those inside of block
// texts.
func yamlComments(tokens token.Tokens) []string {
	var out []string
	for _, t := range tokens {
		if t.Type == token.CommentType {
			out = append(out, strings.TrimSpace(t.Value))
		}
	}
	return out
}

func badYAML(n ast.Node, format string, args ...any) *Error {
	e := &Error{Kind: BadCompose, Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}
	if n != nil && n.GetToken() != nil && n.GetToken().Position != nil {
		p := n.GetToken().Position
		e.Line, e.Column = max(p.Line, 1), max(p.Column, 1)
	}
	return e
}

// yamlSyntax is the YAML reader's own error, without its excerpt of the source,
// which could show a secret.
type yamlSyntax interface {
	GetToken() *token.Token
	GetMessage() string
}

func findService(tokens token.Tokens) (service []*ast.MappingValueNode, bad *Error) {
	defer func() {
		// The YAML reader is not ours and the text is a stranger's.
		if r := recover(); r != nil {
			service, bad = nil, badYAML(nil, "this YAML cannot be read")
		}
	}()
	if err := checkDepth(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		e := badYAML(nil, "this YAML cannot be read")
		if s := yamlSyntax(nil); errors.As(err, &s) && s.GetToken() != nil {
			e.Line, e.Column = max(s.GetToken().Position.Line, 1), max(s.GetToken().Position.Column, 1)
		}
		return nil, e
	}
	if len(file.Docs) == 0 || file.Docs[0] == nil || file.Docs[0].Body == nil {
		return nil, badYAML(nil, "no service")
	}
	if len(file.Docs) > 1 {
		return nil, badYAML(file.Docs[1].Body, "a second document: expected one")
	}
	top, err2 := pairs(file.Docs[0].Body)
	if err2 != nil {
		return nil, err2
	}
	if services := find(top, "services"); services != nil {
		if top, err2 = pairs(services.Value); err2 != nil {
			return nil, err2
		}
		if len(top) != 1 {
			return nil, badYAML(services.Key, "%d services: expected the one that serves the model", len(top))
		}
		return nonEmpty(top[0])
	}
	if find(top, "image") == nil && find(top, "command") == nil && len(top) == 1 {
		return nonEmpty(top[0])
	}
	return top, nil
}

// checkDepth refuses nesting that a recursive reader would have to follow, in
// brackets and in the marks of one line.
func checkDepth(tokens token.Tokens) *Error {
	depth, line, marks := 0, 0, 0
	for _, t := range tokens {
		if t.Position != nil && t.Position.Line != line {
			line, marks = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.AliasType, token.TagType:
			marks++
		case token.MappingStartType, token.SequenceStartType:
			depth++
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
		if depth > 20 || marks > 20 {
			return &Error{Kind: BadCompose, Line: max(t.Position.Line, 1), Column: max(t.Position.Column, 1), Message: "nested too deeply"}
		}
	}
	return nil
}

func nonEmpty(kv *ast.MappingValueNode) ([]*ast.MappingValueNode, *Error) {
	body, err := pairs(kv.Value)
	if err == nil && len(body) == 0 {
		err = badYAML(kv.Key, "an empty service")
	}
	return body, err
}

func pairs(n ast.Node) ([]*ast.MappingValueNode, *Error) {
	switch n := n.(type) {
	case *ast.MappingNode:
		if len(n.Values) == 0 {
			return nil, badYAML(n, "an empty mapping")
		}
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	}
	return nil, badYAML(n, "expected keys with values")
}

func find(pairs []*ast.MappingValueNode, key string) *ast.MappingValueNode {
	for _, kv := range pairs {
		if k, _ := scalar(kv.Key); k == key {
			return kv
		}
	}
	return nil
}

// scalar returns the text of a plain value, numbers as they were written.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.NullNode:
		return "", true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func list(n ast.Node) ([]ast.Node, *Error) {
	if s, ok := n.(*ast.SequenceNode); ok {
		return s.Values, nil
	}
	return nil, badYAML(n, "expected a list")
}

// composeService collects the keys of a service until all are known.
type composeService struct {
	command *Command
	image   word
	words   map[string][]word // command, entrypoint
	options []word            // of docker run
}

// text is a value in which compose replaces variables and nothing else. It goes
// through the lexer as one quoted word.
func (s *composeService) text(n ast.Node) (word, *Error) {
	v, ok := scalar(n)
	if !ok {
		return word{}, badYAML(n, "expected a text")
	}
	lx, err := lex(`"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`, "`", "\\`").Replace(v)+`"`, true)
	if err != nil {
		return word{}, placed(err, n)
	}
	s.command.Unexpanded = append(s.command.Unexpanded, lx.unexpanded...)
	w := lx.lines[0][0]
	p := badYAML(n, "")
	w.line, w.column = p.Line, p.Column
	return w, nil
}

// placed moves a mistake inside of a value to where the value stands.
func placed(e *Error, n ast.Node) *Error {
	p := badYAML(n, "")
	e.Line, e.Column = p.Line, p.Column
	return e
}

func (s *composeService) option(name string, w word) {
	s.options = append(s.options, word{text: name, line: w.line, column: w.column}, w)
}

func (s *composeService) key(kv *ast.MappingValueNode) *Error {
	name, _ := scalar(kv.Key)
	c := s.command
	switch name {
	case "image":
		w, err := s.text(kv.Value)
		s.image = w
		return err
	case "command", "entrypoint":
		words, err := s.split(kv.Value)
		s.words[name] = words
		return err
	case "environment":
		return s.environment(kv.Value)
	case "env_file":
		c.warn("env_file_not_read")
	case "ports":
		return s.each(kv.Value, s.port)
	case "volumes":
		return s.each(kv.Value, func(n ast.Node) *Error {
			w, err := s.text(n)
			if err != nil {
				c.warn("compose_keys_ignored") // the long form
				return nil
			}
			s.option("-v", w)
			return nil
		})
	case "ipc", "shm_size", "network_mode", "runtime", "gpus":
		w, err := s.text(kv.Value)
		if err != nil {
			return err
		}
		s.option(map[string]string{"ipc": "--ipc", "shm_size": "--shm-size", "network_mode": "--network",
			"runtime": "--runtime", "gpus": "--gpus"}[name], w)
	case "deploy":
		s.deploy(kv.Value)
	case "container_name", "restart", "healthcheck", "depends_on", "logging", "labels", "profiles", "networks",
		"hostname", "stop_grace_period", "pull_policy":
	default:
		c.warn("compose_keys_ignored")
	}
	return nil
}

func (s *composeService) each(n ast.Node, f func(ast.Node) *Error) *Error {
	items, err := list(n)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

// split reads command and entrypoint.
func (s *composeService) split(n ast.Node) (words []word, err *Error) {
	if _, ok := n.(*ast.SequenceNode); ok {
		err = s.each(n, func(item ast.Node) *Error {
			w, err := s.text(item)
			words = append(words, w)
			return err
		})
		return words, err
	}
	v, ok := scalar(n)
	if !ok {
		return nil, badYAML(n, "expected a text or a list of words")
	}
	lx, err := lex(v, true)
	if err != nil {
		return nil, placed(err, n)
	}
	c := s.command
	c.Comments = append(c.Comments, lx.comments...)
	c.Unexpanded = append(c.Unexpanded, lx.unexpanded...)
	c.Lenient = c.Lenient || lx.lenient
	p := badYAML(n, "")
	for _, line := range lx.lines {
		for _, w := range line {
			w.line, w.column = p.Line, p.Column
			words = append(words, w)
		}
	}
	return words, nil
}

func (s *composeService) environment(n ast.Node) *Error {
	c := s.command
	one := func(w word) *Error {
		switch at := strings.IndexByte(w.text, '='); {
		case at > 0:
			c.setEnv(w, at)
		case isName(w.text):
			c.passEnv(w)
		default:
			return &Error{Kind: BadCompose, Line: w.line, Column: w.column, Message: "environment takes NAME=value"}
		}
		return nil
	}
	if _, ok := n.(*ast.SequenceNode); ok {
		return s.each(n, func(item ast.Node) *Error {
			w, err := s.text(item)
			if err != nil {
				return err
			}
			return one(w)
		})
	}
	vars, err := pairs(n)
	if err != nil {
		return err
	}
	for _, kv := range vars {
		name, ok := scalar(kv.Key)
		if !ok || name == "" || strings.Contains(name, "=") {
			return badYAML(kv.Key, "expected a variable's name")
		}
		w, err := s.text(kv.Value)
		if err != nil {
			return err
		}
		if kv.Value.Type() == ast.NullType {
			w.text = name
			err = one(w)
		} else {
			c.setEnvValue(EnvVar{name, w.text}, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *composeService) port(n ast.Node) *Error {
	w, err := s.text(n)
	if err != nil {
		long, err := pairs(n)
		if err != nil {
			return err
		}
		target, published := find(long, "target"), find(long, "published")
		if target == nil || published == nil {
			return nil
		}
		t, _ := scalar(target.Value)
		p, _ := scalar(published.Value)
		w = word{text: p + ":" + t}
	}
	s.command.publish(w.text)
	s.option("-p", w)
	return nil
}

// deploy notes that the service gets GPUs, and which.
func (s *composeService) deploy(n ast.Node) {
	for _, key := range []string{"resources", "reservations", "devices"} {
		body, err := pairs(n)
		if err != nil {
			return
		}
		kv := find(body, key)
		if kv == nil {
			return
		}
		n = kv.Value
	}
	devices, err := list(n)
	if err != nil || len(devices) == 0 {
		return
	}
	gpus := "all"
	if body, err := pairs(devices[0]); err == nil {
		if ids := find(body, "device_ids"); ids != nil {
			var names []string
			items, _ := list(ids.Value)
			for _, id := range items {
				v, _ := scalar(id)
				names = append(names, v)
			}
			gpus = `"device=` + strings.Join(names, ",") + `"` // docker itself wants the quotes
		} else if count := find(body, "count"); count != nil {
			gpus, _ = scalar(count.Value)
		}
	}
	s.option("--gpus", word{text: gpus})
}

func (s *composeService) finish(first *ast.MappingValueNode) *Error {
	c := s.command
	if s.image.text == "" {
		return badYAML(first.Key, "no image: expected image: REPOSITORY:TAG in the service")
	}
	if s.image.text[0] == '-' {
		return fail(s.image, BadCompose, "no image's name starts with a hyphen")
	}
	c.container = append([]word{{text: "docker"}, {text: "run"}}, s.options...)
	argv := s.words["command"]
	if entry := s.words["entrypoint"]; len(entry) > 0 {
		c.entrypoint = true
		if err := checkProgram(entry[:1]); err != nil {
			return err
		}
		c.container = append(c.container, word{text: "--entrypoint"}, entry[0])
		argv = append(entry[1:len(entry):len(entry)], argv...)
	}
	c.Image = s.image.text
	c.container = append(c.container, s.image)
	return c.afterImage(argv)
}

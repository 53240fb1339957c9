package dagger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	sdk "dagger.io/dagger"
	"dagger.io/dagger/engineconn"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"
)

// fake answers the SDK's queries as an engine would, without one: every query becomes a
// chain of nodes, equal chains are one node, and what is asked of a node is answered from
// tables, or by running a hook where an engine would run a command (fake_exec_test.go).
// What it does not know it refuses, and fails the test.
//
// It keeps its volumes, results and secrets' names over sessions, as an engine does;
// services end with their session.
type fake struct {
	t       *testing.T
	dir     string
	running sync.WaitGroup

	mu       sync.Mutex
	nodes    map[string]*node // by id
	order    []*node          // as they were first named
	requests []request
	answers  []tableAnswer // the last that matches counts
	faults   []*fault
	sessions []*fakeSession
	execHook func(context.Context, *execCall) execResult
	srvHook  func(context.Context, *serviceCall) int
	execs    map[*node]*execRun
	ran      map[*node]int
	roots    map[*node]string
	services []*service
	replaced []replacement
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, dir: t.TempDir(), nodes: map[string]*node{}, execs: map[*node]*execRun{}, ran: map[*node]int{}, roots: map[*node]string{}}
	f.replacePattern(regexp.QuoteMeta(filepath.Join(os.TempDir(), "speedmatrix-"))+`\d+`, "TMP") // the executor's own
	t.Cleanup(func() {
		f.lose()
		f.running.Wait()
	})
	return f
}

// request is one that was sent.
type request struct {
	text  string
	asked []*node // what it wants to know: the last fields of its chains
}

// node is an object, or a value that is asked for: a field with arguments of a parent.
// Its id is made of its content.
type node struct {
	id     string
	parent *node // nil: the root
	field  string
	args   []argument // by name
}

type argument struct {
	name  string
	value any // string, int64, bool, enum, []any, map[string]any, nil; *node for an object
}

// enum is a word of the schema.
type enum string

// arg is nil where there is no such argument, or no node.
func (n *node) arg(name string) any {
	if n == nil {
		return nil
	}
	for _, a := range n.args {
		if a.name == name {
			return a.value
		}
	}
	return nil
}

// text is an argument that is a string or a word.
func (n *node) text(name string) string {
	switch v := n.arg(name).(type) {
	case string:
		return v
	case enum:
		return string(v)
	}
	return ""
}

// words is an argument that is a list of strings.
func (n *node) words(name string) []string {
	var out []string
	list, _ := n.arg(name).([]any)
	for _, v := range list {
		s, _ := v.(string)
		out = append(out, s)
	}
	return out
}

func (n *node) object(name string) *node {
	o, _ := n.arg(name).(*node)
	return o
}

// chain is from the root's field to n.
func (n *node) chain() []*node {
	var out []*node
	for ; n != nil; n = n.parent {
		out = append(out, n)
	}
	slices.Reverse(out)
	return out
}

// up is the nearest of a chain that has one of the names.
func (n *node) up(fields ...string) *node {
	for ; n != nil && !slices.Contains(fields, n.field); n = n.parent {
	}
	return n
}

// short stands for n where an engine shows part of a digest.
func (n *node) short() string { return n.id[len("id-") : len("id-")+12] }

func (n *node) String() string { return (&script{}).inline(n) }

// intern is the node of a field: the same one for the same content. f.mu is held.
func (f *fake) intern(parent *node, field string, args []argument) *node {
	slices.SortFunc(args, func(a, b argument) int { return strings.Compare(a.name, b.name) })
	h := sha256.New()
	if parent != nil {
		fmt.Fprintf(h, "%s.", parent.id)
	}
	fmt.Fprintf(h, "%q", field)
	for _, a := range args {
		fmt.Fprintf(h, ",%q:%s", a.name, canonical(a.value))
	}
	id := "id-" + hex.EncodeToString(h.Sum(nil))
	if n, ok := f.nodes[id]; ok {
		return n
	}
	n := &node{id: id, parent: parent, field: field, args: args}
	f.nodes[id] = n
	f.order = append(f.order, n)
	return n
}

func canonical(v any) string {
	switch v := v.(type) {
	case *node:
		return "@" + v.id
	case []any:
		var b strings.Builder
		for _, e := range v {
			b.WriteString(canonical(e) + ",")
		}
		return "[" + b.String() + "]"
	case map[string]any:
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v)) {
			b.WriteString(k + ":" + canonical(v[k]) + ",")
		}
		return "{" + b.String() + "}"
	case string:
		return strconv.Quote(v)
	}
	return fmt.Sprintf("%T(%v)", v, v)
}

// matcher picks nodes: what is asked for, or steps on the way.
type matcher func(*node) bool

// asks picks what is asked for by its name.
func asks(field string) matcher { return func(n *node) bool { return n.field == field } }

// step picks the steps of a name that have all the words: each is an element of a list,
// or stands in a string.
func step(field string, words ...string) matcher {
	return func(n *node) bool {
		return n.field == field && !slices.ContainsFunc(words, func(w string) bool {
			return !slices.ContainsFunc(n.args, func(a argument) bool { return holds(a.value, w) })
		})
	}
}

func holds(v any, word string) bool {
	switch v := v.(type) {
	case string:
		return strings.Contains(v, word)
	case enum:
		return string(v) == word
	case []any:
		return slices.Contains(v, any(word))
	case *node:
		return slices.ContainsFunc(v.chain(), func(n *node) bool {
			return slices.ContainsFunc(n.args, func(a argument) bool { return holds(a.value, word) })
		})
	}
	return false
}

// execOf picks commands by words of theirs.
func execOf(words ...string) matcher { return step("withExec", words...) }

// serviceOf picks services by words of their commands.
func serviceOf(words ...string) matcher { return step("asService", words...) }

// through picks what has such a step in its chain.
func through(m matcher) matcher {
	return func(n *node) bool { return slices.ContainsFunc(n.chain(), m) }
}

// every picks what all of them pick.
func every(ms ...matcher) matcher {
	return func(n *node) bool { return !slices.ContainsFunc(ms, func(m matcher) bool { return !m(n) }) }
}

type tableAnswer struct {
	match matcher
	value any
}

// answer sets what is answered to a question. Objects of a list, such as envVariables,
// are a []map[string]any. A func(*node) any is called.
func (f *fake) answer(m matcher, value any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = append(f.answers, tableAnswer{m, value})
}

// fault is what happens instead of an answer.
type fault struct {
	err    error // an answer of the engine's that says so
	never  bool  // no answer comes
	lost   bool  // the session is gone with all that runs in it
	match  matcher
	always bool
	used   bool
}

// graphError is an error as the engine words it.
type graphError struct {
	Message    string         `json:"message"`
	Extensions map[string]any `json:"extensions,omitempty"`
}

func (e *graphError) Error() string { return e.Message }

// engineError is an error that is no command's: of a registry, a build, the engine itself.
func engineError(format string, a ...any) *fault {
	return &fault{err: &graphError{Message: fmt.Sprintf(format, a...)}}
}

// execFailed is the error of a command that ended with a status.
func execFailed(cmd []string, code int, stdout, stderr string) *fault {
	return &fault{err: execError(cmd, code, stdout, stderr)}
}

func execError(cmd []string, code int, stdout, stderr string) *graphError {
	return &graphError{
		Message:    fmt.Sprintf("process %q did not complete successfully: exit code: %d [traceparent:0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331]", strings.Join(cmd, " "), code),
		Extensions: map[string]any{"_type": "EXEC_ERROR", "cmd": cmd, "exitCode": code, "stdout": stdout, "stderr": stderr},
	}
}

func lost() *fault  { return &fault{lost: true} }
func never() *fault { return &fault{never: true} }

// fail makes the first question that matches end in a fault.
func (f *fake) fail(m matcher, fa *fault) {
	fa.match = m
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fa)
}

// failAlways is fail for each such question.
func (f *fake) failAlways(m matcher, fa *fault) {
	fa.always = true
	f.fail(m, fa)
}

func (f *fake) fault(n *node) *fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fa := range f.faults {
		if (fa.always || !fa.used) && fa.match(n) {
			fa.used = true
			return fa
		}
	}
	return nil
}

// errLost is what a client reads when nothing listens where its session was.
var errLost = errors.New("dial tcp 127.0.0.1:39999: connect: connection refused")

// lose ends every session as if its process had been killed.
func (f *fake) lose() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sessions {
		s.over(errLost)
	}
}

// fakeSession is an engineconn.EngineConn.
type fakeSession struct {
	f    *fake
	ctx  context.Context
	end  context.CancelCauseFunc
	busy sync.WaitGroup

	logging sync.Mutex // for log
	log     io.Writer

	mu       sync.Mutex
	lines    int
	services map[*node]*service
}

// conn is a new session. Its log gets what runs in it prints, in the shape of the
// engine's own log.
func (f *fake) conn(log io.Writer) *fakeSession {
	s := &fakeSession{f: f, log: log, services: map[*node]*service{}}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sessions = append(f.sessions, s)
	return s
}

// connect is Executor.Connect.
func (f *fake) connect(ctx context.Context, log io.Writer) (*sdk.Client, error) {
	return sdk.Connect(ctx, sdk.WithConn(f.conn(log)))
}

// client is a session for a test.
func (f *fake) client(t *testing.T) *sdk.Client {
	t.Helper()
	c, err := f.connect(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (*fakeSession) Host() string { return "fake" }

// Close ends what runs, as the end of a session does.
func (s *fakeSession) Close() error {
	s.over(errors.New("the session was closed"))
	s.busy.Wait()
	return nil
}

func (s *fakeSession) over(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(cause)
}

// enter says whether something may begin in the session.
func (s *fakeSession) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.busy.Add(1)
	s.f.running.Add(1)
	return true
}

func (s *fakeSession) leave() {
	s.busy.Done()
	s.f.running.Done()
}

// Do answers a request.
func (s *fakeSession) Do(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if !s.enter() {
		return nil, context.Cause(s.ctx)
	}
	// What runs is not waited for when nobody wants it any more.
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	detach := context.AfterFunc(s.ctx, func() { cancel(context.Cause(s.ctx)) })
	out := make(chan any, 1)
	go func() {
		defer s.leave()
		defer detach()
		out <- s.serve(ctx, body)
	}()
	select {
	case v := <-out:
		if s.ctx.Err() != nil {
			return nil, context.Cause(s.ctx)
		}
		b, err := json.Marshal(v)
		return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Body: io.NopCloser(bytes.NewReader(b))}, err
	case <-ctx.Done():
		// As an http.Client words it, where the cause can be found.
		return nil, &url.Error{Op: "Post", URL: r.URL.String(), Err: context.Cause(ctx)}
	}
}

// serve is the answer to the body of a request.
func (s *fakeSession) serve(ctx context.Context, body []byte) any {
	refuse := func(err error) any {
		var g *graphError
		if !errors.As(err, &g) {
			g = &graphError{Message: err.Error()}
		}
		return map[string]any{"data": nil, "errors": []any{g}}
	}
	var q struct {
		Query     string
		Variables map[string]any
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return refuse(s.f.unknown("the request is no JSON: %v", err))
	}
	doc, err := parser.ParseQuery(&ast.Source{Input: q.Query})
	if err != nil || len(doc.Operations) != 1 || len(q.Variables) > 0 {
		return refuse(s.f.unknown("no query of this SDK: %v\n%s", err, body))
	}
	tree := s.f.plant(q.Query, doc.Operations[0].SelectionSet)
	data, err := s.answerAll(ctx, tree)
	if err != nil {
		return refuse(err)
	}
	return map[string]any{"data": data}
}

// unknown fails the test: the fake must not make up what it does not know.
func (f *fake) unknown(format string, a ...any) error {
	err := fmt.Errorf("the fake session: "+format, a...)
	f.t.Error(err)
	return err
}

// asked is a field of a query with what is wanted of it.
type asked struct {
	key  string // in the answer
	n    *node
	subs []asked
	err  error
}

// plant makes nodes of a selection and records the request.
func (f *fake) plant(text string, set ast.SelectionSet) []asked {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := request{text: text}
	var walk func(*node, ast.SelectionSet) []asked
	walk = func(parent *node, set ast.SelectionSet) (out []asked) {
		for _, sel := range set {
			switch sel := sel.(type) {
			case *ast.InlineFragment:
				out = append(out, walk(parent, sel.SelectionSet)...)
			case *ast.Field:
				a := asked{key: sel.Alias}
				var args []argument
				for _, g := range sel.Arguments {
					args = append(args, argument{g.Name, f.value(g.Value)})
				}
				if sel.Name == "node" || strings.HasPrefix(sel.Name, "load") && strings.HasSuffix(sel.Name, "FromID") {
					if a.n, _ = args[0].value.(*node); a.n == nil {
						a.err = fmt.Errorf("no object has the id %v", args[0].value)
					}
				} else {
					a.n = f.intern(parent, sel.Name, args)
				}
				if len(sel.SelectionSet) > 0 {
					a.subs = walk(a.n, sel.SelectionSet)
				} else {
					r.asked = append(r.asked, a.n)
				}
				out = append(out, a)
			}
		}
		return out
	}
	out := walk(nil, set)
	f.requests = append(f.requests, r)
	return out
}

// value reads a value of a query; an id becomes its node. f.mu is held.
func (f *fake) value(v *ast.Value) any {
	switch v.Kind {
	case ast.StringValue, ast.BlockValue:
		if n, ok := f.nodes[v.Raw]; ok {
			return n
		}
		return v.Raw
	case ast.IntValue:
		i, _ := strconv.ParseInt(v.Raw, 10, 64)
		return i
	case ast.BooleanValue:
		return v.Raw == "true"
	case ast.EnumValue:
		return enum(v.Raw)
	case ast.ListValue:
		out := []any{}
		for _, c := range v.Children {
			out = append(out, f.value(c.Value))
		}
		return out
	case ast.ObjectValue:
		out := map[string]any{}
		for _, c := range v.Children {
			out[c.Name] = f.value(c.Value)
		}
		return out
	case ast.NullValue:
		return nil
	}
	return v.Raw
}

// lists are the fields whose answers are lists of objects.
var lists = []string{"envVariables", "labels", "exposedPorts", "ports"}

func (s *fakeSession) answerAll(ctx context.Context, tree []asked) (map[string]any, error) {
	out := map[string]any{}
	for _, a := range tree {
		if a.err != nil {
			return nil, a.err
		}
		var err error
		switch {
		case len(a.subs) == 0:
			out[a.key], err = s.ask(ctx, a.n)
		case slices.Contains(lists, a.n.field):
			out[a.key], err = s.items(ctx, a.n, a.subs)
		default:
			out[a.key], err = s.answerAll(ctx, a.subs)
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// items answers what is asked of each object of a list.
func (s *fakeSession) items(ctx context.Context, list *node, subs []asked) (any, error) {
	v, err := s.ask(ctx, list)
	if err != nil {
		return nil, err
	}
	items, ok := v.([]map[string]any)
	if !ok {
		return nil, s.f.unknown("the answer to %s is a %T, no []map[string]any", list.field, v)
	}
	out := []any{}
	for i, item := range items {
		s.f.mu.Lock()
		n := s.f.intern(list, "["+strconv.Itoa(i)+"]", nil)
		s.f.mu.Unlock()
		row := map[string]any{"id": n.id}
		for _, sub := range subs {
			if sub.key != "id" {
				row[sub.key] = item[sub.key]
			}
		}
		out = append(out, row)
	}
	return out, nil
}

// ask answers what a query wants to know, or does it.
func (s *fakeSession) ask(ctx context.Context, n *node) (any, error) {
	if fa := s.f.fault(n); fa != nil {
		switch {
		case fa.lost:
			s.over(errLost)
			return nil, errLost
		case fa.never:
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return nil, fa.err
	}
	if n.parent != nil && strings.HasPrefix(n.parent.field, "[") { // of an object of a list
		v, err := s.ask(ctx, n.parent.parent)
		if err != nil {
			return nil, err
		}
		i, _ := strconv.Atoi(strings.Trim(n.parent.field, "[]"))
		if n.field == "id" {
			return n.parent.id, nil
		}
		return v.([]map[string]any)[i][n.field], nil
	}
	s.f.mu.Lock()
	answers := slices.Clone(s.f.answers)
	s.f.mu.Unlock()
	slices.Reverse(answers)
	for _, a := range answers {
		if a.match(n) {
			if g, ok := a.value.(func(*node) any); ok {
				return g(n), nil
			}
			return a.value, nil
		}
	}
	return s.answerItself(ctx, n)
}

// Version of the engine that the fake is.
const fakeVersion = "v" + engineconn.CLIVersion

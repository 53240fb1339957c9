package dagger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "dagger.io/dagger"
	"dagger.io/dagger/engineconn"

	"speedmatrix/pipelines/supervise"
)

const (
	// connectWithin bounds the start of a session: an engine that is not there yet has
	// to be pulled and started by the CLI.
	connectWithin = 5 * time.Minute
	// answerWithin bounds the first answer of an engine that is named: the CLI itself
	// would try for minutes where nothing listens.
	answerWithin = 45 * time.Second
	// closeWithin bounds the end of a session, which may pack what is to be exported.
	closeWithin = time.Minute
	// exitWithin bounds how long a CLI that ended is waited for because a child of it, an
	// engine that it started, holds its output open.
	exitWithin = 5 * time.Second

	maxParams = 64 << 10
)

// Names of environment variables by which people say where the engine and its CLI are.
const (
	CLIVariable     = "_EXPERIMENTAL_DAGGER_CLI_BIN"
	RunnerVariable  = "_EXPERIMENTAL_DAGGER_RUNNER_HOST"
	sessionVariable = "DAGGER_SESSION_PORT"
	gpuVariable     = "_EXPERIMENTAL_DAGGER_GPU_SUPPORT"
)

// SDKVersion is the version that the CLI and the engine must have.
const SDKVersion = engineconn.CLIVersion

// session is a connection to an engine. Closing it ends everything that was started
// through it.
type session struct {
	*sdk.Client
	version string // of the engine
	close   func() error
	// lost: the engine is gone. It will not answer to the end of the session, which kill
	// ends at once.
	lost    bool
	kill    func()
	secrets secretStore
}

// Install says how the CLI gets onto this machine.
const Install = "install version " + SDKVersion + " of the dagger CLI (DAGGER_VERSION=" + SDKVersion + " with its install script, see docs/dagger.md) and put it on the PATH, or name it in " + CLIVariable

// findCLI is the path of the dagger CLI: what the variable names, or the program on
// the PATH.
func findCLI(environ []string) (string, error) {
	if path := supervise.Getenv(environ, CLIVariable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", CLIVariable, err)
		}
		return path, nil
	}
	if path, ok := supervise.LookPath("dagger", environ); ok {
		return path, nil
	}
	return "", fmt.Errorf("there is no dagger CLI here: %s", Install)
}

// inSession says that this program was started inside a session, which it then uses.
func inSession(environ []string) bool { return supervise.Getenv(environ, sessionVariable) != "" }

// connect makes a session and checks the engine's version. Log takes the engine's
// progress as text.
func connect(ctx context.Context, environ []string, secrets secretStore, log io.Writer) (*session, error) {
	if inSession(environ) {
		client, err := sdk.Connect(ctx)
		if err != nil {
			return nil, fmt.Errorf("the Dagger session of %s: %w", sessionVariable, err)
		}
		return checked(ctx, client, secrets, client.Close, func() {})
	}
	cli, err := findCLI(environ)
	if err != nil {
		return nil, err
	}
	c, err := startCLI(ctx, cli, environ, secrets.environ(), log)
	if err != nil {
		return nil, err
	}
	client, err := sdk.Connect(ctx, sdk.WithConn(c))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return checked(ctx, client, secrets, c.Close, func() { _ = errors.Join(c.kill(), c.wait()) })
}

func checked(ctx context.Context, client *sdk.Client, secrets secretStore, end func() error, kill func()) (*session, error) {
	s := &session{Client: client, close: end, kill: kill, secrets: secrets}
	var err error
	if s.version, err = client.Version(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ask the engine for its version: %w", err), end())
	}
	if !sameMinor(s.version, SDKVersion) {
		return nil, errors.Join(fmt.Errorf("the Dagger engine is version %s and this program speaks %s: %s; or start an engine of that version and name it in %s", s.version, SDKVersion, Install, RunnerVariable), end())
	}
	return s, nil
}

// sameMinor compares the first two numbers: the interface changes with the second.
func sameMinor(a, b string) bool {
	minor := func(v string) string {
		p := strings.SplitN(strings.TrimPrefix(v, "v"), ".", 3)
		if len(p) < 2 {
			return v
		}
		return p[0] + "." + p[1]
	}
	return minor(a) == minor(b)
}

// cliConn is a session served by a child process, the CLI. The SDK could start it, but
// as part of our own process group: then the Ctrl-C that asks us to end in order would
// end the session first.
type cliConn struct {
	http.Client
	stdin io.Closer
	wait  func() error
	kill  func() error
}

func (*cliConn) Host() string { return "dagger" }

// Close ends the session as the CLI wants it, by the end of its standard input.
func (c *cliConn) Close() error {
	c.CloseIdleConnections()
	_ = c.stdin.Close()
	done := make(chan error, 1)
	go func() { done <- c.wait() }()
	select {
	case <-done: // its status says nothing: the session is gone either way
		return nil
	case <-time.After(closeWithin):
		return errors.Join(fmt.Errorf("the Dagger session did not end within %v and was killed", closeWithin), c.kill())
	}
}

// startCLI starts `dagger session`.
func startCLI(ctx context.Context, cli string, environ, extra []string, log io.Writer) (*cliConn, error) {
	if socket, ok := strings.CutPrefix(supervise.Getenv(environ, RunnerVariable), "unix://"); ok {
		if _, err := os.Stat(socket); err != nil { // the CLI would try it for a long time
			return nil, noEngine(environ, err, "")
		}
	}
	cmd := exec.Command(cli, "session", "--label", "dagger.io/sdk.name:go", "--label", "dagger.io/sdk.version:"+SDKVersion)
	cmd.Env = append(sessionEnv(environ), extra...)
	cmd.SysProcAttr = ownGroup()
	cmd.WaitDelay = exitWithin
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	tail := &tailWriter{}
	cmd.Stderr = io.MultiWriter(tail, log)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s session: %w", cli, err)
	}
	// The session outlives ctx: what it holds is ended in order.
	c := &cliConn{stdin: stdin, kill: cmd.Process.Kill, wait: sync.OnceValue(cmd.Wait)}

	limit := connectWithin
	if supervise.Getenv(environ, RunnerVariable) != "" {
		limit = answerWithin
	}
	params := make(chan error, 1)
	var p engineconn.ConnectParams
	go func() {
		r := bufio.NewReader(io.LimitReader(stdout, maxParams))
		line, err := r.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &p)
		}
		params <- err
		_, _ = io.Copy(io.Discard, stdout)
	}()
	select {
	case err = <-params:
	case <-time.After(limit):
		err = fmt.Errorf("no answer within %v", limit)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = c.wait()
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, noEngine(environ, err, tail.String())
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", address)
	}}
	c.Client.Transport = withToken{transport, p.SessionToken}
	return c, nil
}

// withToken adds the session's token to each request.
type withToken struct {
	*http.Transport
	token string
}

func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.SetBasicAuth(t.token, "")
	return t.Transport.RoundTrip(r)
}

// sessionEnv is our environment with settings that a person may have made otherwise:
// nothing is reported to anybody, and engines of other programs stay. Only the log has to
// be one of plain lines, and not silent: our events come in it.
func sessionEnv(environ []string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return strings.HasPrefix(kv, "DAGGER_SILENT=") })
	for _, kv := range []string{"DO_NOT_TRACK=1", "DAGGER_LEAVE_OLD_ENGINE=1", "DAGGER_NO_NAG=1", "DAGGER_PROGRESS=logs", "NO_COLOR=1"} {
		name, _, _ := strings.Cut(kv, "=")
		if supervise.Getenv(environ, name) == "" || name == "DAGGER_PROGRESS" {
			out = append(out, kv)
		}
	}
	return out
}

// noEngine words why there is no session.
func noEngine(environ []string, err error, said string) error {
	where := "the CLI starts one where docker, podman or nerdctl run (see docs/dagger.md)"
	if host := supervise.Getenv(environ, RunnerVariable); host != "" {
		where = fmt.Sprintf("%s names %s: is an engine of version %s running there?", RunnerVariable, host, SDKVersion)
	}
	if said != "" {
		said = "\nit said:\n" + said
	}
	return fmt.Errorf("no Dagger engine answers: %w\n%s%s", err, where, said)
}

// tailWriter keeps the last bytes of what is written.
type tailWriter struct {
	mu sync.Mutex
	b  []byte
}

const maxTail = 2 << 10

func (w *tailWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b = append(w.b, p...)
	if len(w.b) > maxTail {
		w.b = append(w.b[:0], w.b[len(w.b)-maxTail:]...)
	}
	return len(p), nil
}

func (w *tailWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(w.b), ""))
}

// secretStore holds what may stand in no query, by name. The engine asks the session's
// process for a secret when it needs it: by the name of an environment variable, or,
// in a session that somebody else started, of a file.
type secretStore struct {
	values map[string]string
	dir    string // of the files; empty: environment variables
}

const secretPrefix = "SPEEDMATRIX_SECRET_"

// newSecrets makes the store. Remove must be called at the end.
func newSecrets(environ []string, values map[string]string) (secretStore, error) {
	s := secretStore{values: values}
	if !inSession(environ) {
		return s, nil
	}
	var err error
	if s.dir, err = os.MkdirTemp("", "speedmatrix-secrets-"); err != nil {
		return s, err
	}
	for name, value := range values {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(value), 0o600); err != nil {
			return s, errors.Join(err, s.remove())
		}
	}
	return s, nil
}

func (s secretStore) remove() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

func (s secretStore) environ() []string {
	if s.dir != "" {
		return nil
	}
	var out []string
	for name, value := range s.values {
		out = append(out, secretPrefix+name+"="+value)
	}
	return out
}

// secret is one of the store's, or nil if it has none of that name.
func (s *session) secret(name string) *sdk.Secret {
	if s.secrets.values[name] == "" {
		return nil
	}
	if s.secrets.dir != "" {
		return s.Secret("file://" + filepath.Join(s.secrets.dir, name))
	}
	return s.Secret("env://" + secretPrefix + name)
}

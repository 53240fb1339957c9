// Package attach measures a server that somebody else started.
//
// It does not start or stop anything, and it takes no notice of where the key came
// from; it sees to it that the key goes to the attached server and nowhere else.
package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"speedmatrix/pipelines"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// connectWithin is how long nothing may listen at the URL: long enough for a
// restart, short enough for a person who mistyped it.
const connectWithin = 10 * time.Second

// Executor carries out a plan on job.AttachURL.
type Executor struct{}

var _ pipelines.Executor = Executor{}

// Execute checks the URL and that nothing there redirects, then measures.
func (Executor) Execute(ctx context.Context, job pipelines.Job, sink runner.Sink) error {
	base, err := BaseURL(job.AttachURL)
	if err != nil {
		return err
	}
	started := time.Now()
	if err := noRedirect(ctx, base, job.APIKey, job.Transport); err != nil {
		return err
	}
	engine := &runner.Engine{
		BaseURL: base, APIKey: job.APIKey, ConnectWithin: connectWithin,
		Launch: record.Launch{Number: job.Launch, Executor: "attach", StartedAt: started.UTC()},
	}
	return pipelines.Measure(ctx, engine, job, sink)
}

// hostPort is an address without its scheme: HOST:PORT, with a path or not. It
// holds no place for a user, a password or a query, so it can be quoted.
var hostPort = regexp.MustCompile(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}(/v1)?/?$`)

// BaseURL checks a URL as people write it and returns it without trailing slash
// and /v1. Its errors never quote what could be a secret: user information and
// query.
func BaseURL(s string) (string, error) {
	if s == "" {
		return "", errors.New("attach: no URL: give --attach http://HOST:PORT or engine.source.attach")
	}
	u, err := url.Parse(s)
	if hostPort.MatchString(s) { // which a URL parser takes for a scheme or refuses
		return "", fmt.Errorf("attach: the URL must begin with http:// or https://; did you mean http://%s?", s)
	}
	if err != nil {
		// The parser's message quotes the text; only its cause is passed on.
		var e *url.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		return "", fmt.Errorf("attach: the URL cannot be read: %w", err)
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("attach: the URL must begin with http:// or https://, not %q", u.Scheme)
	case u.Hostname() == "":
		return "", errors.New("attach: the URL has no host")
	case u.User != nil:
		return "", errors.New("attach: the URL holds a user name or password; give a key by --api-key-file or an environment variable instead")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("attach: the URL has a query or fragment; give the address that /v1/models stands under")
	}
	u.Path = strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1")
	u.RawPath = ""
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

// noRedirect asks for /v1/models once and refuses a server that answers with a
// redirect: every request of the measurement would take the detour, and the key
// would go to whatever host the answer names. Other failures are left to the
// readiness check, which waits and explains.
func noRedirect(ctx context.Context, base, key string, rt http.RoundTripper) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no answer for 10 s"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/v1/models", nil)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	if rt == nil {
		// As in the measurement: no proxy of the environment, and the connection is
		// not kept, so that it is none the engine would have to carry.
		t := &http.Transport{DisableKeepAlives: true}
		defer t.CloseIdleConnections()
		rt = t
	}
	client := http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode < 300 || resp.StatusCode > 399 {
		return nil
	}
	to := "elsewhere"
	if loc, err := resp.Location(); err == nil {
		to = fmt.Sprintf("to %.200q", loc.Scheme+"://"+loc.Host+loc.Path)
	}
	return fmt.Errorf("attach: %s redirects %s (status %d); attach to the address that answers itself", base, to, resp.StatusCode)
}

package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Options for [New].
type Options struct {
	// Dir is where relative paths of models and repositories start.
	Dir string
	// Platform of images: linux/amd64.
	Platform string
	// Hub is the address of the hub of models.
	Hub string
	// HubToken, if not empty, is sent to the hub.
	HubToken string
	// DockerLogin asks registries with the credentials of docker login, which may run
	// docker's credential helpers. Without it they are asked anonymously.
	DockerLogin bool
	// Environ is the environment for the git program, which is run only for
	// repositories that are folders.
	Environ []string
	// Timeout for one name, but not for hashing files; 0: one minute.
	Timeout time.Duration
	// Transport, if not nil, replaces the one for all HTTP.
	Transport http.RoundTripper
}

// Pinner resolves names. It is the resolve.Pinner of plan --lock.
type Pinner struct {
	o        Options
	platform v1.Platform
	hub      *url.URL
	http     *http.Client
}

// New checks the options; it asks nobody.
func New(o Options) (*Pinner, error) {
	p := &Pinner{o: o}
	platform, err := v1.ParsePlatform(o.Platform)
	if err != nil || platform.OS == "" || platform.Architecture == "" {
		return nil, fmt.Errorf("platform %q is not like linux/amd64", o.Platform)
	}
	p.platform = *platform
	if p.hub, err = url.Parse(o.Hub); err != nil || (p.hub.Scheme != "http" && p.hub.Scheme != "https") || p.hub.Host == "" {
		return nil, fmt.Errorf("hub %q is no http(s) address", o.Hub)
	}
	if p.hub.User != nil || p.hub.RawQuery != "" {
		return nil, errors.New("the hub's address holds a user or a query: give the token by the name of an environment variable")
	}
	if o.HubToken != "" && p.hub.Scheme == "http" && !loopback(p.hub.Hostname()) {
		return nil, fmt.Errorf("hub %s: the token would be sent unencrypted: use https", o.Hub)
	}
	p.o.Timeout = cmp.Or(o.Timeout, time.Minute)
	base := o.Transport
	if base == nil {
		base = &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
			ForceAttemptHTTP2:     true,
			TLSHandshakeTimeout:   10 * time.Second,
			ResponseHeaderTimeout: 30 * time.Second,
			IdleConnTimeout:       30 * time.Second,
		}
	}
	p.http = &http.Client{Transport: bounded{base}}
	return p, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *Pinner) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, p.o.Timeout, fmt.Errorf("no answer within %v", p.o.Timeout))
}

// maxBody bounds every body that is read: git's listing of the largest repositories
// has some tens of MB.
const maxBody = 64 << 20

var errTooLong = fmt.Errorf("the answer is longer than %d MiB", maxBody>>20)

// bounded is a transport whose bodies end with an error at maxBody.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(req)
	if err == nil {
		resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxBody}
	}
	return resp, err
}

type boundedBody struct {
	io.ReadCloser
	left int64
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errTooLong
	}
	// One byte more than is allowed tells a body that ends there from one that goes on.
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left+1)])
	b.left -= int64(n)
	if b.left < 0 {
		return 0, errTooLong
	}
	return n, err
}

// unreachable tells a server that did not answer from one that did. What it did
// answer is up to the caller.
func unreachable(ctx context.Context, host string, err error) (error, bool) {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", host, cause), true
	}
	var dns *net.DNSError
	var op *net.OpError
	if errors.As(err, &dns) || errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isTimeout(err) {
		return fmt.Errorf("%s cannot be reached: %w\nlocking needs the network: do it on a machine that has it and take the plan along", host, err), true
	}
	return nil, false
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// isHex says that s is n lower-case hex digits.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

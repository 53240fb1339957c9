package weights

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"speedmatrix/experiments/plan"
)

const (
	defaultParallel = 4
	attempts        = 6 // of one file, without progress; each goes on where the last one ended
	progressBytes   = 1 << 20
	firstPause      = time.Second
	longestPause    = 30 * time.Second
	longestAsked    = 6 * time.Minute // by the server: hubs count requests by five minutes
	headerTimeout   = 60 * time.Second
	// idleTimeout is when a download that brings nothing is begun again.
	idleTimeout  = 2 * time.Minute
	maxRedirects = 5
)

// Options of [Fetch].
type Options struct {
	// Dir is models--org--name, or the folder itself for a snapshot without revision.
	Dir      string
	Snapshot plan.Snapshot
	// Refs are the names by which the engine asks for the revision.
	Refs []string
	// Source is the hub's address, or that of [Serve] for a snapshot without revision.
	Source string
	Token  string // sent to the source and to nobody that it points to
	// TokenVariable is where a person sets Token, for messages. Empty: HF_TOKEN.
	TokenVariable string
	// Parallel downloads; 0: 4.
	Parallel int
	// Verify hashes files that a marker says are complete.
	Verify    bool
	Transport http.RoundTripper
	// Progress is called once a second with bytes, and when all are there.
	Progress func(done, total int64)
}

// Fetch fills a folder with the snapshot's files. Two processes may do so at once: the
// second waits for the first. After an interruption it goes on with what is there.
func Fetch(ctx context.Context, o Options) error {
	s := o.Snapshot
	if err := check(s); err != nil {
		return err
	}
	for _, ref := range o.Refs {
		if err := checkRef(s, ref); err != nil {
			return err
		}
	}
	source, err := url.Parse(o.Source)
	if err != nil || source.Host == "" || source.Scheme != "http" && source.Scheme != "https" || source.User != nil || source.RawQuery != "" {
		return fmt.Errorf("%s: the source of the files must be an address such as https://hub.example, without user and password", s.ID)
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	// No link that lies in the folder leads out of it.
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	f := &fetcher{Options: o, root: root, source: source, total: total(s)}
	if s.Revision != "" {
		f.files = "snapshots/" + s.Revision
	}
	if err := root.MkdirAll(ours, 0o755); err != nil {
		return err
	}
	unlock, err := f.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	done := f.complete()
	if !done || o.Verify {
		if err := f.all(ctx); err != nil {
			return err
		}
	}
	if s.Revision != "" {
		for _, ref := range o.Refs {
			if err := f.write("refs/"+ref, []byte(s.Revision)); err != nil {
				return err
			}
		}
	}
	if !done {
		b, err := json.MarshalIndent(marker{Schema: markerSchema, ID: s.ID, Revision: s.Revision, Files: sorted(s.Files)}, "", "  ")
		if err != nil {
			return err
		}
		if err := f.write(markerName(s), append(b, '\n')); err != nil {
			return err
		}
	}
	if o.Progress != nil {
		o.Progress(f.total, f.total)
	}
	return nil
}

type fetcher struct {
	Options
	root   *os.Root // Dir
	files  string   // folder of the files, below root
	source *url.URL
	client http.Client
	total  int64
	done   atomic.Int64
}

// lock waits for the folder to be ours alone.
func (f *fetcher) lock(ctx context.Context) (unlock func(), err error) {
	file, err := f.root.OpenFile(ours+"/lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { file.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		}
	}
}

// complete says whether the marker lies there and the files still have their sizes.
func (f *fetcher) complete() bool {
	b, err := f.root.ReadFile(markerName(f.Snapshot))
	if err != nil {
		return false
	}
	var m marker
	if json.Unmarshal(b, &m) != nil || m.Schema != markerSchema || m.Revision != f.Snapshot.Revision || !slices.Equal(sorted(m.Files), sorted(f.Snapshot.Files)) {
		return false
	}
	for _, file := range f.Snapshot.Files {
		fi, err := f.root.Lstat(path.Join(f.files, file.Path))
		if err != nil || compareSize(fi, file) != nil {
			return false
		}
	}
	return true
}

// write writes a small file beside, syncs and renames it. The folder is locked, so one
// name beside is enough.
func (f *fetcher) write(name string, data []byte) error {
	if err := f.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	const beside = ours + "/beside"
	out, err := f.root.OpenFile(beside, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = out.Write(data)
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	return f.root.Rename(beside, name)
}

// all downloads what is missing, several files at once.
func (f *fetcher) all(ctx context.Context) error {
	base := f.Transport
	if base == nil {
		t := &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: 30 * time.Second}).DialContext,
			TLSHandshakeTimeout:   15 * time.Second,
			ResponseHeaderTimeout: headerTimeout,
			ForceAttemptHTTP2:     true,
		}
		defer t.CloseIdleConnections()
		base = t
	}
	f.client = http.Client{Transport: base, CheckRedirect: f.redirect}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer report(f.Progress, &f.done, f.total)()

	n := f.Parallel
	if n <= 0 {
		n = defaultParallel
	}
	next := make(chan plan.File)
	var workers sync.WaitGroup
	for range min(n, len(f.Snapshot.Files)) {
		workers.Go(func() {
			for file := range next {
				if err := f.one(ctx, file); err != nil {
					cancel(err)
				}
			}
		})
	}
	// The largest first: they decide how long all of it takes.
	files := slices.SortedFunc(slices.Values(f.Snapshot.Files), func(a, b plan.File) int { return cmp.Compare(b.Bytes, a.Bytes) })
feed:
	for _, file := range files {
		select {
		case next <- file:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// redirect lets a hub point to where large files lie, without the token.
func (f *fetcher) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return &permanent{fmt.Errorf("%s: more than %d redirects", via[0].URL, maxRedirects)}
	}
	if req.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
		return &permanent{fmt.Errorf("%s: it redirects to %s without encryption", via[0].URL, req.URL.Host)}
	}
	// Go's client would send it on to a subdomain.
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

// address of a file.
func (f *fetcher) address(file plan.File) string {
	escaped := (&url.URL{Path: file.Path}).EscapedPath()
	base := strings.TrimRight(f.source.String(), "/")
	if f.Snapshot.Revision == "" {
		return base + "/" + escaped
	}
	return base + "/" + (&url.URL{Path: f.Snapshot.ID}).EscapedPath() + "/resolve/" + f.Snapshot.Revision + "/" + escaped
}

// there says whether a file lies under its final name with the right content.
func (f *fetcher) there(ctx context.Context, name string, file plan.File) bool {
	// A link is replaced by the file: what it leads to is not under our lock.
	if fi, err := f.root.Lstat(name); err != nil || compareSize(fi, file) != nil {
		return false
	}
	in, err := f.root.Open(name)
	if err != nil {
		return false
	}
	defer in.Close()
	return verify(ctx, in, file, func(int) {}) == nil
}

// one brings one file, unless it is there.
func (f *fetcher) one(ctx context.Context, file plan.File) error {
	to := path.Join(f.files, file.Path)
	if f.there(ctx, to, file) {
		f.done.Add(file.Bytes)
		return nil
	}
	if err := f.root.MkdirAll(path.Dir(to), 0o755); err != nil {
		return err
	}
	// Its name holds the hash, so a partial file is of this content or none; and the
	// path, since two files of one content may be on their way at once.
	_, hash := hasher(file)
	name := sha256.Sum256([]byte(to))
	part := ours + "/" + hex.EncodeToString(name[:8]) + "-" + hash + ".partial"

	wait, reached := firstPause, int64(0)
	for try := 1; ; try++ {
		err := f.download(ctx, part, file)
		if err == nil {
			return f.root.Rename(part, to)
		}
		var p *permanent
		var local *fs.PathError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
			return fmt.Errorf("%s: the disk of %s is full: %s of the model's %s are still to come: free that much, or give it another place (%w)", file.Path, f.Dir, size(f.total-f.done.Load()), size(f.total), err)
		case errors.As(err, &p):
			return p.error
		case errors.As(err, &local):
			return err
		}
		// A large file over a line that breaks now and then comes to its end, too.
		if fi, err := f.root.Stat(part); err == nil && fi.Size() >= reached+progressBytes {
			reached, try, wait = fi.Size(), 1, firstPause
		}
		if try == attempts {
			return fmt.Errorf("%w (after %d attempts; what came is kept, another call goes on with it)", err, attempts)
		}
		var busy *busyError
		if errors.As(err, &busy) && busy.after > 0 {
			pause(ctx, min(busy.after, longestAsked))
			continue
		}
		pause(ctx, wait)
		wait = min(2*wait, longestPause)
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// size for people.
func size(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d bytes", n)
}

// permanent is an answer that another attempt would not change.
type permanent struct{ error }

func (p *permanent) Unwrap() error { return p.error }

// busyError is an answer after which another attempt may help.
type busyError struct {
	error
	after time.Duration // as the server asked; 0: it did not
}

// download goes on with a partial file, or begins it. Without an error, the file is whole,
// its hash is right and it is on the disk.
func (f *fetcher) download(ctx context.Context, part string, file plan.File) (err error) {
	out, err := f.root.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	buffer := make([]byte, bufferSize)
	h, want := hasher(file)
	have, err := io.CopyBuffer(h, &tap{ctx, io.LimitReader(out, file.Bytes+1), func(int) {}}, buffer)
	if err != nil {
		return err
	}
	if have > file.Bytes {
		have = 0
		h, _ = hasher(file)
	}
	// Bytes of a try that failed are no progress.
	counted := have
	f.done.Add(have)
	defer func() {
		if err != nil {
			f.done.Add(-counted)
		}
	}()
	old := have > 0

	address := f.address(file)
	if have < file.Bytes {
		// A watch over a connection that brings nothing.
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		idle := time.AfterFunc(headerTimeout+idleTimeout, func() {
			cancel(fmt.Errorf("%s: nothing came for %v", address, idleTimeout))
		})
		defer idle.Stop()
		resp, err := f.get(ctx, address, file, have)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK && have > 0 {
			// This server does not go on in the middle.
			f.done.Add(-have)
			have, counted, old = 0, 0, false
			h, _ = hasher(file)
		}
		if err := out.Truncate(have); err != nil {
			return err
		}
		if _, err := out.Seek(have, io.SeekStart); err != nil {
			return err
		}
		// One byte more than is wanted tells a longer file from the right one.
		body := &tap{ctx, io.LimitReader(resp.Body, file.Bytes-have+1), func(n int) {
			idle.Reset(idleTimeout)
			f.done.Add(int64(n))
			counted += int64(n)
		}}
		n, err := io.CopyBuffer(io.MultiWriter(out, h), body, buffer)
		have += n
		switch {
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("%s: after %d of %d bytes: %w", address, have, file.Bytes, err)
		case have > file.Bytes:
			return errors.Join(&permanent{fmt.Errorf("%s: it is longer than the %d bytes that the plan says", address, file.Bytes)}, out.Truncate(0))
		case have < file.Bytes:
			return fmt.Errorf("%s: it ended after %d of %d bytes", address, have, file.Bytes)
		}
	} else if err := out.Truncate(have); err != nil {
		return err
	}
	if err := compareHash(file, h, want); err != nil {
		err = fmt.Errorf("%s: %w", address, err)
		if !old {
			err = &permanent{err}
		}
		// What lay there from an earlier try may be what is wrong: once more from the start.
		return errors.Join(err, out.Truncate(0))
	}
	return errors.Join(out.Sync(), out.Close())
}

// get asks for a file from a byte on. The answer is 200 with all of the file, or 206.
func (f *fetcher) get(ctx context.Context, address string, file plan.File, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, &permanent{err}
	}
	req.Header.Set("User-Agent", "speedmatrix")
	req.Header.Set("Accept-Encoding", "identity")
	if f.Token != "" {
		req.Header.Set("Authorization", "Bearer "+f.Token)
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, f.unreachable(ctx, address, err)
	}
	if err := f.accept(address, resp, file, from); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// accept refuses an answer that cannot be the file.
func (f *fetcher) accept(address string, resp *http.Response, file plan.File, from int64) error {
	switch {
	case resp.StatusCode == http.StatusPartialContent && from > 0:
		if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, fmt.Sprintf("bytes %d-", from)) {
			return &permanent{fmt.Errorf("%s: asked from byte %d, it sends %.80q", address, from, got)}
		}
	case resp.StatusCode == http.StatusOK:
		from = 0
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && from > 0:
		return &permanent{fmt.Errorf("%s: it ends before byte %d, the plan says %d bytes", address, from, file.Bytes)}
	default:
		return f.refused(address, resp)
	}
	if n := resp.ContentLength; n > file.Bytes-from || n >= 0 && n < file.Bytes && from == 0 {
		return &permanent{fmt.Errorf("%s: it has %d bytes, the plan says %d", address, from+n, file.Bytes)}
	}
	return nil
}

// unreachable words that there was no answer.
func (f *fetcher) unreachable(ctx context.Context, address string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var p *permanent
	if errors.As(err, &p) {
		return p
	}
	// The error of the client would show where it was sent on to, and the signature that
	// opens it.
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
		if at, parseErr := url.Parse(u.URL); parseErr == nil && at.Host != f.source.Host {
			address += " (sent on to " + at.Host + ")"
		}
	}
	err = fmt.Errorf("%s: %w", address, err)
	var unknown x509.UnknownAuthorityError
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &unknown):
		return &permanent{fmt.Errorf("%w\nno authority known here vouches for it: name a file of certificates (PEM) in SSL_CERT_FILE, that of the system or of this network", err)}
	case errors.As(err, &certificate):
		return &permanent{err}
	}
	return err
}

// refused words an answer that is no file.
func (f *fetcher) refused(address string, resp *http.Response) error {
	id, code := f.Snapshot.ID, resp.StatusCode
	away := resp.Request != nil && resp.Request.URL.Host != f.source.Host
	switch {
	case away && code != http.StatusNotFound && code != http.StatusGone:
		// Where large files lie is open for a while only; the hub gives a new address.
		return &busyError{fmt.Errorf("%s: %s, where it is sent on to, answers %s", address, resp.Request.URL.Host, resp.Status), retryAfter(resp.Header, time.Now())}
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		variable := cmp.Or(f.TokenVariable, "HF_TOKEN")
		what := "private, gated or not there"
		if resp.Header.Get("X-Error-Code") == "GatedRepo" {
			what = "gated"
		}
		how := "accept its terms on the hub if it has any, and set " + variable + " to a token of that account"
		if f.Token != "" {
			how = "the token in " + variable + " has no right to it: accept the model's terms on the hub with its account, or use another token"
		}
		return &permanent{fmt.Errorf("%s: the hub answers %d: %s is %s: %s", address, code, id, what, how)}
	case code == http.StatusNotFound || code == http.StatusGone:
		return &permanent{fmt.Errorf("%s: the answer is %d: the file or the revision is gone; lock the plan again to measure what there is now", address, code)}
	case code == http.StatusTooManyRequests || code == http.StatusRequestTimeout || code >= 500:
		return &busyError{fmt.Errorf("%s: the answer is %s", address, resp.Status), retryAfter(resp.Header, time.Now())}
	}
	return &permanent{fmt.Errorf("%s: the answer is %s", address, resp.Status)}
}

// retryAfter is how long a server asks to be left alone: seconds, or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := h.Get("Retry-After")
	if n, err := strconv.Atoi(v); err == nil {
		return time.Duration(min(max(0, n), 86400)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

package weights

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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
	attempts        = 6 // of one file, each goes on where the last one ended
	firstPause      = time.Second
	longestPause    = 30 * time.Second
	headerTimeout   = 60 * time.Second
	// idleTimeout is when a download that brings nothing is begun again.
	idleTimeout = 2 * time.Minute
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
	// Parallel downloads; 0: 4.
	Parallel int
	// Verify hashes files that a marker says are complete.
	Verify    bool
	Transport http.RoundTripper
	// Progress is called now and then with bytes.
	Progress func(done, total int64)
	// Pause replaces the waiting between two attempts (tests only).
	Pause func(ctx context.Context, d time.Duration)
}

// Fetch fills a folder with the snapshot's files. Two processes may do so at once: the
// second waits for the first.
func Fetch(ctx context.Context, o Options) error {
	if err := check(o.Snapshot); err != nil {
		return err
	}
	s := o.Snapshot
	files := o.Dir
	if s.Revision != "" {
		if !isHex(s.Revision, 40) {
			return fmt.Errorf("%s: the revision %q is no commit", s.ID, s.Revision)
		}
		files = filepath.Join(o.Dir, "snapshots", s.Revision)
	}
	for _, ref := range o.Refs {
		if !refName.MatchString(ref) || strings.Contains(ref, "..") {
			return fmt.Errorf("%s: %q is no name of a revision", s.ID, ref)
		}
	}
	if err := os.MkdirAll(files, 0o755); err != nil {
		return err
	}
	unlock, err := lock(ctx, filepath.Join(o.Dir, ".speedmatrix.lock"))
	if err != nil {
		return err
	}
	defer unlock()

	if !complete(o.Dir, files, s) || o.Verify {
		f := &fetcher{Options: o, files: files}
		if err := f.all(ctx); err != nil {
			return err
		}
	}
	if s.Revision != "" {
		for _, ref := range o.Refs {
			if err := writeBeside(filepath.Join(o.Dir, "refs", filepath.FromSlash(ref)), []byte(s.Revision)); err != nil {
				return err
			}
		}
	}
	if complete(o.Dir, files, s) {
		return nil
	}
	b, err := json.MarshalIndent(marker{Schema: markerSchema, ID: s.ID, Revision: s.Revision, Files: sorted(s.Files)}, "", "  ")
	if err != nil {
		return err
	}
	return writeBeside(markerPath(o.Dir, s), append(b, '\n'))
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// lock waits for the folder to be ours alone.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

type fetcher struct {
	Options
	files  string // folder of the files
	client http.Client
	done   atomic.Int64
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
	if f.Pause == nil {
		f.Pause = pause
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if f.Progress != nil {
		var reporting sync.WaitGroup
		reporting.Go(func() { f.report(ctx) })
		defer reporting.Wait()
		defer cancel(nil)
	}
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
	files := slices.SortedFunc(slices.Values(f.Snapshot.Files), func(a, b plan.File) int { return int(max(-1, min(1, b.Bytes-a.Bytes))) })
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

func (f *fetcher) report(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.Progress(f.done.Load(), f.Snapshot.Bytes)
		case <-ctx.Done():
			return
		}
	}
}

// redirect lets a hub point to where large files lie, without the token.
func (f *fetcher) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > 5 {
		return errors.New("more than 5 redirects")
	}
	if req.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
		return errors.New("it redirects to an address without encryption")
	}
	if req.URL.Host != via[0].URL.Host {
		req.Header.Del("Authorization")
	}
	return nil
}

// address of a file.
func (f *fetcher) address(file plan.File) string {
	escaped := (&url.URL{Path: file.Path}).EscapedPath()
	base := strings.TrimRight(f.Source, "/")
	if f.Snapshot.Revision == "" {
		return base + "/" + escaped
	}
	return base + "/" + (&url.URL{Path: f.Snapshot.ID}).EscapedPath() + "/resolve/" + f.Snapshot.Revision + "/" + escaped
}

// one brings one file, unless it is there.
func (f *fetcher) one(ctx context.Context, file plan.File) error {
	to := filepath.Join(f.files, filepath.FromSlash(file.Path))
	if verify(to, file) == nil {
		f.done.Add(file.Bytes)
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	// Its name holds the hash, so a partial file is of this content or none.
	_, hash := hasher(file)
	beside := filepath.Join(filepath.Dir(to), ".speedmatrix-"+hash+".partial")
	wait := firstPause
	for try := 1; ; try++ {
		err := f.download(ctx, beside, file)
		if err == nil {
			err = verify(beside, file)
			if err != nil {
				// Not what the plan says: going on from it would not help.
				_ = os.Remove(beside)
				err = &permanent{fmt.Errorf("%s: %w", f.address(file), err)}
			}
		}
		if err == nil {
			return os.Rename(beside, to)
		}
		var p *permanent
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, syscall.ENOSPC):
			return fmt.Errorf("%s: the disk is full: the model needs %d bytes", f.Snapshot.ID, f.Snapshot.Bytes)
		case errors.As(err, &p):
			return p.error
		case try == attempts:
			return fmt.Errorf("%w (after %d attempts)", err, attempts)
		}
		var busy *busyError
		if errors.As(err, &busy) && busy.after > 0 {
			wait = min(busy.after, longestPause)
		}
		f.Pause(ctx, wait)
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

// permanent is an answer that another attempt would not change.
type permanent struct{ error }

// busyError is an answer after which another attempt may help.
type busyError struct {
	error
	after time.Duration // as the server asked; 0: it did not
}

// download goes on with a partial file, or begins it.
func (f *fetcher) download(ctx context.Context, beside string, file plan.File) error {
	out, err := os.OpenFile(beside, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	have, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if have > file.Bytes {
		have = 0
	}
	if have == file.Bytes && have > 0 {
		return nil // whole already; its hash decides
	}
	// A watch over a connection that brings nothing.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(headerTimeout+idleTimeout, func() { cancel(fmt.Errorf("nothing came for %v", idleTimeout)) })
	defer idle.Stop()

	address := f.address(file)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return &permanent{err}
	}
	req.Header.Set("User-Agent", "speedmatrix")
	req.Header.Set("Accept-Encoding", "identity")
	if f.Token != "" {
		req.Header.Set("Authorization", "Bearer "+f.Token)
	}
	if have > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", have))
	}
	resp, err := f.client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if strings.Contains(err.Error(), "unknown authority") {
			return &permanent{fmt.Errorf("%s: %w\nthis network has a certificate authority of its own: name its file in SSL_CERT_FILE", address, err)}
		}
		return fmt.Errorf("%s: %w", address, err)
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && have > 0:
		if !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have)) {
			return &permanent{fmt.Errorf("%s: asked from byte %d, it sends %q", address, have, resp.Header.Get("Content-Range"))}
		}
	case resp.StatusCode == http.StatusOK:
		have = 0
	default:
		return f.refused(address, resp)
	}
	if err := out.Truncate(have); err != nil {
		return err
	}
	if _, err := out.Seek(have, io.SeekStart); err != nil {
		return err
	}
	// One byte more than is wanted tells a longer file from the right one.
	body := &watched{r: io.LimitReader(resp.Body, file.Bytes-have+1), seen: func(n int) {
		idle.Reset(idleTimeout)
		f.done.Add(int64(n))
	}}
	n, err := io.Copy(out, body)
	switch {
	case err != nil:
		f.done.Add(-n)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return fmt.Errorf("%s: %w", address, err)
	case have+n > file.Bytes:
		return errors.Join(&permanent{fmt.Errorf("%s: it is longer than the %d bytes that the plan says", address, file.Bytes)}, os.Remove(beside))
	case have+n < file.Bytes:
		f.done.Add(-n)
		return fmt.Errorf("%s: it ended after %d of %d bytes", address, have+n, file.Bytes)
	}
	return errors.Join(out.Sync(), out.Close())
}

// watched tells of what is read.
type watched struct {
	r    io.Reader
	seen func(int)
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.seen(n)
	return n, err
}

// refused words an answer that is no file.
func (f *fetcher) refused(address string, resp *http.Response) error {
	id := f.Snapshot.ID
	switch c := resp.StatusCode; {
	case c == http.StatusUnauthorized || c == http.StatusForbidden:
		how := "set HF_TOKEN to a token that may read it"
		if f.Token != "" {
			how = "the token has no right to it: accept the model's terms on the hub, or use another token"
		}
		return &permanent{fmt.Errorf("%s: the hub answers %d: %s is private or gated: %s", address, c, id, how)}
	case c == http.StatusNotFound || c == http.StatusGone:
		return &permanent{fmt.Errorf("%s: the hub answers %d: the file or the revision is gone; lock the plan again to measure what there is now", address, c)}
	case c == http.StatusTooManyRequests || c >= 500:
		after, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
		return &busyError{fmt.Errorf("%s: the hub answers %s", address, resp.Status), time.Duration(max(0, after)) * time.Second}
	}
	return &permanent{fmt.Errorf("%s: the hub answers %s", address, resp.Status)}
}

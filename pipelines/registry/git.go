package registry

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Commit resolves a branch, a tag or a commit of a repository, which is an http(s)
// address, one without its https://, or a folder.
//
// 40 hex digits are a commit already and are taken as they are: whether the repository
// has it is seen when it is fetched. A short commit cannot be asked for: the protocol
// lists branches and tags only.
func (p *Pinner) Commit(ctx context.Context, repo, rev string) (string, error) {
	if isHex(strings.ToLower(rev), 40) {
		return strings.ToLower(rev), nil
	}
	if err := checkRev(rev); err != nil {
		return "", err
	}
	ctx, cancel := p.timeout(ctx)
	defer cancel()
	var found refs
	var err error
	if isFolder(repo) {
		found, err = p.lsFolder(ctx, repo)
	} else {
		found, err = p.lsRemote(ctx, repo, rev)
	}
	if err != nil {
		return "", err
	}
	return found.find(repo, rev)
}

// checkRev refuses what no branch or tag can be called.
func checkRev(rev string) error {
	if rev == "" || len(rev) > 250 || strings.HasPrefix(rev, "-") || strings.Contains(rev, "..") ||
		strings.ContainsAny(rev, "\\ ~^:?*[") || strings.IndexFunc(rev, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0 {
		return fmt.Errorf("%.80q is no branch, tag or commit", rev)
	}
	return nil
}

// isFolder tells a path from an address.
func isFolder(repo string) bool {
	return strings.HasPrefix(repo, "/") || strings.HasPrefix(repo, "./") || strings.HasPrefix(repo, "../") ||
		repo == "." || repo == ".." || strings.HasPrefix(repo, "file://")
}

// refs are names of a repository with their commits, annotated tags peeled.
type refs map[string]string

// find returns the commit of a name. Git itself prefers tags to branches; here a name
// that is both and means two commits is a mistake.
func (r refs) find(repo, rev string) (string, error) {
	tag, isTag := r["refs/tags/"+rev]
	branch, isBranch := r["refs/heads/"+rev]
	full, isFull := r[rev] // refs/heads/main, refs/pull/1/head, HEAD
	switch {
	case isTag && isBranch && tag != branch:
		return "", fmt.Errorf("%s has a tag and a branch %q: write refs/tags/%[2]s or refs/heads/%[2]s", repo, rev)
	case isTag:
		return tag, nil
	case isBranch:
		return branch, nil
	case isFull:
		return full, nil
	case len(rev) >= 4 && isHex(strings.ToLower(rev), len(rev)):
		return "", fmt.Errorf("%s has no branch or tag %q; if it is a short commit, give all 40 digits (git rev-parse %[2]s in a clone tells them): a repository cannot be asked for a part of one, and it is not guessed", repo, rev)
	}
	return "", fmt.Errorf("%s has no branch or tag %q, or no longer: give one that it has, or the commit of 40 hex digits", repo, rev)
}

// maxRefs bounds a listing.
const maxRefs = 1 << 20

// add takes one line of a listing: a commit and a name, which ends in ^{} where the
// commit is what an annotated tag points to. In the listing that one comes second.
func (r refs) add(commit, name string) error {
	if !isHex(commit, 40) {
		if isHex(commit, 64) {
			return errors.New("the repository names its commits by SHA-256, which is not supported")
		}
		return errors.New("a line of the listing has no commit")
	}
	if len(r) >= maxRefs {
		return fmt.Errorf("the listing has more than %d names", maxRefs)
	}
	r[strings.TrimSuffix(name, "^{}")] = commit
	return nil
}

// lsFolder lists a repository on this machine with the git program, which knows all
// the ways in which a repository can lie there.
func (p *Pinner) lsFolder(ctx context.Context, repo string) (refs, error) {
	dir := strings.TrimPrefix(repo, "file://")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(p.o.Dir, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, fmt.Errorf("%s: reading a repository on this machine needs the program git: install it, or give the commit of 40 hex digits", repo)
	}
	cmd := exec.CommandContext(ctx, git, "ls-remote", "--", dir)
	cmd.Env = append(slices.Clone(p.o.Environ), "GIT_TERMINAL_PROMPT=0", "GIT_ALLOW_PROTOCOL=file", "LC_ALL=C")
	cmd.WaitDelay = time.Second
	var stderr limited
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	found := refs{}
	lines := bufio.NewScanner(&boundedBody{ReadCloser: stdout, left: maxBody})
	var bad error
	for lines.Scan() && bad == nil {
		commit, name, _ := strings.Cut(lines.Text(), "\t")
		bad = found.add(commit, name)
	}
	if bad = errors.Join(bad, lines.Err()); bad != nil {
		cmd.Cancel()
	}
	err = cmd.Wait()
	switch cause := context.Cause(ctx); {
	case bad != nil:
		return nil, fmt.Errorf("%s: %w", repo, bad)
	case cause != nil:
		return nil, fmt.Errorf("%s: %w", repo, cause)
	case err != nil:
		return nil, fmt.Errorf("%s: git ls-remote: %w: %s", repo, err, bytes.TrimSpace(stderr.b))
	}
	return found, nil
}

// limited keeps the first bytes of what a program says.
type limited struct{ b []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), 2000-len(l.b))]...)
	return len(p), nil
}

// lsRemote lists what a server has under the name. Servers that speak version 2 of the
// protocol send only that; older ones send all they have.
func (p *Pinner) lsRemote(ctx context.Context, repo, rev string) (refs, error) {
	address, err := gitURL(repo)
	if err != nil {
		return nil, err
	}
	resp, err := p.git(ctx, http.MethodGet, address.JoinPath("info", "refs").String()+"?service=git-upload-pack", nil)
	if err != nil {
		return nil, gitError(ctx, repo, err)
	}
	defer resp.Body.Close()
	if t := resp.Header.Get("Content-Type"); t != "application/x-git-upload-pack-advertisement" {
		return nil, fmt.Errorf("%s is no git repository that speaks git's smart HTTP protocol (it answers with %.80q)", repo, t)
	}
	found, v2, err := readAdvertisement(resp.Body)
	if err != nil {
		return nil, gitError(ctx, repo, err)
	}
	if !v2 {
		return found, nil
	}
	// A server may have sent us elsewhere; the second question goes there too.
	at := *resp.Request.URL
	at.Path, at.RawPath, at.RawQuery = strings.TrimSuffix(at.Path, "/info/refs")+"/git-upload-pack", "", ""
	var ask strings.Builder
	ask.WriteString(pktLine("command=ls-refs\n") + pktLine("agent="+userAgent+"\n") + "0001" + pktLine("peel\n"))
	prefixes := []string{"refs/tags/" + rev, "refs/heads/" + rev}
	if strings.HasPrefix(rev, "refs/") || rev == "HEAD" {
		prefixes = append(prefixes, rev)
	}
	for _, prefix := range prefixes {
		ask.WriteString(pktLine("ref-prefix " + prefix + "\n"))
	}
	ask.WriteString("0000")
	answer, err := p.git(ctx, http.MethodPost, at.String(), strings.NewReader(ask.String()))
	if err != nil {
		return nil, gitError(ctx, repo, err)
	}
	defer answer.Body.Close()
	if found, err = readRefs(answer.Body); err != nil {
		return nil, gitError(ctx, repo, err)
	}
	return found, nil
}

// gitURL reads a repository's address. One that holds a password would be stored with
// the plan.
func gitURL(repo string) (*url.URL, error) {
	text := repo
	if !strings.Contains(text, "://") {
		if host, _, ok := strings.Cut(text, "/"); !ok || strings.Contains(host, "@") {
			return nil, errors.New("engine.source.repo is no http(s) address and no folder (which begins with / or ./): git over ssh cannot be asked; give the https address, or the commit of 40 hex digits")
		}
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "":
		return nil, errors.New("the repository's address cannot be read")
	case u.User != nil || u.RawQuery != "":
		return nil, errors.New("the repository's address holds a user, a password or a query, which would be stored with the plan: leave them out; for a private repository give the commit of 40 hex digits or a clone's folder")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%s: %s cannot be asked; give the https address, a clone's folder, or the commit of 40 hex digits", repo, u.Scheme)
	}
	return u, nil
}

// git sends one request of the protocol.
func (p *Pinner) git(ctx context.Context, method, address string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "git/"+userAgent) // servers tell git from browsers by it
	req.Header.Set("Git-Protocol", "version=2")
	if body != nil {
		req.Header.Set("Content-Type", "application/x-git-upload-pack-request")
		req.Header.Set("Accept", "application/x-git-upload-pack-result")
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, status(resp.StatusCode)
	}
	return resp, nil
}

// status is an HTTP status that is not 200.
type status int

func (s status) Error() string {
	return fmt.Sprintf("it answers %d %s", int(s), http.StatusText(int(s)))
}

func gitError(ctx context.Context, repo string, err error) error {
	var s status
	if errors.As(err, &s) {
		if s == http.StatusUnauthorized || s == http.StatusForbidden || s == http.StatusNotFound {
			return fmt.Errorf("%s: %w: there is no such repository, or it is private; for a private one give the commit of 40 hex digits or a clone's folder", repo, s)
		}
		return fmt.Errorf("%s: %w", repo, s)
	}
	if away, ok := unreachable(ctx, repo, err); ok {
		return away
	}
	return fmt.Errorf("%s: %w", repo, err)
}

// readAdvertisement reads the answer to info/refs: capabilities in version 2, else the
// refs themselves.
func readAdvertisement(r io.Reader) (found refs, v2 bool, err error) {
	lines := pktReader{bufio.NewReader(r)}
	line, mark, err := lines.next()
	if err != nil {
		return nil, false, started(err)
	}
	if bytes.HasPrefix(line, []byte("# service=")) {
		if _, mark, err = lines.next(); err != nil || mark != pktFlush {
			return nil, false, errors.Join(errors.New("no end after the name of the service"), err)
		}
		if line, mark, err = lines.next(); err != nil {
			return nil, false, started(err)
		}
	}
	if string(line) == "version 2" {
		return nil, true, nil
	}
	found = refs{}
	if string(line) == "version 1" {
		if line, mark, err = lines.next(); err != nil {
			return nil, false, started(err)
		}
	}
	for ; mark != pktFlush; line, mark, err = lines.next() {
		if err != nil {
			return nil, false, started(err)
		}
		if err := refused(line); err != nil {
			return nil, false, err
		}
		line, _, _ = bytes.Cut(line, []byte{0}) // capabilities follow the first
		commit, name, ok := strings.Cut(string(line), " ")
		if !ok {
			return nil, false, errors.New("a line of the listing has no name")
		}
		if name == "capabilities^{}" || commit == "shallow" {
			continue // an empty repository; a boundary of a shallow one
		}
		if err := found.add(commit, name); err != nil {
			return nil, false, err
		}
	}
	return found, false, nil
}

// readRefs reads the answer to ls-refs of version 2.
func readRefs(r io.Reader) (refs, error) {
	lines := pktReader{bufio.NewReader(r)}
	found := refs{}
	for {
		line, mark, err := lines.next()
		switch {
		case err != nil:
			return nil, started(err)
		case mark == pktFlush || mark == pktEnd:
			return found, nil
		case mark == pktDelim:
			return nil, errors.New("an unexpected section in the listing")
		}
		if err := refused(line); err != nil {
			return nil, err
		}
		words := strings.Split(string(line), " ")
		if len(words) < 2 {
			return nil, errors.New("a line of the listing has no name")
		}
		if words[0] == "unborn" {
			continue // HEAD of an empty repository
		}
		if err := found.add(words[0], words[1]); err != nil {
			return nil, err
		}
		for _, attribute := range words[2:] {
			if commit, ok := strings.CutPrefix(attribute, "peeled:"); ok {
				if err := found.add(commit, words[1]); err != nil {
					return nil, err
				}
			}
		}
	}
}

// started turns the end of the answer into a mistake: a listing ends with a mark.
func started(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("the listing ends early")
	}
	return err
}

func refused(line []byte) error {
	if why, ok := bytes.CutPrefix(line, []byte("ERR ")); ok {
		return fmt.Errorf("the server refuses: %.200q", why)
	}
	return nil
}

package registry

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// gitRun runs git without any settings of this machine.
func gitRun(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
		"GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// repository makes a bare repository with two commits: main at the second, tag v1
// (annotated) and branch release at the first, "both" as a branch at one and a tag at
// the other.
func repository(t *testing.T) (bare, first, second string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("SKIPPED: no git program, so no repository to ask")
	}
	work := t.TempDir()
	gitRun(t, work, "init", "-q", "-b", "main", ".")
	gitRun(t, work, "commit", "-q", "--allow-empty", "-m", "one")
	first = gitRun(t, work, "rev-parse", "HEAD")
	gitRun(t, work, "tag", "-a", "-m", "release", "v1")
	gitRun(t, work, "branch", "release")
	gitRun(t, work, "branch", "release-2")
	gitRun(t, work, "branch", "both")
	gitRun(t, work, "commit", "-q", "--allow-empty", "-m", "two")
	second = gitRun(t, work, "rev-parse", "HEAD")
	gitRun(t, work, "tag", "both")
	gitRun(t, work, "update-ref", "refs/pull/7/head", first)
	bare = filepath.Join(t.TempDir(), "vllm.git")
	gitRun(t, work, "clone", "-q", "--mirror", work, bare)
	return bare, first, second
}

// serveGit serves the folder of a repository with git's own program. Version 0 is what
// a server answers that does not know the header.
func serveGit(t *testing.T, bare string, version2 bool) string {
	t.Helper()
	backend := filepath.Join(gitRun(t, ".", "--exec-path"), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skip("SKIPPED: git has no http-backend here")
	}
	h := &cgi.Handler{Path: backend, Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1"}, InheritEnv: []string{"PATH"}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !version2 {
			r.Header.Del("Git-Protocol")
		}
		// As where a forge moves a repository.
		if rest, ok := strings.CutPrefix(r.URL.Path, "/old.git/"); ok && r.Method == http.MethodGet {
			http.Redirect(w, r, "/vllm.git/"+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/vllm.git"
}

func TestCommit(t *testing.T) {
	bare, first, second := repository(t)
	v2 := serveGit(t, bare, true)
	for where, repo := range map[string]string{
		"version 2": v2,
		"moved":     strings.Replace(v2, "/vllm.git", "/old.git", 1),
		"version 0": serveGit(t, bare, false),
		"folder":    bare,
		"file URL":  "file://" + bare,
		"relative":  "./" + filepath.Base(bare),
	} {
		t.Run(where, func(t *testing.T) {
			p := newPinner(t, Options{Dir: filepath.Dir(bare), Environ: []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull}})
			for _, c := range []struct{ rev, want, err string }{
				{rev: "main", want: second},
				{rev: "release", want: first},
				{rev: "v1", want: first}, // peeled: not the tag object
				{rev: "HEAD", want: second},
				{rev: "refs/tags/v1", want: first},
				{rev: "refs/heads/both", want: first},
				{rev: "refs/tags/both", want: second},
				{rev: "refs/pull/7/head", want: first},
				{rev: first, want: first},
				{rev: strings.ToUpper(first), want: first},
				{rev: "both", err: "a tag and a branch"},
				{rev: first[:12], err: "all 40 digits"},
				{rev: "nightly", err: "no branch or tag"},
				{rev: "a b", err: "is no branch, tag or commit"},
				{rev: "--upload-pack=x", err: "is no branch, tag or commit"},
			} {
				got, err := p.Commit(t.Context(), repo, c.rev)
				if c.err != "" {
					wantError(t, err, c.err)
				} else if err != nil || got != c.want {
					t.Errorf("%s: got %s, %v, want %s", c.rev, got, err, c.want)
				}
			}
		})
	}
}

func TestCommitRefused(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/private"):
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
		case strings.HasPrefix(r.URL.Path, "/broken"):
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "text/html")
		}
	}))
	defer page.Close()
	p := newPinner(t, Options{Dir: t.TempDir()})
	for _, c := range []struct{ name, repo, want string }{
		{"no git server", page.URL + "/x", "smart HTTP"},
		{"401", page.URL + "/private", "there is no such repository, or it is private"},
		{"500", page.URL + "/broken", "500"},
		{"password in the address", "https://u:hunter2@h.example/r", "holds a user"},
		{"ssh", "git@h.example:o/r", "over ssh"},
		{"ssh address", "ssh://h.example/o/r", "ssh cannot be asked"},
		{"a word", "vllm", "no http(s) address"},
		{"offline", "http://127.0.0.1:1/r", "cannot be reached"},
		{"no such folder", "./missing", "ls-remote"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := exec.LookPath("git"); err != nil && strings.HasPrefix(c.repo, "./") {
				t.Skip("SKIPPED: no git program, which reads folders")
			}
			_, err := p.Commit(t.Context(), c.repo, "main")
			wantError(t, err, c.want)
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the password stands in the error")
			}
		})
	}
}

const c1, c2 = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"

func TestReadAdvertisement(t *testing.T) {
	service := pktLine("# service=git-upload-pack\n") + "0000"
	for _, c := range []struct {
		name, in string
		want     refs
		v2       bool
		err      string
	}{
		{name: "version 0", in: service + pktLine(c1+" HEAD\x00multi_ack symref=HEAD:refs/heads/main\n") + pktLine(c1+" refs/heads/main\n") + "0000",
			want: refs{"HEAD": c1, "refs/heads/main": c1}},
		{name: "peeled tag", in: service + pktLine(c1+" refs/tags/v1\x00x\n") + pktLine(c2+" refs/tags/v1^{}\n") + "0000", want: refs{"refs/tags/v1": c2}},
		{name: "version 1", in: service + pktLine("version 1\n") + pktLine(c1+" refs/heads/main\x00x\n") + "0000", want: refs{"refs/heads/main": c1}},
		{name: "version 2", in: service + pktLine("version 2\n") + pktLine("ls-refs\n") + "0000", v2: true},
		{name: "version 2 without the service", in: pktLine("version 2\n") + "0000", v2: true},
		{name: "empty repository", in: service + pktLine(strings.Repeat("0", 40)+" capabilities^{}\x00x\n") + "0000", want: refs{}},
		{name: "nothing", in: "", err: "ends early"},
		{name: "cut off", in: service + pktLine(c1+" refs/heads/main\x00x\n"), err: "ends early"},
		{name: "cut off within a line", in: service + "00ff" + c1, err: "within a line"},
		{name: "no length", in: "zzzz", err: "no length"},
		{name: "length 3", in: "0003", err: "no length"},
		{name: "sha256", in: service + pktLine(strings.Repeat("a", 64)+" refs/heads/main\x00x\n") + "0000", err: "SHA-256"},
		{name: "refused", in: service + pktLine("ERR access denied\n") + "0000", err: "access denied"},
		{name: "no commit", in: service + pktLine("hello world\n") + "0000", err: "no commit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, v2, err := readAdvertisement(strings.NewReader(c.in))
			if c.err != "" {
				wantError(t, err, c.err)
				return
			}
			if err != nil || v2 != c.v2 || len(got) != len(c.want) {
				t.Fatalf("got %v, version 2 %v, %v", got, v2, err)
			}
			for name, commit := range c.want {
				if got[name] != commit {
					t.Errorf("%s is %s, want %s", name, got[name], commit)
				}
			}
		})
	}
}

func FuzzReadRefs(f *testing.F) {
	f.Add(pktLine(c1+" HEAD symref-target:refs/heads/main\n") + pktLine(c1+" refs/tags/v1 peeled:"+c2+"\n") + "0000")
	f.Add(pktLine("unborn HEAD symref-target:refs/heads/main\n") + "0000")
	f.Add(pktLine("# service=git-upload-pack\n") + "0000" + pktLine(c1+" refs/heads/main\x00caps\n") + "0000")
	f.Add(pktLine("ERR no\n") + "0001")
	f.Add("0004000500020001fff0")
	f.Fuzz(func(t *testing.T, in string) {
		// Whatever comes: an error, or names with commits.
		found, err := readRefs(strings.NewReader(in))
		advertised, _, err2 := readAdvertisement(strings.NewReader(in))
		for _, r := range []refs{found, advertised} {
			for name, commit := range r {
				if (err == nil || err2 == nil) && !isHex(commit, 40) {
					t.Errorf("%q: %q", name, commit)
				}
			}
		}
	})
}

package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"speedmatrix/experiments/plan"
)

const (
	rev   = "0123456789abcdef0123456789abcdef01234567"
	blob  = "89abcdef0123456789abcdef0123456789abcdef"
	large = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
)

func hubAnswer(siblings string) string {
	return fmt.Sprintf(`{"id":"org/model","sha":%q,"unknown":[1],"siblings":[%s]}`, rev, siblings)
}

var goodSiblings = `{"rfilename":"model.safetensors","size":5000000000,"blobId":"` + blob + `","lfs":{"sha256":"` + large + `","size":5000000000,"pointerSize":135}},
	{"rfilename":"config.json","size":12,"blobId":"` + blob + `"},
	{"rfilename":"sub/tokenizer.json","size":3,"blobId":"` + blob + `"}`

var goodSnapshot = plan.Snapshot{ID: "org/model", Revision: rev, Bytes: 5000000015, Files: []plan.File{
	{Path: "config.json", Bytes: 12, Git: blob},
	{Path: "model.safetensors", Bytes: 5000000000, SHA256: large},
	{Path: "sub/tokenizer.json", Bytes: 3, Git: blob},
}}

func TestModelFromHub(t *testing.T) {
	var got []string
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		fmt.Fprint(w, hubAnswer(goodSiblings))
	}))
	defer hub.Close()
	for _, c := range []struct{ revision, token, want string }{
		{"", "", "/mirror/api/models/org/model/revision/main?blobs=true "},
		{"refs/pr/1", "hf_madeup", "/mirror/api/models/org/model/revision/refs%2Fpr%2F1?blobs=true Bearer hf_madeup"},
		{rev, "", "/mirror/api/models/org/model/revision/" + rev + "?blobs=true "},
	} {
		got = nil
		s, err := newPinner(t, Options{Hub: hub.URL + "/mirror/", HubToken: c.token}).Model(t.Context(), "org/model", c.revision)
		if err != nil || !reflect.DeepEqual(s, goodSnapshot) {
			t.Errorf("got  %+v, %v\nwant %+v", s, err, goodSnapshot)
		}
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("asked %q\nwant  %q", got, c.want)
		}
	}
	_, err := newPinner(t, Options{Hub: hub.URL}).Model(t.Context(), "org/model", strings.Repeat("f", 40))
	wantError(t, err, "asked for fff", "answers with "+rev)
}

func TestModelListingRefused(t *testing.T) {
	for _, c := range []struct{ name, answer, want string }{
		{"no JSON", `<html>`, "cannot be read"},
		{"a branch as the revision", `{"sha":"main","siblings":[{}]}`, "40 hex"},
		{"no files", hubAnswer(""), "no files"},
		{"no hash", hubAnswer(`{"rfilename":"a","size":1}`), "no hash"},
		{"no size", hubAnswer(`{"rfilename":"a","blobId":"` + blob + `"}`), "no size"},
		{"negative size", hubAnswer(`{"rfilename":"a","size":-1,"blobId":"` + blob + `"}`), "no size"},
		{"LFS without SHA-256", hubAnswer(`{"rfilename":"a","size":1,"blobId":"` + blob + `","lfs":{}}`), "no SHA-256"},
		{"a way out", hubAnswer(`{"rfilename":"../a","size":1,"blobId":"` + blob + `"}`), "no name of a file"},
		{"absolute", hubAnswer(`{"rfilename":"/etc/passwd","size":1,"blobId":"` + blob + `"}`), "no name of a file"},
		{"steers a terminal", hubAnswer(`{"rfilename":"a\u001b[2J","size":1,"blobId":"` + blob + `"}`), "no name of a file"},
		{"twice", hubAnswer(`{"rfilename":"a","size":1,"blobId":"` + blob + `"},{"rfilename":"a","size":1,"blobId":"` + blob + `"}`), "twice"},
		{"more than all bytes", hubAnswer(`{"rfilename":"a","size":9223372036854775807,"blobId":"` + blob + `"},{"rfilename":"b","size":1,"blobId":"` + blob + `"}`), "exceed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.answer) }))
			defer hub.Close()
			_, err := newPinner(t, Options{Hub: hub.URL}).Model(t.Context(), "org/model", "main")
			wantError(t, err, c.want)
		})
	}
}

func TestModelRefused(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for part, answer := range map[string]struct {
			status int
			code   string
		}{
			"/gone/": {404, "RevisionNotFound"}, "/gated/": {403, "GatedRepo"}, "/private/": {401, "RepoNotFound"}, "/busy/": {429, ""}, "/broken/": {500, ""},
		} {
			if strings.Contains(r.URL.Path, part) {
				w.Header().Set("X-Error-Code", answer.code)
				w.WriteHeader(answer.status)
			}
		}
	}))
	defer hub.Close()
	p := newPinner(t, Options{Hub: hub.URL, HubToken: "hf_madeup"})
	for _, c := range []struct{ id, revision, want string }{
		{"org/gone", "v9", `no revision "v9"`},
		{"org/gated", "main", "accept its terms"},
		{"org/private", "main", "or it is private"},
		{"org/busy", "main", "no more requests"},
		{"org/broken", "main", "500"},
		{"org/a/b", "main", "no name of a hub"},
		{"org/..", "main", "no name of a hub"},
		{"org/m", "a b", "no branch, tag"},
		{"./m", "main", "has no revision"},
	} {
		_, err := p.Model(t.Context(), c.id, c.revision)
		wantError(t, err, c.want)
		if err != nil && strings.Contains(err.Error(), "hf_madeup") {
			t.Errorf("the token stands in: %v", err)
		}
	}
	_, err := newPinner(t, Options{}).Model(t.Context(), "org/m", "main")
	wantError(t, err, "cannot be reached")
}

// TestTokenStaysAtTheHub: a redirect to another host does not take the token along.
func TestTokenStaysAtTheHub(t *testing.T) {
	var seen []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		fmt.Fprint(w, hubAnswer(goodSiblings))
	}))
	defer other.Close()
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+r.URL.RequestURI(), http.StatusTemporaryRedirect)
	}))
	defer hub.Close()
	if _, err := newPinner(t, Options{Hub: hub.URL, HubToken: "hf_madeup"}).Model(t.Context(), "org/model", "main"); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 1 || seen[0] != "" {
		t.Errorf("another host was told %q", seen)
	}
}

func TestModelFromFolder(t *testing.T) {
	base := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		file := filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("m/config.json", "hello")
	write("m/sub/a", "")
	write("m/.git/HEAD", "ref")
	write("m/.cache/huggingface/x", "meta")
	write("blobs/1", "hello")
	if err := os.Symlink("../blobs/1", filepath.Join(base, "m", "weights")); err != nil {
		t.Fatal(err)
	}
	const hello, nothing = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	want := plan.Snapshot{Bytes: 10, Files: []plan.File{
		{Path: "config.json", Bytes: 5, SHA256: hello}, {Path: "sub/a", SHA256: nothing}, {Path: "weights", Bytes: 5, SHA256: hello},
	}}
	p := newPinner(t, Options{Dir: base})
	for _, id := range []string{"./m", filepath.Join(base, "m")} {
		want.ID = id
		if got, err := p.Model(t.Context(), id, ""); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
	_, err := p.Model(t.Context(), "./missing", "")
	wantError(t, err, "no folder")
	if err := os.MkdirAll(filepath.Join(base, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = p.Model(t.Context(), "./empty", "")
	wantError(t, err, "no files")
	if err := os.Symlink("../blobs", filepath.Join(base, "m", "folder")); err != nil {
		t.Fatal(err)
	}
	_, err = p.Model(t.Context(), "./m", "")
	wantError(t, err, "folder: it is not a plain file")

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by hand")
	cancel(stop)
	if _, err := p.Model(ctx, "./m", ""); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

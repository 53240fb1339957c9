package registry

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestNightly(t *testing.T) {
	host := serveImages(t, nil)
	img := imageFor(t, "linux", "amd64")
	commit := strings.Repeat("a", 40)
	if err := remote.Write(mustRef(t, host+"/vllm:nightly-"+commit), img); err != nil {
		t.Fatal(err)
	}
	p := newPinner(t, Options{})
	got, ok, err := p.Nightly(t.Context(), host+"/vllm", commit)
	if err != nil || !ok || got.Manifest != digestOf(t, img) {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	// There is none of another commit, or no longer: no mistake, another way is taken.
	if _, ok, err := p.Nightly(t.Context(), host+"/vllm", strings.Repeat("b", 40)); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	// A registry that does not answer says nothing about its tags.
	if _, ok, err := p.Nightly(t.Context(), "127.0.0.1:1/vllm", commit); ok || err == nil {
		t.Errorf("%v, %v", ok, err)
	}
}

// TestWheel: indices that have a folder of each commit, in the shapes that there are.
func TestWheel(t *testing.T) {
	commit := strings.Repeat("c", 40)
	const version = "0.30.1rc1.dev452+gccccccccc"
	wheel := []byte("the wheel")
	sum := sha256.Sum256(wheel)
	hash := hex.EncodeToString(sum[:])
	name := func(version, platform string) string { return "vllm-" + version + "-cp38-abi3-" + platform + ".whl" }
	link := func(href string) string { return `<a href="` + strings.ReplaceAll(href, "+", "%2B") + `">x</a>` }
	mine := name(version, "manylinux1_x86_64")
	for _, tt := range []struct {
		title string
		pages map[string]string // below the commit's folder
		path  string            // of the wheel that is found; empty: none
		err   string
	}{
		{title: "a package index with hashes", pages: map[string]string{"vllm/": link("../" + mine + "#sha256=" + hash)}, path: mine},
		{title: "a package index without hashes", pages: map[string]string{"vllm/": link("../" + mine)}, path: mine},
		{title: "a plain folder", pages: map[string]string{"": link(mine) + link("notes.txt")}, path: mine},
		{title: "other platforms beside it", pages: map[string]string{"vllm/": link("../"+name(version, "manylinux2014_aarch64")) + link("../"+mine) + link("../"+mine)}, path: mine},
		{title: "only another platform", pages: map[string]string{"vllm/": link("../" + name(version, "manylinux2014_aarch64"))}},
		{title: "nothing of the commit", pages: map[string]string{}},
		{title: "a wheel of another commit", pages: map[string]string{"vllm/": link("../" + name("0.30.1rc1.dev452+gddddddddd", "manylinux1_x86_64"))}, err: "is a wheel of commit ddddddddd"},
		{title: "two variants", pages: map[string]string{"vllm/": link("../"+mine) + link("../"+name(version+".cpu", "manylinux1_x86_64"))}, err: "2 wheels would do"},
		{title: "links that are none", pages: map[string]string{"vllm/": `<a href="javascript:alert(1)">x</a><a href="::">x</a><a>x</a>` + link("../"+mine)}, path: mine},
	} {
		t.Run(tt.title, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rest, ok := strings.CutPrefix(r.URL.Path, "/"+commit+"/")
				page, is := tt.pages[rest]
				switch {
				case ok && is:
					fmt.Fprintf(w, "<!DOCTYPE html><html><body>%s</body></html>", page)
				case ok && strings.HasSuffix(rest, ".whl"):
					w.Write(wheel)
				default:
					w.WriteHeader(http.StatusForbidden) // as object stores answer for what is not there
				}
			}))
			defer server.Close()
			address, got, ok, err := newPinner(t, Options{}).Wheel(t.Context(), server.URL+"/", commit)
			if tt.err != "" {
				wantError(t, err, tt.err)
				return
			}
			if err != nil || ok != (tt.path != "") {
				t.Fatalf("%v, %v", ok, err)
			}
			if !ok {
				return
			}
			if want := server.URL + "/" + commit + "/" + strings.ReplaceAll(tt.path, "+", "%2B"); address != want && strings.ReplaceAll(address, "+", "%2B") != want {
				t.Errorf("address %s, want %s", address, want)
			}
			if got != hash {
				t.Errorf("hash %s", got)
			}
		})
	}
}

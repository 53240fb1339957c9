package registry

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
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
	got, ok, err := p.Nightly(t.Context(), host+"/vllm:nightly-"+commit)
	if err != nil || !ok || got.Manifest != digestOf(t, img) {
		t.Errorf("%+v, %v, %v", got, ok, err)
	}
	// There is none of another commit, or no longer: no mistake, another way is taken.
	if _, ok, err := p.Nightly(t.Context(), host+"/vllm:nightly-"+strings.Repeat("b", 40)); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	// A registry that does not answer says nothing about its tags.
	if _, ok, err := p.Nightly(t.Context(), "127.0.0.1:1/vllm:nightly-"+commit); ok || err == nil {
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
		below string            // a variant's folder
		pages map[string]string // below the commit's folder
		path  string            // of the wheel that is found; empty: none
		err   string
	}{
		{title: "a package index with hashes", pages: map[string]string{"vllm/": link("../" + mine + "#sha256=" + hash)}, path: mine},
		{title: "a package index without hashes", pages: map[string]string{"vllm/": link("../" + mine)}, path: mine},
		{title: "a plain folder", pages: map[string]string{"": link(mine) + link("notes.txt")}, path: mine},
		{title: "other platforms beside it", pages: map[string]string{"vllm/": link("../"+name(version, "manylinux2014_aarch64")) + link("../"+mine) + link("../"+mine)}, path: mine},
		{title: "as vLLM's index is: variants in folders of their own", pages: map[string]string{
			"":          link("cpu/") + link("cu129/") + link("vllm/"),
			"vllm/":     link("../"+name(version, "manylinux_2_31_aarch64")) + link("../"+name(version, "manylinux_2_31_x86_64")),
			"cpu/vllm/": link("../../" + name(version+".cpu", "manylinux_2_31_x86_64")),
		}, path: name(version, "manylinux_2_31_x86_64")},
		{title: "a variant", below: "/cpu", pages: map[string]string{
			"vllm/":     link("../" + mine),
			"cpu/vllm/": link("../../" + name(version+".cpu", "manylinux_2_35_x86_64")),
		}, path: name(version+".cpu", "manylinux_2_35_x86_64")},
		{title: "another system's wheels", pages: map[string]string{"vllm/": link("../"+name(version, "macosx_11_0_x86_64")) + link("../"+mine)}, path: mine},
		{title: "other packages", pages: map[string]string{"": link("vllm_flash_attn-1.0-cp38-abi3-manylinux1_x86_64.whl") + link("vllm-"+version+".tar.gz") + link("vllm-x86_64.whl") + link(mine)}, path: mine},
		{title: "a hash that is none", pages: map[string]string{"vllm/": link("../" + mine + "#sha256=123")}, path: mine},
		{title: "a page that is elsewhere", pages: map[string]string{"vllm/": "→moved/here/"}, path: "moved/" + mine},
		{title: "of a changed tree", pages: map[string]string{"vllm/": link("../" + name("0.1.dev3820+gccccccc.d20241225", "manylinux1_x86_64"))}, err: "changed tree"},
		{title: "a name that is no version", pages: map[string]string{"vllm/": link("../" + name("!", "manylinux1_x86_64"))}, err: "no version"},
		{title: "an index that fails", pages: map[string]string{"vllm/": "→500"}, err: "500"},
		{title: "a wheel that is gone", pages: map[string]string{"vllm/": link("../gone/" + mine)}, err: "403"},
		{title: "a wheel that breaks off", pages: map[string]string{"vllm/": link("../short/" + mine)}, err: "unexpected EOF"},
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
				case page == "→500":
					w.WriteHeader(http.StatusInternalServerError)
				case strings.HasPrefix(page, "→"):
					http.Redirect(w, r, "/"+commit+"/"+strings.TrimPrefix(page, "→"), http.StatusFound)
				case rest == "moved/here/":
					fmt.Fprint(w, link("../"+mine))
				case strings.HasPrefix(rest, "gone/"):
					w.WriteHeader(http.StatusForbidden)
				case strings.HasPrefix(rest, "short/"):
					w.Header().Set("Content-Length", "1000")
					w.Write(wheel)
				case ok && is:
					fmt.Fprintf(w, "<!DOCTYPE html><html><body>%s</body></html>", page)
				case ok && strings.HasSuffix(rest, ".whl"):
					w.Write(wheel)
				default:
					w.WriteHeader(http.StatusForbidden) // as object stores answer for what is not there
				}
			}))
			defer server.Close()
			address, got, ok, err := newPinner(t, Options{}).Wheel(t.Context(), server.URL+"/"+commit+tt.below, commit)
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

// TestWheelVersions: a wheel is of a commit if its version says so.
func TestWheelVersions(t *testing.T) {
	text, err := os.ReadFile("../vllm/testdata/versions.json")
	if err != nil {
		t.Fatal(err)
	}
	var samples struct {
		Versions []struct {
			Text string
			Want struct {
				Kind, Commit string
				Dirty        string `json:"dirty_date"`
			}
		}
	}
	if err := json.Unmarshal(text, &samples); err != nil {
		t.Fatal(err)
	}
	p, other, seen := newPinner(t, Options{}), strings.Repeat("0", 40), 0
	for _, s := range samples.Versions {
		if s.Want.Kind != "" || s.Want.Commit == "" {
			continue
		}
		seen++
		links := []*url.URL{{Scheme: "http", Host: "h", Path: "/vllm-" + s.Text + "-cp38-abi3-manylinux1_x86_64.whl"}}
		commit := (s.Want.Commit + other)[:40]
		if found, err := p.chooseWheel(links, commit); (err == nil) == (s.Want.Dirty != "") || (found == nil) != (s.Want.Dirty != "") {
			t.Errorf("%s for %s: %v, %v", s.Text, commit, found, err)
		}
		if found, err := p.chooseWheel(links, other); err == nil || found != nil {
			t.Errorf("%s for %s: taken", s.Text, other)
		}
	}
	if seen != 3 {
		t.Errorf("%d versions with a commit", seen)
	}
}

// TestCredentials: what docker login has kept, for the registry of an image alone.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	login := base64.StdEncoding.EncodeToString([]byte("me:madeup"))
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"h.example:5000":{"auth":"`+login+`"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]bool{"h.example:5000/a/b:c": true, "h.example:5000/a@" + "sha256:" + strings.Repeat("a", 64): true, "h.example/a/b": false, "a/b": false} {
		user, password, ok, err := Credentials(t.Context(), image)
		if err != nil || ok != want || ok && (user != "me" || password != "madeup") {
			t.Errorf("%s: %q, %q, %v, %v", image, user, password, ok, err)
		}
	}
	if _, _, _, err := Credentials(t.Context(), "A B"); err == nil {
		t.Error("a name that is no image was taken")
	}
}

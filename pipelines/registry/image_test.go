package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"speedmatrix/experiments/plan"
)

// newPinner has a hub that nobody asks, unless a test gives one.
func newPinner(t *testing.T, o Options) *Pinner {
	t.Helper()
	if o.Hub == "" {
		o.Hub = "http://127.0.0.1:1"
	}
	if o.Platform == "" {
		o.Platform = "linux/amd64"
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v\nwant %q in it", err, part)
		}
	}
}

// imageFor makes an image whose config names the platform.
func imageFor(t *testing.T, os, arch string) v1.Image {
	t.Helper()
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = os, arch
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func entry(img v1.Image, os, arch, variant string) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
		MediaType: types.DockerManifestSchema2,
		Platform:  &v1.Platform{OS: os, Architecture: arch, Variant: variant},
	}}
}

func digestOf(t *testing.T, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := i.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func configOf(t *testing.T, i v1.Image) string {
	t.Helper()
	h, err := i.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// serveImages starts a registry and returns repository names in it.
func serveImages(t *testing.T, wrap func(http.Handler) http.Handler) (host string) {
	t.Helper()
	var h http.Handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func mustRef(t *testing.T, s string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestImage(t *testing.T) {
	host := serveImages(t, nil)
	amd, arm, other := imageFor(t, "linux", "amd64"), imageFor(t, "linux", "arm64"), imageFor(t, "linux", "amd64")
	attestation := imageFor(t, "unknown", "unknown")
	index := mutate.AppendManifests(empty.Index,
		entry(amd, "linux", "amd64", ""), entry(arm, "linux", "arm64", "v8"), entry(attestation, "unknown", "unknown", ""))
	double := mutate.AppendManifests(empty.Index, entry(amd, "linux", "amd64", "v2"), entry(other, "linux", "amd64", "v3"))
	liar := mutate.AppendManifests(empty.Index, entry(arm, "linux", "amd64", ""))
	repo := host + "/vllm/vllm-openai"
	for tag, i := range map[string]v1.ImageIndex{"v0.32.0": index, "latest": index, "double": double, "liar": liar} {
		if err := remote.WriteIndex(mustRef(t, repo+":"+tag), i); err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Write(mustRef(t, repo+":single"), amd); err != nil {
		t.Fatal(err)
	}
	wantAMD := plan.Image{Platform: "linux/amd64", Index: digestOf(t, index), Manifest: digestOf(t, amd), Config: configOf(t, amd)}
	wantARM := plan.Image{Platform: "linux/arm64", Index: digestOf(t, index), Manifest: digestOf(t, arm), Config: configOf(t, arm)}
	single := wantAMD
	single.Index = ""
	for _, c := range []struct {
		name, image, platform string
		want                  plan.Image
		err                   string
	}{
		{name: "list by tag", image: repo + ":v0.32.0", want: wantAMD},
		{name: "no tag is latest", image: repo, want: wantAMD},
		{name: "another platform", image: repo + ":v0.32.0", platform: "linux/arm64", want: wantARM},
		{name: "list by digest", image: repo + "@" + wantAMD.Index, want: wantAMD},
		{name: "manifest by digest", image: repo + "@" + wantAMD.Manifest, want: single},
		{name: "tag and digest: the digest counts", image: repo + ":double@" + wantAMD.Index, want: wantAMD},
		{name: "single manifest", image: repo + ":single", want: single},
		{name: "single manifest of another platform", image: repo + ":single", platform: "linux/arm64", err: "is for linux/amd64, not for linux/arm64"},
		{name: "platform that the list lacks", image: repo + ":v0.32.0", platform: "linux/s390x", err: "it has linux/amd64, linux/arm64/v8"},
		{name: "two for one platform", image: repo + ":double", err: "2 manifests for linux/amd64"},
		{name: "one of them by variant, which the config does not hold", image: repo + ":double", platform: "linux/amd64/v3", err: "is for linux/amd64"},
		{name: "the list says another platform than the config", image: repo + ":liar", err: "is for linux/arm64"},
		{name: "no image", image: "no image", err: `"no image" is no image`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := newPinner(t, Options{Platform: c.platform}).Image(t.Context(), c.image)
			if c.err != "" {
				wantError(t, err, c.err)
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

// TestImageVanishes deletes a nightly tag, as its registry does after some days: the
// tag is an error that names the ways on, and the digest still pins the image.
func TestImageVanishes(t *testing.T) {
	host := serveImages(t, nil)
	const commit = "e47c98ef7a38792996e452ef53914e21e41928e9"
	amd := imageFor(t, "linux", "amd64")
	repo := host + "/vllm/vllm-openai"
	tag := mustRef(t, repo+":nightly-"+commit)
	if err := remote.Write(tag, amd); err != nil {
		t.Fatal(err)
	}
	p := newPinner(t, Options{})
	before, err := p.Image(t.Context(), tag.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Delete(tag); err != nil {
		t.Fatal(err)
	}
	_, err = p.Image(t.Context(), tag.Name())
	wantError(t, err, "has no tag", "such tags vanish", "by digest", "engine.source: {commit: "+commit+"}")
	after, err := p.Image(t.Context(), repo+"@"+before.Manifest)
	if err != nil || after != before {
		t.Errorf("by digest: got %+v, %v\nwant %+v", after, err, before)
	}
	_, err = p.Image(t.Context(), repo+":v9")
	wantError(t, err, "engine.source.commit")
	_, err = p.Image(t.Context(), repo+"@sha256:"+strings.Repeat("0", 64))
	wantError(t, err, "no longer has sha256:000", "ways on")
}

func TestImageRefused(t *testing.T) {
	answer := func(code int, header ...string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for i := 0; i+1 < len(header); i += 2 {
					w.Header().Set(header[i], header[i+1])
				}
				w.WriteHeader(code)
			})
		}
	}
	for _, c := range []struct {
		name string
		wrap func(http.Handler) http.Handler
		want string
	}{
		{"401", answer(http.StatusUnauthorized, "Www-Authenticate", `Basic realm="r"`), "docker login"},
		{"403", answer(http.StatusForbidden), "docker login"},
		{"418", answer(http.StatusTeapot), "418"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newPinner(t, Options{}).Image(t.Context(), serveImages(t, c.wrap)+"/a/b:c")
			wantError(t, err, c.want)
		})
	}
}

func TestImageUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	host := strings.TrimPrefix(s.URL, "http://")
	s.Close()
	_, err := newPinner(t, Options{}).Image(t.Context(), host+"/a/b:c")
	wantError(t, err, host, "cannot be reached", "take the plan along")

	// A server that never answers.
	held := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-held }))
	defer slow.Close()
	defer close(held)
	_, err = newPinner(t, Options{Timeout: 50 * time.Millisecond}).Image(t.Context(), strings.TrimPrefix(slow.URL, "http://")+"/a/b:c")
	wantError(t, err, "no answer within 50ms")

	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stopped by hand")
	cancel(stop)
	if _, err := newPinner(t, Options{}).Image(ctx, host+"/a/b:c"); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

// TestImageLogin: docker's credentials are used when that was asked, and only then.
func TestImageLogin(t *testing.T) {
	amd := imageFor(t, "linux", "amd64")
	anonymous := 0
	host := serveImages(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, key, _ := r.BasicAuth(); user != "u" || key != "madeup" {
				anonymous++
				w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	image := host + "/a/b:c"
	if err := remote.Write(mustRef(t, image), amd, remote.WithAuth(&authn.Basic{Username: "u", Password: "madeup"})); err != nil {
		t.Fatal(err)
	}
	config := t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	if err := os.WriteFile(filepath.Join(config, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"username":"u","password":"madeup"}}}`, host), 0o600); err != nil {
		t.Fatal(err)
	}
	anonymous = 0
	_, err := newPinner(t, Options{}).Image(t.Context(), image)
	wantError(t, err, "401", "give --registry-login")
	if anonymous == 0 {
		t.Error("the credentials were used without being asked for")
	}
	got, err := newPinner(t, Options{DockerLogin: true}).Image(t.Context(), image)
	if err != nil || got.Manifest != digestOf(t, amd) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(config, "config.json"), fmt.Appendf(nil, `{"auths":{%q:{"username":"u","password":"hunter2"}}}`, host), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = newPinner(t, Options{DockerLogin: true}).Image(t.Context(), image)
	wantError(t, err, "docker's login has no right to it")
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Error("the password stands in the error")
	}
}

// TestImageTooLarge: no answer is read without bounds.
func TestImageTooLarge(t *testing.T) {
	host := serveImages(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/") {
				w.Header().Set("Content-Type", string(types.OCIImageIndex))
				chunk := []byte(strings.Repeat(" ", 1<<20))
				for range 80 {
					if _, err := w.Write(chunk); err != nil {
						return
					}
				}
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	if _, err := newPinner(t, Options{}).Image(t.Context(), host+"/a/b:c"); err == nil {
		t.Error("80 MiB were taken for a manifest")
	}
}

// TestImageChangedOnTheWay: a config with other bytes than its digest is not believed.
func TestImageChangedOnTheWay(t *testing.T) {
	amd := imageFor(t, "linux", "amd64")
	host := serveImages(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/blobs/"+configOf(t, amd)) {
				fmt.Fprint(w, `{"os":"linux","architecture":"amd64"}`)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	if err := remote.Write(mustRef(t, host+"/a/b:c"), amd); err != nil {
		t.Fatal(err)
	}
	if _, err := newPinner(t, Options{}).Image(t.Context(), host+"/a/b:c"); err == nil {
		t.Error("a config with other bytes than its digest was taken")
	}
}

func TestNew(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Platform: "amd64", Hub: "https://h"}, "not like linux/amd64"},
		{Options{Platform: "linux/amd64", Hub: "h"}, "no http(s) address"},
		{Options{Platform: "linux/amd64", Hub: "https://u:p@h"}, "holds a user"},
		{Options{Platform: "linux/amd64", Hub: "http://h.example", HubToken: "hf_madeup"}, "unencrypted"},
	} {
		_, err := New(c.o)
		wantError(t, err, c.want)
		if strings.Contains(fmt.Sprint(err), "hf_madeup") {
			t.Error("the token stands in the error")
		}
	}
}

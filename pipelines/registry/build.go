package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/net/html"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/vllm"
)

// Platform is what images are asked for.
func (p *Pinner) Platform() string { return p.platform.String() }

// Nightly looks for an image that is published of a commit of the main branch: once a day
// of one commit, as the tag nightly-COMMIT, and removed after about two weeks.
func (p *Pinner) Nightly(ctx context.Context, name string) (plan.Image, bool, error) {
	image, err := p.Image(ctx, name)
	var none *noTagError
	if errors.As(err, &none) {
		return plan.Image{}, false, nil
	}
	return image, err == nil, err
}

// noTagError says that a repository answers and has no such tag.
type noTagError struct{ error }

func (e *noTagError) Unwrap() error { return e.error }

// maxWheel bounds a wheel that has to be read for its hash.
const maxWheel = 4 << 30

// Wheel looks for the wheel of a commit in its folder of an index: vllm/ in it, as package
// indices have, or links to wheels in the folder itself. A link may bring the hash; else
// the wheel is read once.
func (p *Pinner) Wheel(ctx context.Context, folder, commit string) (address, sum string, ok bool, err error) {
	base, err := url.Parse(strings.TrimRight(folder, "/") + "/")
	if err != nil {
		return "", "", false, err
	}
	for _, of := range []string{"vllm/", ""} {
		at, err := base.Parse(of)
		if err != nil {
			return "", "", false, err
		}
		links, found, err := p.links(ctx, at)
		if err != nil {
			return "", "", false, err
		}
		if !found {
			continue
		}
		link, err := p.chooseWheel(links, commit)
		if err != nil {
			return "", "", false, fmt.Errorf("%s: %w", at, err)
		}
		if link == nil {
			continue
		}
		sum := strings.TrimPrefix(link.Fragment, "sha256=")
		link.Fragment = ""
		if !isHex(sum, 64) {
			if sum, err = p.hashOf(ctx, link); err != nil {
				return "", "", false, err
			}
		}
		return link.String(), sum, true, nil
	}
	return "", "", false, nil
}

// links are those of a page of an index; false if there is no such page.
func (p *Pinner) links(ctx context.Context, at *url.URL) ([]*url.URL, bool, error) {
	ctx, cancel := p.timeout(ctx)
	defer cancel()
	resp, err := p.get(ctx, at)
	if err != nil {
		return nil, false, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusForbidden: // object stores answer 403 for what is not there
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("%s answers %s", at, resp.Status)
	}
	at = resp.Request.URL // links are of the page that was answered, which may be another one
	var out []*url.URL
	for z := html.NewTokenizer(resp.Body); ; {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); !errors.Is(err, io.EOF) {
				return nil, false, fmt.Errorf("%s: %w", at, err)
			}
			return out, true, nil
		case html.StartTagToken:
			t := z.Token()
			if t.Data != "a" {
				continue
			}
			for _, a := range t.Attr {
				if u, err := at.Parse(a.Val); a.Key == "href" && err == nil && (u.Scheme == "http" || u.Scheme == "https") {
					out = append(out, u)
				}
			}
		}
	}
}

func (p *Pinner) get(ctx context.Context, at *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		if away, ok := unreachable(ctx, at.Host, err); ok {
			return nil, away
		}
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return resp, nil
}

// chooseWheel finds the one wheel of vllm for the platform. Its version must be of the
// commit: an index that holds another one is not believed.
func (p *Pinner) chooseWheel(links []*url.URL, commit string) (*url.URL, error) {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[p.platform.Architecture]
	fits := func(platform string) bool { // manylinux_2_28_x86_64, not macosx_11_0_x86_64
		return strings.Contains(platform, p.platform.OS) && machine != "" && strings.HasSuffix(platform, "_"+machine)
	}
	var fit []*url.URL
	for _, u := range links {
		file := path.Base(u.Path)
		parts := strings.Split(strings.TrimSuffix(file, ".whl"), "-")
		if !strings.HasSuffix(file, ".whl") || len(parts) < 5 || parts[0] != "vllm" || !fits(parts[len(parts)-1]) {
			continue
		}
		v, err := vllm.ParseVersion(parts[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if v.Commit != "" && !vllm.SameCommit(v.Commit, commit) {
			return nil, fmt.Errorf("%s is a wheel of commit %s, not of %s", file, v.Commit, commit)
		}
		if v.DirtyDate != "" {
			return nil, fmt.Errorf("%s was built from a changed tree, which commit %s does not describe", file, commit)
		}
		if !slices.ContainsFunc(fit, func(o *url.URL) bool { return path.Base(o.Path) == file }) {
			fit = append(fit, u)
		}
	}
	switch len(fit) {
	case 0:
		return nil, nil
	case 1:
		return fit[0], nil
	}
	var names []string
	for _, u := range fit {
		names = append(names, path.Base(u.Path))
	}
	slices.Sort(names)
	return nil, fmt.Errorf("%d wheels would do (%s): name the folder of one variant, as engine.source.build.wheels: https://…/{commit}/VARIANT", len(fit), strings.Join(names, ", "))
}

// hashOf reads a wheel for its hash.
func (p *Pinner) hashOf(ctx context.Context, at *url.URL) (string, error) {
	// Its own client: the other one bounds bodies far below the size of a wheel.
	client := *p.http
	if b, ok := client.Transport.(bounded); ok {
		client.Transport = b.RoundTripper
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", at, resp.Status)
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(resp.Body, maxWheel+1))
	if err != nil {
		return "", fmt.Errorf("%s: %w", at, err)
	}
	if n > maxWheel {
		return "", fmt.Errorf("%s: it is over %d GiB", at, maxWheel>>30)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Credentials are what docker login has kept for an image's registry; false if nothing.
func Credentials(ctx context.Context, image string) (user, password string, ok bool, err error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return "", "", false, fmt.Errorf("%q is no image: %w", image, err)
	}
	auth, err := authn.Resolve(ctx, authn.DefaultKeychain, ref.Context())
	if err != nil {
		return "", "", false, fmt.Errorf("docker's login of %s: %w", ref.Context().RegistryStr(), err)
	}
	c, err := authn.Authorization(ctx, auth)
	if err != nil {
		return "", "", false, fmt.Errorf("docker's login of %s: %w", ref.Context().RegistryStr(), err)
	}
	return c.Username, c.Password, c.Username != "" && c.Password != "", nil
}

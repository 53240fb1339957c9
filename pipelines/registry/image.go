package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/vllm"
)

// maxConfig bounds an image's config, which the library reads whole.
const maxConfig = 8 << 20

// Image resolves repository:tag or repository@digest. No tag means latest, as
// everywhere.
func (p *Pinner) Image(ctx context.Context, image string) (plan.Image, error) {
	ctx, cancel := p.timeout(ctx)
	defer cancel()
	ref, err := name.ParseReference(image)
	if err != nil {
		return plan.Image{}, fmt.Errorf("%q is no image: %w", image, err)
	}
	options := []remote.Option{remote.WithTransport(p.http.Transport), remote.WithUserAgent(userAgent)}
	if p.o.DockerLogin {
		options = append(options, remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	puller, err := remote.NewPuller(options...)
	if err != nil {
		return plan.Image{}, err
	}
	desc, err := puller.Get(ctx, ref)
	if err != nil {
		return plan.Image{}, p.imageError(ctx, ref, err)
	}
	pinned := plan.Image{Platform: p.platform.String(), Manifest: desc.Digest.String()}
	if desc.MediaType.IsIndex() {
		index, err := desc.ImageIndex()
		if err != nil {
			return plan.Image{}, fmt.Errorf("%s: %w", image, err)
		}
		list, err := index.IndexManifest()
		if err != nil {
			return plan.Image{}, fmt.Errorf("%s: its list of platforms cannot be read: %w", image, err)
		}
		digest, err := p.choose(image, list)
		if err != nil {
			return plan.Image{}, err
		}
		pinned.Index, pinned.Manifest = desc.Digest.String(), digest.String()
		if desc, err = puller.Get(ctx, ref.Context().Digest(pinned.Manifest)); err != nil {
			return plan.Image{}, p.imageError(ctx, ref, err)
		}
	}
	if !desc.MediaType.IsImage() {
		return plan.Image{}, fmt.Errorf("%s is of type %q, which is no image of an OCI or current Docker registry", image, desc.MediaType)
	}
	img, err := desc.Image()
	if err != nil {
		return plan.Image{}, fmt.Errorf("%s: %w", image, err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return plan.Image{}, fmt.Errorf("%s: its manifest cannot be read: %w", image, err)
	}
	if manifest.Config.Size > maxConfig {
		return plan.Image{}, fmt.Errorf("%s: its config has %d bytes, more than %d", image, manifest.Config.Size, maxConfig)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return plan.Image{}, p.imageError(ctx, ref, err)
	}
	// What the config says is what runs; what a list says of it is only a label.
	if got := config.Platform(); got == nil || !got.Satisfies(p.wanted()) {
		return plan.Image{}, fmt.Errorf("%s is for %s, not for %s: ask for its platform, or name the image for yours", image, platformName(got), p.platform)
	}
	pinned.Config = manifest.Config.Digest.String()
	for _, d := range []string{pinned.Manifest, pinned.Config} {
		if hex, ok := strings.CutPrefix(d, "sha256:"); !ok || !isHex(hex, 64) {
			return plan.Image{}, fmt.Errorf("%s: the digest %q is not sha256", image, d)
		}
	}
	return pinned, nil
}

const userAgent = "speedmatrix"

// wanted is the platform without what configs do not agree to hold: arm64 is v8
// whether it says so or not.
func (p *Pinner) wanted() v1.Platform {
	w := p.platform
	if w.Architecture == "arm64" {
		w.Variant = ""
	}
	return w
}

// choose finds the one manifest of a list that is for the platform. What is no image,
// such as an attestation, has no platform or an unknown one.
func (p *Pinner) choose(image string, list *v1.IndexManifest) (v1.Hash, error) {
	var found []v1.Hash
	var offered []string
	for _, m := range list.Manifests {
		if m.Platform == nil || !m.MediaType.IsImage() || m.Platform.OS == "unknown" {
			continue
		}
		if n := platformName(m.Platform); !slices.Contains(offered, n) && len(offered) < 20 {
			offered = append(offered, n)
		}
		if m.Platform.Satisfies(p.wanted()) && !slices.Contains(found, m.Digest) {
			found = append(found, m.Digest)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return v1.Hash{}, fmt.Errorf("%s has nothing for %s; it has %s", image, p.platform, listed(offered))
	}
	return v1.Hash{}, fmt.Errorf("%s has %d manifests for %s: name one by its digest, or ask for a variant; it has %s", image, len(found), p.platform, listed(offered))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "no image of any platform"
	}
	return strings.Join(names, ", ")
}

func platformName(p *v1.Platform) string {
	if p == nil || p.OS == "" && p.Architecture == "" {
		return "no platform that it names"
	}
	return p.String()
}

// imageError says what a registry's refusal means and what can be done.
func (p *Pinner) imageError(ctx context.Context, ref name.Reference, err error) error {
	repo := ref.Context().Name()
	var answer *transport.Error
	if !errors.As(err, &answer) {
		if away, ok := unreachable(ctx, ref.Context().RegistryStr(), err); ok {
			return away
		}
		return fmt.Errorf("%s: %w", ref.Name(), err)
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		if d, ok := ref.(name.Digest); ok {
			return fmt.Errorf("%s no longer has %s, or never had: registries remove what no tag names\nways on: a copy that was kept (an OCI tarball, another registry), or build it from its commit with engine.source.commit", repo, d.DigestStr())
		}
		return &noTagError{fmt.Errorf("%s has no tag %q, or no longer: such tags vanish, nightly ones after some days\nways on: %s", repo, ref.Identifier(), vanished(ref.Identifier()))}
	case http.StatusUnauthorized, http.StatusForbidden:
		how := "log in with docker login and give --registry-login"
		if p.o.DockerLogin {
			how = "docker's login has no right to it"
		}
		return fmt.Errorf("%s: the registry answers %d: there is no such repository, or it is private (%s)", repo, answer.StatusCode, how)
	case http.StatusTooManyRequests:
		return fmt.Errorf("%s: the registry takes no more requests for now: wait, or log in with docker login and give --registry-login", repo)
	}
	return fmt.Errorf("%s: the registry answers %d %s", ref.Name(), answer.StatusCode, http.StatusText(answer.StatusCode))
}

// vanished names the ways on when a tag is gone. The tag of a nightly build names the
// commit that the image was built from.
func vanished(tag string) string {
	build := "build it from the commit with engine.source.commit"
	if v, err := vllm.ParseVersion(tag); err == nil && isHex(v.Commit, 40) {
		build = "build it from the commit that the tag names, engine.source: {commit: " + v.Commit + "}"
	}
	return "name the image by digest (repository@sha256:…; the record of an earlier run has it), or " + build
}

package registry

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"speedmatrix/experiments/plan"
)

const (
	// maxArchiveFiles bounds the entries of an archive, maxDescription the size of one that
	// describes others, maxDescriptions that of all of them; only these are kept in memory.
	maxArchiveFiles = 100_000
	maxDescription  = maxConfig
	maxDescriptions = 8 * maxDescription
)

// Archive reads an image that is a file: a tar of an OCI image layout, as `docker save`,
// `podman save --format oci-archive` and container engines write it. Every blob is held
// against its name while the file is read, once, as a stream.
func (p *Pinner) Archive(ctx context.Context, file string) (plan.Image, error) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(p.o.Dir, file)
	}
	// Asked before it is opened: opening a pipe would wait for its other end.
	if info, err := os.Stat(file); err != nil {
		return plan.Image{}, err
	} else if !info.Mode().IsRegular() {
		return plan.Image{}, fmt.Errorf("%s: it is not a plain file", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return plan.Image{}, err
	}
	defer f.Close()
	a, err := readArchive(ctx, f)
	if err != nil {
		return plan.Image{}, fmt.Errorf("%s: %w", file, err)
	}
	image, err := a.image(p)
	if err != nil {
		return plan.Image{}, fmt.Errorf("%s: %w", file, err)
	}
	return image, nil
}

// archive is what is known of an image's file.
type archive struct {
	layout, index []byte
	blobs         map[string]int64  // size by digest
	small         map[string][]byte // blobs that may describe others
	kept          int               // bytes of small
}

func readArchive(ctx context.Context, r io.Reader) (*archive, error) {
	head := make([]byte, 4)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("it is empty or cannot be read: %w", err)
	}
	for magic, how := range map[string]string{"\x1f\x8b": "gunzip", "\x28\xb5\x2f\xfd": "zstd -d", "\xfd7zX": "xz -d"} {
		if bytes.HasPrefix(head[:n], []byte(magic)) {
			return nil, fmt.Errorf("it is compressed: unpack it first (%s)", how)
		}
	}
	a := &archive{blobs: map[string]int64{}, small: map[string][]byte{}}
	t := tar.NewReader(io.MultiReader(bytes.NewReader(head[:n]), r))
	for entries := 0; ; entries++ {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("it is no tar, or cut short: %w", err)
		}
		if entries > maxArchiveFiles {
			return nil, fmt.Errorf("it has more than %d files", maxArchiveFiles)
		}
		if h.Typeflag != tar.TypeReg {
			continue // a link cannot be a blob: who follows it would read another file
		}
		name := path.Clean(h.Name)
		for key := range h.PAXRecords {
			// A few bytes could say of themselves to be an exabyte of zeros.
			if strings.HasPrefix(key, "GNU.sparse.") {
				return nil, fmt.Errorf("%s is a sparse file, as no image has", name)
			}
		}
		switch dir, base := path.Split(name); {
		case name == "oci-layout":
			if a.layout != nil {
				return nil, errors.New("it has two files oci-layout")
			}
			if a.layout, err = readSmall(t, h.Size); err != nil {
				return nil, fmt.Errorf("oci-layout: %w", err)
			}
		case name == "index.json":
			if a.index != nil {
				return nil, errors.New("it has two files index.json")
			}
			if a.index, err = readSmall(t, h.Size); err != nil {
				return nil, fmt.Errorf("index.json: %w", err)
			}
		case dir == "blobs/sha256/":
			err := a.blob(t, base, h.Size)
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return nil, fmt.Errorf("it is cut short in %s: copy it again", name)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if a.index == nil {
		return nil, errors.New("it has no index.json: it is no OCI image layout (docker save of version 25 and newer, or podman save --format oci-archive, write one)")
	}
	// Without this mark a container engine reads manifest.json in the index's place, which
	// may name another image.
	if a.layout == nil {
		return nil, errors.New("it has no file oci-layout: it is no OCI image layout, or was made by hand")
	}
	var layout struct {
		Version string `json:"imageLayoutVersion"`
	}
	if err := json.Unmarshal(a.layout, &layout); err != nil || layout.Version != "1.0.0" {
		return nil, fmt.Errorf("oci-layout: its version is %.40q, this program reads 1.0.0", layout.Version)
	}
	return a, nil
}

func readSmall(r io.Reader, size int64) ([]byte, error) {
	if size > maxDescription {
		return nil, fmt.Errorf("it has %d bytes, more than %d", size, maxDescription)
	}
	return io.ReadAll(io.LimitReader(r, maxDescription))
}

// blob checks one blob against its name.
func (a *archive) blob(r io.Reader, name string, size int64) error {
	digest := "sha256:" + name
	if !isHex(name, 64) {
		return errors.New("its name is no digest")
	}
	if _, ok := a.blobs[digest]; ok {
		return errors.New("it is there twice")
	}
	h := sha256.New()
	var keep bytes.Buffer
	w := io.Writer(h)
	// Layers begin like the archives they are; what describes others is JSON.
	head := make([]byte, 1)
	if size > 0 {
		if _, err := io.ReadFull(r, head); err != nil {
			return err
		}
		if head[0] == '{' && size <= maxDescription {
			w = io.MultiWriter(h, &keep)
		}
		_, _ = w.Write(head)
	}
	if _, err := io.Copy(w, r); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != name {
		return fmt.Errorf("its content has the sha256 %s: the file is damaged, or was made by hand", got)
	}
	a.blobs[digest] = size
	if a.kept += keep.Len(); a.kept > maxDescriptions {
		return fmt.Errorf("with it the blobs of JSON have more than %d MiB: no image describes itself with so much", maxDescriptions>>20)
	}
	if keep.Len() > 0 {
		a.small[digest] = keep.Bytes()
	}
	return nil
}

// image follows the index to the one manifest for the platform, whose blobs must all be
// there.
func (a *archive) image(p *Pinner) (plan.Image, error) {
	out := plan.Image{Platform: p.platform.String()}
	text, digest := a.index, ""
	for range 3 { // index.json, a list of platforms, the manifest
		var list v1.IndexManifest
		if err := json.Unmarshal(text, &list); err != nil {
			return out, fmt.Errorf("its index cannot be read: %w", err)
		}
		var candidates v1.IndexManifest
		for _, m := range list.Manifests {
			if m.MediaType.IsIndex() || m.Platform == nil {
				candidates.Manifests = append(candidates.Manifests, m)
			}
		}
		next, err := v1.Hash{}, error(nil)
		switch {
		case len(list.Manifests) == 1:
			next = list.Manifests[0].Digest
		case len(candidates.Manifests) == 1:
			next = candidates.Manifests[0].Digest
		case len(candidates.Manifests) > 1 && len(candidates.Manifests) == len(list.Manifests):
			err = several(candidates.Manifests)
		default:
			next, err = p.choose("it", &list)
		}
		if err != nil {
			return out, err
		}
		digest = next.String()
		var ok bool
		if text, ok = a.small[digest]; !ok {
			return out, fmt.Errorf("it does not hold %s, which its index names", digest)
		}
		var kind struct {
			MediaType types.MediaType `json:"mediaType"`
			Manifests []any           `json:"manifests"`
		}
		if json.Unmarshal(text, &kind) == nil && (kind.MediaType.IsIndex() || kind.Manifests != nil) {
			out.Index = digest
			continue
		}
		break
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return out, fmt.Errorf("its manifest %s cannot be read: %w", digest, err)
	}
	for _, b := range append([]v1.Descriptor{manifest.Config}, manifest.Layers...) {
		if size, ok := a.blobs[b.Digest.String()]; !ok || size != b.Size {
			return out, fmt.Errorf("it does not hold %s, which its manifest names", b.Digest)
		}
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(a.small[manifest.Config.Digest.String()]))
	if err != nil {
		return out, fmt.Errorf("its config cannot be read: %w", err)
	}
	if got := config.Platform(); got == nil || !got.Satisfies(p.wanted()) {
		return out, fmt.Errorf("it is for %s, not for %s", platformName(got), p.platform)
	}
	out.Manifest, out.Config = digest, manifest.Config.Digest.String()
	return out, nil
}

// several says which images an archive has, where it has more than one.
func several(images []v1.Descriptor) error {
	var names []string
	for _, m := range images[:min(len(images), 20)] {
		name := m.Digest.String()
		for _, key := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
			if v := m.Annotations[key]; v != "" {
				name = v
				break
			}
		}
		names = append(names, fmt.Sprintf("%.200q", name))
	}
	return fmt.Errorf("it has %d images (%s): save one of them alone", len(images), strings.Join(names, ", "))
}

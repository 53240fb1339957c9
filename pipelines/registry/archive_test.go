package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"
)

// layoutOf writes an OCI image layout as a tar, with the entries that change adds or
// replaces (nil: removed).
func layoutOf(t *testing.T, index v1.ImageIndex, change map[string][]byte, more ...tar.Header) []byte {
	t.Helper()
	dir := t.TempDir()
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(name string, text []byte) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if other, ok := change[name]; ok {
			delete(change, name)
			if text = other; text == nil {
				return nil
			}
		}
		put(name, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range change {
		put(name, text)
	}
	for _, h := range more {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// named is an image as docker save writes it into an index: with its name, without a
// platform.
func named(img v1.Image, name string) mutate.IndexAddendum {
	return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Annotations: map[string]string{"io.containerd.image.name": name}}}
}

// sparse is a tar of one file that says of itself to be an exabyte of zeros.
func sparse(t *testing.T, name string) []byte {
	t.Helper()
	// The map of version 1.0 stands before the data: no piece of data at all.
	pieces := []byte("1\n1152921504606846976\n0\n")
	pieces = append(pieces, make([]byte, 512-len(pieces))...)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	records := ""
	for _, kv := range [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", name}, {"GNU.sparse.realsize", "1152921504606846976"}} {
		n := len(kv[0]) + len(kv[1]) + 3
		n += len(strconv.Itoa(n + 2))
		records += fmt.Sprintf("%d %s=%s\n", n, kv[0], kv[1])
	}
	put := func(h tar.Header, text []byte) {
		h.Size = int64(len(text))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	// The writer makes no sparse files, so the records go in as a file and its type is
	// changed afterwards, with the sum of the block.
	put(tar.Header{Name: "records", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatUSTAR}, []byte(records))
	head := b.Bytes()[:512]
	head[156] = tar.TypeXHeader
	copy(head[148:156], "        ")
	sum := 0
	for _, c := range head {
		sum += int(c)
	}
	copy(head[148:156], fmt.Sprintf("%06o\x00 ", sum))
	put(tar.Header{Name: "data", Typeflag: tar.TypeReg, Mode: 0o644, Format: tar.FormatUSTAR}, pieces)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func archived(t *testing.T, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func blobOf(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }

func TestArchive(t *testing.T) {
	amd, arm := imageFor(t, "linux", "amd64"), imageFor(t, "linux", "arm64")
	one := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: amd})
	list := mutate.AppendManifests(empty.Index, entry(amd, "linux", "amd64", ""), entry(arm, "linux", "arm64", ""))
	nested := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: list})
	for name, index := range map[string]v1.ImageIndex{"one image": one, "a list": list, "a list in the index": nested} {
		p := newPinner(t, Options{})
		got, err := p.Archive(t.Context(), archived(t, layoutOf(t, index, nil)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Manifest != digestOf(t, amd) || got.Config != configOf(t, amd) || got.Platform != "linux/amd64" {
			t.Errorf("%s: %+v", name, got)
		}
		if name == "a list in the index" && got.Index != digestOf(t, list) {
			t.Errorf("%s: index %s", name, got.Index)
		}
	}
	// Relative to the experiment's folder.
	file := archived(t, layoutOf(t, one, nil))
	if _, err := newPinner(t, Options{Dir: filepath.Dir(file)}).Archive(t.Context(), filepath.Base(file)); err != nil {
		t.Error(err)
	}
}

// A pipe that nobody writes to would be waited for.
func TestArchiveIsPlainFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{t.TempDir(), pipe} {
		if _, err := newPinner(t, Options{}).Archive(t.Context(), path); err == nil || !strings.Contains(err.Error(), "not a plain file") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Each of its entries is small enough to be kept, all of them are not.
func TestArchiveHoards(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range maxDescriptions/maxDescription + 1 {
		text := bytes.Repeat([]byte{' '}, maxDescription)
		text[0], text[1] = '{', byte('0'+i)
		sum := sha256.Sum256(text)
		if err := w.WriteHeader(&tar.Header{Name: "blobs/sha256/" + hex.EncodeToString(sum[:]), Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := readArchive(t.Context(), &b)
	wantError(t, err, "blobs/sha256/", "more than 64 MiB")
}

// What a damaged or hostile file can be.
func TestArchiveRefused(t *testing.T) {
	img := imageFor(t, "linux", "amd64")
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer := digestOf(t, layers[0])
	whole := layoutOf(t, index, nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(whole); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		text []byte
		want []string
	}{
		{"another platform", layoutOf(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: imageFor(t, "linux", "arm64")}), nil), []string{"it is for linux/arm64, not for linux/amd64"}},
		{"compressed", packed.Bytes(), []string{"it is compressed", "gunzip"}},
		{"empty", nil, []string{"it is empty"}},
		{"no tar", []byte(strings.Repeat("x", 2048)), []string{"no tar"}},
		{"cut short", whole[:600], []string{"cut short"}},
		{"no mark of a layout", layoutOf(t, index, map[string][]byte{"oci-layout": nil}), []string{"no file oci-layout"}},
		{"a layout of another version", layoutOf(t, index, map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"2.0.0"}`)}), []string{"oci-layout", "2.0.0"}},
		{"a blob that is mostly holes", sparse(t, blobOf(layer)), []string{blobOf(layer), "sparse"}},
		{"two images", layoutOf(t, mutate.AppendManifests(empty.Index, named(img, "a:1"), named(imageFor(t, "linux", "arm64"), "b:2")), nil), []string{"2 images", "a:1", "b:2", "save one"}},
		{"no index", layoutOf(t, index, map[string][]byte{"index.json": nil}), []string{"no index.json", "podman save"}},
		{"a layer of other content", layoutOf(t, index, map[string][]byte{blobOf(layer): []byte("other")}), []string{blobOf(layer), "damaged"}},
		{"a layer that is missing", layoutOf(t, index, map[string][]byte{blobOf(layer): nil}), []string{layer, "which its manifest names"}},
		{"a manifest that is missing", layoutOf(t, index, map[string][]byte{blobOf(digestOf(t, img)): nil}), []string{digestOf(t, img), "which its index names"}},
		{"a layer that is a link", layoutOf(t, index, map[string][]byte{blobOf(layer): nil}, tar.Header{Name: blobOf(layer), Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}), []string{layer, "which its manifest names"}},
		{"a blob of no digest", layoutOf(t, index, map[string][]byte{"blobs/sha256/../../etc": []byte("x"), "blobs/sha256/zz": []byte("x")}), []string{"its name is no digest"}},
		{"an index that is no JSON", layoutOf(t, index, map[string][]byte{"index.json": []byte("{")}), []string{"its index cannot be read"}},
		{"an index of nothing", layoutOf(t, index, map[string][]byte{"index.json": []byte(`{"schemaVersion":2,"manifests":[]}`)}), []string{"no image of any platform"}},
	} {
		_, err := newPinner(t, Options{}).Archive(t.Context(), archived(t, tt.text))
		if err == nil {
			t.Errorf("%s: it was taken", tt.name)
		}
		wantError(t, err, tt.want...)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, err := newPinner(t, Options{}).Archive(ctx, archived(t, whole)); !errors.Is(err, cause) {
		t.Errorf("a reader that was told to stop: %v", err)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add([]byte("index.json"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if w.WriteHeader(&tar.Header{Name: "index.json", Mode: 0o644, Size: int64(len(text))}) != nil {
			return
		}
		_, _ = w.Write(text)
		_ = w.Close()
		if a, err := readArchive(t.Context(), &b); err == nil {
			if _, err := a.image(newPinner(t, Options{})); err == nil {
				t.Error("an archive without a blob is an image")
			}
		}
	})
}

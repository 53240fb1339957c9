// Package weights brings the files of a model to where an engine reads them, and holds
// them against a locked plan.
//
// It does not know which model is wanted or what a revision means now: it gets a
// [plan.Snapshot], which names every file with its size and hash. Nothing with a wrong
// hash ever lies under a file's final name.
//
//   - [Fetch] fills a folder from a hub, or from [Serve] of another machine. A marker that
//     is written last says that the folder is complete; a second call finds it and
//     downloads nothing.
//   - [Serve] hands the files of a folder to [Fetch], and nothing else that lies there.
//   - [Check] compares a folder with a snapshot, [Cached] the hub's cache of this machine.
//
// A model of a hub is laid out as the hub's own cache is, models--org--name with
// snapshots/<revision>/… and refs/<name>, so an engine that is told to look nowhere else
// finds the pinned revision under the name that its command gives. A model that is a
// folder is laid out flat. What we keep beside the files begins with .speedmatrix.
package weights

import (
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"speedmatrix/experiments/plan"
)

// Key is a name for a folder that holds the snapshot and no other one.
func Key(s plan.Snapshot) string {
	if s.Revision != "" {
		return HubFolder(s.ID) + "-" + s.Revision
	}
	return "folder-" + sumOf(s)[:32]
}

// sumOf is over the names, sizes and hashes of all files.
func sumOf(s plan.Snapshot) string {
	h := sha256.New()
	for _, f := range sorted(s.Files) {
		fmt.Fprintf(h, "%q %d %s %s\n", f.Path, f.Bytes, f.SHA256, f.Git)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func sorted(files []plan.File) []plan.File {
	return slices.SortedFunc(slices.Values(files), func(a, b plan.File) int { return cmp.Compare(a.Path, b.Path) })
}

// HubFolder is the name of a model's folder in the hub's cache.
func HubFolder(id string) string { return "models--" + strings.ReplaceAll(id, "/", "--") }

// refName is what a branch or tag can be called, and a file below refs/ too.
var refName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,249}$`)

func checkRef(s plan.Snapshot, ref string) error {
	if !refName.MatchString(ref) || strings.Contains(ref, "..") {
		return fmt.Errorf("%s: %q is no name of a revision", s.ID, ref)
	}
	return nil
}

// check refuses a snapshot that would lead out of its folder or cannot be verified.
func check(s plan.Snapshot) error {
	switch {
	case s.Revision != "" && !isHex(s.Revision, 40):
		return fmt.Errorf("%s: the revision %q is no commit", s.ID, s.Revision)
	case len(s.Files) == 0:
		return fmt.Errorf("%s: the plan names none of its files", s.ID)
	}
	seen := map[string]bool{}
	for _, f := range s.Files {
		switch {
		case !filepath.IsLocal(filepath.FromSlash(f.Path)) || f.Path == "." || path.Clean(f.Path) != f.Path || strings.ContainsAny(f.Path, "\\\x00"):
			return fmt.Errorf("%s: %q is no path of a file below a folder", s.ID, f.Path)
		case strings.HasPrefix(f.Path, ours):
			return fmt.Errorf("%s: %q has the name of a file that is ours", s.ID, f.Path)
		case f.Bytes < 0:
			return fmt.Errorf("%s: %s has %d bytes", s.ID, f.Path, f.Bytes)
		// The hash becomes part of a file's name, too.
		case f.SHA256 != "" && !isHex(f.SHA256, 64) || f.SHA256 == "" && !isHex(f.Git, 40):
			return fmt.Errorf("%s: the plan has no hash of %s", s.ID, f.Path)
		case seen[f.Path]:
			return fmt.Errorf("%s: %s stands twice", s.ID, f.Path)
		}
		seen[f.Path] = true
	}
	for _, f := range s.Files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return fmt.Errorf("%s: %s is both a file and a folder", s.ID, dir)
			}
		}
	}
	return nil
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

// hasher is the hash that is known of a file.
func hasher(f plan.File) (h hash.Hash, want string) {
	if f.SHA256 != "" {
		return sha256.New(), f.SHA256
	}
	h = sha1.New()
	fmt.Fprintf(h, "blob %d\x00", f.Bytes)
	return h, f.Git
}

// compareHash says that a file is another one.
func compareHash(f plan.File, h hash.Hash, want string) error {
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s has the hash %s, the plan says %s", f.Path, got, want)
	}
	return nil
}

// compareSize says that a file cannot be the one of the plan.
func compareSize(fi fs.FileInfo, f plan.File) error {
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.Path)
	}
	if fi.Size() != f.Bytes {
		return fmt.Errorf("%s has %d bytes, the plan says %d", f.Path, fi.Size(), f.Bytes)
	}
	return nil
}

// verify holds the content of an open file against what the plan says of it.
func verify(ctx context.Context, in io.Reader, f plan.File, seen func(int)) error {
	h, want := hasher(f)
	n, err := io.CopyBuffer(h, &tap{ctx, io.LimitReader(in, f.Bytes+1), seen}, make([]byte, bufferSize))
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if n != f.Bytes {
		return fmt.Errorf("%s changed while it was read", f.Path)
	}
	return compareHash(f, h, want)
}

const bufferSize = 256 << 10

// tap is a reader that ends with its context, since a file may have a hundred gigabytes,
// and tells of what is read.
type tap struct {
	ctx  context.Context
	r    io.Reader
	seen func(int)
}

func (t *tap) Read(p []byte) (int, error) {
	if t.ctx.Err() != nil {
		return 0, context.Cause(t.ctx)
	}
	n, err := t.r.Read(p)
	t.seen(n)
	return n, err
}

// report calls progress each second until it is stopped.
func report(progress func(done, total int64), done *atomic.Int64, total int64) (stop func()) {
	if progress == nil {
		return func() {}
	}
	end := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				progress(done.Load(), total)
			case <-end:
				return
			}
		}
	})
	return func() { close(end); reporting.Wait() }
}

// total of the files; the plan's own sum is for people.
func total(s plan.Snapshot) (n int64) {
	for _, f := range s.Files {
		n += f.Bytes
	}
	return n
}

// ours begins the names of what we keep beside the files, where no engine looks.
const ours = ".speedmatrix"

// marker is the file that says that a folder is complete.
type marker struct {
	Schema   string      `json:"schema"`
	ID       string      `json:"id"`
	Revision string      `json:"revision,omitempty"`
	Files    []plan.File `json:"files"`
}

const markerSchema = "speedmatrix-weights/1"

// markerName is below the model's folder.
func markerName(s plan.Snapshot) string {
	if s.Revision != "" {
		return ours + "-" + s.Revision + ".json"
	}
	return ours + "-" + sumOf(s)[:32] + ".json"
}

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
//   - [Check] compares a folder with a snapshot.
//
// A model of a hub is laid out as the hub's own cache is, models--org--name with
// snapshots/<revision>/… and refs/<name>, so an engine that is told to look nowhere else
// finds the pinned revision under the name that its command gives. A model that is a
// folder is laid out flat.
package weights

import (
	"cmp"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

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

// check refuses a snapshot that would lead out of its folder or cannot be verified.
func check(s plan.Snapshot) error {
	if len(s.Files) == 0 {
		return fmt.Errorf("%s: the plan names none of its files", s.ID)
	}
	seen := map[string]bool{}
	for _, f := range s.Files {
		local := filepath.FromSlash(f.Path)
		switch {
		case !filepath.IsLocal(local) || f.Path == "." || path.Clean(f.Path) != f.Path || strings.ContainsAny(f.Path, "\\\x00"):
			return fmt.Errorf("%s: %q is no path of a file below a folder", s.ID, f.Path)
		case f.Bytes < 0:
			return fmt.Errorf("%s: %s has %d bytes", s.ID, f.Path, f.Bytes)
		case len(f.SHA256) != 64 && len(f.Git) != 40:
			return fmt.Errorf("%s: the plan has no hash of %s", s.ID, f.Path)
		case seen[f.Path]:
			return fmt.Errorf("%s: %s stands twice", s.ID, f.Path)
		}
		seen[f.Path] = true
	}
	return nil
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

// verify holds one file against what the plan says of it.
func verify(file string, f plan.File) error {
	in, err := os.Open(file)
	if err != nil {
		return err
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", f.Path)
	}
	if fi.Size() != f.Bytes {
		return fmt.Errorf("%s has %d bytes, the plan says %d", f.Path, fi.Size(), f.Bytes)
	}
	h, want := hasher(f)
	if _, err := io.Copy(h, in); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return fmt.Errorf("%s has the hash %s, the plan says %s", f.Path, got, want)
	}
	return nil
}

// marker is the file that says that a folder is complete.
type marker struct {
	Schema   string      `json:"schema"`
	ID       string      `json:"id"`
	Revision string      `json:"revision,omitempty"`
	Files    []plan.File `json:"files"`
}

const markerSchema = "speedmatrix-weights/1"

// markerPath is beside the files, where no engine looks.
func markerPath(dir string, s plan.Snapshot) string {
	return filepath.Join(dir, ".speedmatrix-"+sumOf(s)[:16]+".json")
}

// complete says whether the marker of s lies in dir and the files still have their sizes.
func complete(dir, files string, s plan.Snapshot) bool {
	b, err := os.ReadFile(markerPath(dir, s))
	if err != nil {
		return false
	}
	var m marker
	if json.Unmarshal(b, &m) != nil || m.Schema != markerSchema || !slices.Equal(sorted(m.Files), sorted(s.Files)) {
		return false
	}
	for _, f := range s.Files {
		fi, err := os.Lstat(filepath.Join(files, filepath.FromSlash(f.Path)))
		if err != nil || !fi.Mode().IsRegular() || fi.Size() != f.Bytes {
			return false
		}
	}
	return true
}

// writeBeside writes a small file beside, syncs and renames it.
func writeBeside(file string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".speedmatrix-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

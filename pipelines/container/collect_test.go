package container

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree writes files below a folder, by name.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// files reads a tree.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestCollect(t *testing.T) {
	t.Parallel()
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "a", "out")
	want := map[string]string{"launch-1/engine.log": "log", "launch-1/engine.json": "{}", "trials/a.json.gz": "a", "empty": ""}
	tree(t, dir, want)
	tree(t, dir, map[string]string{"trials/.b.json.gz.1": "half of b"})
	for range 2 { // a second time over the first
		if err := Collect(dir, out); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, files(t, out)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestCollectLeavesOut(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(dir string) error{
		"a link":             func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "trials", "a.json.gz")) },
		"a link to a folder": func(dir string) error { return os.Symlink("/etc", filepath.Join(dir, "launch-1")) },
	} {
		dir, out := t.TempDir(), t.TempDir()
		tree(t, dir, map[string]string{"trials/b.json.gz": "b"})
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if err := Collect(dir, out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(map[string]string{"trials/b.json.gz": "b"}, files(t, out)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if err := Collect(filepath.Join(t.TempDir(), "nowhere"), t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

// What an earlier session asked for is over when a launch is prepared.
func TestPrepare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	launch := LaunchDir(dir, 3)
	for range 2 {
		if err := Prepare(launch); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, drainFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the wish to end is still there: %v", err)
		}
		if fi, err := os.Stat(launch); err != nil || fi.Mode().Perm() != 0o777 {
			t.Errorf("the folder: %v, %v", fi, err)
		}
		if err := AskToDrain(dir); err != nil {
			t.Fatal(err)
		}
	}
}

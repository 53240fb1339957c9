package weights

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"speedmatrix/experiments/plan"
)

// maxDifferences is how many are named.
const maxDifferences = 20

// Check says how a folder differs from a snapshot, in all files at once; nil: it holds
// exactly what the plan says. Links are followed, as they are when a plan is locked. What
// version control and clients of hubs keep there (.git, .cache) is no difference, and what
// [Fetch] keeps there neither. Progress may be nil.
func Check(ctx context.Context, dir string, s plan.Snapshot, progress func(done, total int64)) error {
	if err := check(s); err != nil {
		return err
	}
	var d differences
	if err := d.compare(ctx, dir, s, func(string) bool { return false }, progress); err != nil {
		return err
	}
	return d.err(dir, "lock the plan again, or bring the files back")
}

// Cached says how the hub's cache of this machine differs from a snapshot of the hub. Refs
// are the names by which the engine asks for the revision: each must mean it. Clients of
// the hub leave out what they do not need, so files that no engine reads may be missing.
func Cached(ctx context.Context, cacheDir string, s plan.Snapshot, refs []string, progress func(done, total int64)) error {
	if err := check(s); err != nil {
		return err
	}
	if s.Revision == "" {
		return fmt.Errorf("%s is a folder: no hub's cache holds it", s.ID)
	}
	folder := filepath.Join(cacheDir, HubFolder(s.ID))
	dir := filepath.Join(folder, "snapshots", s.Revision)
	mend := fmt.Sprintf("hf download %s --revision %s", s.ID, s.Revision)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the cache %s does not hold %s at revision %s: fetch it with: %s", cacheDir, s.ID, s.Revision, mend)
	}
	var d differences
	for _, ref := range refs {
		if err := checkRef(s, ref); err != nil {
			return err
		}
		switch means, err := os.ReadFile(filepath.Join(folder, "refs", filepath.FromSlash(ref))); {
		case errors.Is(err, fs.ErrNotExist):
			d.add("revision %s is not known there", ref)
		case err != nil:
			return err
		case strings.TrimSpace(string(means)) != s.Revision:
			d.add("revision %s is %.40q there, the plan says %s", ref, strings.TrimSpace(string(means)), s.Revision)
		}
	}
	safetensors := slices.ContainsFunc(s.Files, func(f plan.File) bool { return path.Ext(f.Path) == ".safetensors" })
	if err := d.compare(ctx, dir, s, func(p string) bool { return aside(p, safetensors) }, progress); err != nil {
		return err
	}
	return d.err(dir, "lock the plan again, or fetch what the plan says with: "+mend)
}

// aside says of a file that no engine reads it: it is for people, or holds the weights once
// more in another format.
func aside(p string, safetensors bool) bool {
	base := strings.ToUpper(path.Base(p))
	for _, start := range []string{".", "LICENSE", "NOTICE", "USE_POLICY"} {
		if strings.HasPrefix(base, start) {
			return true
		}
	}
	switch strings.ToLower(path.Ext(p)) {
	case ".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf", ".mp4":
		return true
	case ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5", ".ot":
		return safetensors
	}
	return strings.HasPrefix(p, "original/")
}

// differences of a folder.
type differences struct {
	mu   sync.Mutex
	list []string
	more int // that are not kept
}

func (d *differences) add(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == 50*maxDifferences {
		d.more++
		return
	}
	d.list = append(d.list, fmt.Sprintf(format, args...))
}

func (d *differences) err(dir, mend string) error {
	if len(d.list) == 0 {
		return nil
	}
	slices.Sort(d.list)
	list := d.list
	if n := len(list) + d.more; n > maxDifferences {
		list = append(slices.Clone(list[:maxDifferences]), fmt.Sprintf("and %d more", n-maxDifferences))
	}
	return fmt.Errorf("%s is not the model that the plan was locked to:\n  %s\n%s", dir, strings.Join(list, "\n  "), mend)
}

// compare looks for all differences: what is there too much and the sizes first, since that
// takes no time, then the content of what has its size.
func (d *differences) compare(ctx context.Context, dir string, s plan.Snapshot, mayMiss func(path string) bool, progress func(done, total int64)) error {
	root, err := filepath.EvalSymlinks(dir)
	if err == nil {
		var fi fs.FileInfo
		if fi, err = os.Stat(root); err == nil && !fi.IsDir() {
			err = errors.New("it is no folder")
		}
	}
	if err != nil {
		return fmt.Errorf("the model %s: %w", dir, err)
	}
	if err := d.extra(root, s); err != nil {
		return err
	}
	var sized []plan.File
	for _, f := range s.Files {
		// Asked before it is opened: opening a pipe would wait for its other end.
		fi, err := os.Stat(filepath.Join(root, filepath.FromSlash(f.Path)))
		switch {
		case errors.Is(err, fs.ErrNotExist) && mayMiss(f.Path):
		case errors.Is(err, fs.ErrNotExist):
			d.add("%s is missing", f.Path)
		case err != nil:
			d.add("%v", err)
		default:
			if err := compareSize(fi, f); err != nil {
				d.add("%v", err)
			} else {
				sized = append(sized, f)
			}
		}
	}
	return d.hashes(ctx, root, sized, progress)
}

// extra finds files that the plan does not name.
func (d *differences) extra(root string, s plan.Snapshot) error {
	wanted := map[string]bool{}
	for _, f := range s.Files {
		wanted[f.Path] = true
	}
	return filepath.WalkDir(root, func(p string, entry fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == ".git" || name == ".cache" || name == ours {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); !wanted[rel] && !strings.HasPrefix(rel, ours+"-") {
			d.add("%.300q is not in the plan", rel)
		}
		return nil
	})
}

func (d *differences) hashes(ctx context.Context, root string, files []plan.File, progress func(done, total int64)) error {
	var done atomic.Int64
	defer report(progress, &done, total(plan.Snapshot{Files: files}))()
	next := make(chan plan.File)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		workers.Go(func() {
			for f := range next {
				in, err := os.Open(filepath.Join(root, filepath.FromSlash(f.Path)))
				if err == nil {
					err = verify(ctx, in, f, func(n int) { done.Add(int64(n)) })
					in.Close()
				}
				if err != nil {
					d.add("%v", err)
				}
			}
		})
	}
feed:
	for _, f := range files {
		select {
		case next <- f:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

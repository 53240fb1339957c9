package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"speedmatrix/experiments/plan"
)

// folder hashes all files of a model's folder. Links to files are followed: the
// cache of a hub's client is made of them. What version control and the client keep
// beside the files (.git, .cache) is left out.
func (p *Pinner) folder(ctx context.Context, id string) (plan.Snapshot, error) {
	dir := id
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(p.o.Dir, dir)
	}
	s := plan.Snapshot{ID: id}
	// The folder itself may be a link too.
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("there is no folder %s on this machine, and a name that begins with / or a dot is of no hub", dir)
		}
		return s, err
	}
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); file != root && (name == ".git" || name == ".cache") {
				return filepath.SkipDir
			}
			return nil
		}
		if len(s.Files) == maxFiles {
			return fmt.Errorf("more than %d files", maxFiles)
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if err := checkPath(name); err != nil {
			return err
		}
		f, err := hashFile(ctx, file)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		f.Path = name
		s.Files, s.Bytes = append(s.Files, f), s.Bytes+f.Bytes
		return nil
	})
	if err == nil && len(s.Files) == 0 {
		err = errors.New("it holds no files")
	}
	if err != nil {
		return s, fmt.Errorf("model %s: %w", dir, err)
	}
	return s, inOrder(s.Files)
}

func hashFile(ctx context.Context, name string) (plan.File, error) {
	// Asked before it is opened: opening a pipe would wait for its other end.
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return plan.File{}, errors.Join(errors.New("it is not a plain file"), err)
	}
	f, err := os.Open(name)
	if err != nil {
		return plan.File{}, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return plan.File{}, err
	}
	h := sha256.New()
	n, err := io.CopyBuffer(h, interruptible{ctx, f}, make([]byte, 1<<20))
	if err != nil {
		return plan.File{}, err
	}
	after, err := f.Stat()
	if err != nil {
		return plan.File{}, err
	}
	if n != before.Size() || after.Size() != n || !after.ModTime().Equal(before.ModTime()) {
		return plan.File{}, errors.New("it changed while it was read")
	}
	return plan.File{Bytes: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// interruptible ends reading with the context: a model has hundreds of gigabytes.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i interruptible) Read(p []byte) (int, error) {
	if i.ctx.Err() != nil {
		return 0, context.Cause(i.ctx)
	}
	return i.r.Read(p)
}

package container

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Prepare makes a launch's folder in the volume, writable for whatever user the engine's
// image has, and removes a wish to end early that an earlier session left.
func Prepare(launchDir string) error {
	if err := os.MkdirAll(launchDir, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(launchDir, 0o777); err != nil { // whatever the umask
		return err
	}
	err := os.Remove(filepath.Join(filepath.Dir(launchDir), drainFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// AskToDrain makes Measure end early.
func AskToDrain(dir string) error {
	return os.WriteFile(filepath.Join(dir, drainFile), nil, 0o644)
}

// Collect copies the volume to where it is exported from. What is just being written is
// left out, and anything that is no regular file.
func Collect(dir, out string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) && path != dir {
				return nil // renamed meanwhile
			}
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		to := filepath.Join(out, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(to, 0o755)
		case !d.Type().IsRegular(), d.Name()[0] == '.':
			// A link or a device is none of ours: the engine wrote it, and it is not to keep the
			// rest from coming home. What begins with a point is not renamed yet.
			return nil
		}
		return copyFile(path, to)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer in.Close()
	fi, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	// As long as it is now: a log may grow faster than it is copied.
	_, err = io.Copy(out, io.LimitReader(in, fi.Size()))
	return errors.Join(err, out.Close())
}

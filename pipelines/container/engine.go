package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	engineFile = "engine.json"
	logFile    = "engine.log"
	gpuFile    = "gpu.csv"

	// maxState bounds the small files that are read from the volume.
	maxState = 1 << 20
)

// readEngine reads what the supervisor says of the engine in a launch's folder.
func readEngine(launchDir string) (EngineState, error) {
	var s EngineState
	return s, readJSON(filepath.Join(launchDir, engineFile), &s)
}

// readJSON reads one of the small files, which is untrusted.
func readJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxState+1))
	if err != nil {
		return err
	}
	if len(b) > maxState {
		return fmt.Errorf("%s: it is over %d KiB", path, maxState>>10)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON writes beside, syncs and renames: a reader finds the old or the new.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, func(w io.Writer) error {
		_, err := io.Copy(w, bytes.NewReader(append(b, '\n')))
		return err
	})
}

func writeFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// holdsAnything says whether a folder has an entry.
func holdsAnything(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	return len(names) > 0 && (err == nil || errors.Is(err, io.EOF))
}

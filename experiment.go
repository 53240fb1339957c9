package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"speedmatrix/experiments/resolve"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/experiments/spec"
	"speedmatrix/runner"
)

// experimentFlags are the flags of every verb that reads an experiment.
type experimentFlags struct {
	sets       []string
	attach     string
	kvCapacity int64
	pinner     resolve.Pinner // nil: names stay names
}

// maxFile bounds every file that a person names.
const maxFile = 64 << 20

// loadExperiment reads and resolves an experiment, or the one that a locked plan
// names. Its mistakes are wrong use.
func loadExperiment(ctx context.Context, path string, f experimentFlags) (*spec.Experiment, *resolve.Resolved, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	if isPlan(data) {
		return loadLocked(ctx, path, data, f)
	}
	return resolveExperiment(ctx, path, filepath.Dir(path), data, f)
}

func resolveExperiment(ctx context.Context, path, dir string, data []byte, f experimentFlags) (*spec.Experiment, *resolve.Resolved, error) {
	e, err := spec.Parse(path, data, spec.Options{Sets: f.sets, CheckCommand: servecmd.Check})
	if err != nil {
		return nil, nil, usageError{err: err}
	}
	r, err := resolve.Resolve(ctx, e, resolve.Options{
		MethodVersion: runner.MethodVersion,
		KVCapacity:    f.kvCapacity,
		Attach:        f.attach,
		ReadFile:      func(name string) ([]byte, error) { return readFile(filepath.Join(dir, name)) },
		Pinner:        f.pinner,
	})
	var pin *resolve.PinError
	switch {
	case err == nil:
		return e, r, nil
	case errors.As(err, &pin) && !errors.Is(err, resolve.ErrChanged):
		return nil, nil, err // the world's fault, not the experiment's
	}
	return nil, nil, usageError{err: err}
}

// readFile reads a whole file of bounded size.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, usageError{err: fmt.Errorf("%s: no such file", path)}
		}
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", path, maxFile>>20)
	}
	return data, nil
}

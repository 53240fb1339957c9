package weights

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"speedmatrix/experiments/plan"
)

const maxDifferences = 20

// Check says how a folder differs from a snapshot, in all files at once; nil: it holds
// exactly what the plan says. Caches that engines and version control leave there
// (folders whose name begins with a point) are no difference.
func Check(ctx context.Context, dir string, s plan.Snapshot) error {
	if err := check(s); err != nil {
		return err
	}
	wanted := map[string]bool{}
	for _, f := range s.Files {
		wanted[f.Path] = true
	}
	var differences []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != dir && strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if rel = filepath.ToSlash(rel); !wanted[rel] && !strings.HasPrefix(d.Name(), ".") {
			differences = append(differences, rel+" is not in the plan")
		}
		return nil
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var workers sync.WaitGroup
	next := make(chan plan.File)
	for range min(runtime.GOMAXPROCS(0), len(s.Files)) {
		workers.Go(func() {
			for f := range next {
				err := verify(filepath.Join(dir, filepath.FromSlash(f.Path)), f)
				if errors.Is(err, fs.ErrNotExist) {
					err = fmt.Errorf("%s is missing", f.Path)
				}
				if err != nil {
					mu.Lock()
					differences = append(differences, err.Error())
					mu.Unlock()
				}
			}
		})
	}
feed:
	for _, f := range s.Files {
		select {
		case next <- f:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	workers.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if len(differences) == 0 {
		return nil
	}
	slices.Sort(differences)
	if n := len(differences); n > maxDifferences {
		differences = append(differences[:maxDifferences], fmt.Sprintf("and %d more", n-maxDifferences))
	}
	return fmt.Errorf("%s is not the model that the plan was locked to:\n  %s\nlock the plan again, or bring the files back", dir, strings.Join(differences, "\n  "))
}

package container

import (
	"fmt"
	"os"
	"path/filepath"

	"speedmatrix/pipelines/wheels"
)

// Provide adds to a virtual environment the empty distributions that its lock asks for.
func Provide(lockFile, venv string) error {
	b, err := os.ReadFile(lockFile)
	if err != nil {
		return err
	}
	lock, err := wheels.Read(b)
	if err != nil {
		return fmt.Errorf("%s: %w", lockFile, err)
	}
	sites, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages"))
	if err != nil {
		return err
	}
	if len(sites) != 1 {
		return fmt.Errorf("%s has %d folders of packages, expected one", venv, len(sites))
	}
	for _, d := range lock.Provides {
		if err := wheels.Provide(sites[0], d); err != nil {
			return err
		}
	}
	return nil
}

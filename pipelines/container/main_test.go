//go:build linux

package container

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/supervise/familytest"
)

// The test binary plays every part: this program with its verb supervise, the engine and
// its children, and nvidia-smi.
func TestMain(m *testing.M) {
	switch {
	case filepath.Base(os.Args[0]) == "nvidia-smi":
		os.Exit(fakeSMI(os.Args[1:]))
	case len(os.Args) < 2:
	case os.Args[1] == "first":
		// The first process of its namespaces, as in a container.
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			os.Exit(cannotMount)
		}
		fallthrough
	case os.Args[1] == "supervise" && slices.Contains(os.Args, "--launch-dir"):
		os.Exit(Supervise(os.Args[2:], os.Environ(), os.Stdout, os.Stderr))
	case os.Args[1] == "supervise":
		os.Exit(supervise.Main(os.Args[2:]))
	case os.Args[1] == "fake":
		os.Exit(familytest.Fake(os.Args[2:]))
	case os.Args[1] == "env":
		os.Exit(printEnv())
	}
	os.Exit(m.Run())
}

const cannotMount = 77

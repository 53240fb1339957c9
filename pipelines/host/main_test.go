//go:build linux

package host

import (
	"os"

	"testing"

	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/supervise/familytest"
)

// The test binary plays every part: the program with its verb supervise, the
// engine and its children.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(supervise.Main(os.Args[2:]))
		case "fake":
			os.Exit(familytest.Fake(os.Args[2:]))
		case "serve":
			os.Exit(fakeServe(os.Args[1:]))
		}
	}
	os.Exit(m.Run())
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

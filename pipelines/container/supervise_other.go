//go:build !linux

package container

import (
	"fmt"
	"io"
)

// Supervise needs Linux, as containers do.
func Supervise(_, _ []string, _, stderr io.Writer) int {
	fmt.Fprintln(stderr, "supervise: it runs in Linux containers only")
	return 1
}

package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// silence has a terminal echo nothing that is typed, ^C included, which would
// stand in the middle of what is drawn there. It returns what undoes it. Signals
// come as ever. In the background, where changing a terminal would stop the
// program, and on anything that is no terminal, it does nothing.
func silence(f *os.File) (restore func()) {
	fd := int(f.Fd())
	front := func() bool {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err == nil && group == unix.Getpgrp()
	}
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || !front() {
		return func() {}
	}
	quiet := *was
	quiet.Lflag &^= unix.ECHO
	if unix.IoctlSetTermios(fd, unix.TCSETS, &quiet) != nil {
		return func() {}
	}
	return func() {
		if front() {
			unix.IoctlSetTermios(fd, unix.TCSETS, was)
		}
	}
}

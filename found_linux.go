package main

import "golang.org/x/sys/unix"

// memory is the size of this machine's main memory in bytes; 0: not known.
func memory() uint64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	return uint64(s.Totalram) * uint64(s.Unit)
}

//go:build unix

package dagger

import "syscall"

// ownGroup keeps a terminal's signals from the child.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

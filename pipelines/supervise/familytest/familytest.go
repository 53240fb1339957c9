//go:build linux

// Package familytest plays, for tests, an engine with a family: processes that die,
// stay, ignore signals or run away, and the means to see from outside which of them
// live.
//
// It does not know who starts them. A test binary calls [Fake] when its first argument
// says so, and starts itself.
package familytest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Fake is a program of the given habits, told as words:
//
//	print=TEXT      prints a line
//	tmp             leaves a file in its folder for temporary files
//	stubborn        ignores TERM
//	session         leaves its group for a session of its own
//	child=a,b       starts a child of habits a and b
//	alive=FIFO      holds the FIFO open as long as it lives, and writes its pid
//	exit=N          exits with status N, else it lives until a signal
func Fake(habits []string) int {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	stubborn := false
	for i := 0; i < len(habits); i++ {
		word, value, _ := strings.Cut(habits[i], "=")
		switch word {
		case "print":
			fmt.Println(value)
		case "tmp":
			if err := os.WriteFile(filepath.Join(os.Getenv("TMPDIR"), "left"), nil, 0o600); err != nil {
				fmt.Println(err)
				return 1
			}
		case "stubborn":
			stubborn = true
		case "session":
			_, _ = syscall.Setsid()
		case "child":
			c := exec.Command("/proc/self/exe", append([]string{"fake"}, strings.Split(value, ",")...)...)
			if err := c.Start(); err != nil {
				fmt.Println(err)
				return 1
			}
		case "alive":
			f, err := os.OpenFile(value, os.O_WRONLY, 0)
			if err != nil {
				fmt.Println(err)
				return 1
			}
			defer f.Close()
			fmt.Fprintln(f, os.Getpid())
		case "exit":
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	for range signals {
		if !stubborn {
			return 0
		}
	}
	return 0
}

// Alive is a FIFO that tells which processes live.
type Alive struct {
	Path string
	PIDs chan int
	end  chan struct{} // closed when all that ever wrote are dead
}

// NewAlive makes the FIFO.
func NewAlive(t testing.TB) *Alive {
	t.Helper()
	a := &Alive{Path: filepath.Join(t.TempDir(), "alive"), PIDs: make(chan int, 16), end: make(chan struct{})}
	if err := unix.Mkfifo(a.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(a.end)
		f, err := os.Open(a.Path) // returns when the first process opens it
		if err != nil {
			return
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if pid, err := strconv.Atoi(lines.Text()); err == nil {
				a.PIDs <- pid
			}
		}
	}()
	return a
}

// Up waits until n processes are alive.
func (a *Alive) Up(t testing.TB, n int) []int {
	t.Helper()
	var out []int
	for range n {
		select {
		case pid := <-a.PIDs:
			out = append(out, pid)
		case <-time.After(20 * time.Second):
			t.Fatalf("only %v of %d processes came up", out, n)
		}
	}
	return out
}

// Dead waits until none of them is.
func (a *Alive) Dead(t testing.TB) {
	t.Helper()
	select {
	case <-a.end:
	case <-time.After(20 * time.Second):
		t.Fatal("a process of the engine is still alive")
	}
}

// AwaitExit waits for the end of a process that is not our child.
func AwaitExit(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("process %d did not end: %v", pid, err)
		}
		return
	}
}

// Family is an engine whose children do what children do that outlive it: one
// stays in the group, one ignores TERM, one is in a session of its own, and one is
// an orphan from the beginning.
func Family(fifo string) (habits []string, n int) {
	live := "alive=" + fifo
	return []string{
		"tmp",
		"child=" + live,
		"child=stubborn," + live,
		"child=session,stubborn," + live,
		"child=session,child=" + live + ",exit=0",
		live,
	}, 5
}

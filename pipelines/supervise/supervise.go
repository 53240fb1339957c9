//go:build linux

package supervise

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The supervisor is this program again, started with the verb supervise between
// us and the engine. It exists because of one promise: when we die, however we
// die, the engine and everything that it started dies too. Nothing that a process
// does for itself can keep that promise after kill -9.
//
// It holds one end of a pipe whose other end only we have: when we are gone, it
// reads the end of that pipe. It is the reaper of all orphans below it
// (PR_SET_CHILD_SUBREAPER), so a grandchild whose parent died, or which made a
// session of its own, still is its descendant and is found. Should the supervisor
// itself be killed, the engine's first process has a parent-death signal and we
// kill its group.
//
// Descriptor 3 brings our orders, one byte each; the end of it means that we died.
// Descriptor 4 takes the supervisor's reports, one JSON object a line.
const (
	orderStop = 't' // TERM to all, KILL after the grace time
	orderKill = 'k' // KILL to all, now

	controlFD = 3
	reportFD  = 4

	// orphanGrace is what the engine has to end in good order when nobody is left
	// who waits for it, or when its first process died and the others remain.
	orphanGrace = 5 * time.Second
	// killLimit bounds how long killed processes are waited for: one that hangs in
	// the kernel (a GPU driver) cannot be ended by anybody.
	killLimit = 30 * time.Second
	killAgain = 50 * time.Millisecond
	// trackerGrace is what Python's resource trackers have at a kill: they end by
	// themselves when the others are dead, and remove the shared memory that those
	// left behind.
	trackerGrace = time.Second
)

// report is one line from the supervisor.
type report struct {
	Started int    `json:"started,omitempty"` // process and group id of the engine
	Error   string `json:"error,omitempty"`   // it could not be started
	Exited  string `json:"exited,omitempty"`  // how its first process ended
	Gone    bool   `json:"gone,omitempty"`    // no process is left
	Left    []int  `json:"left,omitempty"`    // those that could not be ended
}

// Main is the hidden verb supervise: it runs one command, reports on
// it, and leaves no process behind. It returns the exit status.
//
//	supervise [-grace 15s] [-tmp DIRECTORY] -- PROGRAM [ARGUMENT…]
//
// The directory is the command's own for temporary files and is removed at the end.
func Main(args []string) int {
	fs := flag.NewFlagSet("supervise", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	grace := fs.Duration("grace", 15*time.Second, "time between TERM and KILL")
	tmp := fs.String("tmp", "", "folder that is removed at the end")
	control, reports := os.NewFile(controlFD, "control"), os.NewFile(reportFD, "reports")
	// The engine must not have these: it would keep our end of the pipes open.
	unix.CloseOnExec(controlFD)
	unix.CloseOnExec(reportFD)
	say := func(r report) {
		b, _ := json.Marshal(r)
		// Nobody may be left to read it; that is no reason to stop cleaning up.
		_, _ = reports.Write(append(b, '\n'))
	}
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 {
		say(report{Error: "supervise: wrong use; this verb is for speedmatrix itself"})
		return 2
	}
	s := &supervisor{say: say, grace: *grace}
	ok := s.run(fs.Args(), control)
	if *tmp != "" {
		_ = os.RemoveAll(*tmp)
	}
	if !ok {
		return 1
	}
	return 0
}

type supervisor struct {
	say   func(report)
	grace time.Duration
	group int
}

func (s *supervisor) run(argv []string, control io.Reader) (ok bool) {
	// The parent-death signal is sent when the *thread* that started the child
	// ends, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		s.say(report{Error: fmt.Sprintf("supervise: become the reaper of orphans: %v", err)})
		return false
	}
	// Caught, not ignored: an ignored signal would stay ignored in the engine.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)

	null, err := os.Open(os.DevNull)
	if err != nil {
		s.say(report{Error: err.Error()})
		return false
	}
	defer null.Close()
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Files: []*os.File{null, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		s.say(report{Error: err.Error()})
		return false
	}
	s.group = p.Pid
	s.say(report{Started: s.group})
	// The pipe of the log must end with the engine's processes, not with us.
	for _, f := range []*os.File{os.Stdout, os.Stderr} {
		_ = f.Close()
	}

	orders := make(chan byte)
	go func() {
		r := bufio.NewReader(control)
		for {
			b, err := r.ReadByte()
			if err != nil {
				close(orders)
				return
			}
			orders <- b
		}
	}()
	exited, gone := make(chan string, 1), make(chan struct{})
	go reap(s.group, exited, gone)

	var killAt, spareUntil, giveUp, again <-chan time.Time
	spare := true
	kill := func() {
		s.kill(spare)
		again = time.After(killAgain)
		if giveUp == nil {
			spareUntil, giveUp = time.After(trackerGrace), time.After(killLimit)
		}
	}
	stop := func(grace time.Duration) {
		if killAt == nil && giveUp == nil {
			s.terminate()
			killAt = time.After(grace)
		}
	}
	for {
		select {
		case order, open := <-orders:
			switch {
			case !open:
				orders = nil
				stop(min(s.grace, orphanGrace))
			case order == orderKill:
				kill()
			default:
				stop(s.grace)
			}
		case <-signals:
			stop(s.grace)
		case how := <-exited:
			s.say(report{Exited: how})
			stop(min(s.grace, orphanGrace))
		case <-killAt:
			killAt = nil
			kill()
		case <-spareUntil:
			spare = false
		case <-again:
			// Once more: a process may have been forked between the look and the signal.
			kill()
		case <-giveUp:
			s.say(report{Left: descendants(os.Getpid())})
			return false
		case <-gone:
			select {
			case how := <-exited:
				s.say(report{Exited: how})
			default:
			}
			s.say(report{Gone: true})
			return true
		}
	}
}

// terminate asks the engine's group and every descendant that left it to end.
func (s *supervisor) terminate() {
	_ = syscall.Kill(-s.group, syscall.SIGTERM)
	for _, pid := range descendants(os.Getpid()) {
		if g, err := syscall.Getpgid(pid); err == nil && g != s.group {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
}

// kill ends every descendant, but for resource trackers if they are to be spared.
func (s *supervisor) kill(spare bool) {
	for _, pid := range descendants(os.Getpid()) {
		if !spare || !isTracker(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func isTracker(pid int) bool {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, 4096))
	return bytes.Contains(b, []byte("multiprocessing.resource_tracker"))
}

// reap waits for every child. When there is none left there is no descendant
// either: an orphan would have become our child.
func reap(first int, exited chan<- string, gone chan<- struct{}) {
	defer close(gone)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return
		case pid == first && (ws.Exited() || ws.Signaled()):
			exited <- exitText(ws)
		}
	}
}

// exitText words a status as os.ProcessState does.
func exitText(ws syscall.WaitStatus) string {
	if ws.Signaled() {
		return "signal: " + ws.Signal().String()
	}
	return "exit status " + strconv.Itoa(ws.ExitStatus())
}

// descendants lists the processes below root that are not yet dead.
func descendants(root int) []int {
	children := map[int][]int{}
	for pid, s := range processes() {
		if s.state != 'Z' {
			children[s.parent] = append(children[s.parent], pid)
		}
	}
	var out []int
	for next := []int{root}; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		out = append(out, children[pid]...)
	}
	return out
}

type processStat struct {
	state         byte
	parent, group int
}

// processes reads /proc/PID/stat of every process.
func processes() map[int]processStat {
	out := map[int]processStat{}
	dir, err := os.Open("/proc")
	if err != nil {
		return out
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (comm) state ppid pgrp …; comm may hold anything, even ")".
		_, rest, ok := cutLast(string(b), ") ")
		var s processStat
		if _, err := fmt.Sscanf(rest, "%c %d %d", &s.state, &s.parent, &s.group); ok && err == nil {
			out[pid] = s
		}
	}
	return out
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// groupMembers lists the processes of a group that are not yet dead.
func groupMembers(group int) []int {
	var out []int
	for pid, s := range processes() {
		if s.group == group && s.state != 'Z' {
			out = append(out, pid)
		}
	}
	return out
}

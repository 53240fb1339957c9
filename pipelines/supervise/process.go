//go:build linux

package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	startLimit = 30 * time.Second // for the supervisor to say that the command runs
	logLimit   = 2 * time.Second  // for the rest of the log to be read
)

// Command is one program to run under a supervisor.
type Command struct {
	Program string // path
	Args    []string
	Env     []string
	Dir     string
	Tmp     string        // its own folder for temporary files, removed at the end; empty: none
	Grace   time.Duration // between TERM and KILL
	Log     *Log
}

// Process is a command that runs.
type Process struct {
	supervisor *exec.Cmd
	control    *os.File
	log        *Log
	group      int // process group of the command

	Exited  chan struct{} // closed when its first process ended
	gone    chan struct{} // closed when nothing of it is left, or nobody knows
	logDone chan struct{} // closed when the log was read to its end

	mu     sync.Mutex
	status string // how the first process ended
	left   []int  // processes that could not be ended
	lost   bool   // the supervisor died before it had reported
}

// Start runs a command under a supervisor: self is this program.
func Start(self string, c Command) (*Process, error) {
	controlR, controlW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reportR, reportW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, closeAll(controlR, controlW))
	}
	logR, logW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, closeAll(controlR, controlW, reportR, reportW))
	}
	args := []string{"supervise", "-grace", c.Grace.String()}
	if c.Tmp != "" {
		args = append(args, "-tmp", c.Tmp)
	}
	cmd := exec.Command(self, append(append(args, "--", c.Program), c.Args...)...)
	cmd.Env, cmd.Dir = c.Env, c.Dir
	cmd.Stdout, cmd.Stderr = logW, logW
	cmd.ExtraFiles = []*os.File{controlR, reportW} // descriptors 3 and 4
	// A group of its own: Ctrl-C in a terminal reaches us and not the engine.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = closeAll(controlR, reportW, logW)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the supervisor: %w", err), closeAll(controlW, reportR, logR))
	}
	p := &Process{
		supervisor: cmd,
		control:    controlW,
		log:        c.Log,
		Exited:     make(chan struct{}),
		gone:       make(chan struct{}),
		logDone:    make(chan struct{}),
	}
	go func() {
		defer close(p.logDone)
		defer logR.Close()
		_, _ = io.Copy(c.Log, logR)
	}()
	started := make(chan report, 1)
	go p.follow(reportR, started)

	select {
	case r := <-started:
		if r.Started == 0 {
			<-p.gone
			return nil, fmt.Errorf("start %s: %s", c.Program, r.Error)
		}
	case <-time.After(startLimit):
		_ = cmd.Process.Kill()
		<-p.gone
		return nil, fmt.Errorf("start %s: nothing heard from the supervisor for %v", c.Program, startLimit)
	}
	return p, nil
}

// follow reads the supervisor's reports until it ends.
func (p *Process) follow(reports *os.File, started chan<- report) {
	defer close(p.gone)
	defer p.control.Close()
	first, exited, ended := true, false, false
	for lines := bufio.NewScanner(reports); lines.Scan(); {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		if r.Started != 0 {
			p.group = r.Started
		}
		if first {
			first = false
			started <- r
			if r.Started == 0 {
				ended = true
			}
		}
		if r.Exited != "" && !exited {
			exited = true
			p.set(func() { p.status = r.Exited })
			close(p.Exited)
		}
		if r.Gone || len(r.Left) > 0 {
			ended = true
			p.set(func() { p.left = r.Left })
		}
	}
	_ = reports.Close()
	err := p.supervisor.Wait()
	if first {
		started <- report{Error: fmt.Sprintf("the supervisor ended before it began: %v", err)}
	}
	if !ended {
		// Somebody killed the supervisor. The kernel ends the command's first process
		// then; the rest of its group is ours to end.
		if p.group != 0 {
			_ = syscall.Kill(-p.group, syscall.SIGKILL)
		}
		p.set(func() { p.lost = true })
	}
	if !exited {
		p.set(func() {
			if p.status == "" {
				p.status = "unknown: its supervisor was killed"
			}
		})
		close(p.Exited)
	}
}

func (p *Process) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// ExitStatus says how the first process ended; only after exited.
func (p *Process) ExitStatus() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// ReadLog waits, not for long, until the log of a process that exited was read, and says
// whether it was: who outlives the first process may go on printing.
func (p *Process) ReadLog() bool {
	select {
	case <-p.logDone:
		return true
	case <-time.After(logLimit):
		return false
	}
}

// Stop ends the command and everything it started, and waits until nothing is
// left: TERM, then KILL after the grace time, or at once when ctx is done.
func (p *Process) Stop(ctx context.Context) error {
	_, _ = p.control.Write([]byte{orderStop}) // an error means that it is gone
	select {
	case <-p.gone:
	case <-ctx.Done():
		return p.Kill()
	}
	return p.verify()
}

// Kill is stop without the grace time.
func (p *Process) Kill() error {
	_, _ = p.control.Write([]byte{orderKill})
	<-p.gone // the supervisor bounds this by killLimit
	return p.verify()
}

// verify says whether the processes are really gone.
func (p *Process) verify() error {
	<-p.gone
	p.ReadLog()
	p.mu.Lock()
	left, lost := p.left, p.lost
	p.mu.Unlock()
	if lost {
		left = awaitGroup(p.group)
	}
	if len(left) > 0 {
		return fmt.Errorf("processes %v of the engine could not be ended: they still hold its memory; look at them with ps, end them or restart the machine", left)
	}
	return nil
}

// awaitGroup waits until a killed group is gone and returns who is not.
func awaitGroup(group int) []int {
	deadline := time.After(killLimit)
	tick := time.NewTicker(killAgain)
	defer tick.Stop()
	for {
		members := groupMembers(group)
		if len(members) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return members
		}
	}
}

// Run runs a command to its end and gives its exit status as an error, with the
// last lines of what it printed. Cancelling ctx kills it.
func Run(ctx context.Context, self string, c Command) error {
	p, err := Start(self, c)
	if err != nil {
		return err
	}
	select {
	case <-p.Exited:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), p.Kill())
	}
	if err := p.Stop(ctx); err != nil {
		return err
	}
	if status := p.ExitStatus(); status != "exit status 0" {
		return fmt.Errorf("%s: %s%s", filepath.Base(c.Program), status, Quote(c.Log.Tail(), 12))
	}
	return nil
}

func closeAll(files ...*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

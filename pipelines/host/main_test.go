//go:build linux

package host

import (
	"bufio"
	"context"
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

// The test binary plays every part: the program with its verb supervise, the
// engine, the engine's children, and a client that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(Supervise(os.Args[2:]))
		case "fake":
			os.Exit(fake(os.Args[2:]))
		case "serve":
			os.Exit(fakeServe(os.Args[1:]))
		case "client":
			os.Exit(client(os.Args[2:]))
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

// fake is a program of the given habits, told as words:
//
//	print=TEXT      prints a line
//	tmp             leaves a file in its folder for temporary files
//	stubborn        ignores TERM
//	session         leaves its group for a session of its own
//	child=a,b       starts a child of habits a and b
//	alive=FIFO      holds the FIFO open as long as it lives, and writes its pid
//	exit=N          exits with status N, else it lives until a signal
func fake(habits []string) int {
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

// client starts an engine, says who supervises it, and waits to be killed.
func client(args []string) int {
	p, err := start("/proc/self/exe", command{
		program: "/proc/self/exe",
		args:    append([]string{"fake"}, args[1:]...),
		env:     []string{"TMPDIR=" + args[0]},
		tmp:     args[0],
		grace:   time.Minute,
		log:     newLogWriter(os.Stderr, nil, nil),
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(p.supervisor.Process.Pid)
	<-p.gone
	return 0
}

// alive is a FIFO that tells which processes live.
type alive struct {
	path string
	pids chan int
	end  chan struct{} // closed when all that ever wrote are dead
}

func newAlive(t *testing.T) *alive {
	t.Helper()
	a := &alive{path: filepath.Join(t.TempDir(), "alive"), pids: make(chan int, 16), end: make(chan struct{})}
	if err := unix.Mkfifo(a.path, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(a.end)
		f, err := os.Open(a.path) // returns when the first process opens it
		if err != nil {
			return
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if pid, err := strconv.Atoi(lines.Text()); err == nil {
				a.pids <- pid
			}
		}
	}()
	return a
}

// up waits until n processes are alive.
func (a *alive) up(t *testing.T, n int) []int {
	t.Helper()
	var out []int
	for range n {
		select {
		case pid := <-a.pids:
			out = append(out, pid)
		case <-time.After(20 * time.Second):
			t.Fatalf("only %v of %d processes came up", out, n)
		}
	}
	return out
}

// dead waits until none of them is.
func (a *alive) dead(t *testing.T) {
	t.Helper()
	select {
	case <-a.end:
	case <-time.After(20 * time.Second):
		t.Fatal("a process of the engine is still alive")
	}
}

// awaitExit waits for the end of a process that is not our child.
func awaitExit(t *testing.T, pid int) {
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

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// family is an engine whose children do what children do that outlive it: one
// stays in the group, one ignores TERM, one is in a session of its own, and one is
// an orphan from the beginning.
func family(fifo string) (habits []string, n int) {
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

func startFake(t *testing.T, c command, habits ...string) *process {
	t.Helper()
	c.program, c.args = self(t), append([]string{"fake"}, habits...)
	if c.log == nil {
		c.log = newLogWriter(&strings.Builder{}, nil, nil)
	}
	c.env = append(c.env, "TMPDIR="+c.tmp)
	p, err := start(self(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.kill() })
	return p
}

func TestStopEndsTheWholeFamily(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	habits, n := family(a.path)
	tmp := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	p := startFake(t, command{tmp: tmp, grace: 300 * time.Millisecond}, habits...)
	a.up(t, n)
	if !exists(filepath.Join(tmp, "left")) {
		t.Error("the engine did not get its folder for temporary files")
	}
	if err := p.stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.dead(t)
	if m := groupMembers(p.group); len(m) > 0 {
		t.Errorf("processes %v of the group are left", m)
	}
	if exists(tmp) {
		t.Error("the folder for temporary files is left")
	}
}

func TestFirstProcessDies(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	var out strings.Builder
	log := newLogWriter(&out, nil, nil)
	p := startFake(t, command{grace: 100 * time.Millisecond, log: log},
		"print=about to fail", "child=stubborn,alive="+a.path, "alive="+a.path, "exit=3")
	<-p.exited
	if got := p.exitStatus(); got != "exit status 3" {
		t.Errorf("status %q", got)
	}
	<-p.gone // with nobody's help
	a.dead(t)
	p.readLog()
	if got := quote(log.Tail(), 5); !strings.Contains(got, "about to fail") {
		t.Errorf("last lines: %q", got)
	}
}

// Only the first process is killed, as the system does when memory runs out: what
// holds the device's memory is a child, and it ends as well (B19).
func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	p := startFake(t, command{grace: 100 * time.Millisecond}, "child=stubborn,alive="+a.path, "stubborn", "alive="+a.path)
	a.up(t, 2)
	if err := syscall.Kill(p.group, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if got := p.exitStatus(); got != "signal: killed" {
		t.Errorf("status %q", got)
	}
	<-p.gone
	a.dead(t)
}

func TestStopAtOnce(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	p := startFake(t, command{grace: time.Hour}, "stubborn", "alive="+a.path)
	a.up(t, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("twice"))
	if err := p.stop(ctx); err != nil {
		t.Fatal(err)
	}
	a.dead(t)
}

func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	p := startFake(t, command{grace: time.Hour}, "stubborn", "child=stubborn,alive="+a.path, "alive="+a.path)
	a.up(t, 2)
	if err := p.supervisor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	a.dead(t)
	if err := p.verify(); err != nil {
		t.Error(err)
	}
	if got := p.exitStatus(); !strings.Contains(got, "supervisor was killed") {
		t.Errorf("status %q", got)
	}
}

// What design promises of kill -9, with real processes.
func TestClientKilled(t *testing.T) {
	t.Parallel()
	a := newAlive(t)
	habits, n := family(a.path)
	tmp := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self(t), append([]string{"client", tmp}, habits...)...)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	supervisor, convErr := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || convErr != nil {
		t.Fatalf("client said %q: %v", line, err)
	}
	a.up(t, n)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	a.dead(t)
	awaitExit(t, supervisor)
	if exists(tmp) {
		t.Error("the folder for temporary files is left")
	}
}

func TestCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	noExec := filepath.Join(dir, "vllm")
	if err := os.WriteFile(noExec, []byte("#!/nowhere/python\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"missing": filepath.Join(dir, "none"), "interpreter missing": noExec} {
		_, err := start(self(t), command{program: program, log: newLogWriter(&strings.Builder{}, nil, nil)})
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := start(filepath.Join(dir, "none"), command{program: "/bin/true", log: newLogWriter(&strings.Builder{}, nil, nil)}); err == nil {
		t.Error("without a supervisor: no error")
	}
	if _, err := start("/bin/true", command{program: "/bin/true", log: newLogWriter(&strings.Builder{}, nil, nil)}); err == nil || !strings.Contains(err.Error(), "before it began") {
		t.Errorf("a supervisor that is none: %v", err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	log := func() *logWriter { return newLogWriter(&strings.Builder{}, nil, nil) }
	c := command{program: self(t), grace: 100 * time.Millisecond}

	c.args, c.log = []string{"fake", "print=fine", "exit=0"}, log()
	if err := run(t.Context(), self(t), c); err != nil {
		t.Error(err)
	}
	c.args, c.log = []string{"fake", "print=one", "print=disk full", "exit=4"}, log()
	err := run(t.Context(), self(t), c)
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got %v", err)
	}

	a := newAlive(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-a.pids
		cancel(cause)
	}()
	c.args, c.log, c.grace = []string{"fake", "stubborn", "alive=" + a.path}, log(), time.Hour
	if err := run(ctx, self(t), c); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	a.dead(t)
}

//go:build linux

package supervise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"speedmatrix/pipelines/supervise/familytest"
)

// The test binary plays every part: the program with its verb supervise, the
// engine, the engine's children, and a client that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "supervise":
			os.Exit(Main(os.Args[2:]))
		case "fake":
			os.Exit(familytest.Fake(os.Args[2:]))
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

// client starts an engine, says who supervises it, and waits to be killed.
func client(args []string) int {
	p, err := Start("/proc/self/exe", Command{
		Program: "/proc/self/exe",
		Args:    append([]string{"fake"}, args[1:]...),
		Env:     []string{"TMPDIR=" + args[0]},
		Tmp:     args[0],
		Grace:   time.Minute,
		Log:     NewLog(os.Stderr, nil, nil),
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(p.supervisor.Process.Pid)
	<-p.gone
	return 0
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func startFake(t *testing.T, c Command, habits ...string) *Process {
	t.Helper()
	c.Program, c.Args = self(t), append([]string{"fake"}, habits...)
	if c.Log == nil {
		c.Log = NewLog(&strings.Builder{}, nil, nil)
	}
	c.Env = append(c.Env, "TMPDIR="+c.Tmp)
	p, err := Start(self(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func TestStopEndsTheWholeFamily(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	habits, n := familytest.Family(a.Path)
	tmp := filepath.Join(t.TempDir(), "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	p := startFake(t, Command{Tmp: tmp, Grace: 300 * time.Millisecond}, habits...)
	a.Up(t, n)
	if !exists(filepath.Join(tmp, "left")) {
		t.Error("the engine did not get its folder for temporary files")
	}
	if err := p.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	a.Dead(t)
	if m := groupMembers(p.group); len(m) > 0 {
		t.Errorf("processes %v of the group are left", m)
	}
	if exists(tmp) {
		t.Error("the folder for temporary files is left")
	}
}

func TestFirstProcessDies(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	var out strings.Builder
	log := NewLog(&out, nil, nil)
	p := startFake(t, Command{Grace: 100 * time.Millisecond, Log: log},
		"print=about to fail", "child=stubborn,alive="+a.Path, "alive="+a.Path, "exit=3")
	<-p.Exited
	if got := p.ExitStatus(); got != "exit status 3" {
		t.Errorf("status %q", got)
	}
	<-p.gone // with nobody's help
	a.Dead(t)
	p.ReadLog()
	if got := Quote(log.Tail(), 5); !strings.Contains(got, "about to fail") {
		t.Errorf("last lines: %q", got)
	}
}

// Only the first process is killed, as the system does when memory runs out: what
// holds the device's memory is a child, and it ends as well (B19).
func TestKilledFromOutside(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	p := startFake(t, Command{Grace: 100 * time.Millisecond}, "child=stubborn,alive="+a.Path, "stubborn", "alive="+a.Path)
	a.Up(t, 2)
	if err := syscall.Kill(p.group, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Exited
	if got := p.ExitStatus(); got != "signal: killed" {
		t.Errorf("status %q", got)
	}
	<-p.gone
	a.Dead(t)
}

func TestStopAtOnce(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	p := startFake(t, Command{Grace: time.Hour}, "stubborn", "alive="+a.Path)
	a.Up(t, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("twice"))
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	a.Dead(t)
}

func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	p := startFake(t, Command{Grace: time.Hour}, "stubborn", "child=stubborn,alive="+a.Path, "alive="+a.Path)
	a.Up(t, 2)
	if err := p.supervisor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-p.Exited
	a.Dead(t)
	if err := p.verify(); err != nil {
		t.Error(err)
	}
	if got := p.ExitStatus(); !strings.Contains(got, "supervisor was killed") {
		t.Errorf("status %q", got)
	}
}

// What design promises of kill -9, with real processes.
func TestClientKilled(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	habits, n := familytest.Family(a.Path)
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
	a.Up(t, n)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	a.Dead(t)
	familytest.AwaitExit(t, supervisor)
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
		_, err := Start(self(t), Command{Program: program, Log: NewLog(&strings.Builder{}, nil, nil)})
		if err == nil || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Start(filepath.Join(dir, "none"), Command{Program: "/bin/true", Log: NewLog(&strings.Builder{}, nil, nil)}); err == nil {
		t.Error("without a supervisor: no error")
	}
	if _, err := Start("/bin/true", Command{Program: "/bin/true", Log: NewLog(&strings.Builder{}, nil, nil)}); err == nil || !strings.Contains(err.Error(), "before it began") {
		t.Errorf("a supervisor that is none: %v", err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	log := func() *Log { return NewLog(&strings.Builder{}, nil, nil) }
	c := Command{Program: self(t), Grace: 100 * time.Millisecond}

	c.Args, c.Log = []string{"fake", "print=fine", "exit=0"}, log()
	if err := Run(t.Context(), self(t), c); err != nil {
		t.Error(err)
	}
	c.Args, c.Log = []string{"fake", "print=one", "print=disk full", "exit=4"}, log()
	err := Run(t.Context(), self(t), c)
	if err == nil || !strings.Contains(err.Error(), "exit status 4") || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got %v", err)
	}

	a := familytest.NewAlive(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-a.PIDs
		cancel(cause)
	}()
	c.Args, c.Log, c.Grace = []string{"fake", "stubborn", "alive=" + a.Path}, log(), time.Hour
	if err := Run(ctx, self(t), c); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	a.Dead(t)
}

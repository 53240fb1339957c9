//go:build linux

package container

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"speedmatrix/pipelines/nvidia"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/supervise/familytest"
	"speedmatrix/results/record"
)

// patience is what a test waits for something that should be there at once.
const patience = 20 * time.Second

// output is what a process printed.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	grown chan struct{} // has room for one
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.grown <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

func (o *output) await(t *testing.T, text string) {
	t.Helper()
	for late := time.After(patience); !strings.Contains(o.String(), text); {
		select {
		case <-o.grown:
		case <-late:
			t.Fatalf("it never said %q; it said %q", text, o.String())
		}
	}
}

// keeper is a supervisor that runs in a process of its own.
type keeper struct {
	dir            string
	cmd            *exec.Cmd
	stdout, stderr *output
	ended          chan struct{}
}

// newKeeper prepares one for a launch's folder.
func newKeeper(t *testing.T, dir string, args ...string) *keeper {
	t.Helper()
	k := &keeper{dir: dir, stdout: &output{grown: make(chan struct{}, 1)}, stderr: &output{grown: make(chan struct{}, 1)}}
	k.cmd = exec.Command(self(t), append([]string{"supervise", "--launch-dir", dir, "--launch", "L1"}, args...)...)
	k.cmd.Env = []string{"PATH=" + t.TempDir(), "HOME=/home/of-image"}
	k.cmd.Stdout, k.cmd.Stderr = k.stdout, k.stderr
	return k
}

func (k *keeper) start(t *testing.T) {
	t.Helper()
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	k.ended = make(chan struct{})
	go func() {
		defer close(k.ended)
		_ = k.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = k.cmd.Process.Kill()
		<-k.ended
		if t.Failed() {
			t.Logf("stdout: %s\nstderr: %s", k.stdout, k.stderr)
		}
	})
}

// end sends a signal and returns the exit status.
func (k *keeper) end(t *testing.T, s os.Signal) int {
	t.Helper()
	if err := k.cmd.Process.Signal(s); err != nil {
		t.Fatalf("it is not there any more: %v", err)
	}
	return k.wait(t)
}

func (k *keeper) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-k.ended:
	case <-time.After(patience):
		t.Fatal("the supervisor does not end")
	}
	return k.cmd.ProcessState.ExitCode()
}

// state waits for a state of the engine.
func (k *keeper) state(t *testing.T, want func(EngineState) bool) EngineState {
	t.Helper()
	var s EngineState
	awaitDir(t, k.dir, func() bool {
		var err error
		s, err = readEngine(k.dir)
		return err == nil && want(s)
	})
	return s
}

func (k *keeper) file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(k.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// awaitDir waits until something holds that a change in a folder brings about.
func awaitDir(t *testing.T, dir string, holds func() bool) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_MOVED_TO|unix.IN_MODIFY); err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for b := make([]byte, 4096); !holds(); {
		if _, err := f.Read(b); err != nil {
			names, _ := os.ReadDir(dir)
			t.Fatalf("what was awaited in %s did not come: %v; it holds %v", dir, err, names)
		}
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func running(s EngineState) bool { return s.Starts > 0 }
func exited(s EngineState) bool  { return s.ExitStatus != "" }

// fake is the command of an engine of these habits.
func fake(t *testing.T, habits ...string) []string {
	return append([]string{"--", self(t), "fake"}, habits...)
}

func TestSuperviseStaysWhenTheEngineDies(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	// A child in a session of its own takes no notice of TERM; a grandchild is an orphan.
	k := newKeeper(t, t.TempDir(), append([]string{"--grace", "100ms"}, fake(t,
		"print=loading", "child=session,child=alive="+a.Path+",exit=0", "child=session,stubborn,alive="+a.Path,
		"alive="+a.Path, "print=out of memory", "exit=3")...)...)
	k.start(t)
	s := k.state(t, exited)
	if s.ExitStatus != "exit status 3" || s.ExitedAt == nil || s.Stopped || s.Gone || s.Error != "" || s.LaunchID != "L1" || s.Starts != 1 {
		t.Errorf("state %+v", s)
	}
	if diff := cmp.Diff([]string{"loading", "out of memory"}, s.LogTail); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(k.cmd.Args[len(k.cmd.Args)-len(s.Argv):], s.Argv); diff != "" || s.Argv[0] != self(t) {
		t.Error(diff)
	}
	a.Dead(t) // before anybody asked
	if status := k.end(t, syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d", status)
	}
	after, err := readEngine(k.dir)
	if err != nil {
		t.Fatal(err)
	}
	s.Stopped, s.Gone = true, true // so it was there to be told
	if diff := cmp.Diff(s, after); diff != "" {
		t.Error(diff)
	}
	for name, text := range map[string]string{logFile: k.file(t, logFile), "stdout": k.stdout.String()} {
		if text != "loading\nout of memory\n" {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestSuperviseStops(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		grace  string
		habits []string // of the engine, before it says that it lives
		signal os.Signal
	}{
		// An hour of grace: only TERM can have ended it.
		"TERM is passed on":            {"1h", nil, syscall.SIGTERM},
		"INT":                          {"1h", nil, syscall.SIGINT},
		"KILL at the end of the grace": {"200ms", []string{"stubborn"}, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := familytest.NewAlive(t)
			k := newKeeper(t, t.TempDir(), append([]string{"--grace", tt.grace}, fake(t, append(tt.habits, "alive="+a.Path)...)...)...)
			k.start(t)
			a.Up(t, 1)
			if s := k.state(t, running); s.Stopped || s.ExitStatus != "" || s.StartedAt.IsZero() {
				t.Errorf("state while it runs %+v", s)
			}
			if status := k.end(t, tt.signal); status != 0 {
				t.Errorf("exit status %d", status)
			}
			a.Dead(t)
			s, err := readEngine(k.dir)
			if err != nil || !s.Stopped || !s.Gone || s.ExitStatus != "" || s.ExitedAt != nil {
				t.Errorf("state %+v, %v: nothing ended by itself", s, err)
			}
		})
	}
}

func TestSuperviseStopsTheWholeFamily(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	habits, n := familytest.Family(a.Path)
	k := newKeeper(t, t.TempDir(), append([]string{"--grace", "300ms", "--keep-env", "TMPDIR"}, fake(t, habits...)...)...)
	k.cmd.Env = append(k.cmd.Env, "TMPDIR="+t.TempDir())
	k.start(t)
	a.Up(t, n)
	// A second signal changes nothing.
	if err := k.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status := k.end(t, syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d", status)
	}
	a.Dead(t)
	if s, err := readEngine(k.dir); err != nil || !s.Gone {
		t.Errorf("state %+v, %v", s, err)
	}
}

// The container's processes are the supervisor's own namespace: it is process 1 there.
func TestSuperviseAsFirstProcess(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	habits, n := familytest.Family(a.Path)
	k := newKeeper(t, t.TempDir(), append([]string{"--grace", "300ms", "--keep-env", "TMPDIR"}, fake(t, habits...)...)...)
	k.cmd.Args[1] = "first"
	k.cmd.Env = append(k.cmd.Env, "TMPDIR="+t.TempDir())
	k.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := k.cmd.Start(); err != nil {
		t.Skipf("no namespaces to be had: %v", err)
	}
	ended := make(chan int, 1)
	go func() {
		_ = k.cmd.Wait()
		ended <- k.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() { _ = k.cmd.Process.Kill() })
	for range n {
		select {
		case <-a.PIDs:
		case status := <-ended:
			if status == cannotMount {
				t.Skip("no /proc of its own to be had")
			}
			t.Fatalf("it ended with status %d: %s", status, k.stderr)
		case <-time.After(patience):
			t.Fatal("the family did not come up")
		}
	}
	if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case status := <-ended:
		if status != 0 {
			t.Errorf("exit status %d: %s", status, k.stderr)
		}
	case <-time.After(patience):
		t.Fatal("the supervisor does not end")
	}
	a.Dead(t)
	if s, err := readEngine(k.dir); err != nil || !s.Stopped || !s.Gone {
		t.Errorf("state %+v, %v", s, err)
	}
}

// A signal that was there before the engine ends it as soon as it is there.
func TestSuperviseStoppedBeforeTheStart(t *testing.T) {
	t.Parallel()
	for name, argv := range map[string][]string{
		"an engine": {self(t), "fake", "stubborn"},
		"none":      {"nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &engine{dir: t.TempDir(), say: io.Discard}
			file, err := e.begin("L1", argv, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			signals := make(chan os.Signal, 1)
			signals <- syscall.SIGTERM
			if err := e.run(argv, nil, nil, 50*time.Millisecond, supervise.NewLog(file, nil, nil), signals); err != nil {
				t.Error(err)
			}
			if s, err := readEngine(e.dir); err != nil || !s.Stopped || !s.Gone {
				t.Errorf("state %+v, %v", s, err)
			}
		})
	}
}

func TestSuperviseKeepsSecrets(t *testing.T) {
	t.Parallel()
	secrets := []string{"a-secret-of-somebody", "the-key-of-the-engine", "print=a-word-of-the-command", `quoted"secret\word`}
	word, variable := SecretWord(4)
	k := newKeeper(t, t.TempDir(), fake(t, "print=tokens: "+secrets[0], "print=key "+secrets[1]+" and "+secrets[3], word, "print=done", "exit=1")...)
	k.cmd.Env = append(k.cmd.Env,
		SecretsVariable+`=["a-secret-of-somebody", "print=a-word-of-the-command", "a-word-of-the-command", "quoted\"secret\\word"]`,
		"VLLM_API_KEY="+secrets[1], variable+"="+secrets[2])
	k.start(t)
	s := k.state(t, exited)
	k.end(t, syscall.SIGTERM)
	const want = "tokens: <redacted>\nkey <redacted> and <redacted>\n<redacted>\ndone\n"
	if diff := cmp.Diff(want, k.file(t, logFile)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"print=tokens: <redacted>", "print=key <redacted> and <redacted>", "<redacted>", "print=done", "exit=1"}, s.Argv[2:]); diff != "" {
		t.Error(diff)
	}
	for _, text := range []string{k.file(t, logFile), k.file(t, engineFile), k.stdout.String(), k.stderr.String()} {
		for _, secret := range []string{secrets[0], secrets[1], "a-word-of", "quoted"} {
			if strings.Contains(text, secret) {
				t.Errorf("%q is in %q", secret, text)
			}
		}
	}
}

// printEnv plays an engine that shows its environment, and ends in the middle of a line.
func printEnv() int {
	env := os.Environ()
	slices.Sort(env)
	fmt.Print(strings.Join(env, "\n"))
	return 0
}

func TestSuperviseEnvironment(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, t.TempDir(), "--keep-env", "LANG,VLLM_API_KEY,NOT_THERE,SPEEDMATRIX_SECRETS", "--", self(t), "env")
	path := strings.TrimPrefix(k.cmd.Env[0], "PATH=")
	k.cmd.Env = append(k.cmd.Env,
		"LANG=C.UTF-8", "VLLM_API_KEY=the-key-of-the-engine",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://x", "TRACEPARENT=00-1", "DAGGER_SESSION_TOKEN=t", "_EXPERIMENTAL_DAGGER_X=1",
		LaunchVariable+"=L1", SecretsVariable+"=[]", "LANGUAGE=no")
	k.start(t)
	s := k.state(t, exited)
	want := []string{"HOME=/home/of-image", "LANG=C.UTF-8", "PATH=" + path, "VLLM_API_KEY=" + record.Redacted}
	if diff := cmp.Diff(want, s.LogTail); diff != "" {
		t.Error(diff)
	}
	// A last line without an end is in the log as soon as the state says that it ended.
	if diff := cmp.Diff(strings.Join(want, "\n")+"\n", k.file(t, logFile)); diff != "" {
		t.Error(diff)
	}
}

func TestSuperviseCannotStart(t *testing.T) {
	t.Parallel()
	noInterpreter := filepath.Join(t.TempDir(), "vllm")
	if err := os.WriteFile(noInterpreter, []byte("#!/nowhere/python\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ program, want string }{
		"not on the PATH":     {"vllm", `no program "vllm" on its PATH (/nowhere:/nor/here)`},
		"not there":           {"/nowhere/vllm", "/nowhere/vllm: no such file"},
		"without interpreter": {noInterpreter, "no such file"},
		"a folder":            {"/", "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t, t.TempDir(), "--", tt.program, "serve")
			k.cmd.Env[0] = "PATH=/nowhere:/nor/here"
			k.start(t)
			s := k.state(t, exited)
			if s.ExitStatus != "not started" || !strings.Contains(s.Error, tt.want) {
				t.Errorf("state %+v, want an error with %q", s, tt.want)
			}
			k.stderr.await(t, tt.want)
			if status := k.end(t, syscall.SIGTERM); status != 0 {
				t.Errorf("exit status %d", status)
			}
			if s, err := readEngine(k.dir); err != nil || !s.Stopped || !s.Gone || s.Error == "" {
				t.Errorf("state at the end %+v, %v", s, err)
			}
		})
	}
}

// Images have Python under the name python3, published commands call it python.
func TestSupervisePython(t *testing.T) {
	t.Parallel()
	k := newKeeper(t, t.TempDir(), "--", "python", "fake", "print=here", "exit=0")
	if err := os.Symlink(self(t), filepath.Join(strings.TrimPrefix(k.cmd.Env[0], "PATH="), "python3")); err != nil {
		t.Fatal(err)
	}
	k.start(t)
	if s := k.state(t, exited); s.ExitStatus != "exit status 0" || !slices.Equal(s.LogTail, []string{"here"}) {
		t.Errorf("state %+v", s)
	}
}

// A container that is started again behind our back goes on in the same folder.
func TestSuperviseCountsItsStarts(t *testing.T) {
	t.Parallel()
	dir, warm, cold := filepath.Join(t.TempDir(), "launch-1"), t.TempDir(), t.TempDir()
	for n := 1; n <= 3; n++ {
		k := newKeeper(t, dir, append([]string{"--cache-dir", warm, "--cache-dir", cold, "--cache-dir", "/nowhere"}, fake(t, fmt.Sprintf("print=start %d", n))...)...)
		k.start(t)
		k.stdout.await(t, fmt.Sprintf("start %d", n))
		s := k.state(t, running)
		var want []string
		if n > 1 {
			want = []string{warm}
		}
		if diff := cmp.Diff(want, s.WarmCaches); s.Starts != n || diff != "" {
			t.Errorf("start %d: state %+v", n, s)
		}
		if n == 2 { // nobody was there to note the end
			if err := k.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			k.wait(t)
		} else {
			k.end(t, syscall.SIGTERM)
		}
		if err := os.WriteFile(filepath.Join(warm, "compiled"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil || string(b) != "start 1\nstart 2\nstart 3\n" {
		t.Errorf("log %q, %v", b, err)
	}
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left beside: %q", names)
	}
}

func TestSuperviseWithoutAFolder(t *testing.T) {
	t.Parallel()
	inTheWay := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	noState := t.TempDir()
	if err := os.Mkdir(filepath.Join(noState, engineFile), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"cannot be made": filepath.Join(inTheWay, "launch-1"), "state cannot be written": noState} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t, dir, fake(t)...)
			k.start(t)
			if status := k.wait(t); status != 1 || !strings.Contains(k.stderr.String(), "launch's folder cannot be used") {
				t.Errorf("exit status %d", status)
			}
		})
	}
}

// What cannot be written any more does not end the engine.
func TestSuperviseFullDisk(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, logFile)); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, dir, fake(t, "print=one", "print=two", "alive="+a.Path)...)
	k.start(t)
	a.Up(t, 1)
	k.stdout.await(t, "one\ntwo\n")
	k.stderr.await(t, "no space left on device")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if status := k.end(t, syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d", status)
	}
	a.Dead(t)
	if n := strings.Count(k.stderr.String(), "no space left"); n != 1 {
		t.Errorf("a full disk was told %d times", n)
	}
}

// Nobody reads the container's log any more: that is no reason to end, and the file goes on.
func TestSuperviseNobodyListens(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	a := familytest.NewAlive(t)
	k := newKeeper(t, t.TempDir(), fake(t, "print=one", "print=two", "alive="+a.Path)...)
	k.cmd.Stdout = w
	k.start(t)
	_ = w.Close()
	a.Up(t, 1)
	awaitDir(t, k.dir, func() bool { return k.file(t, logFile) == "one\ntwo\n" })
	if status := k.end(t, syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d", status)
	}
	a.Dead(t)
}

func TestSuperviseWrongUse(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--launch-dir", t.TempDir()}, {"--", "vllm"}, {"--launch-dir", t.TempDir(), "--grace", "x", "--", "vllm"}} {
		var stderr strings.Builder
		if status := Supervise(args, nil, io.Discard, &stderr); status != 2 || !strings.Contains(stderr.String(), "wrong use") {
			t.Errorf("%q: status %d, %q", args, status, stderr.String())
		}
	}
}

// fakeSMI plays nvidia-smi in a way that a variable names.
func fakeSMI(args []string) int {
	const line = "2026/01/02 03:04:05.678, %d, GPU-%d, 1800, 9001, 120.50, 55, 98, 1024, 0x0000000000000004\n"
	refuse := func(field string) bool {
		if !strings.Contains(args[0], field) {
			return false
		}
		fmt.Printf("Field %q is not a valid field to query.\n", field)
		return true
	}
	switch os.Getenv("SMI") {
	case "dead":
		fmt.Println("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
		return 9
	case "hangs":
		return familytest.Fake([]string{"stubborn", "child=stubborn,alive=" + os.Getenv("FIFO")})
	case "talks":
		for range maxGPUText {
			fmt.Println("GPU")
		}
		return 0
	case "old":
		if refuse("clocks_event_reasons.active") {
			return 2
		}
	default:
		if refuse("clocks_throttle_reasons.active") {
			return 2
		}
	}
	if len(args) != 2 || args[1] != "--format=csv,noheader,nounits" {
		return 3
	}
	fmt.Printf(line+line, 0, 0, 1, 1)
	return 0
}

// withSMI puts nvidia-smi on the keeper's PATH.
func (k *keeper) withSMI(t *testing.T, mode string) {
	t.Helper()
	if err := os.Symlink(self(t), filepath.Join(strings.TrimPrefix(k.cmd.Env[0], "PATH="), "nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	k.cmd.Env = append(k.cmd.Env, "SMI="+mode)
}

func TestSuperviseWatchesGPUs(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"new", "old"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t, t.TempDir(), append([]string{"--gpu-every", "1ms"}, fake(t)...)...)
			k.withSMI(t, mode)
			before := time.Now()
			k.start(t)
			k.state(t, running)
			awaitDir(t, k.dir, func() bool {
				b, _ := os.ReadFile(filepath.Join(k.dir, gpuFile))
				return strings.Count(string(b), "\n") >= 6
			})
			if status := k.end(t, syscall.SIGTERM); status != 0 {
				t.Errorf("exit status %d", status)
			}
			lines := slices.Collect(strings.Lines(k.file(t, gpuFile)))
			if len(lines) < 6 {
				t.Fatalf("%d lines", len(lines))
			}
			for i, line := range lines {
				s, err := nvidia.ParseSample(strings.TrimSpace(line))
				if err != nil {
					t.Fatal(err)
				}
				if s.Index != i%2 || s.At.Before(before) || s.At.After(time.Now()) || s.PowerWatts == nil || *s.PowerWatts != 120.5 || s.Reasons == nil || *s.Reasons != 4 {
					t.Errorf("sample %d: %+v", i, s)
				}
			}
			if k.stderr.String() != "" {
				t.Errorf("it complained: %s", k.stderr)
			}
		})
	}
}

func TestSuperviseGivesUpOnGPUs(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{"dead": "exit status 9", "talks": "nvidia-smi: "} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t, t.TempDir(), append([]string{"--gpu-every", "1ms"}, fake(t)...)...)
			k.withSMI(t, mode)
			k.start(t)
			k.stderr.await(t, "the GPUs are not watched any further")
			if status := k.end(t, syscall.SIGTERM); status != 0 || !strings.Contains(k.stderr.String(), want) {
				t.Errorf("exit status %d", status)
			}
			if text := k.file(t, gpuFile); text != "" {
				t.Errorf("it kept %q", text)
			}
		})
	}
}

// A driver that hangs keeps nobody from ending.
func TestSuperviseGPUHangs(t *testing.T) {
	t.Parallel()
	a := familytest.NewAlive(t)
	k := newKeeper(t, t.TempDir(), append([]string{"--gpu-every", "1ms"}, fake(t)...)...)
	k.withSMI(t, "hangs")
	k.cmd.Env = append(k.cmd.Env, "FIFO="+a.Path)
	k.start(t)
	pid := a.Up(t, 1)[0] // holds the output open when nvidia-smi itself was killed
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	k.state(t, running)
	if status := k.end(t, syscall.SIGTERM); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if s, err := readEngine(k.dir); err != nil || !s.Gone {
		t.Errorf("state %+v, %v", s, err)
	}
}

func TestReadEngine(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"too long":  {`{"argv":["` + strings.Repeat("x", maxState) + `"]}`, "over 1024 KiB"},
		"cut":       {`{"starts": 1`, "unexpected end"},
		"no object": {`[]`, "cannot unmarshal"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, engineFile), []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readEngine(dir); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readEngine(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

package container

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"speedmatrix/pipelines/nvidia"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
)

const (
	maxGPUFile  = 64 << 20
	gpuTimeout  = 5 * time.Second
	gpuFailures = 3        // in a row, then it is not asked any more
	maxGPUText  = 64 << 10 // of one answer: some hundred GPUs

	// killWithin is what ended processes have to be seen gone.
	killWithin = 5 * time.Second
	// letGo is what the look at the GPUs has to come back when the container is to end: a
	// driver that hangs must not hold it.
	letGo = time.Second
)

// engine is one engine under our eyes.
type engine struct {
	dir      string
	say      io.Writer
	redactor *record.Redactor
	state    EngineState
}

// Supervise is the hidden verb of that name inside a container:
//
//	supervise --launch-dir DIR --launch ID [--grace 15s] [--keep-env A,B] [--cache-dir DIR]… -- PROGRAM [ARGUMENT…]
//
// It starts the program, keeps its log and its state in DIR, and stays until TERM, also
// when the program ended: the container must not end under the hands of whoever measures.
// It returns the exit status.
func Supervise(args, environ []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("supervise", flag.ContinueOnError)
	fs.SetOutput(stderr)
	dir := fs.String("launch-dir", "", "folder of the launch")
	id := fs.String("launch", "", "id of the launch")
	grace := fs.Duration("grace", 15*time.Second, "time between TERM and KILL")
	keep := fs.String("keep-env", "", "names of the variables that the program gets, with commas")
	every := fs.Duration("gpu-every", time.Second, "time between two looks at the GPUs; 0: none")
	var caches []string
	fs.Func("cache-dir", "folder that may hold compiled code", func(s string) error { caches = append(caches, s); return nil })
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 || *dir == "" {
		fmt.Fprintln(stderr, "supervise: wrong use; this verb is for speedmatrix itself")
		return 2
	}
	// Before anything else: a signal that comes early must not be lost.
	signals := make(chan os.Signal, 1) // the first one decides
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	// Nobody may read our output any more; that is no reason to end. Caught, not ignored:
	// an ignored signal would stay ignored in the engine.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)

	secrets := secretsOf(environ)
	e := &engine{dir: *dir, say: stderr, redactor: record.NewRedactor(secrets...)}
	argv := withSecrets(fs.Args(), environ)
	file, err := e.begin(*id, argv, caches)
	if err != nil {
		fmt.Fprintf(stderr, "supervise: the launch's folder cannot be used: %v\n", err)
		return 1
	}
	defer file.Close()
	log := supervise.NewLog(&tee{outs: []io.Writer{file, stdout}, failed: e.complain}, secrets, nil)

	asking, stop := context.WithCancelCause(context.Background())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		e.sampleGPUs(asking, environ, *every)
	}()
	err = e.run(argv, engineEnv(environ, strings.Split(*keep, ",")), environ, *grace, log, signals)
	stop(errors.New("the engine was stopped"))
	select {
	case <-asked:
	case <-time.After(letGo):
	}
	if err != nil {
		fmt.Fprintf(stderr, "supervise: %v\n", err)
		return 1
	}
	return 0
}

// begin counts this start, says what is there before it, and opens the log. What cannot
// be written now ends us: nobody would ever see how the engine is.
func (e *engine) begin(id string, argv, caches []string) (*os.File, error) {
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return nil, err
	}
	before, err := readEngine(e.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.complain(err) // it is replaced
	}
	e.state = EngineState{LaunchID: id, Starts: before.Starts + 1, StartedAt: time.Now().UTC()}
	for _, word := range argv {
		e.state.Argv = append(e.state.Argv, e.redactor.Redact(word))
	}
	for _, c := range caches {
		if holdsAnything(c) {
			e.state.WarmCaches = append(e.state.WarmCaches, c)
		}
	}
	log, err := os.OpenFile(filepath.Join(e.dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	if err := e.write(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return log, nil
}

func (e *engine) write() error { return writeJSON(filepath.Join(e.dir, engineFile), e.state) }

// tell writes the state after a change. A volume that is full must not end the engine.
func (e *engine) tell() {
	if err := e.write(); err != nil {
		e.complain(err)
	}
}

func (e *engine) complain(err error) { fmt.Fprintf(e.say, "supervise: %v\n", err) }

// run starts the engine and stays until a signal.
func (e *engine) run(argv, env, environ []string, grace time.Duration, log *supervise.Log, signals <-chan os.Signal) error {
	process, err := start(argv, env, environ, grace, log)
	if err != nil {
		e.state.Error, e.state.ExitStatus = e.redactor.Redact(err.Error()), "not started"
		e.complain(errors.New(e.state.Error))
		e.tell()
		<-signals
		e.state.Stopped, e.state.Gone = true, true
		e.tell()
		return nil
	}
	select {
	case <-process.Exited:
		e.exited(process, log)
		<-signals
	case <-signals:
		select {
		case <-process.Exited: // both at once: it was not we who ended it
			e.exited(process, log)
		default:
		}
	}
	e.state.Stopped = true
	e.tell()
	stopping, cancel := context.WithTimeoutCause(context.Background(), grace+killWithin, errors.New("the engine did not end"))
	defer cancel()
	err = process.Stop(stopping)
	_ = log.Close() // what could not be written was told when it happened
	e.state.Gone = err == nil
	e.tell()
	return err
}

// exited notes how the engine ended by itself.
func (e *engine) exited(process *supervise.Process, log *supervise.Log) {
	now := time.Now().UTC()
	if process.ReadLog() {
		_ = log.Close() // a last line without an end
	}
	e.state.ExitStatus, e.state.ExitedAt, e.state.LogTail = process.ExitStatus(), &now, log.Tail()
	e.tell()
}

// tee passes text on to several places. When one of them fails the others go on.
type tee struct {
	outs   []io.Writer
	failed func(error)
}

func (t *tee) Write(p []byte) (int, error) {
	t.outs = slices.DeleteFunc(t.outs, func(w io.Writer) bool {
		_, err := w.Write(p)
		if err != nil {
			t.failed(fmt.Errorf("the engine's log is not kept any further: %w", err))
		}
		return err != nil
	})
	return len(p), nil
}

func start(argv, env, environ []string, grace time.Duration, log *supervise.Log) (*supervise.Process, error) {
	program := argv[0]
	if !strings.ContainsRune(program, '/') {
		path, ok := supervise.LookPath(program, environ)
		if !ok && program == "python" { // many images have it under this name only
			path, ok = supervise.LookPath("python3", environ)
		}
		if !ok {
			return nil, fmt.Errorf("the image has no program %q on its PATH (%s): choose an image that holds the engine", program, supervise.Getenv(environ, "PATH"))
		}
		program = path
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return supervise.Start("/proc/self/exe", supervise.Command{
		Program: program, Args: argv[1:], Env: env, Dir: dir, Grace: grace, Log: log,
	})
}

// engineEnv is what the engine gets: the names that were asked for and nothing that the
// container engine, or this program, needs for itself.
func engineEnv(environ, keep []string) []string {
	var out []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(keep, name) && !strings.HasPrefix(name, "SPEEDMATRIX_") {
			out = append(out, kv)
		}
	}
	// What the image does not set, and no program does without.
	for _, name := range []string{"HOME", "PATH"} {
		if v := supervise.Getenv(environ, name); v != "" && supervise.Getenv(out, name) == "" {
			out = append(out, name+"="+v)
		}
	}
	return out
}

// sampleGPUs asks nvidia-smi again and again, where there is one.
func (e *engine) sampleGPUs(ctx context.Context, environ []string, every time.Duration) {
	program, ok := supervise.LookPath("nvidia-smi", environ)
	if !ok || every <= 0 {
		return
	}
	file, err := os.OpenFile(filepath.Join(e.dir, gpuFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		e.complain(err)
		return
	}
	defer file.Close()
	written, err := file.Seek(0, io.SeekEnd) // by an earlier start
	if err != nil {
		e.complain(err)
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	query, other, worked, failed := nvidia.SampleQuery, nvidia.OldSampleQuery, false, 0
	for written < maxGPUFile {
		lines, err := queryGPUs(ctx, program, environ, query)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			worked, failed = true, 0
			n, err := io.WriteString(file, lines)
			if err != nil {
				e.complain(fmt.Errorf("the GPUs are not watched any further: %w", err))
				return
			}
			written += int64(n)
		case failed+1 == gpuFailures:
			e.complain(fmt.Errorf("the GPUs are not watched any further: %w", err))
			return
		default:
			failed++
			if !worked { // the driver may not know the fields under these names
				query, other = other, query
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func queryGPUs(ctx context.Context, program string, environ []string, fields string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, gpuTimeout, errors.New("it did not answer"))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu="+fields, "--format=csv,noheader,nounits")
	cmd.Env, cmd.WaitDelay = environ, letGo
	out := &capped{left: maxGPUText}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("nvidia-smi: %w", cmp.Or(context.Cause(ctx), err))
	}
	now := strconv.FormatInt(time.Now().UnixNano(), 10)
	var b strings.Builder
	for line := range strings.Lines(out.text.String()) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(&b, "%s, %s\n", now, line)
		}
	}
	return b.String(), nil
}

// capped keeps a text up to a limit, and fails beyond it.
type capped struct {
	text strings.Builder
	left int
}

func (c *capped) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		return 0, errors.New("it says too much")
	}
	return c.text.Write(p)
}

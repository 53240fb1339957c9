package container

import (
	"context"
	"encoding/json"
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
	"sync"
	"syscall"
	"time"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/nvidia"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
)

const (
	maxGPUFile  = 64 << 20
	gpuTimeout  = 5 * time.Second
	gpuFailures = 3 // in a row, then it is not asked any more

	// killWithin is what ended processes have to be seen gone.
	killWithin = 5 * time.Second
)

// engine is one engine under our eyes.
type engine struct {
	dir  string
	say  io.Writer
	name string // of the program in messages

	mu    sync.Mutex
	state EngineState
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
	every := fs.Duration("gpu-every", time.Second, "time between two looks at the GPUs")
	var caches []string
	fs.Func("cache-dir", "folder that may hold compiled code", func(s string) error { caches = append(caches, s); return nil })
	if err := fs.Parse(args); err != nil || fs.NArg() == 0 || *dir == "" {
		fmt.Fprintln(stderr, "supervise: wrong use; this verb is for speedmatrix itself")
		return 2
	}
	// Before anything else: a signal that comes early must not be lost.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)

	e := &engine{dir: *dir, say: stderr, name: fs.Arg(0)}
	if err := e.begin(*id, caches); err != nil {
		fmt.Fprintf(stderr, "supervise: %v\n", err)
		return 1
	}
	if err := e.run(fs.Args(), environ, strings.Split(*keep, ","), *grace, *every, stdout, signals); err != nil {
		fmt.Fprintf(stderr, "supervise: %v\n", err)
		return 1
	}
	return 0
}

// begin counts this start and says what is there before it.
func (e *engine) begin(id string, caches []string) error {
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return err
	}
	before, err := ReadEngine(e.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(e.say, "supervise: %v\n", err) // it is replaced
	}
	e.state = EngineState{LaunchID: id, Starts: before.Starts + 1, StartedAt: time.Now().UTC()}
	for _, c := range caches {
		if holdsAnything(c) {
			e.state.WarmCaches = append(e.state.WarmCaches, c)
		}
	}
	e.set(func(*EngineState) {})
	return nil
}

// set changes the state and writes it. A volume that is full must not end the engine.
func (e *engine) set(change func(*EngineState)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.state)
	if err := writeJSON(filepath.Join(e.dir, engineFile), e.state); err != nil {
		fmt.Fprintf(e.say, "supervise: %v\n", err)
	}
}

func (e *engine) run(argv, environ, keep []string, grace, every time.Duration, stdout io.Writer, signals <-chan os.Signal) error {
	secrets := secretsOf(environ)
	argv = withSecrets(argv, environ)
	file, err := os.OpenFile(filepath.Join(e.dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	log := supervise.NewLog(io.MultiWriter(file, stdout), secrets, nil)
	redactor := record.NewRedactor(secrets...)
	e.set(func(s *EngineState) {
		for _, w := range argv {
			s.Argv = append(s.Argv, redactor.Redact(w))
		}
	})

	asking, stop := context.WithCancelCause(context.Background())
	var asked sync.WaitGroup
	asked.Go(func() { e.sampleGPUs(asking, environ, every) })
	defer asked.Wait()
	defer stop(nil)

	process, err := e.start(argv, environ, keep, grace, log)
	if err != nil {
		e.set(func(s *EngineState) { s.Error, s.ExitStatus = err.Error(), "not started" })
		fmt.Fprintf(stdout, "supervise: %v\n", err)
		<-signals
		e.set(func(s *EngineState) { s.Stopped, s.Gone = true, true })
		return nil
	}
	exited := process.Exited
	for {
		select {
		case <-exited:
			exited = nil
			process.ReadLog()
			now := time.Now().UTC()
			e.set(func(s *EngineState) { s.ExitStatus, s.ExitedAt, s.LogTail = process.ExitStatus(), &now, log.Tail() })
		case <-signals:
			e.set(func(s *EngineState) { s.Stopped = true })
			stopping, cancel := context.WithTimeout(context.Background(), grace+killWithin)
			defer cancel()
			err := process.Stop(stopping)
			e.set(func(s *EngineState) { s.Gone = err == nil })
			return errors.Join(err, log.Close())
		}
	}
}

func (e *engine) start(argv, environ, keep []string, grace time.Duration, log *supervise.Log) (*supervise.Process, error) {
	program := argv[0]
	if !strings.ContainsRune(program, '/') {
		path, ok := supervise.LookPath(program, environ)
		if !ok {
			return nil, fmt.Errorf("the image has no program %q on its PATH (%s)", program, supervise.Getenv(environ, "PATH"))
		}
		program = path
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	return supervise.Start("/proc/self/exe", supervise.Command{
		Program: program, Args: argv[1:], Env: engineEnv(environ, keep), Dir: dir, Grace: grace, Log: log,
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
	if supervise.Getenv(out, "HOME") == "" {
		out = append(out, "HOME="+supervise.Getenv(environ, "HOME"))
	}
	return out
}

// secretsOf lists what must not be written.
func secretsOf(environ []string) []string {
	var out []string
	// A list that cannot be read was not made by us; the key alone is then known.
	_ = json.Unmarshal([]byte(supervise.Getenv(environ, SecretsVariable)), &out)
	for _, name := range []string{pipelines.KeyVariable, KeyVariable} {
		if v := supervise.Getenv(environ, name); v != "" && !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// sampleGPUs asks nvidia-smi again and again, where there is one.
func (e *engine) sampleGPUs(ctx context.Context, environ []string, every time.Duration) {
	program, ok := supervise.LookPath("nvidia-smi", environ)
	if !ok {
		return
	}
	file, err := os.OpenFile(filepath.Join(e.dir, gpuFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	queries := []string{nvidia.SampleQuery, nvidia.OldSampleQuery}
	tick := time.NewTicker(every)
	defer tick.Stop()
	written, failed := 0, 0
	for failed < gpuFailures && written < maxGPUFile {
		lines, err := queryGPUs(ctx, program, environ, queries[0])
		switch {
		case err == nil:
			failed = 0
			n, _ := io.WriteString(file, lines)
			written += n
		case len(queries) > 1:
			queries = queries[1:]
			continue
		default:
			failed++
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func queryGPUs(ctx context.Context, program string, environ []string, fields string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, gpuTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu="+fields, "--format=csv,noheader,nounits")
	cmd.Env = environ
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	now := strconv.FormatInt(time.Now().UnixNano(), 10)
	var b strings.Builder
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			fmt.Fprintf(&b, "%s, %s\n", now, line)
		}
	}
	return b.String(), nil
}

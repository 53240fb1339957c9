package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/testscript"

	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/published"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"speedmatrix": main,
		"vllm":        fakeVLLM,
	})
}

// fakeVLLM is a program that understands "vllm serve …" and serves the simulator, in
// a process of its own. Its faults come from the environment, as the experiment's
// command gives it.
func fakeVLLM() {
	cfg, err := simulator.FromServeArgs(os.Args[1:], os.Getenv)
	if err == nil {
		err = simulator.Serve(context.Background(), cfg, os.Stderr)
	}
	if err != nil {
		os.Stderr.WriteString("vllm: " + err.Error() + "\n")
		os.Exit(1)
	}
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:      "testdata/script",
		Deadline: time.Now().Add(3 * time.Minute), // ends what a broken script left running
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("REPO", must(filepath.Abs(".")))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status":    cmdStatus,
			"waitfor":   cmdWaitFor,
			"count":     cmdCount,
			"cmpglob":   cmdCmpGlob,
			"grepglob":  cmdGrepGlob,
			"readenv":   cmdReadEnv,
			"jsoncount": cmdJSONCount,
			"samerows":  cmdSameRows,
			"signals":   cmdSignals,
			"rows":      cmdRows,
			"unname":    cmdUnname,
		},
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// status N COMMAND… runs a command and wants the exit status N.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	command := make([]string, 0, len(args))
	for _, a := range args[1:] {
		command = append(command, expandRun(ts, a))
	}
	err = ts.Exec(command[0], command[1:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if (got == want) == neg {
		ts.Fatalf("exit status %d, want %d (neg %v)", got, want, neg)
	}
}

// waitfor GLOB [SECONDS] waits until a file matches; with ! until none does.
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	limit := 30 * time.Second
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		limit = time.Duration(n) * time.Second
	}
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := filepath.Glob(ts.MkAbs(args[0]))
		ts.Check(err)
		if (len(found) > 0) != neg {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s: waited %v", args[0], limit)
		case <-tick.C:
		}
	}
}

// count N GLOB wants that many files.
func cmdCount(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	found, err := filepath.Glob(ts.MkAbs(args[1]))
	ts.Check(err)
	if (len(found) == want) == neg {
		ts.Fatalf("%s: %d files %v, want %d", args[1], len(found), found, want)
	}
}

// expandRun replaces RUN and RUN:FOLDER by the newest run stored in results or
// FOLDER, PARTIAL:FOLDER by the unfinished one.
func expandRun(ts *testscript.TestScript, arg string) string {
	pattern, folder := "*Z-*", ""
	switch {
	case arg == "RUN":
		folder = "results"
	case strings.HasPrefix(arg, "RUN:"):
		folder = arg[len("RUN:"):]
	case strings.HasPrefix(arg, "PARTIAL:"):
		folder, pattern = arg[len("PARTIAL:"):], "*.partial"
	default:
		return arg
	}
	found := glob(ts, filepath.Join(folder, pattern))
	path := found[len(found)-1]
	rel, err := filepath.Rel(ts.MkAbs("."), path)
	ts.Check(err)
	return rel
}

// glob returns what matches, sorted; nothing is a failure.
func glob(ts *testscript.TestScript, pattern string) []string {
	found, err := filepath.Glob(ts.MkAbs(pattern))
	ts.Check(err)
	if len(found) == 0 {
		ts.Fatalf("nothing matches %s", pattern)
	}
	return found
}

// cmpglob A B wants the files that match to have the same bytes.
func cmdCmpGlob(ts *testscript.TestScript, neg bool, args []string) {
	a, b := glob(ts, args[0]), glob(ts, args[1])
	if len(a) != len(b) {
		ts.Fatalf("%v and %v", a, b)
	}
	for i := range a {
		x, err := os.ReadFile(a[i])
		ts.Check(err)
		y, err := os.ReadFile(b[i])
		ts.Check(err)
		if bytes.Equal(x, y) == neg {
			ts.Fatalf("%s and %s: equal is %v", a[i], b[i], !neg)
		}
	}
}

// grepglob TEXT GLOB wants the text in a file that matches; with ! in none.
func cmdGrepGlob(ts *testscript.TestScript, neg bool, args []string) {
	for _, path := range glob(ts, args[1]) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			continue
		}
		b, err := os.ReadFile(path)
		ts.Check(err)
		if bytes.Contains(b, []byte(args[0])) {
			if neg {
				ts.Fatalf("%s holds %q", path, args[0])
			}
			return
		}
	}
	if !neg {
		ts.Fatalf("no file of %s holds %q", args[1], args[0])
	}
}

// readenv NAME FILE sets a variable to the content of a file.
func cmdReadEnv(ts *testscript.TestScript, neg bool, args []string) {
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// jsoncount GLOB FIELD N wants a list of N elements in the one file that matches.
func cmdJSONCount(ts *testscript.TestScript, neg bool, args []string) {
	b, err := os.ReadFile(glob(ts, args[0])[0])
	ts.Check(err)
	var object map[string]json.RawMessage
	ts.Check(json.Unmarshal(b, &object))
	var list []json.RawMessage
	if raw := object[args[1]]; raw != nil {
		ts.Check(json.Unmarshal(raw, &list))
	}
	if want, err := strconv.Atoi(args[2]); err != nil || len(list) != want {
		ts.Fatalf("%s has %d elements, want %s", args[1], len(list), args[2])
	}
}

// samerows FOLDER imports the HTML and the Markdown of the run stored there and
// wants the rows of the run again, each value and word.
func cmdSameRows(ts *testscript.TestScript, neg bool, args []string) {
	dir := glob(ts, filepath.Join(args[0], "*Z-*"))[0]
	stored, err := store.Open(dir)
	ts.Check(err)
	var want []record.Cell
	for c, err := range stored.Cells() {
		ts.Check(err)
		want = append(want, c)
	}
	for _, name := range []string{"index.html", "report.md"} {
		path := filepath.Join(dir, "report", name)
		data, err := os.ReadFile(path)
		ts.Check(err)
		page, err := published.Read(name, data)
		ts.Check(err)
		if diff := cmp.Diff(want, page.Cells, cmpopts.IgnoreFields(record.Cell{}, "Seq", "StartedAt", "Warnings", "StepID"), cmpopts.EquateEmpty()); diff != "" {
			ts.Fatalf("%s: rows differ (-stored +read):\n%s", path, diff)
		}
	}
}

// signals STATUS GLOB:SIGNAL[,GLOB:SIGNAL…] COMMAND… runs a command, sends it each
// signal when a file matches, and wants the exit status; -1 is killed by a signal.
func cmdSignals(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	program := ""
	for dir := range strings.SplitSeq(ts.Getenv("PATH"), string(filepath.ListSeparator)) {
		if path := filepath.Join(dir, args[2]); program == "" && exists(path) {
			program = path
		}
	}
	command := exec.Command(program)
	for _, a := range args[3:] {
		command.Args = append(command.Args, expandRun(ts, a))
	}
	var stderr bytes.Buffer
	command.Dir, command.Stderr = ts.MkAbs("."), &stderr
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME"} {
		command.Env = append(command.Env, name+"="+ts.Getenv(name))
	}
	ts.Check(command.Start())
	for part := range strings.SplitSeq(args[1], ",") {
		pattern, signal, _ := strings.Cut(part, ":")
		cmdWaitFor(ts, false, []string{pattern})
		ts.Check(command.Process.Signal(map[string]os.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[signal]))
	}
	command.Wait()
	ts.Logf("[stderr]\n%s", stderr.String())
	ts.Check(os.WriteFile(ts.MkAbs("signals.stderr"), stderr.Bytes(), 0o644))
	if got := command.ProcessState.ExitCode(); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// rows FOLDER N wants N cells in the newest run stored there, no step twice.
func cmdRows(ts *testscript.TestScript, neg bool, args []string) {
	found := glob(ts, filepath.Join(args[0], "*Z-*"))
	stored, err := store.Open(found[len(found)-1])
	ts.Check(err)
	seen := map[string]bool{}
	for c, err := range stored.Cells() {
		ts.Check(err)
		if seen[c.StepID] {
			ts.Fatalf("%s: %s stands twice", stored.Dir(), c.StepID)
		}
		seen[c.StepID] = true
	}
	if want := args[1]; strconv.Itoa(len(seen)) != want {
		ts.Fatalf("%s: %d rows, want %s", stored.Dir(), len(seen), want)
	}
	for _, err := range stored.Verify() {
		ts.Fatalf("%v", err)
	}
}

// unname FOLDER gives the run stored there the name that it has while it is made.
func cmdUnname(ts *testscript.TestScript, neg bool, args []string) {
	dir := glob(ts, filepath.Join(args[0], "*Z-*"))[0]
	ts.Check(os.Rename(dir, dir+".partial"))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Benchstart measures how long speedmatrix takes from its start to its first
// request against a server that is there already: a process is started, and the
// server it is pointed at says when the first request came in.
//
//	benchstart SPEEDMATRIX [RUNS]
//
// It prints the median and fails above the bar.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const bar = 150 * time.Millisecond

const experiment = `name: start
engine: {source: {attach: "http://127.0.0.1:1"}}
matrix: {contexts: [0], concurrency: [1], duration: 1s, max_output: 16}
`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchstart:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: benchstart SPEEDMATRIX [RUNS]")
	}
	runs := 10
	if len(args) > 1 {
		var err error
		if runs, err = strconv.Atoi(args[1]); err != nil || runs < 1 {
			return fmt.Errorf("RUNS is %q", args[1])
		}
	}
	dir, err := os.MkdirTemp("", "benchstart")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "start.yaml")
	if err := os.WriteFile(file, []byte(experiment), 0o600); err != nil {
		return err
	}
	var took []time.Duration
	for i := range runs + 1 {
		d, err := once(args[0], file, dir)
		if err != nil {
			return err
		}
		if i > 0 { // the first one warms the page cache
			took = append(took, d)
		}
	}
	slices.Sort(took)
	median := took[len(took)/2]
	fmt.Printf("start to first request: median of %d %v (%v to %v), bar %v\n", runs,
		median.Round(time.Millisecond), took[0].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), bar)
	if median > bar {
		return fmt.Errorf("median %v is above %v", median, bar)
	}
	return nil
}

func once(program, file, dir string) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	first := make(chan time.Time, 1)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case first <- time.Now():
		default:
		}
		http.Error(w, "no", http.StatusUnauthorized)
	})}
	go srv.Serve(l)
	defer srv.Close()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 30*time.Second, fmt.Errorf("no request within 30 s"))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "run", file, "--attach", "http://"+l.Addr().String(), "--results", filepath.Join(dir, "results"))
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	select {
	case t := <-first:
		return t.Sub(start), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

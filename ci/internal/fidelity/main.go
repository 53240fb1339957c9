// Fidelity holds the numbers of this program against the truth: the engine is the
// simulator, in a process of its own, which logs every write; what `speedmatrix run`
// stores of it is compared with what the log says of the same window.
//
//	fidelity [-write FILE] [-only TEXT] SPEEDMATRIX
//
// It knows the stored run and the log, and nothing of how either was made. The flow
// of a case: engine and client are started (measure.go), the log is read and figures
// are computed from it by code that shares nothing with package metric (log.go), and
// both go into a table (table.go). It fails if a cell says valid and is not true.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "fidelity:", err)
		os.Exit(1)
	}
}

func attempt(ctx context.Context, program, dir string, l load) outcome {
	err := os.Mkdir(dir, 0o700)
	o := outcome{load: l}
	if err == nil {
		o, err = measure(ctx, program, dir, l)
	}
	if err != nil {
		o.wrong = append(o.wrong, err.Error())
	}
	return o
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("fidelity", flag.ContinueOnError)
	write := flags.String("write", "", "write the table to this file")
	only := flags.String("only", "", "only the cases whose name holds this text")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: fidelity [-write FILE] [-only TEXT] SPEEDMATRIX")
	}
	program, err := filepath.Abs(flags.Arg(0))
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "fidelity")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)

	began := time.Now()
	var all []outcome
	failed := 0
	for i, l := range loads() {
		if !strings.Contains(l.String(), *only) {
			continue
		}
		dir := filepath.Join(work, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		o := attempt(ctx, program, filepath.Join(dir, "first"), l)
		if ctx.Err() == nil && (len(o.wrong) > 0 || o.couldNot()) {
			// Something else on this machine may have been in the way. What is wrong with
			// us is wrong twice; the first try stays in view.
			fmt.Println(o.line())
			first := o
			o = attempt(ctx, program, filepath.Join(dir, "second"), l)
			o.before = append(first.wrong, first.reason)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(o.wrong) > 0 {
			failed++
		}
		fmt.Println(o.line())
		all = append(all, o)
		os.RemoveAll(dir)
	}
	limited := 0
	for _, o := range all {
		if o.couldNot() {
			limited++
		}
	}
	if limited > 0 {
		fmt.Printf("%d cells say that this machine could not follow them: nothing was compared\n", limited)
	}
	fmt.Printf("%d passed, %d failed in %d s\n", len(all)-failed, failed, int(time.Since(began).Seconds()))
	if *write != "" {
		if err := os.WriteFile(*write, []byte(page(all)), 0o644); err != nil {
			return err
		}
	}
	if failed > 0 || len(all) == 0 {
		return fmt.Errorf("%d of %d cases failed", failed, len(all))
	}
	return nil
}

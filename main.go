// Speedmatrix makes LLM-serving benchmarks reproducible: it turns an experiment
// (a pinned vLLM, its serve command, a context × concurrency matrix) into a run
// (measured cells in Parquet) and a page.
//
// Package main joins the packages; each verb has a file of its own. It is the only
// place that touches the process: arguments, environment, standard streams,
// signals, exit status.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"speedmatrix/report/plain"
	"speedmatrix/report/unit"
)

// process is what the operating system gives us, so that tests can give it too.
type process struct {
	args           []string
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool // stderr is one
	getenv         func(string) string
	environ        func() []string
	self           string // path of this program
	signals        <-chan os.Signal
	leave          func() // from here on a signal ends the program at once
}

func main() {
	os.Exit(realMain())
}

func realMain() int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return run(context.Background(), process{
		args:     os.Args[1:],
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		terminal: term.IsTerminal(int(os.Stderr.Fd())) && os.Getenv("TERM") != "dumb",
		getenv:   os.Getenv,
		environ:  os.Environ,
		self:     self,
		signals:  signals,
		leave:    func() { signal.Reset(os.Interrupt, syscall.SIGTERM) },
	})
}

// run is the program: it returns the exit status.
func run(ctx context.Context, p process) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	drain := make(chan struct{})
	stopped := make(chan struct{})
	defer close(stopped)
	// The first signal ends sending and keeps what was measured; the second ends
	// everything at once.
	go func() {
		for n := 0; ; n++ {
			select {
			case <-p.signals:
				if n == 0 {
					close(drain)
				} else {
					cancel(errInterrupted)
					p.leave() // whatever may still hang
				}
			case <-stopped:
				return
			}
		}
	}()

	root := rootCmd(p, drain)
	root.SetArgs(p.args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	err := root.ExecuteContext(ctx)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errInterrupted) && !errors.Is(err, errInterrupted) {
		err = fmt.Errorf("%w: %w", errInterrupted, err)
	}
	if err != nil && !quiet(err) {
		fmt.Fprintf(p.stderr, "speedmatrix: %s\n", printable(err.Error()))
	}
	return exitCode(err)
}

func rootCmd(p process, drain <-chan struct{}) *cobra.Command {
	root := &cobra.Command{
		Use:           "speedmatrix",
		Short:         "Reproducible LLM-serving benchmarks: experiment → run → page",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       toolVersion().Version,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{err, c.CommandPath()} })
	root.AddCommand(
		runCmd(p, drain),
		rerunCmd(p, drain),
		planCmd(p),
		buildCmd(p),
		importCmd(p),
		reportCmd(p),
		simulateCmd(p, drain),
		doctorCmd(p),
		superviseCmd(p),
		measureCmd(p, drain),
		collectCmd(),
		weightsCmd(p),
		inspectCmd(p),
		provideCmd(),
	)
	// Verbs that measure and serve nothing have nothing to end in order.
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		if name := c.Name(); name != "run" && name != "rerun" && name != "simulate" && name != "supervise" && name != "measure" {
			p.leave()
		}
	}
	root.SetHelpTemplate(root.HelpTemplate() + exitStatusHelp)
	for _, c := range root.Commands() {
		args := c.Args
		c.Args = func(c *cobra.Command, a []string) error {
			if args == nil {
				return nil
			}
			if err := args(c, a); err != nil {
				return usageError{wrongArgs(c, a), c.CommandPath()}
			}
			return nil
		}
	}
	return root
}

// wrongArgs says what a verb wants instead of the arguments that it got.
func wrongArgs(c *cobra.Command, got []string) error {
	_, want, _ := strings.Cut(c.Use, " ")
	want, _, _ = strings.Cut(want, " |") // run has two forms
	article := "a"
	if strings.ContainsAny(want[:min(1, len(want))], "AEIOU") {
		article = "an"
	}
	switch {
	case want == "":
		return fmt.Errorf("%s takes no argument, got %q", c.Name(), got[0])
	case len(got) == 0:
		return fmt.Errorf("give %s %s", article, strings.TrimSuffix(want, "…"))
	}
	return fmt.Errorf("give one %s, got %d arguments", want, len(got))
}

// printable makes text from servers and files fit for a terminal: nothing in it
// can steer one.
func printable(s string) string { return plain.Block(s) }

// oneLine is printable on one line of at most n characters.
func oneLine(s string, n int) string {
	s = plain.Line(s)
	n = max(n, 0)
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// grouped writes a whole number with thousands commas, as the pages do.
func grouped(n int64) string { return unit.Decimal(float64(n), 0) }

package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/container"
)

// measureCmd is the half of us that measures beside an engine's container.
func measureCmd(p process, drain <-chan struct{}) *cobra.Command {
	o := container.MeasureOptions{Drain: drain}
	c := &cobra.Command{
		Use:    "measure",
		Short:  "Measure from inside a container (used by run)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			// Nobody may read our output any more: what is measured is in the volume.
			broken := make(chan os.Signal, 1)
			signal.Notify(broken, syscall.SIGPIPE)
			defer signal.Stop(broken)
			o.Environ, o.Stdout, o.Stderr = p.environ(), p.stdout, p.stderr
			return container.Measure(c.Context(), o)
		},
	}
	c.Flags().StringVar(&o.JobFile, "job", container.JobFile, "what is to be done")
	c.Flags().StringVar(&o.Dir, "dir", container.RunDir, "folder of the run")
	return c
}

// collectCmd is what we do in a run's volume before and after.
func collectCmd() *cobra.Command {
	var dir, out, prepare, drain string
	c := &cobra.Command{
		Use:    "collect",
		Short:  "Copy what was measured out of a volume (used by run)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case prepare != "":
				return container.Prepare(prepare)
			case drain != "":
				return container.AskToDrain(drain)
			case dir != "" && out != "":
				return container.Collect(dir, out)
			}
			return usageError{err: errors.New("collect: give --dir and --out")}
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "folder of the run")
	c.Flags().StringVar(&out, "out", "", "folder to copy it to")
	c.Flags().StringVar(&prepare, "prepare", "", "make the folder of a launch instead")
	c.Flags().StringVar(&drain, "drain", "", "ask the measuring step of this folder to end early instead")
	return c
}

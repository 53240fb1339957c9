package main

import (
	"errors"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/container"
)

// inspectCmd is the half of us that runs in an image, to say what it holds.
func inspectCmd(p process) *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:    "inspect",
		Short:  "Say what this container holds (used by run)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if out == "" {
				return usageError{errors.New("give --out FILE"), c.CommandPath()}
			}
			return container.Inspect(c.Context(), container.Place{Root: "/", Environ: p.environ()}, out)
		},
	}
	c.Flags().StringVar(&out, "out", "", "write the facts to `FILE`")
	return c
}

// provideCmd is the half of us that completes a virtual environment in an image.
func provideCmd() *cobra.Command {
	var lock, venv string
	c := &cobra.Command{
		Use:    "provide",
		Short:  "Add what a lock says another distribution provides (used by run)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if lock == "" || venv == "" {
				return usageError{errors.New("give --lock FILE and --venv DIR"), c.CommandPath()}
			}
			return container.Provide(lock, venv)
		},
	}
	c.Flags().StringVar(&lock, "lock", "", "the lock")
	c.Flags().StringVar(&venv, "venv", "", "the virtual environment")
	return c
}

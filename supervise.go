package main

import (
	"github.com/spf13/cobra"

	"speedmatrix/pipelines/supervise"
)

// superviseCmd is the half of our processes that outlives a killed client just
// long enough to end the engine.
func superviseCmd(p process) *cobra.Command {
	return &cobra.Command{
		Use:                "supervise",
		Short:              "Keep an engine's process group (used by run)",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			if status := supervise.Main(args); status != 0 {
				return exitStatus(status)
			}
			return nil
		},
	}
}

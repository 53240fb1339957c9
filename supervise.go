package main

import (
	"slices"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/supervise"
)

// superviseCmd is the half of us that stays with an engine: on this machine until it and
// everything that it started is gone, in a container for as long as the container lives.
func superviseCmd(p process) *cobra.Command {
	return &cobra.Command{
		Use:                "supervise",
		Short:              "Keep an engine's process group (used by run)",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			status := 0
			own := args[:max(0, slices.Index(args, "--"))] // what follows is the engine's
			if slices.Contains(own, "--launch-dir") {
				status = container.Supervise(args, p.environ(), p.stdout, p.stderr)
			} else {
				status = supervise.Main(args)
			}
			if status != 0 {
				return exitStatus(status)
			}
			return nil
		},
	}
}

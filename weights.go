package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/weights"
)

// weightsCmd is the half of us that fills a volume with a model.
func weightsCmd(p process) *cobra.Command {
	var snapshot, tokenEnv string
	var o weights.Options
	c := &cobra.Command{
		Use:    "weights",
		Short:  "Fetch a model's files and check them (used by run)",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if snapshot == "" || o.Dir == "" || o.Source == "" {
				return usageError{err: errors.New("weights: give --snapshot, --dir and --source")}
			}
			b, err := readFile(snapshot)
			if err != nil {
				return err
			}
			var s plan.Snapshot
			if err := json.Unmarshal(b, &s); err != nil {
				return fmt.Errorf("%s: %w", snapshot, err)
			}
			o.Snapshot = s
			if tokenEnv != "" {
				o.Token = p.getenv(tokenEnv)
			}
			o.Progress = func(done, total int64) {
				fmt.Fprintf(p.stderr, "%s: %.1f of %.1f GB\n", printable(s.ID), float64(done)/1e9, float64(total)/1e9)
			}
			return weights.Fetch(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringVar(&snapshot, "snapshot", "", "file that names the model's files, as in a locked plan")
	f.StringVar(&o.Dir, "dir", "", "folder to fill")
	f.StringArrayVar(&o.Refs, "ref", nil, "name by which the engine asks for the revision")
	f.StringVar(&o.Source, "source", "", "address of the hub")
	f.StringVar(&tokenEnv, "token-env", "", "name of the environment variable that holds the hub's token")
	f.BoolVar(&o.Verify, "verify", false, "hash the files also where they are known to be complete")
	return c
}

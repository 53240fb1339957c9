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
				if o.Token = p.getenv(tokenEnv); o.Token == "" {
					return usageError{err: fmt.Errorf("weights: --token-env: the environment variable %s is not set or empty (give the variable's name, not the token)", clip(tokenEnv, 4))}
				}
				o.TokenVariable = tokenEnv
			}
			o.Progress = func(done, total int64) {
				unit, name := 1e9, "GB"
				if total < 1e9 {
					unit, name = 1e6, "MB"
				}
				fmt.Fprintf(p.stderr, "%s: %.1f of %.1f %s\n", printable(s.ID), float64(done)/unit, float64(total)/unit, name)
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

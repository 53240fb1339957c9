package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

// rerunCmd carries out the plan of a stored run again.
func rerunCmd(p process, drain <-chan struct{}) *cobra.Command {
	var o runOptions
	var yes bool
	c := &cobra.Command{
		Use:   "rerun RUN",
		Short: "Measure the plan of a stored run again",
		Long: `Rerun takes the plan of a stored run word for word and makes a new run of it. Nothing is
resolved anew: the image is the one of the recorded digest, the model that of the recorded
files.

What will be executed is shown first, and has to be agreed to: the run may be somebody
else's.`,
		Example: `  speedmatrix rerun results/20261130T201947Z-quickstart-1a2b3c --yes`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := notEmpty(c, "api-key-env", "api-key-file", "results"); err != nil {
				return err
			}
			o.rerun = args[0]
			if err := agree(p, o.rerun, yes); err != nil {
				return err
			}
			return runVerb(c.Context(), p, drain, o)
		},
	}
	f := c.Flags()
	o.executorFlags.add(c)
	f.StringVar(&o.results, "results", "results", "folder in which the run is stored")
	f.StringVar(&o.keyEnv, "api-key-env", "", "name of the environment variable that holds the server's API key")
	f.StringVar(&o.keyFile, "api-key-file", "", "file that holds the server's API key")
	f.BoolVar(&o.json, "json", false, "print one JSON object per event on standard output")
	f.BoolVar(&o.plain, "plain", false, "plain lines even on a terminal")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return c
}

// openRerun opens a run whose plan can be carried out.
func openRerun(dir string) (*store.Stored, error) {
	stored, err := store.Open(dir)
	if err != nil {
		return nil, err
	}
	if stored.Record().Kind == record.Published {
		return nil, usageError{err: fmt.Errorf("%s: it was imported from a page and has no plan; run the experiment that import wrote", dir)}
	}
	return stored, nil
}

// agree shows what a run would execute on this machine, and asks.
func agree(p process, dir string, yes bool) error {
	stored, err := openRerun(dir)
	if err != nil {
		return err
	}
	r := stored.Record()
	fmt.Fprintf(p.stderr, "%s, plan %s\n", printable(r.ID), printable(r.PlanDigest))
	for _, f := range r.Plan {
		if f.Label == "Source" || f.Label == "Image" {
			fmt.Fprintf(p.stderr, "%s: %s\n", printable(f.Label), printable(f.Value))
		}
	}
	if len(r.Command.Argv) > 0 {
		fmt.Fprintf(p.stderr, "it executes: %s\n", printable(strings.Join(r.Command.Argv, " ")))
	}
	switch {
	case yes:
		return nil
	case !p.terminal:
		return usageError{err: errors.New("rerun: nobody can be asked here: give --yes to agree")}
	}
	fmt.Fprint(p.stderr, "carry it out? [y/N] ")
	answer, _ := bufio.NewReader(p.stdin).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("not agreed: nothing was done")
	}
	return nil
}

// again begins a new run of a stored run's plan.
func (s *session) again(ctx context.Context, p process, o runOptions, key string) error {
	old, err := openRerun(o.rerun)
	if err != nil {
		return err
	}
	before := old.Record()
	if err := s.reload(ctx, p, before, old.PlanJSON(), old.ExperimentYAML(), old.Dir(), o, key); err != nil {
		return err
	}
	r, err := scrubbed(header(s.experiment, s.resolved, s.experiment.File, time.Now()), s.secrets)
	if err != nil {
		return err
	}
	r.ID, r.RerunOf = newRunID(r.StartedAt, r.Name), before.ID
	r.Executor, r.ExperimentDir, r.Overrides = s.executorName, before.ExperimentDir, before.Overrides
	r.Again = "speedmatrix rerun " + shellWord(filepath.ToSlash(filepath.Clean(o.rerun)))
	s.partial, err = store.Create(o.results, r, old.PlanJSON(), old.ExperimentYAML())
	return err
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"speedmatrix/experiments/servecmd"
	"speedmatrix/experiments/spec"
	"speedmatrix/results/published"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

func importCmd(p process) *cobra.Command {
	var results, experiments string
	c := &cobra.Command{
		Use:   "import FILE",
		Short: "Read a published page into an experiment and a run marked published",
		Long: `Import reads a published page (its text, its HTML or its Markdown) or the JSON of
llm-inference-bench. It writes an experiment that can be run, and a run that holds
what the page says, and prints what does not add up on it.`,
		Example: `  speedmatrix import page.html
  speedmatrix import page.txt --experiments experiments --results results`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return importVerb(c.Context(), p, args[0], results, experiments)
		},
	}
	c.Flags().StringVar(&results, "results", "results", "folder in which the run is stored")
	c.Flags().StringVar(&experiments, "experiments", "experiments", "folder in which the experiment is written")
	return c
}

func importVerb(ctx context.Context, p process, path, results, experiments string) error {
	data, err := readFile(path)
	if err != nil {
		return err
	}
	page, err := published.Read(path, data)
	if err != nil {
		return err
	}
	e := importedExperiment(page)
	yaml, err := spec.Marshal(e)
	if err != nil {
		return err
	}
	// The experiment that is stored and published holds no secret.
	var secrets []string
	if cmd, err := servecmd.Parse(e.Engine.Command); err == nil {
		secrets = cmd.Secrets
	}
	yaml = scrub(yaml, secrets)
	name := e.Name + ".yaml"
	e, r, err := resolveExperiment(ctx, name, ".", yaml, experimentFlags{})
	if err != nil {
		return fmt.Errorf("%s: the experiment made of it does not hold: %w", path, err)
	}
	planJSON, err := r.Plan.JSON()
	if err != nil {
		return err
	}

	run := page.Run
	run.SchemaVersion, run.Kind = record.SchemaVersion, record.Published
	run.Name, run.Source = e.Name, filepath.Base(path)
	now := time.Now().UTC()
	run.StartedAt, run.FinishedAt = now, &now
	run.PlanDigest, run.MethodVersion = r.Plan.Digest, ""
	run.Unpinned = r.Plan.Unpinned
	run.Tool = toolVersion()
	run.Command = record.Command{Text: r.Plan.Text.Command, Argv: r.Plan.Identity.Engine.Argv, Comments: r.Plan.Text.Comments}
	run.Findings = published.Findings(page, servedNames)
	run.Again = importedAgain(e, filepath.ToSlash(filepath.Join(experiments, name)))
	run.ID = newRunID(now, run.Name)
	if run, err = scrubbed(run, secrets); err != nil {
		return err
	}
	stored, err := store.WritePublished(results, run, page.Cells, planJSON, yaml, scrub(data, secrets), renderStored)
	if err != nil {
		return err
	}
	where, err := writeExperiment(p, experiments, name, yaml, stored)
	if err != nil {
		return err
	}
	for _, f := range run.Findings {
		text := f.Text
		if f.Where != "" {
			text = f.Where + ": " + text
		}
		fmt.Fprintf(p.stderr, "finding: %s\n", printable(text))
	}
	fmt.Fprintf(p.stderr, "%d rows, %d findings\n", len(page.Cells), len(run.Findings))
	fmt.Fprintln(p.stdout, where)
	_, err = fmt.Fprintln(p.stdout, pagePath(stored))
	return err
}

// importedAgain is how to measure what the page measured: with the engine it names,
// which takes a container engine, or on a server that runs already.
func importedAgain(e *spec.Experiment, path string) string {
	command := "speedmatrix run " + shellWord(path)
	needs := "Starting the image"
	switch {
	case e.Engine.Source.Attach != "":
		return command
	case e.Engine.Source.Commit != "":
		needs = "Building the commit"
	}
	return command + "\n# " + needs + " needs a container engine. On a server that runs already:\n" + command + " --attach URL"
}

// servedNames tells the names a serve command gives to its model.
func servedNames(command string) (names []string, given bool) {
	c, err := servecmd.Parse(command)
	if err != nil {
		return nil, false
	}
	return c.ServedModelNames, c.ServedNameGiven
}

// writeExperiment never overwrites a file that a person may have edited.
func writeExperiment(p process, dir, name string, yaml []byte, run string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, os.ErrExist) {
		if old, err := readFile(path); err == nil && bytes.Equal(old, yaml) {
			return path, nil
		}
		fmt.Fprintf(p.stderr, "%s exists and differs: left as it is; the imported experiment is in the run\n", path)
		return filepath.Join(run, "experiment.yaml"), nil
	}
	if err != nil {
		return "", err
	}
	_, err = f.Write(yaml)
	return path, errors.Join(err, f.Close())
}

// importedExperiment is what a published page says, as an experiment.
func importedExperiment(page *published.Page) *spec.Experiment {
	x := page.Experiment
	e := &spec.Experiment{
		Name:   x.Name,
		Title:  x.Title,
		Notes:  x.Notes,
		Author: x.Author,
		Engine: spec.Engine{
			Source:           importedSource(x),
			Command:          x.Command,
			KVCapacityTokens: cmp.Or(x.KVCapacity, x.CapacityLow),
			Engine:           x.Engine.Engine,
			Version:          x.Engine.Version,
			Quantization:     x.Engine.Quantization,
			Backend:          x.Engine.Backend,
			Repository:       x.Engine.Repository,
			Build:            x.Engine.Build,
			Commit:           x.Engine.Commit,
		},
		Model:    spec.Model{ID: x.Model, Revision: x.Revision, Quantization: x.Quantization},
		Hardware: spec.Hardware(x.Hardware),
		Prompts:  "shared",
		Matrix: spec.Matrix{
			Duration:  x.Duration,
			MaxOutput: x.MaxOutput,
			Repeats:   1,
			Capacity:  "worst_case",
		},
	}
	for _, c := range x.Contexts {
		e.Matrix.Contexts = append(e.Matrix.Contexts, spec.Context{Tokens: c.Tokens, Label: c.Label})
	}
	for _, c := range x.Prefill {
		e.Matrix.Prefill = append(e.Matrix.Prefill, spec.Context{Tokens: c.Tokens, Label: c.Label})
	}
	e.Matrix.Concurrency = x.Concurrency
	return e
}

// importedSource is where the page says the engine came from. A page that does not
// say it gives an experiment that measures a server at vLLM's usual address.
func importedSource(x published.Experiment) spec.Source {
	switch {
	case strings.Contains(x.Engine.Build, "/"): // an image, not a CUDA label
		return spec.Source{Image: x.Engine.Build}
	case x.Engine.Commit != "":
		return spec.Source{Commit: x.Engine.Commit, Repo: x.Engine.Repository}
	}
	return spec.Source{Attach: "http://127.0.0.1:8000"}
}

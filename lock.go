package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/resolve"
	"speedmatrix/experiments/spec"
	"speedmatrix/pipelines/registry"
)

// lockFlags are those of plan --lock.
type lockFlags struct {
	lock        bool
	output      string
	platform    string
	hub         string
	hubTokenEnv string
	login       bool
}

const (
	defaultPlatform = "linux/amd64"
	defaultHub      = "https://huggingface.co"
)

func (l *lockFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&l.lock, "lock", false, "resolve every name to a digest, commit or hash and write the locked plan")
	f.StringVarP(&l.output, "output", "o", "", "with --lock: file to write (default: the experiment's name with .plan.json, beside it)")
	f.StringVar(&l.platform, "platform", defaultPlatform, "with --lock: platform of the image")
	f.StringVar(&l.hub, "hub", "", "with --lock: address of the hub of models (default: $HF_ENDPOINT, else "+defaultHub+")")
	f.StringVar(&l.hubTokenEnv, "hub-token-env", "", "with --lock: name of the environment variable that holds the hub's token")
	f.BoolVar(&l.login, "registry-login", false, "with --lock: use the credentials of docker login (without it registries are asked anonymously)")
}

// load resolves the experiment, and locks it where that was asked.
func (l *lockFlags) load(c *cobra.Command, p process, path string, f experimentFlags) (*resolve.Resolved, error) {
	if !l.lock {
		for _, name := range []string{"output", "platform", "hub", "hub-token-env", "registry-login"} {
			if c.Flags().Changed(name) {
				return nil, usageError{fmt.Errorf("--%s goes with --lock", name), c.CommandPath()}
			}
		}
		_, r, err := loadExperiment(c.Context(), path, f)
		return r, err
	}
	if err := notEmpty(c, "output", "platform", "hub", "hub-token-env"); err != nil {
		return nil, err
	}
	var err error
	if f.pinner, err = l.pinner(p, filepath.Dir(path)); err != nil {
		return nil, err
	}
	e, r, err := loadExperiment(c.Context(), path, f)
	if err != nil {
		return nil, err
	}
	if len(r.Plan.Unpinned) > 0 {
		return nil, usageError{err: fmt.Errorf("%s cannot be locked; nothing was written:\n  %s", path, strings.Join(r.Plan.Unpinned, "\n  "))}
	}
	out := l.output
	if out == "" {
		out = strings.TrimSuffix(path, filepath.Ext(path)) + ".plan.json"
	}
	if same(out, path) {
		return nil, usageError{fmt.Errorf("--output: %s is the experiment itself", out), c.CommandPath()}
	}
	if err := writeLocked(out, e, r); err != nil {
		return nil, err
	}
	fmt.Fprintf(p.stderr, "locked: %s\n", printable(out))
	return r, nil
}

func (l *lockFlags) pinner(p process, dir string) (resolve.Pinner, error) {
	o := registry.Options{Dir: dir, Platform: l.platform, Hub: l.hub, DockerLogin: l.login, Environ: p.environ()}
	if o.Hub == "" {
		o.Hub = p.getenv("HF_ENDPOINT")
	}
	if o.Hub == "" {
		o.Hub = defaultHub
	}
	if l.hubTokenEnv != "" {
		if o.HubToken = p.getenv(l.hubTokenEnv); o.HubToken == "" {
			return nil, usageError{err: fmt.Errorf("--hub-token-env: the environment variable %s is not set or empty (give the variable's name, not the token)", clip(l.hubTokenEnv, 4))}
		}
	}
	pinner, err := registry.New(o)
	if err != nil {
		return nil, usageError{err: err}
	}
	return pinner, nil
}

// writeLocked writes a locked plan beside and renames it.
func writeLocked(path string, e *spec.Experiment, r *resolve.Resolved) error {
	locked := *r.Plan
	if c := r.Command; c != nil {
		var err error
		if locked.Text, err = scrubbed(locked.Text, c.Secrets); err != nil {
			return err
		}
	}
	locked.Text.Experiment = filepath.ToSlash(between(filepath.Dir(path), e.File))
	locked.Text.Overrides = e.Overrides
	b, err := locked.JSON()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("--lock: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("--lock: %w", err)
	}
	return os.Rename(f.Name(), path)
}

// same says that two paths lead to one file.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// between is the way from a folder to a file; the file itself where there is none.
func between(dir, file string) string {
	from, err := filepath.Abs(dir)
	if err != nil {
		return file
	}
	to, err := filepath.Abs(file)
	if err != nil {
		return file
	}
	way, err := filepath.Rel(from, to)
	if err != nil {
		return file
	}
	return way
}

// isPlan tells a plan from an experiment: YAML could begin with a brace too, but no
// experiment has a plan's schema.
func isPlan(data []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) && bytes.Contains(data[:min(len(data), 200)], []byte(`"`+plan.Schema+`"`))
}

// loadLocked reads a plan that plan --lock wrote. The experiment is read again for
// what a plan may not hold, such as the contents of files and secrets of the command;
// it must still give the same plan. Nothing is asked of anybody.
func loadLocked(ctx context.Context, path string, data []byte, f experimentFlags) (*spec.Experiment, *resolve.Resolved, error) {
	p, err := plan.Parse(data)
	if err != nil {
		return nil, nil, usageError{err: fmt.Errorf("%s: %w", path, err)}
	}
	switch {
	case p.Text.Experiment == "":
		return nil, nil, usageError{err: fmt.Errorf("%s: the plan does not say which experiment it was locked from: only a plan that plan --lock wrote can be used here", path)}
	case f.pinner != nil:
		return nil, nil, usageError{err: fmt.Errorf("%s: this plan is locked; to lock it anew, give its experiment", path)}
	case len(f.sets) > 0 || f.attach != "" || f.kvCapacity != 0:
		return nil, nil, usageError{err: fmt.Errorf("%s: a locked plan is not changed by --set, --attach or --kv-capacity; give them to plan --lock", path)}
	}
	file := filepath.FromSlash(p.Text.Experiment)
	if !filepath.IsAbs(file) {
		file = filepath.Join(filepath.Dir(path), file)
	}
	f.sets, f.pinner = p.Text.Overrides, resolve.Locked(p)
	if p.Identity.Capacity.Source == "option" {
		f.kvCapacity = p.Identity.Capacity.KVTokens
	}
	experiment, err := readFile(file)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: a plan needs its experiment for what may not stand in a plan (files, secrets): %w", path, err)
	}
	e, r, err := resolveExperiment(ctx, file, filepath.Dir(file), experiment, f)
	if err != nil {
		return nil, nil, err
	}
	if r.Plan.Digest != p.Digest {
		return nil, nil, usageError{err: fmt.Errorf("%s: %s gives another plan (%s) than the locked one (%s): it, a file it names or this program changed since; lock it again with plan --lock", path, file, r.Plan.Digest, p.Digest)}
	}
	return e, r, nil
}

// lockNow resolves an experiment with every name pinned, as plan --lock with its
// defaults would: for executors that take nothing else.
func lockNow(ctx context.Context, p process, o runOptions) (*spec.Experiment, *resolve.Resolved, error) {
	l := lockFlags{platform: defaultPlatform, hub: o.hub, login: o.login}
	f := o.experimentFlags
	var err error
	if f.pinner, err = l.pinner(p, filepath.Dir(o.experiment)); err != nil {
		return nil, nil, err
	}
	e, r, err := loadExperiment(ctx, o.experiment, f)
	if err != nil {
		return nil, nil, err
	}
	if len(r.Plan.Unpinned) > 0 {
		return nil, nil, usageError{err: fmt.Errorf("%s cannot be pinned, and containers are made by digest only:\n  %s", o.experiment, strings.Join(r.Plan.Unpinned, "\n  "))}
	}
	for _, pin := range r.Plan.Pins {
		fmt.Fprintf(p.stderr, "pinned: %s → %s\n", printable(pin.Asked), printable(pin.Found))
	}
	return e, r, nil
}

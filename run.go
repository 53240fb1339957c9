package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/resolve"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/experiments/spec"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/attach"
	"speedmatrix/pipelines/registry"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
	"speedmatrix/runner"
)

type runOptions struct {
	experimentFlags
	executorFlags
	experiment string
	results    string
	resume     string
	rerun      string
	keyEnv     string
	keyFile    string
	json       bool
	plain      bool
}

func runCmd(p process, drain <-chan struct{}) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run EXPERIMENT | run --resume RUN.partial",
		Short: "Measure an experiment and render its page",
		Long: `Run resolves the experiment to a plan, or takes one that plan --lock wrote, starts
or finds the engine, measures every cell, stores the run and renders its page, whose
path it prints.

The first Ctrl-C ends the current cell, stores and renders what was measured; the
second stops at once. Either way --resume goes on where it ended.`,
		Example: `  speedmatrix run experiments/quickstart.yaml
  speedmatrix run experiments/vllm-cpu-tiny.yaml --set matrix.duration=10s
  speedmatrix run experiments/vllm-cpu-tiny.plan.json
  speedmatrix run experiments/attach.yaml --attach http://127.0.0.1:8000 --api-key-env VLLM_API_KEY
  speedmatrix run --resume results/20261130T201947Z-quickstart-1a2b3c.partial`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if (len(args) == 1) == (o.resume != "") {
				return usageError{errors.New("give an EXPERIMENT, or --resume with a run that was interrupted"), c.CommandPath()}
			}
			if err := notEmpty(c, "api-key-env", "api-key-file", "results"); err != nil {
				return err
			}
			if o.resume == "" {
				o.experiment = args[0]
			} else if len(o.sets) > 0 {
				return usageError{errors.New("--set: a run is gone on with as it was begun; to change a value start a new one"), c.CommandPath()}
			}
			return runVerb(c.Context(), p, drain, o)
		},
	}
	f := c.Flags()
	addExperimentFlags(c, &o.experimentFlags)
	o.executorFlags.add(c)
	f.StringVar(&o.results, "results", "results", "folder in which the run is stored")
	f.StringVar(&o.resume, "resume", "", "go on with an interrupted run: its folder")
	f.StringVar(&o.keyEnv, "api-key-env", "", "name of the environment variable that holds the server's API key")
	f.StringVar(&o.keyFile, "api-key-file", "", "file that holds the server's API key")
	f.BoolVar(&o.json, "json", false, "print one JSON object per event on standard output")
	f.BoolVar(&o.plain, "plain", false, "plain lines even on a terminal")
	return c
}

func addExperimentFlags(c *cobra.Command, f *experimentFlags) {
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		for _, name := range []string{"attach", "executor", "gpus", "container-binary", "hub"} {
			if c.Flags().Lookup(name) == nil {
				continue
			}
			if err := notEmpty(c, name); err != nil {
				return err
			}
		}
		if f.attach == "" {
			return nil
		}
		if _, err := attach.BaseURL(f.attach); err != nil {
			return usageError{err, c.CommandPath()}
		}
		return nil
	}
	c.Flags().StringArrayVar(&f.sets, "set", nil, "change a value of the experiment, such as matrix.duration=5s (recorded; may be repeated)")
	c.Flags().StringVar(&f.attach, "attach", "", "measure the server at this URL instead of the experiment's source")
	c.Flags().Int64Var(&f.kvCapacity, "kv-capacity", 0, "tokens that the KV cache holds, instead of asking the engine")
}

// notEmpty refuses a flag that was given without a value, as by a shell variable
// that is not set: without it something else would be measured than was meant.
func notEmpty(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if f := c.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return usageError{fmt.Errorf("--%s: the value is empty", name), c.CommandPath()}
		}
	}
	return nil
}

// runVerb is one run, new or resumed.
func runVerb(ctx context.Context, p process, drain <-chan struct{}, o runOptions) error {
	key, err := apiKey(p, o)
	if err != nil {
		return err
	}
	s, err := openSession(ctx, p, o, key)
	if err != nil {
		return err
	}
	defer s.partial.Close()
	for _, w := range s.partial.Warnings() {
		fmt.Fprintln(p.stderr, printable(w))
	}

	v := newView(p, o, s.resolved.Plan)
	defer v.end()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-drain:
			v.ending()
		case <-ended:
			return
		}
		select {
		case <-ctx.Done(): // the second signal; a third ends the program wherever it is
			v.end()
		case <-ended:
		}
	}()
	sink := &recorder{partial: s.partial, view: v, plan: s.resolved.Plan, secrets: s.secrets}
	for t, err := range s.partial.Trials() {
		if err != nil {
			return err
		}
		sink.keep(&t)
	}
	var execErr error
	if s.left() { // else only the storing was interrupted: no engine for that
		execErr = s.executor.Execute(ctx, s.job(p, key, drain), sink)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w\nwhat was measured is in %s; go on with: speedmatrix run --resume %s", cause, s.partial.Dir(), s.partial.Dir())
	}
	// A wish that came when everything was measured changed nothing.
	drained := isClosed(drain) && (execErr != nil || s.left())
	var engine *runner.EngineError
	switch {
	case execErr == nil:
	case drained: // whatever was going on was ended on purpose
	case errors.As(execErr, &engine):
		if err := sink.engineEnded(engine, s.job(p, key, drain).Launch); err != nil {
			return err
		}
	default:
		// Nothing further can be measured, and the engine is not to blame: bad key,
		// port taken, disk full. What there is stays resumable.
		if sink.nothing() && s.fresh {
			return errors.Join(execErr, s.partial.Abandon())
		}
		return fmt.Errorf("%w\nwhat was measured is in %s; go on with: speedmatrix run --resume %s", execErr, s.partial.Dir(), s.partial.Dir())
	}
	if drained {
		if sink.nothing() && s.fresh {
			return errors.Join(errInterrupted, s.partial.Abandon())
		}
		if err := sink.skipRest(record.ReasonInterrupted); err != nil {
			return err
		}
	}
	path, err := s.finish(drained)
	if err != nil {
		return err
	}
	// Also where an earlier launch was ended early and only its storing was left.
	interrupted := s.partial.Run().Interrupted
	v.end()
	if err := v.result(path, sink.counts()); err != nil {
		return err
	}
	if engine != nil {
		fmt.Fprintf(p.stderr, "speedmatrix: %s\n", printable(engine.Error()))
	}
	switch {
	case interrupted:
		return fmt.Errorf("%w; go on with: speedmatrix run --resume %s", errInterrupted, path)
	case engine != nil, sink.counts()[record.Failed] > 0:
		return errCellsFailed
	}
	return nil
}

// session is a run that is being made.
type session struct {
	partial      *store.Partial
	experiment   *spec.Experiment
	resolved     *resolve.Resolved
	executor     pipelines.Executor
	executorName string
	secrets      []string
	baseDir      string
	launch       int
	fresh        bool // nothing of an earlier launch
}

// openSession makes a new run folder, or opens one that was interrupted.
func openSession(ctx context.Context, p process, o runOptions, key string) (*session, error) {
	if o.resume != "" {
		s := &session{launch: 1, fresh: true}
		return s, s.resume(ctx, p, o, key)
	}
	if o.rerun != "" {
		s := &session{launch: 1, fresh: true}
		return s, s.again(ctx, p, o, key)
	}
	s, name, err := resolveFor(ctx, p, o)
	if err != nil {
		return nil, err
	}
	if err := s.prepare(p, key, o.executorFlags); err != nil {
		return nil, err
	}
	r, err := scrubbed(header(s.experiment, s.resolved, o.experiment, time.Now()), s.secrets)
	if err != nil {
		return nil, err
	}
	// What tells the plan's identity holds no secret; its texts for people may.
	if s.resolved.Plan.Text, err = scrubbed(s.resolved.Plan.Text, s.secrets); err != nil {
		return nil, err
	}
	r.ID, r.Executor = newRunID(r.StartedAt, r.Name), name
	if name != executorsOf[s.resolved.Source.Kind()][0] {
		r.Again += " --executor " + name
	}
	planJSON, err := s.resolved.Plan.JSON()
	if err != nil {
		return nil, err
	}
	s.partial, err = store.Create(o.results, r, planJSON, scrub(s.experiment.Raw, s.secrets))
	return s, err
}

// resolveFor resolves an experiment for who will carry it out.
func resolveFor(ctx context.Context, p process, o runOptions) (s *session, executor string, err error) {
	s = &session{launch: 1, fresh: true}
	if s.experiment, s.resolved, err = loadExperiment(ctx, o.experiment, o.experimentFlags); err != nil {
		return nil, "", err
	}
	if executor, err = o.choose(s.resolved.Source.Kind()); err != nil {
		return nil, "", err
	}
	if executor == "dagger" && len(s.resolved.Plan.Unpinned) > 0 && len(s.resolved.Plan.Pins) == 0 {
		// Containers are made by digest and nothing else.
		if s.experiment, s.resolved, err = lockNow(ctx, p, o); err != nil {
			return nil, "", err
		}
		s.baseDir = filepath.Dir(s.experiment.File)
		return s, executor, nil
	}
	s.baseDir = filepath.Dir(s.experiment.File) // not the folder of a locked plan
	return s, executor, s.checkArchive(ctx)
}

// checkArchive holds an image's file against the digest that the plan was locked to: a
// registry is asked by digest, a file can be another one by now.
func (s *session) checkArchive(ctx context.Context) error {
	locked := s.resolved.Plan.Identity.Engine.Locked
	if s.resolved.Archive == "" || locked == nil {
		return nil
	}
	pinner, err := registry.New(registry.Options{Dir: s.baseDir, Platform: locked.Platform, Hub: defaultHub})
	if err != nil {
		return err
	}
	found, err := pinner.Archive(ctx, s.resolved.Archive)
	if err != nil {
		return fmt.Errorf("engine.source.image: %w", err)
	}
	if found.Manifest != locked.Manifest {
		return fmt.Errorf("engine.source.image: %s holds the image %s, the plan was locked to %s: bring the file back, or lock the plan again", s.resolved.Archive, found.Manifest, locked.Manifest)
	}
	return nil
}

// resume opens a run that was interrupted. An unfinished one goes on in its own
// folder; a finished one (drained and rendered) is never modified, so its trials
// are taken over into a new run.
func (s *session) resume(ctx context.Context, p process, o runOptions, key string) error {
	dir := filepath.Clean(o.resume)
	if _, err := os.Stat(filepath.Join(dir, "run.json")); err == nil && filepath.Ext(dir) != ".partial" {
		return s.takeOver(ctx, p, dir, o, key)
	}
	var err error
	if s.partial, err = store.Resume(dir); err != nil {
		return err
	}
	if err := s.reload(ctx, p, s.partial.Run(), s.partial.PlanJSON(), s.partial.ExperimentYAML(), dir, o, key); err != nil {
		return errors.Join(err, s.partial.Close())
	}
	r := s.partial.Run()
	s.launch, s.fresh = len(r.Launches)+1, false
	return nil
}

// reload gets the experiment and plan of a stored run back. The plan is the stored
// one, word for word; the experiment is read for what a plan may not hold.
func (s *session) reload(ctx context.Context, p process, r record.Run, planJSON, experimentYAML []byte, dir string, o runOptions, key string) error {
	stored, err := plan.Parse(planJSON)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	s.baseDir = cmp.Or(r.ExperimentDir, ".")
	f := o.experimentFlags
	f.sets = r.Overrides
	f.attach = cmp.Or(f.attach, r.Attach)
	if stored.Identity.Capacity.Source == "option" {
		f.kvCapacity = stored.Identity.Capacity.KVTokens
	}
	if len(stored.Pins) > 0 {
		f.pinner = resolve.Locked(stored)
	}
	s.experiment, s.resolved, err = resolveExperiment(ctx, filepath.Join(dir, "experiment.yaml"), s.baseDir, experimentYAML, f)
	if err != nil {
		return err
	}
	if got := s.resolved.Plan.Digest; got != stored.Digest {
		return fmt.Errorf("%s: the experiment now gives another plan (%s) than the stored one (%s): a file it names, or this program, changed since; start a new run", dir, got, stored.Digest)
	}
	s.resolved.Plan = stored
	if err := s.checkArchive(ctx); err != nil {
		return err
	}
	x := o.executorFlags
	if o.resume != "" && x.executor != "" && r.Executor != "" && x.executor != r.Executor {
		return usageError{err: fmt.Errorf("--executor %s: the run was begun by %s, and is gone on with by it: cells of two executors are no one run", x.executor, r.Executor)}
	}
	x.executor = cmp.Or(x.executor, r.Executor)
	if s.executorName, err = x.choose(s.resolved.Source.Kind()); err != nil {
		return err
	}
	return s.prepare(p, key, x)
}

// takeOver makes a new run that begins with the finished trials of a stored one.
func (s *session) takeOver(ctx context.Context, p process, dir string, o runOptions, key string) error {
	old, err := store.Open(dir)
	if err != nil {
		return err
	}
	r := old.Record()
	if !r.Interrupted {
		return usageError{err: fmt.Errorf("%s: this run is complete: there is nothing to go on with", dir)}
	}
	if err := s.reload(ctx, p, r, old.PlanJSON(), old.ExperimentYAML(), dir, o, key); err != nil {
		return err
	}
	r.ResumedFrom, r.ID = r.ID, newRunID(time.Now(), r.Name)
	r.Interrupted, r.FinishedAt, r.Files, r.Findings = false, nil, nil, nil
	if s.partial, err = store.Create(filepath.Dir(dir), r, old.PlanJSON(), old.ExperimentYAML()); err != nil {
		return err
	}
	s.launch, s.fresh = len(r.Launches)+1, false
	for t, err := range old.Trials() {
		if err != nil {
			return errors.Join(err, s.partial.Close())
		}
		if t.Status == record.Interrupted || (t.Status == record.Skipped && t.Reason == record.ReasonInterrupted) {
			continue
		}
		if err := s.partial.PutTrial(t); err != nil {
			return errors.Join(err, s.partial.Close())
		}
	}
	return nil
}

func newRunID(now time.Time, name string) string {
	var random [3]byte
	rand.Read(random[:]) // never fails
	return store.NewRunID(now, name, random)
}

func (s *session) prepare(p process, key string, x executorFlags) error {
	var err error
	if s.executor, err = x.make(s.resolved.Source.Kind(), p); err != nil {
		return err
	}
	if c := s.resolved.Command; c != nil {
		s.secrets = append(s.secrets, c.Secrets...)
	}
	if key != "" {
		s.secrets = append(s.secrets, key)
	}
	return nil
}

func (s *session) job(p process, key string, drain <-chan struct{}) pipelines.Job {
	j := s.jobOf(p, s.partial.Run().ID, s.partial.LogsDir(), key, drain)
	j.Launch, j.Resumed, j.Done = s.launch, !s.fresh, s.partial.Done
	return j
}

// jobOf is the job but for what a run that is stored adds.
func (s *session) jobOf(p process, id, logs, key string, drain <-chan struct{}) pipelines.Job {
	j := pipelines.Job{
		Plan:      s.resolved.Plan,
		RunID:     id,
		LogsDir:   logs,
		CacheDir:  cacheDir(p),
		BaseDir:   s.baseDir,
		AttachURL: s.resolved.Source.Attach,
		APIKey:    key,
		Profile:   s.resolved.Profile,
		Archive:   s.resolved.Archive,
		Patches:   s.resolved.Patches,
		Secrets:   s.secrets,
		Drain:     drain,
	}
	if c := s.resolved.Command; c != nil {
		j.Argv = servecmd.Unbound(c.Argv)
		j.Env = map[string]string{}
		for _, v := range c.Env {
			j.Env[v.Name] = v.Value
		}
	}
	if w := s.resolved.Source.Wheel; w != nil {
		j.Wheel = &pipelines.Wheel{Lock: s.resolved.Lock, Python: w.Python}
		if w.Model != "" {
			j.Wheel.ModelScript = filepath.Join(s.baseDir, w.Model)
		}
	}
	return j
}

// left says whether a step is still to be done.
func (s *session) left() bool {
	return slices.ContainsFunc(s.resolved.Plan.Identity.Steps, func(step plan.Step) bool { return !s.partial.Done(step.ID) })
}

func (s *session) finish(drained bool) (string, error) {
	r := s.partial.Run()
	now := time.Now().UTC()
	r.FinishedAt, r.Interrupted = &now, drained
	r.Findings = measuredFindings(&r, s.resolved.Plan)
	// Also a simulator that was served apart and attached.
	simulated := slices.ContainsFunc(r.Launches, func(l record.Launch) bool {
		return l.Executor == "simulator" || l.Version == simulator.Version
	})
	if r.Kind == record.Measured && simulated {
		r.Kind = record.Simulated
	}
	return s.partial.Finish(r, renderStored)
}

// recorder is the runner's sink: each trial is durable before it is shown.
type recorder struct {
	partial *store.Partial
	view    view
	plan    *plan.Plan
	secrets []string

	measured  int
	elsewhere bool                     // something was measured and is not here yet
	rows      map[string]record.Status // of the steps that have a row, by StepID
	previewed map[string]bool          // steps that were shown already
}

func (r *recorder) Launched(l record.Launch) error {
	// What a server says of itself may be what it was told.
	l, err := scrubbed(l, r.secrets)
	if err != nil {
		return err
	}
	if err := r.partial.PutLaunch(l); err != nil {
		return err
	}
	r.view.launched(l)
	return nil
}

func (r *recorder) Trial(t record.Trial) error {
	if err := r.partial.PutTrial(t); err != nil {
		return err
	}
	r.keep(&t)
	return nil
}

func (r *recorder) keep(t *record.Trial) {
	if r.rows == nil {
		r.rows = map[string]record.Status{}
	}
	r.rows[t.StepID] = t.Status
	if len(t.Requests) > 0 {
		r.measured++
	}
	if !r.previewed[t.StepID] {
		r.view.trial(metric.Cell(t, 0))
	}
}

func (r *recorder) Progress(p runner.Progress) { r.view.progress(p) }

// Preview shows a cell whose trial is kept elsewhere until it is brought here.
func (r *recorder) Preview(c record.Cell) {
	if r.previewed == nil {
		r.previewed = map[string]bool{}
	}
	if r.previewed[c.StepID] {
		return
	}
	r.previewed[c.StepID] = true
	r.elsewhere = true
	r.view.trial(c)
}

// nothing says that nothing was measured, here or elsewhere.
func (r *recorder) nothing() bool { return r.measured == 0 && !r.elsewhere }

// counts says how many trials ended how.
func (r *recorder) counts() map[record.Status]int {
	counts := map[record.Status]int{}
	for _, s := range r.rows {
		counts[s]++
	}
	return counts
}

// engineEnded makes the rows that are missing because the engine ended: if no
// trial has the failure yet (it ended before it was ready, or between cells), the
// next step has it.
func (r *recorder) engineEnded(e *runner.EngineError, launch int) error {
	seen := false
	for t, err := range r.partial.Trials() {
		if err != nil {
			return err
		}
		seen = seen || (t.Launch == launch && t.Status == record.Failed && t.FailureKind == e.Kind)
	}
	for _, step := range r.plan.Identity.Steps {
		if _, ok := r.rows[step.ID]; ok {
			continue
		}
		t := leftOut(step, record.ReasonEngineEnded)
		if !seen {
			seen = true
			t.Status, t.FailureKind, t.Reason, t.Launch = record.Failed, e.Kind, e.Reason, launch
		}
		if err := r.Trial(t); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorder) skipRest(reason string) error {
	for _, step := range r.plan.Identity.Steps {
		if _, ok := r.rows[step.ID]; ok {
			continue
		}
		if err := r.Trial(leftOut(step, reason)); err != nil {
			return err
		}
	}
	return nil
}

func leftOut(s plan.Step, reason string) record.Trial {
	return record.Trial{
		StepID:    s.ID,
		Point:     record.Point{Phase: s.Phase, ContextTokens: s.ContextTokens, ContextLabel: s.ContextLabel, Concurrency: s.Concurrency},
		Repeat:    s.Repeat,
		Status:    record.Skipped,
		Reason:    reason,
		StartedAt: time.Now().UTC(),
	}
}

// apiKey reads the key from where it may stand; never from the command line.
func apiKey(p process, o runOptions) (string, error) {
	switch {
	case o.keyEnv != "" && o.keyFile != "":
		return "", usageError{err: errors.New("--api-key-env and --api-key-file: give one of them")}
	case o.keyEnv != "":
		key := p.getenv(o.keyEnv)
		if key == "" {
			return "", usageError{err: fmt.Errorf("--api-key-env: the environment variable %s is not set or empty (give the variable's name, not the key)", clip(o.keyEnv, 4))}
		}
		return key, nil
	case o.keyFile != "":
		b, err := readFile(o.keyFile)
		if err != nil {
			return "", fmt.Errorf("--api-key-file: %w", err)
		}
		key := strings.TrimSpace(string(b))
		if key == "" || strings.ContainsAny(key, "\r\n") {
			return "", usageError{err: fmt.Errorf("--api-key-file: %s: the file must hold the key on one line", o.keyFile)}
		}
		return key, nil
	}
	return "", nil
}

// clip shows the start of a word that may be a secret given by mistake.
func clip(s string, n int) string {
	if len(s) <= 40 && strings.ToUpper(s) == s {
		return s
	}
	return s[:min(n, len(s))] + "…"
}

// scrub takes the secrets out of a whole file.
func scrub(b []byte, secrets []string) []byte {
	return []byte(record.NewRedactor(secrets...).Redact(string(b)))
}

// scrubbed returns a record without the secrets in any of its texts.
func scrubbed[T any](v T, secrets []string) (T, error) {
	var out T
	b, err := json.Marshal(v)
	if err != nil {
		return out, err
	}
	var tree any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // no number changes on the way
	if err := d.Decode(&tree); err != nil {
		return out, err
	}
	if b, err = json.Marshal(scrubTree(tree, record.NewRedactor(secrets...))); err != nil {
		return out, err
	}
	return out, json.Unmarshal(b, &out)
}

func scrubTree(v any, r *record.Redactor) any {
	switch v := v.(type) {
	case string:
		return r.Redact(v)
	case []any:
		for i := range v {
			v[i] = scrubTree(v[i], r)
		}
	case map[string]any:
		for k := range v {
			v[k] = scrubTree(v[k], r)
		}
	}
	return v
}

func cacheDir(p process) string {
	base := p.getenv("XDG_CACHE_HOME")
	if base == "" {
		base = filepath.Join(p.getenv("HOME"), ".cache")
	}
	return filepath.Join(base, "speedmatrix")
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

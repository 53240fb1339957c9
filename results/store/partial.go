package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"speedmatrix/results/record"
)

const (
	journalDir = "journal"
	lockFile   = "lock"
	tmpPrefix  = ".tmp-"
)

// Partial is a run that is being measured: <run-id>.partial. It holds a lock, so
// a second program cannot write to it. Its methods may be called concurrently.
type Partial struct {
	root, dir string
	lock      *os.File
	create    creator // makes the files of the run

	mu         sync.Mutex
	run        record.Run
	plan       []byte
	experiment []byte
	trials     []journaled
	next       int // number of the next journal entry
	warnings   []string
	sealed     *Stored // complete but for its name: an earlier Finish was cut short
}

// creator makes a file that can be synced; tests make it fail.
type creator func(path string) (io.WriteCloser, error)

func createFile(path string) (io.WriteCloser, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err // not a nil *os.File in an interface
	}
	return f, nil
}

// journaled is one trial of the journal.
type journaled struct {
	number int
	file   string // name in the journal
	step   string
	point  record.Point
	repeat int
	again  bool // a resumed run measures it (again)
}

// measureAgain says whether a resumed run measures the step of a trial: it was
// ended early, in the middle or before its turn.
func measureAgain(t *record.Trial) bool {
	return t.Status == record.Interrupted || (t.Status == record.Skipped && t.Reason == record.ReasonInterrupted)
}

// Create makes the directory of a new run under root. It is an error that wraps
// [fs.ErrExist] if the run exists, finished or not.
func Create(root string, run record.Run, planJSON, experimentYAML []byte) (*Partial, error) {
	if !validRunID(run.ID) {
		return nil, fmt.Errorf("create run: %q is no run id", run.ID)
	}
	if err := os.MkdirAll(root, 0o777); err != nil {
		return nil, fmt.Errorf("create run: %w", err)
	}
	final := filepath.Join(root, run.ID)
	if _, err := os.Lstat(final); err == nil {
		return nil, fmt.Errorf("create run: %s is there already: %w", final, fs.ErrExist)
	}
	p := &Partial{root: root, dir: final + partialSuffix, create: createFile, run: run,
		plan: slices.Clone(planJSON), experiment: slices.Clone(experimentYAML), next: 1}
	if err := os.Mkdir(p.dir, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("create run: %s was begun and is not finished; go on with: speedmatrix run --resume %s: %w", p.dir, p.dir, fs.ErrExist)
		}
		return nil, fmt.Errorf("create run: %w", err)
	}
	err := p.takeLock()
	for _, dir := range []string{journalDir, logsDir} {
		if err == nil {
			err = os.Mkdir(filepath.Join(p.dir, dir), 0o777)
		}
	}
	if err == nil {
		err = p.writeFile(filepath.Join(p.dir, planFile), planJSON)
	}
	if err == nil {
		err = p.writeFile(filepath.Join(p.dir, experimentFile), experimentYAML)
	}
	if err == nil {
		err = p.writeRun()
	}
	if err == nil {
		err = syncDir(root)
	}
	if err != nil {
		p.unlock()
		return nil, fmt.Errorf("create run: %w", errors.Join(err, os.RemoveAll(p.dir)))
	}
	return p, nil
}

// Resume opens a run that was begun and not finished; path is its .partial
// directory, with or without the suffix. What a crash left half-written is set
// aside, see [Partial.Warnings].
func Resume(path string) (*Partial, error) {
	dir := filepath.Clean(path)
	if !strings.HasSuffix(dir, partialSuffix) {
		if _, err := os.Stat(filepath.Join(dir, runFile)); err == nil {
			return nil, fmt.Errorf("resume %s: the run is finished", path)
		}
		dir += partialSuffix
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	p := &Partial{root: filepath.Dir(dir), dir: dir, create: createFile, next: 1}
	if err := p.takeLock(); err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	if err := p.load(); err != nil {
		p.unlock()
		return nil, fmt.Errorf("resume: %w", err)
	}
	return p, nil
}

func (p *Partial) load() error {
	var err error
	if p.run, err = readRun(p.dir); err != nil {
		return err
	}
	if p.run.ID+partialSuffix != filepath.Base(p.dir) {
		return fmt.Errorf("%s: holds run %q", p.dir, p.run.ID)
	}
	if p.plan, err = os.ReadFile(filepath.Join(p.dir, planFile)); err != nil {
		return err
	}
	if p.experiment, err = os.ReadFile(filepath.Join(p.dir, experimentFile)); err != nil {
		return err
	}
	if len(p.run.Files) > 0 {
		// Finish had written everything; run.json is last.
		s, err := openDir(p.dir)
		if err != nil {
			return err
		}
		if errs := s.Verify(); len(errs) > 0 {
			return fmt.Errorf("%s: was finished, but not all of it is on disk: %w", p.dir, errors.Join(errs...))
		}
		p.sealed = s
	}
	if err := os.MkdirAll(filepath.Join(p.dir, logsDir), 0o777); err != nil {
		return err
	}
	names, err := os.ReadDir(p.dir)
	if err != nil {
		return err
	}
	for _, d := range names {
		if strings.HasPrefix(d.Name(), tmpPrefix) {
			if err := os.Remove(filepath.Join(p.dir, d.Name())); err != nil {
				return err
			}
		}
	}
	return p.readJournal()
}

// readJournal lists the trials and launches that are whole.
func (p *Partial) readJournal() error {
	dir := filepath.Join(p.dir, journalDir)
	if p.sealed == nil {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	names, err := os.ReadDir(dir) // sorted
	if err != nil {
		if p.sealed != nil && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, d := range names {
		name := d.Name()
		path := filepath.Join(dir, name)
		if strings.HasPrefix(name, tmpPrefix) {
			p.warnings = append(p.warnings, fmt.Sprintf("journal: %s was half-written when the run was interrupted; ignored", name))
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		number, isEntry := entryNumber(name)
		isLaunch := strings.HasPrefix(name, "launch-") && strings.HasSuffix(name, ".json")
		if !isEntry && !isLaunch {
			continue
		}
		p.next = max(p.next, number+1)
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var t record.Trial
		var l record.Launch
		if isLaunch {
			err = json.Unmarshal(data, &l)
		} else if err = json.Unmarshal(data, &t); err == nil && t.StepID == "" {
			err = errors.New("no step")
		}
		if err != nil {
			p.warnings = append(p.warnings, fmt.Sprintf("journal: %s cannot be read and is set aside: %v", name, err))
			if err := os.Rename(path, path+".torn"); err != nil {
				return err
			}
			continue
		}
		if isLaunch {
			p.addLaunch(l)
			continue
		}
		if i := p.index(t.StepID); i >= 0 {
			// An interrupted trial that was measured again, and a crash before the old file
			// was removed.
			if !p.trials[i].again {
				p.warnings = append(p.warnings, fmt.Sprintf("journal: %s repeats step %s of %s; ignored", name, t.StepID, p.trials[i].file))
				continue
			}
			p.trials = slices.Delete(p.trials, i, i+1)
		}
		p.trials = append(p.trials, journaled{number, name, t.StepID, t.Point, t.Repeat, measureAgain(&t)})
	}
	return nil
}

// entryName is the file of a trial: its number keeps the order, its step is for
// people; what counts is inside.
func entryName(number int, step string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '_'
	}, step)
	return fmt.Sprintf("%04d-%s.json", number, clean[:min(len(clean), 100)])
}

func entryNumber(name string) (int, bool) {
	digits, _, ok := strings.Cut(name, "-")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n > 0 && strings.HasSuffix(name, ".json")
}

func (p *Partial) index(step string) int {
	return slices.IndexFunc(p.trials, func(j journaled) bool { return j.step == step })
}

// Run returns the run as it is known so far, with its launches.
func (p *Partial) Run() record.Run {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.run
	run.Launches = slices.Clone(run.Launches)
	return run
}

// setRun replaces what is known of the run. Launches that were put stay.
func (p *Partial) setRun(run record.Run) error {
	if run.ID != p.run.ID {
		return fmt.Errorf("run %s: cannot become run %s", p.run.ID, run.ID)
	}
	launches := p.run.Launches
	p.run = run
	p.run.Launches = slices.Clone(run.Launches)
	for _, l := range launches {
		if !slices.ContainsFunc(run.Launches, func(o record.Launch) bool { return o.Number == l.Number }) {
			p.addLaunch(l)
		}
	}
	return nil
}

// addLaunch adds a launch, or replaces the one with its number.
func (p *Partial) addLaunch(l record.Launch) {
	i, found := slices.BinarySearchFunc(p.run.Launches, l, func(a, b record.Launch) int { return a.Number - b.Number })
	if found {
		p.run.Launches[i] = l
		return
	}
	p.run.Launches = slices.Insert(p.run.Launches, i, l)
}

// PlanJSON returns plan.json.
func (p *Partial) PlanJSON() []byte { return slices.Clone(p.plan) }

// ExperimentYAML returns experiment.yaml.
func (p *Partial) ExperimentYAML() []byte { return slices.Clone(p.experiment) }

// Dir returns the .partial directory.
func (p *Partial) Dir() string { return p.dir }

// LogsDir returns the directory for logs of the engine. What is in it when Finish
// is called becomes part of the run.
func (p *Partial) LogsDir() string { return filepath.Join(p.dir, logsDir) }

// Warnings says what a crash had left half-written.
func (p *Partial) Warnings() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.warnings)
}

// PutLaunch keeps a launch, or replaces the one with its number. It is on disk
// when PutLaunch returns.
func (p *Partial) PutLaunch(l record.Launch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(); err != nil {
		return err
	}
	p.addLaunch(l)
	return p.writeJSON(filepath.Join(p.dir, journalDir, fmt.Sprintf("launch-%04d.json", l.Number)), l)
}

// PutTrial keeps a trial. It is on disk when PutTrial returns. There can be one
// trial for a step; only one that was interrupted, or skipped because the run was,
// is replaced.
func (p *Partial) PutTrial(t record.Trial) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open(); err != nil {
		return err
	}
	if t.StepID == "" {
		return errors.New("trial has no step id")
	}
	old := p.index(t.StepID)
	if old >= 0 && !p.trials[old].again {
		return fmt.Errorf("step %s: there is a trial of it already (%s)", t.StepID, p.trials[old].file)
	}
	if err := checkFinite(&t); err != nil {
		return fmt.Errorf("step %s: %w", t.StepID, err)
	}
	j := journaled{p.next, entryName(p.next, t.StepID), t.StepID, t.Point, t.Repeat, measureAgain(&t)}
	if err := p.writeJSON(filepath.Join(p.dir, journalDir, j.file), &t); err != nil {
		return fmt.Errorf("step %s: cannot be kept: %w; what was measured before is in %s; go on with: speedmatrix run --resume %s", t.StepID, err, p.dir, p.dir)
	}
	p.next++
	p.trials = append(p.trials, j)
	if old >= 0 {
		if err := os.Remove(filepath.Join(p.dir, journalDir, p.trials[old].file)); err != nil {
			return err
		}
		p.trials = slices.Delete(p.trials, old, old+1)
	}
	return nil
}

// checkFinite finds what JSON and Parquet cannot hold, by the name of its column.
func checkFinite(t *record.Trial) error {
	bad := func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }
	for _, s := range t.Samples {
		if bad(s.Value) {
			return fmt.Errorf("samples.parquet: column value: %v of %s is no number that can be stored", s.Value, s.Name)
		}
	}
	if r := t.Client.CPURatio; r != nil && bad(*r) {
		return fmt.Errorf("cells.parquet: column client_cpu_ratio: %v is no number that can be stored", *r)
	}
	return nil
}

func (p *Partial) open() error {
	switch {
	case p.lock == nil:
		return fmt.Errorf("run %s: closed", p.run.ID)
	case p.sealed != nil:
		return fmt.Errorf("run %s: all of it is stored; only Finish is left", p.run.ID)
	}
	return nil
}

// Done says whether a step has a trial. One that was interrupted, or skipped
// because the run was, is not done; where all is stored nothing is to be done.
func (p *Partial) Done(stepID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sealed != nil {
		for c, err := range p.sealed.Cells() {
			if err == nil && c.StepID == stepID {
				return true
			}
		}
		return false
	}
	i := p.index(stepID)
	return i >= 0 && !p.trials[i].again
}

// Trials reads the journal, in the order in which the trials were put.
func (p *Partial) Trials() iter.Seq2[record.Trial, error] {
	p.mu.Lock()
	sealed, trials := p.sealed, slices.Clone(p.trials)
	p.mu.Unlock()
	if sealed != nil {
		return sealed.Trials()
	}
	return func(yield func(record.Trial, error) bool) {
		for _, j := range trials {
			t, err := p.readTrial(j)
			if !yield(t, err) || err != nil {
				return
			}
		}
	}
}

func (p *Partial) readTrial(j journaled) (t record.Trial, err error) {
	data, err := os.ReadFile(filepath.Join(p.dir, journalDir, j.file))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(data, &t); err != nil {
		return t, fmt.Errorf("journal: %s: %w", j.file, err)
	}
	return t, nil
}

// Close gives the lock back and keeps everything, so that the run can be resumed.
// After Finish or Abandon it does nothing.
func (p *Partial) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unlock()
}

// Abandon removes the directory with all that was measured.
func (p *Partial) Abandon() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock == nil {
		return fmt.Errorf("run %s: closed", p.run.ID)
	}
	return errors.Join(os.RemoveAll(p.dir), p.unlock())
}

func (p *Partial) writeRun() error {
	run := p.run
	run.SchemaVersion = record.SchemaVersion
	run.FinishedAt, run.Files = nil, nil
	return p.writeJSON(filepath.Join(p.dir, runFile), run)
}

func (p *Partial) writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if _, isTrial := v.(*record.Trial); isTrial {
		data, err = json.Marshal(v) // a hundred thousand events, for programs
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return p.writeFile(path, append(data, '\n'))
}

// writeFile writes beside, syncs, renames, and syncs the directory.
func (p *Partial) writeFile(path string, data []byte) (err error) {
	dir, name := filepath.Split(path)
	tmp := filepath.Join(dir, tmpPrefix+name)
	f, err := p.create(tmp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	_, err = f.Write(data)
	if s, ok := f.(interface{ Sync() error }); ok && err == nil {
		err = s.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

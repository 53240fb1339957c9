package container

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

const (
	trialsDir  = "trials"
	trialEnd   = ".json.gz"
	launchFile = "launch.json"
	endFile    = "end.json"
	drainFile  = "drain"

	// maxTrial bounds a trial when it is read: the largest have some hundred thousand
	// events of about a hundred bytes.
	maxTrial = 1 << 30
	// progressEvery is how often people are told something new of one stage.
	progressEvery = 500 * time.Millisecond
	maxText       = 300
)

// stepName is a step's id that can be the name of a file.
var stepName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// journal keeps what is measured in the volume: it is the runner's sink inside.
type journal struct {
	dir, launchDir string
	redact         *record.Redactor
	events         *eventWriter
	gpus           gpuLog

	mu   sync.Mutex
	told time.Time
	last runner.Progress
}

func (j *journal) trialPath(step string) string {
	return filepath.Join(j.dir, trialsDir, step+trialEnd)
}

// done lists the steps that need not be run again: those that the job names, and those
// whose trial lies in the volume and was not cut short.
func (j *journal) done(p *plan.Plan, told []string, warn io.Writer) (map[string]bool, error) {
	out := map[string]bool{}
	for _, id := range told {
		out[id] = true
	}
	// What was being written when an earlier session was killed.
	left, err := filepath.Glob(filepath.Join(j.dir, trialsDir, ".*"))
	if err != nil {
		return nil, err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	for _, s := range p.Identity.Steps {
		if !stepName.MatchString(s.ID) {
			return nil, fmt.Errorf("plan: the step %.80q has a name that no file can have", s.ID)
		}
		path := j.trialPath(s.ID)
		t, err := readTrial(path, s)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			fmt.Fprintf(warn, "measure: %v; it is set aside and the step is run again\n", err)
			if err := os.Rename(path, path+".bad"); err != nil {
				return nil, err
			}
		case t.Status != record.Interrupted:
			out[s.ID] = true
		}
	}
	return out, nil
}

// Launched keeps what is known of the launch.
func (j *journal) Launched(l record.Launch) error {
	l = redacted(l, j.redact)
	if err := writeJSON(filepath.Join(j.launchDir, launchFile), l); err != nil {
		return err
	}
	return j.events.write(Event{Launched: &l})
}

// Trial keeps a trial, durably, before anybody is told of it.
func (j *journal) Trial(t record.Trial) error {
	t.Samples = append(t.Samples, j.gpus.of(&t)...)
	err := writeFile(j.trialPath(t.StepID), func(w io.Writer) error {
		// The fastest level: this goes on between two cells, on the core that measures.
		z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return err
		}
		return errors.Join(json.NewEncoder(z).Encode(t), z.Close())
	})
	if err != nil {
		return fmt.Errorf("keep the trial %s: %w", t.StepID, err)
	}
	c := metric.Cell(&t, 0)
	return errors.Join(j.events.write(Event{Cell: &c}), j.send(t.StepID))
}

const (
	// maxSent bounds a trial that is sent through the log; a larger one stays in the volume
	// until the end. partBytes keeps a line of the log short: container engines cut and mix
	// what is written in large pieces, and lines of two thousand bytes came whole.
	maxSent   = 8 << 20
	partBytes = 1280
)

// send puts a trial's file into the log, piece by piece. It goes on between two cells.
func (j *journal) send(step string) error {
	b, err := os.ReadFile(j.trialPath(step))
	if err != nil || len(b) > maxSent {
		return err
	}
	sum := sha256.Sum256(b)
	count := (len(b) + partBytes - 1) / partBytes
	for i := range count {
		p := Part{Step: step, Index: i, Count: count, SHA256: hex.EncodeToString(sum[:]), Data: b[i*partBytes : min(len(b), (i+1)*partBytes)]}
		if err := j.events.write(Event{Part: &p}); err != nil {
			return err
		}
	}
	return nil
}

// Assembler puts trials together that come in parts.
type Assembler struct {
	step string
	sum  string
	next int
	b    []byte
}

// Add takes a part, and returns the trial when it was the last one. A part that does not
// fit what came before is dropped, and the trial with it.
func (a *Assembler) Add(p Part) (*record.Trial, error) {
	if p.Index == 0 {
		*a = Assembler{step: p.Step, sum: p.SHA256}
	}
	if p.Step != a.step || p.Index != a.next || p.SHA256 != a.sum || len(a.b)+len(p.Data) > maxSent {
		*a = Assembler{}
		return nil, nil
	}
	a.b, a.next = append(a.b, p.Data...), a.next+1
	if a.next < p.Count {
		return nil, nil
	}
	b := a.b
	*a = Assembler{}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, nil
	}
	t, err := decodeTrial(bytes.NewReader(b), p.Step, p.Step)
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// Progress tells now and then how far a stage is.
func (j *journal) Progress(p runner.Progress) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	if p.Stage == j.last.Stage && p.StepID == j.last.StepID && now.Sub(j.told) < progressEvery {
		return
	}
	j.told, j.last = now, p
	// Redacted before it is cut: half a secret is not found.
	p.Text = escapes.ReplaceAllString(strings.ReplaceAll(j.redact.Redact(p.Text), "\n", " "), "")
	if len(p.Text) > maxText {
		p.Text = strings.ToValidUTF8(p.Text[:maxText], "") + "…"
	}
	j.events.hint(Event{Progress: &p})
}

// redacted returns a launch without the secrets in any of its texts: what a server says
// of itself may be what it was told.
func redacted(l record.Launch, r *record.Redactor) record.Launch {
	texts := func(s []string) []string {
		out := slices.Clone(s)
		for i := range out {
			out[i] = r.Redact(out[i])
		}
		return out
	}
	l.Argv, l.Env, l.LogTail, l.Models = texts(l.Argv), texts(l.Env), texts(l.LogTail), texts(l.Models)
	l.Version, l.ExitStatus = r.Redact(l.Version), r.Redact(l.ExitStatus)
	l.Settings = slices.Clone(l.Settings)
	for i := range l.Settings {
		l.Settings[i].Value = r.Redact(l.Settings[i].Value)
	}
	return l
}

// readTrial reads the trial of a step of the plan.
func readTrial(path string, s plan.Step) (record.Trial, error) {
	f, err := os.Open(path)
	if err != nil {
		return record.Trial{}, err
	}
	defer f.Close()
	t, err := decodeTrial(f, path, s.ID)
	if err != nil {
		return t, err
	}
	point := record.Point{Phase: s.Phase, ContextTokens: s.ContextTokens, ContextLabel: s.ContextLabel, Concurrency: s.Concurrency}
	if t.Point != point || t.Repeat != s.Repeat {
		return t, fmt.Errorf("%s: it holds a cell that is not the plan's", path)
	}
	return t, nil
}

func decodeTrial(r io.Reader, path, step string) (record.Trial, error) {
	var t record.Trial
	z, err := gzip.NewReader(r)
	if err != nil {
		return t, fmt.Errorf("%s: %w", path, err)
	}
	limited := &io.LimitedReader{R: z, N: maxTrial}
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		if limited.N <= 0 {
			return t, fmt.Errorf("%s: it is over %d MiB", path, maxTrial>>20)
		}
		return t, fmt.Errorf("%s: %w", path, err)
	}
	// To the end, so that the sum of the whole is checked.
	switch _, err := d.Token(); {
	case err == nil:
		return t, fmt.Errorf("%s: something follows the trial", path)
	case !errors.Is(err, io.EOF):
		return t, fmt.Errorf("%s: %w", path, err)
	}
	if limited.N <= 0 {
		return t, fmt.Errorf("%s: it is over %d MiB", path, maxTrial>>20)
	}
	if !slices.Contains(record.Statuses, t.Status) {
		return t, fmt.Errorf("%s: there is no status %.80q", path, t.Status)
	}
	if t.StepID != step {
		return t, fmt.Errorf("%s: it holds the trial %.80q", path, t.StepID)
	}
	return t, nil
}

// Collected is a copy of the volume, read from outside. Nothing in it is trusted.
type Collected struct {
	dir   string
	steps []plan.Step
}

// Open reads a copy of the volume of a run of p.
func Open(dir string, p *plan.Plan) (*Collected, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	return &Collected{dir: dir, steps: p.Identity.Steps}, nil
}

// Trials yields the trials in the order of the plan. One that cannot be read is an error
// and the rest follows.
func (c *Collected) Trials() iter.Seq2[record.Trial, error] {
	return func(yield func(record.Trial, error) bool) {
		for _, s := range c.steps {
			if !stepName.MatchString(s.ID) {
				continue
			}
			t, err := readTrial(filepath.Join(c.dir, trialsDir, s.ID+trialEnd), s)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if !yield(t, err) {
				return
			}
		}
	}
}

// maxLaunches bounds how many launches a run is looked through for.
const maxLaunches = 1000

// Launches are those that became ready, by number.
func (c *Collected) Launches() []record.Launch {
	var out []record.Launch
	for n := range c.numbers() {
		var l record.Launch
		if readJSON(filepath.Join(LaunchDir(c.dir, n), launchFile), &l) == nil && l.Number == n {
			out = append(out, l)
		}
	}
	return out
}

// numbers yields the numbers of all launches that were begun.
func (c *Collected) numbers() iter.Seq[int] {
	return func(yield func(int) bool) {
		for n := 1; n < maxLaunches; n++ {
			if _, err := os.Stat(LaunchDir(c.dir, n)); err != nil {
				continue
			}
			if !yield(n) {
				return
			}
		}
	}
}

// Engine is the last state of a launch's engine; false if its keeper never began.
func (c *Collected) Engine(number int) (EngineState, bool) {
	s, err := readEngine(LaunchDir(c.dir, number))
	return s, err == nil
}

// End says how the measuring of a launch ended; false if it did not come to say so.
func (c *Collected) End(number int) (End, bool) {
	var e End
	err := readJSON(filepath.Join(LaunchDir(c.dir, number), endFile), &e)
	return e, err == nil
}

// LogPath is the engine's log of a launch, which may not exist.
func (c *Collected) LogPath(number int) string {
	return filepath.Join(LaunchDir(c.dir, number), logFile)
}

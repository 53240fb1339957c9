package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"speedmatrix/results/record"
)

// Names in a run directory.
const (
	runFile        = "run.json"
	planFile       = "plan.json"
	experimentFile = "experiment.yaml"
	reportDir      = "report"
	logsDir        = "logs"
	partialSuffix  = ".partial"
)

// Stored is a finished run. It is read-only and safe for concurrent use.
type Stored struct {
	dir        string
	run        record.Run
	plan       []byte
	experiment []byte
}

// Open opens the run whose directory is path, or in whose directory path is.
func Open(path string) (*Stored, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open run %s: %w", path, err)
	}
	for dir := abs; ; dir = filepath.Dir(dir) {
		if strings.HasSuffix(dir, partialSuffix) {
			return nil, fmt.Errorf("open run %s: it is not finished; go on with: speedmatrix run --resume %s", path, dir)
		}
		if _, err := os.Stat(filepath.Join(dir, runFile)); err == nil {
			return openDir(dir)
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if _, err := os.Stat(abs + partialSuffix); err == nil {
		return nil, fmt.Errorf("open run %s: it is not finished; go on with: speedmatrix run --resume %s", path, abs+partialSuffix)
	}
	if _, err := os.Stat(abs); err != nil {
		return nil, fmt.Errorf("open run: %w", err)
	}
	return nil, fmt.Errorf("open run %s: there is no %s here or above: not a run directory", path, runFile)
}

func openDir(dir string) (*Stored, error) {
	s := &Stored{dir: dir}
	var err error
	if s.run, err = readRun(dir); err != nil {
		return nil, err
	}
	if s.plan, err = os.ReadFile(filepath.Join(dir, planFile)); err != nil {
		return nil, fmt.Errorf("open run: %w", err)
	}
	if s.experiment, err = os.ReadFile(filepath.Join(dir, experimentFile)); err != nil {
		return nil, fmt.Errorf("open run: %w", err)
	}
	return s, nil
}

func readRun(dir string) (run record.Run, err error) {
	path := filepath.Join(dir, runFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return run, fmt.Errorf("open run: %w", err)
	}
	// The version first: the rest of a newer file may not even decode.
	var v struct {
		SchemaVersion int `json:"schema_version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return run, fmt.Errorf("%s: %w", path, err)
	}
	if v.SchemaVersion > record.SchemaVersion {
		return run, fmt.Errorf("%s: schema version %d is newer than %d, the newest this program knows; update speedmatrix", path, v.SchemaVersion, record.SchemaVersion)
	}
	if v.SchemaVersion < 1 {
		return run, fmt.Errorf("%s: schema_version is missing or %d", path, v.SchemaVersion)
	}
	if err := json.Unmarshal(data, &run); err != nil {
		return run, fmt.Errorf("%s: %w", path, err)
	}
	if !validRunID(run.ID) { // it becomes the name of a folder
		return run, fmt.Errorf("%s: %q is no run id", path, run.ID)
	}
	return run, nil
}

// Record returns the content of run.json.
func (s *Stored) Record() record.Run { return s.run }

// Dir returns the run's directory.
func (s *Stored) Dir() string { return s.dir }

// PlanJSON returns plan.json.
func (s *Stored) PlanJSON() []byte { return slices.Clone(s.plan) }

// ExperimentYAML returns experiment.yaml.
func (s *Stored) ExperimentYAML() []byte { return slices.Clone(s.experiment) }

// Cells reads cells.parquet, in the order of the page.
func (s *Stored) Cells() iter.Seq2[record.Cell, error] {
	return func(yield func(record.Cell, error) bool) {
		for row, err := range s.cellRows() {
			if err != nil {
				yield(record.Cell{}, err)
				return
			}
			if !yield(row.cell, nil) {
				return
			}
		}
	}
}

func (s *Stored) cellRows() iter.Seq2[*cellRow, error] {
	return func(yield func(*cellRow, error) bool) {
		r, err := openTable(s.dir, cellsTable())
		if err != nil {
			yield(nil, err)
			return
		}
		defer r.close()
		for {
			row, err := r.peek()
			if err != nil {
				yield(nil, err)
				return
			}
			if row == nil || !yield(row, nil) {
				return
			}
			r.take()
		}
	}
}

// Trials rebuilds the trials from the Parquet files, in the order of the page. A
// published run has none.
func (s *Stored) Trials() iter.Seq2[record.Trial, error] {
	return func(yield func(record.Trial, error) bool) {
		if s.run.Kind == record.Published {
			return
		}
		if err := s.trials(func(t record.Trial) bool { return yield(t, nil) }); err != nil {
			yield(record.Trial{}, err)
		}
	}
}

// trials joins the four files, which are in the same order, in one pass.
func (s *Stored) trials(yield func(record.Trial) bool) error {
	requests, err := openTable(s.dir, requestsTable())
	if err != nil {
		return err
	}
	defer requests.close()
	chunks, err := openTable(s.dir, chunksTable())
	if err != nil {
		return err
	}
	defer chunks.close()
	samples, err := openTable(s.dir, samplesTable())
	if err != nil {
		return err
	}
	defer samples.close()

	for row, err := range s.cellRows() {
		if err != nil {
			return err
		}
		t := row.trial()
		for {
			q, err := requests.peek()
			if err != nil {
				return err
			}
			if q == nil || q.seq != row.cell.Seq {
				break
			}
			r := q.r
			requests.take()
			for {
				c, err := chunks.peek()
				if err != nil {
					return err
				}
				if c == nil || c.seq != row.cell.Seq || c.request != r.Index {
					break
				}
				c.c.Channel = channelOf(c.channel)
				r.Chunks = append(r.Chunks, c.c)
				chunks.take()
			}
			t.Requests = append(t.Requests, r)
		}
		for {
			m, err := samples.peek()
			if err != nil {
				return err
			}
			if m == nil || m.seq != row.cell.Seq {
				break
			}
			t.Samples = append(t.Samples, m.s)
			samples.take()
		}
		if !yield(t) {
			return nil
		}
	}
	return errors.Join(atEnd(requests), atEnd(chunks), atEnd(samples))
}

// atEnd reports rows that belong to no cell or request.
func atEnd[R any](r *tableReader[R]) error {
	row, err := r.peek()
	if err == nil && row != nil {
		err = fmt.Errorf("%s: row %d belongs to no row of the file above it", r.f.Name(), r.read-1)
	}
	return err
}

// trial gives the row as a trial without requests and samples.
func (r *cellRow) trial() record.Trial {
	t := r.t
	t.StepID, t.Point, t.Repeat, t.Launch = r.cell.StepID, r.cell.Point, r.cell.Repeat, r.cell.Launch
	t.Status, t.Reason, t.FailureKind = r.cell.Status, r.cell.Reason, r.cell.FailureKind
	t.Warnings = r.cell.Warnings
	if r.cell.StartedAt != nil {
		t.StartedAt = *r.cell.StartedAt
	}
	return t
}

// Verify compares every file with its hash in run.json. Nil: all are as written.
func (s *Stored) Verify() []error {
	var errs []error
	want := make(map[string]record.File, len(s.run.Files))
	for _, f := range s.run.Files {
		want[f.Path] = f
	}
	got, err := hashFiles(s.dir, false)
	if err != nil {
		return []error{err}
	}
	for _, g := range got {
		w, ok := want[g.Path]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: not in %s", filepath.Join(s.dir, g.Path), runFile))
		case w != g:
			errs = append(errs, fmt.Errorf("%s: changed since it was written: sha256 %s, %d bytes; %s says %s, %d bytes", filepath.Join(s.dir, g.Path), g.SHA256, g.Bytes, runFile, w.SHA256, w.Bytes))
		}
		delete(want, g.Path)
	}
	for _, f := range s.run.Files {
		if _, missing := want[f.Path]; missing {
			errs = append(errs, fmt.Errorf("%s: missing", filepath.Join(s.dir, f.Path)))
		}
	}
	return errs
}

// hashFiles lists every file of a run directory but run.json and what belongs to
// the journal, sorted by path. With sync, each is synced to disk too.
func hashFiles(dir string, sync bool) ([]record.File, error) {
	var out []record.File
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel == journalDir {
				return fs.SkipDir
			}
			if sync {
				return syncDir(path)
			}
			return nil
		}
		if rel == runFile || rel == lockFile {
			return nil
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s: not a plain file", path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if sync {
			if err := f.Sync(); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		out = append(out, record.File{Path: rel, SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: n})
		return nil
	})
	return out, err
}

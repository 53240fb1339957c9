package store

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// Render makes a run's page from the run alone. Dir exists and is empty; what is
// in it afterwards becomes part of the run.
type Render func(dir string, s *Stored) error

// Finish makes the run of the journal: Parquet files, page, run.json, and the
// directory's final name, which it returns. On an error nothing is lost: the
// .partial directory and its journal stay, and Finish can be called again or the
// run resumed. After success the Partial is closed.
func (p *Partial) Finish(run record.Run, render Render) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lock == nil {
		return "", fmt.Errorf("finish run %s: closed", p.run.ID)
	}
	path, err := p.finish(run, render)
	if err != nil {
		return "", fmt.Errorf("finish run %s: %w; everything measured is kept in %s: mend the cause and go on with: speedmatrix run --resume %s", p.run.ID, err, p.dir, p.dir)
	}
	return path, nil
}

func (p *Partial) finish(run record.Run, render Render) (string, error) {
	if p.sealed == nil {
		if err := p.setRun(run); err != nil {
			return "", err
		}
		wrote, err := p.writeTables()
		if err != nil {
			for _, name := range []string{cellsTable().file, requestsTable().file, chunksTable().file, samplesTable().file} {
				_ = os.Remove(filepath.Join(p.dir, name)) // gives the space back
			}
			return "", err
		}
		if err := p.seal(render, func(s *Stored) error { return readBack(s, wrote) }); err != nil {
			return "", err
		}
	}
	return p.publish()
}

// pageOrder is the order of the matrix: prefill first, then rows of contexts with
// columns of concurrency, then repeats, then as measured.
func pageOrder(a, b journaled) int {
	phase := func(s string) int { return slices.Index([]string{record.PhasePrefill, record.PhaseDecode}, s) }
	return cmp.Or(
		cmp.Compare(phase(a.point.Phase), phase(b.point.Phase)),
		cmp.Compare(a.point.ContextTokens, b.point.ContextTokens),
		cmp.Compare(a.point.Concurrency, b.point.Concurrency),
		cmp.Compare(a.repeat, b.repeat),
		cmp.Compare(a.number, b.number),
	)
}

// writers are the four files of a run while they are written.
type writers struct {
	run      *record.Run
	cells    *tableWriter[cellRow]
	requests *tableWriter[requestRow]
	chunks   *tableWriter[chunkRow]
	samples  *tableWriter[sampleRow]
}

// metadata of a Parquet file. None of it is the only place of a fact.
func metadata(file string, run *record.Run) map[string]string {
	return map[string]string{
		"schema":         "speedmatrix/" + strings.TrimSuffix(file, ".parquet"),
		"schema_version": strconv.Itoa(record.SchemaVersion),
		"method_version": run.MethodVersion,
		"run_id":         run.ID,
		"tool":           run.Tool.Name,
		"tool_version":   run.Tool.Version,
	}
}

func openWriter[R any](p *Partial, t table[R]) (*tableWriter[R], error) {
	f, err := p.create(filepath.Join(p.dir, t.file))
	if err != nil {
		return nil, err
	}
	return newTableWriter(t, f, metadata(t.file, &p.run))
}

func (p *Partial) openWriters() (_ *writers, err error) {
	w := &writers{run: &p.run}
	defer func() {
		if err != nil {
			w.abort()
		}
	}()
	if w.cells, err = openWriter(p, cellsTable()); err != nil {
		return nil, err
	}
	if w.requests, err = openWriter(p, requestsTable()); err != nil {
		return nil, err
	}
	if w.chunks, err = openWriter(p, chunksTable()); err != nil {
		return nil, err
	}
	if w.samples, err = openWriter(p, samplesTable()); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *writers) close() error {
	return errors.Join(w.cells.close(), w.requests.close(), w.chunks.close(), w.samples.close())
}

func (w *writers) abort() {
	w.cells.abort()
	w.requests.abort()
	w.chunks.abort()
	w.samples.abort()
}

// written says what was put into the files for one trial.
type written struct {
	step                      string
	requests, chunks, samples int
}

func countOf(t *record.Trial) written {
	w := written{step: t.StepID, requests: len(t.Requests), samples: len(t.Samples)}
	for i := range t.Requests {
		w.chunks += len(t.Requests[i].Chunks)
	}
	return w
}

// writeTables streams the journal, trial by trial, into the Parquet files.
func (p *Partial) writeTables() (wrote []written, err error) {
	w, err := p.openWriters()
	if err != nil {
		return nil, err
	}
	for seq, j := range slices.SortedFunc(slices.Values(p.trials), pageOrder) {
		t, err := p.readTrial(j)
		if err == nil {
			err = w.put(seq, &t)
		}
		if err != nil {
			w.abort()
			return nil, fmt.Errorf("step %s: %w", j.step, err)
		}
		wrote = append(wrote, countOf(&t))
	}
	return wrote, w.close()
}

func (w *writers) put(seq int, t *record.Trial) error {
	row := cellRow{run: w.run, cell: metric.Cell(t, seq), t: *t}
	if err := w.cells.put(&row); err != nil {
		return err
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		if err := w.requests.put(&requestRow{w.run, seq, t.StepID, *r}); err != nil {
			return err
		}
		c := chunkRow{run: w.run, seq: seq, step: t.StepID, request: r.Index}
		for k := range r.Chunks {
			c.event, c.c, c.channel = k, r.Chunks[k], r.Chunks[k].Channel.String()
			if err := w.chunks.put(&c); err != nil {
				return err
			}
		}
	}
	for i := range t.Samples {
		if err := w.samples.put(&sampleRow{w.run, seq, t.StepID, t.Samples[i]}); err != nil {
			return err
		}
	}
	return nil
}

// readBack reads every row of the files just written, counts them against what
// was written, and holds each cell against the metrics of its events as stored.
func readBack(s *Stored, wrote []written) error {
	var cells []record.Cell
	for c, err := range s.Cells() {
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		cells = append(cells, c)
	}
	if len(cells) != len(wrote) {
		return fmt.Errorf("read back: %d cells, wrote %d", len(cells), len(wrote))
	}
	n := 0
	for t, err := range s.Trials() {
		if err != nil {
			return fmt.Errorf("read back: %w", err)
		}
		if got, want := countOf(&t), wrote[n]; got != want {
			return fmt.Errorf("read back: found %+v, wrote %+v", got, want)
		}
		if again := metric.Cell(&t, n); !reflect.DeepEqual(again, cells[n]) {
			return fmt.Errorf("read back: step %s: metrics computed from the stored events differ from those of its cell", t.StepID)
		}
		n++
	}
	return nil
}

// seal checks the tables, has the page rendered, and writes run.json with the
// hashes of all files: from then on only the directory's name is missing.
func (p *Partial) seal(render Render, check func(*Stored) error) error {
	run := p.run
	run.SchemaVersion = record.SchemaVersion
	if run.FinishedAt == nil {
		now := time.Now().UTC()
		run.FinishedAt = &now
	}
	report := filepath.Join(p.dir, reportDir)
	if err := os.RemoveAll(report); err != nil { // of an earlier attempt
		return err
	}
	if err := os.Mkdir(report, 0o777); err != nil {
		return err
	}
	var err error
	if run.Files, err = hashFiles(p.dir, false); err != nil {
		return err
	}
	s := &Stored{dir: p.dir, run: run, plan: p.plan, experiment: p.experiment}
	if err := check(s); err != nil {
		return err
	}
	if render != nil {
		if err := render(report, s); err != nil {
			return fmt.Errorf("render: %w", err)
		}
	}
	if run.Files, err = hashFiles(p.dir, true); err != nil {
		return err
	}
	data, err := json.MarshalIndent(run, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", runFile, err)
	}
	if err := p.writeFile(filepath.Join(p.dir, runFile), append(data, '\n')); err != nil {
		return err
	}
	p.run, p.sealed = run, &Stored{dir: p.dir, run: run, plan: p.plan, experiment: p.experiment}
	return nil
}

// publish gives a sealed run its name.
func (p *Partial) publish() (string, error) {
	final := filepath.Join(p.root, p.run.ID)
	if _, err := os.Lstat(final); err == nil {
		return "", fmt.Errorf("%s is there already", final)
	}
	if err := os.RemoveAll(filepath.Join(p.dir, journalDir)); err != nil {
		return "", err
	}
	if err := os.Remove(filepath.Join(p.dir, lockFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := syncDir(p.dir); err != nil {
		return "", err
	}
	if err := os.Rename(p.dir, final); err != nil {
		return "", err
	}
	if err := syncDir(p.root); err != nil {
		return "", err
	}
	return final, p.unlock()
}

// WritePublished stores a run that was read from somebody's page: its cells, and
// the page itself. There are no events, so there are no other Parquet files.
func WritePublished(root string, run record.Run, cells []record.Cell, planJSON, experimentYAML, source []byte, render Render) (string, error) {
	if run.Kind != record.Published {
		return "", fmt.Errorf("store published run %s: its kind is %q", run.ID, run.Kind)
	}
	if err := checkCells(cells); err != nil {
		return "", fmt.Errorf("store published run %s: %w", run.ID, err)
	}
	p, err := Create(root, run, planJSON, experimentYAML)
	if err != nil {
		return "", err
	}
	path, err := p.finishPublished(cells, source, render)
	if err != nil {
		// Nothing was measured: the page can be imported again.
		return "", fmt.Errorf("store published run %s: %w", run.ID, errors.Join(err, p.Abandon()))
	}
	return path, nil
}

func (p *Partial) finishPublished(cells []record.Cell, source []byte, render Render) (string, error) {
	name := "source.txt"
	switch ext := strings.ToLower(filepath.Ext(p.run.Source)); ext {
	case ".html", ".htm", ".md", ".json":
		name = "source" + ext
	}
	if err := p.writeFile(filepath.Join(p.dir, name), source); err != nil {
		return "", err
	}
	w, err := openWriter(p, cellsTable())
	if err != nil {
		return "", err
	}
	for i := range cells {
		if err := w.put(&cellRow{run: &p.run, cell: cells[i]}); err != nil {
			w.abort()
			return "", err
		}
	}
	if err := w.close(); err != nil {
		return "", err
	}
	check := func(s *Stored) error {
		n := 0
		for c, err := range s.Cells() {
			if err != nil {
				return fmt.Errorf("read back: %w", err)
			}
			if n >= len(cells) || !reflect.DeepEqual(c.Values, valuesOf(cells[n])) {
				return fmt.Errorf("read back: row %d differs from what was written", n)
			}
			n++
		}
		if n != len(cells) {
			return fmt.Errorf("read back: %d rows, wrote %d", n, len(cells))
		}
		return nil
	}
	if err := p.seal(render, check); err != nil {
		return "", err
	}
	return p.publish()
}

func valuesOf(c record.Cell) map[string]float64 {
	if len(c.Values) == 0 {
		return nil
	}
	return c.Values
}

// checkCells refuses what would be lost on the way to the file.
func checkCells(cells []record.Cell) error {
	known := make(map[string]bool)
	for _, m := range metric.All() {
		known[m.Name] = true
	}
	for i, c := range cells {
		if c.Seq != i {
			return fmt.Errorf("row %d: its place on the page is given as %d", i, c.Seq)
		}
		for name := range c.Values {
			if !known[name] {
				return fmt.Errorf("row %d: there is no metric %q", i, name)
			}
		}
	}
	return nil
}

package store

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

const testID = "20261130T200000Z-generated-0a1b2c"

func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// writeRun stores trials as a run.
func writeRun(t testing.TB, root string, trials []record.Trial) string {
	t.Helper()
	run := testRun(testID)
	p, err := Create(root, run, []byte(`{"schema":"x"}`), []byte("name: generated\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.PutLaunch(record.Launch{Number: 1, Executor: "simulator", StartedAt: run.StartedAt}); err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if err := p.PutTrial(tr); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(p.LogsDir(), "engine-1.log"), []byte("started\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	run.FinishedAt = ptr(time.Date(2026, 11, 30, 20, 9, 0, 0, time.UTC))
	path, err := p.Finish(run, func(dir string, s *Stored) error {
		n := 0
		for _, err := range s.Cells() {
			if err != nil {
				return err
			}
			n++
		}
		return os.WriteFile(filepath.Join(dir, "index.html"), fmt.Appendf(nil, "%d cells", n), 0o666)
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func collect[T any](t testing.TB, seq func(func(T, error) bool)) []T {
	t.Helper()
	var out []T
	for v, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

func TestRunComesBack(t *testing.T) {
	root := t.TempDir()
	trials := testTrials(seeded(), 200)
	path := writeRun(t, root, trials)
	if want := filepath.Join(root, testID); path != want {
		t.Errorf("path %s, want %s", path, want)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "*.partial")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if errs := s.Verify(); len(errs) > 0 {
		t.Errorf("verify: %v", errs)
	}
	run := s.Record()
	if len(run.Launches) != 1 || run.FinishedAt == nil || run.Title != "A | <generated> run" {
		t.Errorf("run.json: %+v", run)
	}
	var names []string
	for _, f := range run.Files {
		names = append(names, f.Path)
	}
	if want := []string{"cells.parquet", "chunks.parquet", "experiment.yaml", "logs/engine-1.log", "plan.json", "report/index.html", "requests.parquet", "samples.parquet"}; !slices.Equal(names, want) {
		t.Errorf("files %v, want %v", names, want)
	}
	if string(s.PlanJSON()) != `{"schema":"x"}` || string(s.ExperimentYAML()) != "name: generated\n" {
		t.Error("plan or experiment changed")
	}

	// Every field of every trial comes back, the time to the microsecond.
	want := make(map[string]record.Trial)
	for _, tr := range trials {
		tr.StartedAt = tr.StartedAt.Truncate(time.Microsecond)
		want[tr.StepID] = tr
	}
	cells, got := collect(t, s.Cells()), collect(t, s.Trials())
	if len(got) != len(want) || len(cells) != len(want) {
		t.Fatalf("%d trials and %d cells, want %d", len(got), len(cells), len(want))
	}
	withNumbers := 0
	for i, g := range got {
		if d := cmp.Diff(want[g.StepID], g); d != "" {
			t.Errorf("trial %s (-want +got):\n%s", g.StepID, d)
		}
		// Metrics computed again from chunks.parquet equal those of cells.parquet.
		if d := cmp.Diff(cells[i], metric.Cell(&g, i)); d != "" {
			t.Errorf("cell %s (-stored +again):\n%s", g.StepID, d)
		}
		if _, ok := cells[i].Value(metric.OutputTokensPerSecond); ok {
			withNumbers++
		}
	}
	if withNumbers < 4 {
		t.Errorf("only %d cells have a throughput: the comparison says little", withNumbers)
	}
	// Page order: prefill, then contexts by concurrency.
	if cells[0].Phase != record.PhasePrefill || cells[1].Concurrency != 1 || cells[2].Concurrency != 2 || cells[5].Concurrency != 64 {
		t.Errorf("order: %v %v %v", cells[0].Point, cells[1].Point, cells[2].Point)
	}
}

// Dictionary columns, nulls in every pattern and many row groups.
func TestManyRowGroups(t *testing.T) {
	trials := testTrials(seeded(), 2200)
	s, err := Open(writeRun(t, t.TempDir(), trials))
	if err != nil {
		t.Fatal(err)
	}
	r, err := openTable(s.Dir(), chunksTable())
	if err != nil {
		t.Fatal(err)
	}
	groups, rows := r.pq.NumRowGroups(), r.rows()
	r.close()
	if groups < 3 {
		t.Errorf("%d row groups for %d rows", groups, rows)
	}
	// Every value, and the words of a dictionary on both sides of each cut (E09).
	want := make(map[string]record.Trial)
	for _, tr := range trials {
		tr.StartedAt = tr.StartedAt.Truncate(time.Microsecond)
		want[tr.StepID] = tr
	}
	var n int64
	for _, tr := range collect(t, s.Trials()) {
		for i := range tr.Requests {
			n += int64(len(tr.Requests[i].Chunks))
			if !slices.Equal(want[tr.StepID].Requests[i].Chunks, tr.Requests[i].Chunks) {
				t.Errorf("%s: the chunks of request %d changed", tr.StepID, i)
			}
		}
	}
	if n != rows {
		t.Errorf("%d chunks came back of %d", n, rows)
	}
}

// One known value between unknown ones stays in its row, and unknown stays unknown,
// also for a time (E12, E15).
func TestNullsStayInTheirRow(t *testing.T) {
	at := time.Date(2026, 11, 30, 20, 0, 0, 123456000, time.UTC)
	cells := make([]record.Cell, 5)
	for i := range cells {
		cells[i] = record.Cell{Seq: i, StepID: fmt.Sprint("s", i), Repeat: 1, Status: record.OverCapacity,
			Point: record.Point{Phase: record.PhaseDecode, ContextLabel: "8K", ContextTokens: 8192, Concurrency: i + 1}}
	}
	cells[3].Status, cells[3].StartedAt = record.Valid, &at
	cells[3].Values = map[string]float64{metric.RefOutputTokens: 7777, metric.RefTTFT: 0.25}
	run := testRun("nulls")
	run.Kind = record.Published
	path, err := WritePublished(t.TempDir(), run, cells, nil, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(cells, collect(t, s.Cells())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAllOverCapacity(t *testing.T) {
	var trials []record.Trial
	for _, tr := range testTrials(seeded(), 1) {
		if tr.Status == record.OverCapacity {
			trials = append(trials, tr)
		}
	}
	s, err := Open(writeRun(t, t.TempDir(), trials))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range collect(t, s.Cells()) {
		if len(c.Values) != 0 || c.StartedAt != nil || c.Status != record.OverCapacity || c.Reason != "predicted" {
			t.Errorf("%+v", c)
		}
	}
	if d := cmp.Diff(trials, collect(t, s.Trials())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestCreateRefuses(t *testing.T) {
	root := t.TempDir()
	writeRun(t, root, nil)
	if _, err := Create(root, testRun(testID), nil, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a run that exists: %v", err)
	}
	other := testRun("other")
	p, err := Create(root, other, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(root, other, nil, nil); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("a run that was begun: %v", err)
	}
	if _, err := Resume(p.Dir()); err == nil || !strings.Contains(err.Error(), "another speedmatrix") {
		t.Errorf("a second client: %v", err)
	}
	if _, err := Open(p.Dir()); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("open a partial run: %v", err)
	}
	if _, err := Open(filepath.Join(root, "other")); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("open a partial run by its id: %v", err)
	}
	if err := p.Abandon(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Error("abandoned directory is still there")
	}
	for _, id := range []string{"", "..", "a/b", ".hidden", "x.partial", strings.Repeat("x", 200)} {
		if _, err := Create(root, testRun(id), nil, nil); err == nil {
			t.Errorf("id %q was taken", id)
		}
	}
}

func TestResume(t *testing.T) {
	root := t.TempDir()
	trials := testTrials(seeded(), 20)
	p, err := Create(root, testRun(testID), []byte("{}"), []byte("x: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(p.PutLaunch(record.Launch{Number: 1, Executor: "host"}))
	must(p.PutTrial(trials[0]))
	must(p.PutTrial(trials[1]))
	cut := trials[2]
	cut.Status = record.Interrupted
	must(p.PutTrial(cut))
	left := trials[3] // its turn had not come
	left.Status, left.Reason = record.Skipped, record.ReasonInterrupted
	must(p.PutTrial(left))
	if err := p.PutTrial(trials[0]); err == nil {
		t.Error("a second trial of a step was taken")
	}
	// A crash: no Close, but the kernel gives the lock back. What was half-written
	// stays behind.
	must(p.lock.Close())
	journal := filepath.Join(p.Dir(), "journal")
	must(os.WriteFile(filepath.Join(journal, ".tmp-0005-x.json"), []byte(`{"step`), 0o666))
	must(os.WriteFile(filepath.Join(journal, "0006-torn.json"), []byte(`{"step_id":"torn","requ`), 0o666))
	must(os.WriteFile(filepath.Join(p.Dir(), ".tmp-run.json"), []byte(`{`), 0o666))

	p, err = Resume(filepath.Join(root, testID)) // the suffix may be left out
	must(err)
	if w := p.Warnings(); len(w) != 2 || !strings.Contains(w[0]+w[1], "0006-torn.json") {
		t.Errorf("warnings %q", w)
	}
	for step, want := range map[string]bool{trials[0].StepID: true, trials[1].StepID: true, cut.StepID: false, left.StepID: false, "torn": false} {
		if p.Done(step) != want {
			t.Errorf("Done(%s) = %v", step, !want)
		}
	}
	if got := collect(t, p.Trials()); len(got) != 4 {
		t.Errorf("%d trials", len(got))
	}
	must(p.PutLaunch(record.Launch{Number: 2, Executor: "host"}))
	for _, tr := range trials[2:] {
		must(p.PutTrial(tr))
	}
	run := p.Run()
	if len(run.Launches) != 2 {
		t.Errorf("launches %v", run.Launches)
	}
	path, err := p.Finish(testRun(testID), nil) // without the launches: they stay
	must(err)
	s, err := Open(path)
	must(err)
	if n := len(collect(t, s.Trials())); n != len(trials) {
		t.Errorf("%d trials, want %d", n, len(trials))
	}
	if run := s.Record(); len(run.Launches) != 2 {
		t.Errorf("launches %v", run.Launches)
	}
	if errs := s.Verify(); len(errs) > 0 {
		t.Error(errs)
	}
	if _, err := Resume(path); err == nil || !strings.Contains(err.Error(), "finished") {
		t.Errorf("resume of a finished run: %v", err)
	}
}

// A crash between run.json and the rename: all is there but the name.
func TestResumeSealed(t *testing.T) {
	root := t.TempDir()
	trials := testTrials(seeded(), 20)
	path := writeRun(t, root, trials)
	if err := os.Rename(path, path+".partial"); err != nil {
		t.Fatal(err)
	}
	p, err := Resume(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if !p.Done(tr.StepID) {
			t.Errorf("%s is not done", tr.StepID)
		}
	}
	if err := p.PutTrial(record.Trial{StepID: "more"}); err == nil {
		t.Error("a trial was taken by a run that is complete")
	}
	again, err := p.Finish(p.Run(), func(string, *Stored) error { t.Error("rendered again"); return nil })
	if err != nil || again != path {
		t.Fatal(again, err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if errs := s.Verify(); len(errs) > 0 {
		t.Error(errs)
	}
}

// fullDisk lets a number of bytes through, then fails in the middle of a write.
type fullDisk struct {
	io.WriteCloser
	left *int64
}

var errFull = errors.New("no space left on device")

func (d fullDisk) Write(b []byte) (int, error) {
	if n := int64(len(b)); n <= *d.left {
		*d.left -= n
		return d.WriteCloser.Write(b)
	}
	n, _ := d.WriteCloser.Write(b[:*d.left])
	*d.left = 0
	return n, errFull
}

func TestDiskFullWhileStoring(t *testing.T) {
	// Somewhere in the first file, in the middle of the chunks, and at run.json.
	for _, space := range []int64{0, 3, 5_000, 30_000, 90_000} {
		t.Run(fmt.Sprint(space), func(t *testing.T) {
			root := t.TempDir()
			trials := testTrials(seeded(), 100)
			p, err := Create(root, testRun(testID), []byte("{}"), []byte("x: 1\n"))
			if err != nil {
				t.Fatal(err)
			}
			for _, tr := range trials {
				if err := p.PutTrial(tr); err != nil {
					t.Fatal(err)
				}
			}
			left := space
			p.create = func(path string) (io.WriteCloser, error) {
				f, err := createFile(path)
				return fullDisk{f, &left}, err
			}
			_, err = p.Finish(p.Run(), nil)
			if left > 0 {
				t.Fatalf("%d bytes were left: the disk did not fill", left)
			}
			if !errors.Is(err, errFull) && (err == nil || !strings.Contains(err.Error(), errFull.Error())) {
				t.Fatalf("finish: %v", err)
			}
			if !strings.Contains(err.Error(), "--resume "+p.Dir()) {
				t.Errorf("no word on how to go on: %v", err)
			}
			if _, err := os.Stat(filepath.Join(root, testID)); !errors.Is(err, fs.ErrNotExist) {
				t.Error("a run that is not whole got its name")
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			p, err = Resume(p.Dir())
			if err != nil {
				t.Fatal(err)
			}
			path, err := p.Finish(p.Run(), nil)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(collect(t, s.Trials())); n != len(trials) {
				t.Errorf("%d trials, want %d", n, len(trials))
			}
			if errs := s.Verify(); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func TestDiskFullWhileMeasuring(t *testing.T) {
	trials := testTrials(seeded(), 50)
	p, err := Create(t.TempDir(), testRun(testID), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.PutTrial(trials[0]); err != nil {
		t.Fatal(err)
	}
	left := int64(1000)
	p.create = func(path string) (io.WriteCloser, error) {
		f, err := createFile(path)
		return fullDisk{f, &left}, err
	}
	if err := p.PutTrial(trials[1]); err == nil || !strings.Contains(err.Error(), "--resume") {
		t.Errorf("put: %v", err)
	}
	p.create = createFile
	if p.Done(trials[1].StepID) || !p.Done(trials[0].StepID) {
		t.Error("a trial that is not on disk counts as done")
	}
	if err := p.PutTrial(trials[1]); err != nil {
		t.Error(err)
	}
}

func TestRenderFails(t *testing.T) {
	root := t.TempDir()
	p, err := Create(root, testRun(testID), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	trials := testTrials(seeded(), 5)
	if err := p.PutTrial(trials[0]); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	if _, err := p.Finish(p.Run(), func(dir string, _ *Stored) error {
		_ = os.WriteFile(filepath.Join(dir, "half.html"), nil, 0o666)
		return boom
	}); !errors.Is(err, boom) {
		t.Fatal(err)
	}
	path, err := p.Finish(p.Run(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(path, "report", "half.html")); err == nil {
		t.Error("a half-made page became part of the run")
	}
}

func TestNotFinite(t *testing.T) {
	p, err := Create(t.TempDir(), testRun(testID), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		err := p.PutTrial(record.Trial{StepID: "a", Samples: []record.Sample{{Name: "n", Value: v}}})
		if err == nil || !strings.Contains(err.Error(), "column value") {
			t.Errorf("%v: %v", v, err)
		}
		err = p.PutTrial(record.Trial{StepID: "a", Client: record.ClientHealth{CPURatio: &v}})
		if err == nil || !strings.Contains(err.Error(), "column client_cpu_ratio") {
			t.Errorf("%v: %v", v, err)
		}
		for _, name := range []string{metric.RefTTFT, metric.RefOutputTokens} {
			run := testRun("published")
			run.Kind = record.Published
			root := t.TempDir()
			_, err = WritePublished(root, run, []record.Cell{{Values: map[string]float64{name: v}}}, nil, nil, nil, nil)
			if err == nil || !strings.Contains(err.Error(), "column "+name) {
				t.Errorf("%v: %v", v, err)
			}
			if left, _ := os.ReadDir(root); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	for _, name := range []string{"cells.parquet", "requests.parquet", "chunks.parquet", "samples.parquet"} {
		t.Run(name, func(t *testing.T) {
			path := writeRun(t, t.TempDir(), testTrials(seeded(), 30))
			s, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(filepath.Join(path, name))
			if err != nil {
				t.Fatal(err)
			}
			read := func() error {
				for _, err := range s.Trials() {
					if err != nil {
						return err
					}
				}
				return nil
			}
			for _, n := range []int{0, 3, len(whole) / 3, len(whole) - 5, len(whole) - 1} {
				if err := os.WriteFile(filepath.Join(path, name), whole[:n], 0o666); err != nil {
					t.Fatal(err)
				}
				if err := read(); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "cut short") {
					t.Errorf("cut to %d bytes of %d: %v", n, len(whole), err)
				}
				if errs := s.Verify(); len(errs) != 1 || !strings.Contains(errs[0].Error(), name) {
					t.Errorf("verify: %v", errs)
				}
			}
			// Damage in the middle: an error or other values, never a crash.
			for i := 4; i < len(whole); i += max(1, len(whole)/60) {
				bad := slices.Clone(whole)
				bad[i] ^= 0xff
				if err := os.WriteFile(filepath.Join(path, name), bad, 0o666); err != nil {
					t.Fatal(err)
				}
				_ = read()
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	root := t.TempDir()
	path := writeRun(t, root, testTrials(seeded(), 2))
	for _, inside := range []string{".", "report", "report/index.html", "cells.parquet"} {
		if _, err := Open(filepath.Join(path, inside)); err != nil {
			t.Errorf("from %s: %v", inside, err)
		}
	}
	if _, err := Open(root); err == nil || !strings.Contains(err.Error(), "not a run directory") {
		t.Errorf("a directory without a run: %v", err)
	}
	if _, err := Open(filepath.Join(root, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	for content, want := range map[string]string{
		`{"schema_version":99,"id":5}`:       "newer",
		`{"id":"x"}`:                         "schema_version is missing",
		`{"schema_ver`:                       "run.json",
		`{"schema_version":1,"id":"../out"}`: "no run id",
	} {
		if err := os.WriteFile(filepath.Join(path, "run.json"), []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

// A file of an older schema lacks nullable columns; they read as absent. One that
// lacks a required column is refused.
func TestColumnsByName(t *testing.T) {
	dir := t.TempDir()
	run := testRun(testID)
	write := func(keep func(column[cellRow]) bool) {
		t.Helper()
		tab := cellsTable()
		tab.columns = slices.DeleteFunc(tab.columns, func(c column[cellRow]) bool { return !keep(c) })
		slices.Reverse(tab.columns)
		f, err := createFile(filepath.Join(dir, tab.file))
		if err != nil {
			t.Fatal(err)
		}
		w, err := newTableWriter(tab, f, nil)
		if err != nil {
			t.Fatal(err)
		}
		row := cellRow{run: &run, cell: record.Cell{StepID: "s", Point: record.Point{Phase: "decode", Concurrency: 7}, Status: record.Valid, Reason: "r",
			Values: map[string]float64{metric.TTFT: 0.5, metric.OutputTokens: 12}}}
		if err := w.put(&row); err != nil {
			t.Fatal(err)
		}
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
	}
	s := &Stored{dir: dir, run: run}
	write(func(c column[cellRow]) bool { return c.name != metric.TTFT && c.name != "reason" })
	got := collect(t, s.Cells())
	want := []record.Cell{{StepID: "s", Point: record.Point{Phase: "decode", Concurrency: 7}, Status: record.Valid, Values: map[string]float64{metric.OutputTokens: 12}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	write(func(c column[cellRow]) bool { return c.name != "status" })
	for _, err := range s.Cells() {
		if err == nil || !strings.Contains(err.Error(), "column status") {
			t.Errorf("without status: %v", err)
		}
	}
}

func TestPublished(t *testing.T) {
	root := t.TempDir()
	run := testRun("20261130T200000Z-page-000001")
	run.Kind, run.Source = record.Published, "https://example.org/Page.HTML"
	cells := []record.Cell{
		{Seq: 0, StepID: "prefill-8k", Point: record.Point{Phase: record.PhasePrefill, ContextTokens: 8192, ContextLabel: "8K", Concurrency: 1}, Repeat: 1, Status: record.Valid, TokenSource: record.TokensPublished,
			Values: map[string]float64{metric.RefPrefillTokensPerSecond: 2186, metric.RefTTFT: 3.727, metric.RefCompletedRequests: 1}},
		{Seq: 1, StepID: "decode-248k-c1", Point: record.Point{Phase: record.PhaseDecode, ContextTokens: 253952, ContextLabel: "248K", Concurrency: 1}, Repeat: 1, Status: record.OverCapacity, TokenSource: record.TokensPublished,
			Values: map[string]float64{metric.RefWindowSeconds: 30, metric.RefActiveRequests: 1}},
		{Seq: 2, StepID: "decode-248k-c2", Point: record.Point{Phase: record.PhaseDecode, ContextTokens: 253952, ContextLabel: "248K", Concurrency: 2}, Repeat: 1, Status: record.OverCapacity},
	}
	path, err := WritePublished(root, run, cells, []byte("{}"), []byte("x: 1\n"), []byte("<html>"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(cells, collect(t, s.Cells())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := collect(t, s.Trials()); len(got) != 0 {
		t.Errorf("a page has no trials: %v", got)
	}
	if b, err := os.ReadFile(filepath.Join(path, "source.html")); err != nil || string(b) != "<html>" {
		t.Errorf("source: %q %v", b, err)
	}
	if errs := s.Verify(); len(errs) > 0 {
		t.Error(errs)
	}
	run.ID = "another"
	cells[1].Values["ttft_ms"] = 3
	if _, err := WritePublished(root, run, cells, nil, nil, nil, nil); err == nil || !strings.Contains(err.Error(), `"ttft_ms"`) {
		t.Errorf("an unknown metric: %v", err)
	}
}

func TestNewRunID(t *testing.T) {
	at := time.Date(2026, 11, 30, 21, 19, 47, 0, time.FixedZone("", 3600))
	for name, want := range map[string]string{
		"qwen3.5-4b-fp8":                 "20261130T201947Z-qwen3.5-4b-fp8-1a2b3c",
		"A B/../c\x00":                   "20261130T201947Z-a-b-..-c-1a2b3c",
		"日本":                             "20261130T201947Z-run-1a2b3c",
		strings.Repeat("very-long-", 30): "20261130T201947Z-" + strings.TrimSuffix(strings.Repeat("very-long-", 8), "-") + "-1a2b3c",
	} {
		got := NewRunID(at, name, [3]byte{0x1a, 0x2b, 0x3c})
		if got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
		if !validRunID(got) {
			t.Errorf("%q is not valid", got)
		}
	}
}

var keep = flag.String("keep", "", "folder for the runs of TestSampleRuns; without it they are thrown away")

// TestSampleRuns stores the runs that ci/parquet-readers reads with other programs.
func TestSampleRuns(t *testing.T) {
	root := *keep
	if root == "" {
		root = t.TempDir()
	}
	everything := testTrials(seeded(), 40)
	var nothing []record.Trial
	for _, tr := range everything {
		if tr.Status == record.OverCapacity {
			nothing = append(nothing, tr)
		}
	}
	perRequest := 40 // only people who look at the files want many row groups here
	if *keep != "" {
		perRequest = 2000
	}
	for name, trials := range map[string][]record.Trial{"all-kinds": everything, "over-capacity": nothing, "no-cells": nil, "row-groups": testTrials(seeded(), perRequest)} {
		path := writeRun(t, filepath.Join(root, ".tmp"), trials)
		if err := os.Rename(path, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	run := testRun(testID)
	run.Kind = record.Published
	path, err := WritePublished(filepath.Join(root, ".tmp"), run, []record.Cell{{Status: record.Valid, Values: map[string]float64{metric.RefTTFT: 0.1 + 0.2, metric.RefOutputTokens: 1 << 53}}, {Seq: 1, Status: record.OverCapacity},
		{Seq: 2, Status: record.OverCapacity}, {Seq: 3, Status: record.Valid, Values: map[string]float64{metric.RefCompletedRequests: 7777}}, {Seq: 4, Status: record.OverCapacity}}, nil, nil, nil, nil)
	if err == nil {
		err = os.Rename(path, filepath.Join(root, "published"))
	}
	if err == nil {
		err = os.Remove(filepath.Join(root, ".tmp"))
	}
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := filepath.Glob(filepath.Join(root, "*"))
	if err != nil || len(dirs) != 5 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		if err := Dump(io.Discard, dir); err != nil {
			t.Error(err)
		}
	}
}

package store

import (
	"os"
	"path/filepath"
	"testing"

	"speedmatrix/results/record"
)

// FuzzReadTable reads files that are no longer what was written: an error or other
// values, never a crash.
func FuzzReadTable(f *testing.F) {
	for _, name := range []string{"cells.parquet", "requests.parquet", "chunks.parquet", "samples.parquet"} {
		data, err := os.ReadFile(filepath.Join("../testdata/v1", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		for _, name := range []string{"cells.parquet", "samples.parquet"} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		s := &Stored{dir: dir}
		for range s.Cells() {
		}
		if r, err := openTable(dir, samplesTable()); err == nil {
			for {
				row, err := r.peek()
				if row == nil || err != nil {
					break
				}
				r.take()
			}
			r.close()
		}
	})
}

// FuzzJournal resumes runs with an entry of any content: it is a trial or set
// aside, and the run goes on.
func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"step_id":"a","status":"valid"}`))
	f.Add([]byte(`{"step_id":"a","requests":[{"chunks":[{"at_ns":1}`))
	f.Add([]byte(`null`))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Create(t.TempDir(), testRun(testID), []byte("{}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(p.Dir(), journalDir, "0001-a.json"), data, 0o666); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p, err = Resume(p.Dir()); err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.PutTrial(record.Trial{StepID: "next", Status: record.Valid}); err != nil && !p.Done("next") {
			t.Error(err)
		}
		for _, err := range p.Trials() {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

package store

import (
	"path/filepath"
	"testing"

	"speedmatrix/results/record"
)

// benchTrials have 100,000 events.
func benchTrials() []record.Trial {
	return testTrials(seeded(), 1100)
}

func BenchmarkWriteTables(b *testing.B) {
	p, err := Create(b.TempDir(), testRun(testID), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	trials := benchTrials()
	chunks := 0
	for _, t := range trials {
		chunks += countOf(&t).chunks
	}
	for b.Loop() {
		w, err := p.openWriters()
		if err != nil {
			b.Fatal(err)
		}
		for seq := range trials {
			if err := w.put(seq, &trials[seq]); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(chunks), "chunks")
}

func BenchmarkOpenCells(b *testing.B) {
	path := writeRun(b, b.TempDir(), benchTrials())
	for b.Loop() {
		s, err := Open(filepath.Clean(path))
		if err != nil {
			b.Fatal(err)
		}
		for _, err := range s.Cells() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkTrials(b *testing.B) {
	s, err := Open(writeRun(b, b.TempDir(), benchTrials()))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for _, err := range s.Trials() {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
}

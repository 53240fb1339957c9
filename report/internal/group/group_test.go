package group

import (
	"testing"

	"speedmatrix/results/record"
)

func TestCells(t *testing.T) {
	at := func(label string, concurrency, repeat int) record.Cell {
		return record.Cell{
			Point:  record.Point{Phase: record.PhaseDecode, ContextTokens: 8192, ContextLabel: label, Concurrency: concurrency},
			Repeat: repeat,
		}
	}
	// Interleaved repeats, and a second label for the same length.
	got := Cells([]record.Cell{at("8K", 1, 1), at("8K", 2, 1), at("8K", 1, 2), at("8192", 1, 1), at("8K", 2, 2)})
	if len(got) != 3 {
		t.Fatalf("got %d cells, want 3", len(got))
	}
	for i, want := range []struct {
		label  string
		c, n   int
		repeat []int
	}{{"8K", 1, 2, []int{1, 2}}, {"8K", 2, 2, []int{1, 2}}, {"8192", 1, 1, []int{1}}} {
		c := got[i]
		if c.ContextLabel != want.label || c.Concurrency != want.c || len(c.Trials) != want.n {
			t.Errorf("cell %d is %s × %d with %d trials", i, c.ContextLabel, c.Concurrency, len(c.Trials))
		}
		for j, r := range want.repeat {
			if c.Trials[j].Repeat != r {
				t.Errorf("cell %d trial %d is repeat %d, want %d", i, j, c.Trials[j].Repeat, r)
			}
		}
	}
}

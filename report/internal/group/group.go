// Package group puts the trials of a run together by the cell they repeat.
package group

import "speedmatrix/results/record"

// Cell is one point of the matrix with its trials, in the order given.
type Cell struct {
	record.Point
	Trials []record.Cell
}

// Cells groups trials by their point, in the order in which the points first
// appear. The label is part of a point: two labels for one length stay apart, so
// nothing is averaged that a person named differently.
func Cells(trials []record.Cell) []Cell {
	index := make(map[record.Point]int)
	var cells []Cell
	for _, t := range trials {
		i, seen := index[t.Point]
		if !seen {
			i = len(cells)
			index[t.Point] = i
			cells = append(cells, Cell{Point: t.Point})
		}
		cells[i].Trials = append(cells[i].Trials, t)
	}
	return cells
}

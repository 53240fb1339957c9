package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in an experiment: where, which field, and why.
type Error struct {
	File         string
	Line, Column int    // 1-based; 0 for a mistake of --set
	Set          string // path of the --set the mistake is in; empty: it is in the file
	Field        string // "matrix.concurrency[2]"; empty: the file as a whole
	Cause        string
	DidYouMean   string // the nearest valid name; empty: none is near
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Set != "" {
		fmt.Fprintf(&b, "--set %s=…: ", e.Set)
	} else {
		fmt.Fprintf(&b, "%s:%d:%d: ", e.File, e.Line, e.Column)
	}
	if e.Field != "" && e.Field != e.Set {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Cause)
	if e.DidYouMean != "" {
		fmt.Fprintf(&b, " (did you mean %q?)", e.DidYouMean)
	}
	return b.String()
}

// ErrorList is every mistake of an experiment, in the order of the file, those of
// --set behind them. Its text has one line a mistake.
type ErrorList []*Error

func (l ErrorList) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// maxMistakes is the number of mistakes that are told; a file with more is no
// experiment.
const maxMistakes = 100

func (l ErrorList) sorted() ErrorList {
	slices.SortStableFunc(l, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Set, b.Set), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return l
}

// nearest returns the name that was most likely meant; empty if none is near.
func nearest(name string, names []string) string {
	best, bestAt := "", max(1, len(name)/3)+1
	for _, n := range names {
		if d := distance(strings.ToLower(name), n, bestAt); d < bestAt {
			best, bestAt = n, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete, change or swap with the
// next one; texts whose lengths differ by limit or more are limit apart.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

package published

import (
	"slices"
	"strconv"
	"strings"

	"speedmatrix/results/record"
)

// Text that has lost its separators, and all the ways to read it. Every string
// in this file is without white space.

// maxReadings bounds the readings of one row; a row of the pages has at most a
// handful.
const maxReadings = 64

// budget bounds the work on one page, whatever its text: one unit for a place
// that was tried. The seed pages need some thousands.
type budget int

const pageBudget budget = 4 << 20

func (b *budget) spend() bool {
	*b--
	return *b > 0
}

// form is the strict grammar of a number among others: decimals have exactly
// one digit, integers have commas.
type form int

const (
	decimal  form = iota // 1,829.9
	compact              // 32.7K
	integer              // 83,240
	millis               // 1,064ms
	decimals             // 4.8ms
	secs                 // 30.0s
)

// prefixes lists the lengths at which a prefix of s has the form.
func (f form) prefixes(s string) []int {
	suffix := ""
	switch f {
	case compact:
		suffix = "K"
	case millis, decimals:
		suffix = "ms"
	case secs:
		suffix = "s"
	}
	var ends []int
	for _, n := range groupedEnds(s) {
		if f != integer && f != millis {
			if len(s) < n+2 || s[n] != '.' || !isDigit(s[n+1]) {
				continue
			}
			n += 2
		}
		if strings.HasPrefix(s[n:], suffix) {
			ends = append(ends, n+len(suffix))
		}
	}
	return ends
}

// columnForms are the forms of the numbers of a row, in the order of the pages.
func columnForms() [numMetrics][]form {
	return [numMetrics][]form{
		mTotal:     {decimal, compact},
		mEach:      {decimal, compact},
		mTTFT:      {millis},
		mGap:       {decimals},
		mActive:    {decimal},
		mCompleted: {integer},
		mTokens:    {integer},
		mMeasured:  {secs},
	}
}

// splitNumbers lists the readings of the numbers of a row, each exactly the
// whole of s; more says that there are too many to list.
func splitNumbers(s string, work *budget) (all []numbers, more bool) {
	forms := columnForms()
	var at numbers
	var walk func(col int, s string)
	walk = func(col int, s string) {
		if len(all) >= maxReadings || !work.spend() {
			more = true
			return
		}
		if col == numMetrics {
			if s == "" {
				all = append(all, at)
			}
			return
		}
		if rest, ok := strings.CutPrefix(s, dash); ok {
			at[col] = nil
			walk(col+1, rest)
			return
		}
		for _, f := range forms[col] {
			for _, n := range f.prefixes(s) {
				if v, ok := parseNumber(s[:n], metrics[col].quantity); ok {
					at[col] = &v
					walk(col+1, s[n:])
				}
			}
		}
	}
	walk(0, s)
	return all, more
}

// cutPhase cuts the phase's words off a row.
func cutPhase(s string) (phase, rest string, ok bool) {
	for _, p := range []string{record.PhasePrefill, record.PhaseDecode} {
		if rest, ok := strings.CutPrefix(s, squeeze(record.PhaseWords(p))); ok {
			return p, rest, true
		}
	}
	return "", s, false
}

// cutStatus cuts a status's words off s.
func cutStatus(s string) (st record.Status, rest string, ok bool) {
	for _, st := range record.Statuses {
		if rest, ok := strings.CutPrefix(s, squeeze(st.Words())); ok {
			return st, rest, true
		}
	}
	return "", s, false
}

// head is a reading of the digits between phase and status: "16K8" is 8
// requests at 16K.
type head struct {
	label    string
	context  int
	requests int
}

func splitHead(s string) []head {
	var all []head
	for i := 1; i < len(s); i++ {
		ctx, ok1 := parseContext(s[:i])
		req, ok2 := parseRequests(s[i:])
		if ok1 && ok2 {
			all = append(all, head{s[:i], ctx, req})
		}
	}
	return all
}

// splitAxis lists the ways to read digits as n ascending concurrencies.
func splitAxis(digits string, n int) (all [][]int) {
	if len(digits) > 64 {
		return nil
	}
	var at []int
	steps := 0
	var walk func(s string, last int)
	walk = func(s string, last int) {
		if steps++; steps > 20_000 || len(all) > maxReadings {
			return
		}
		if left := n - len(at); left == 0 || len(s) < left {
			if left == 0 && s == "" {
				all = append(all, slices.Clone(at))
			}
			return
		}
		for i := 1; i <= min(7, len(s)); i++ {
			if v, ok := parseRequests(s[:i]); ok && v > last {
				at = append(at, v)
				walk(s[i:], v)
				at = at[:len(at)-1]
			}
		}
	}
	walk(digits, 0)
	if steps > 20_000 {
		return nil // not all of them were tried
	}
	return all
}

// matrixCell is a reading of one cell of the matrix: 203.9 and 56 ms in
// "203.956msTTFT".
type matrixCell struct {
	end    int // where it ends in the text
	status record.Status
	total  *number
	ttft   *number
}

// matrixCells lists the readings of a cell that begins at s[from].
func matrixCells(s string, from int) []matrixCell {
	rest := s[from:]
	if r, ok := strings.CutPrefix(rest, dash); ok {
		return []matrixCell{{end: len(s) - len(r)}}
	}
	if st, r, ok := cutStatus(rest); ok {
		return []matrixCell{{end: len(s) - len(r), status: st}}
	}
	var all []matrixCell
	for _, f := range []form{decimal, compact, integer} {
		for _, n := range f.prefixes(rest) {
			total, ok := parseNumber(rest[:n], rate)
			if !ok {
				continue
			}
			c := matrixCell{end: from + n, status: record.Valid, total: &total}
			tail := rest[n:]
			if st, r, ok := cutStatus(tail); ok {
				c.end, c.status, tail = len(s)-len(r), st, r
			}
			all = append(all, c)
			for _, m := range millis.prefixes(tail) {
				if !strings.HasPrefix(tail[m:], "TTFT") {
					continue
				}
				if ttft, ok := parseNumber(tail[:m], seconds); ok {
					c := c
					c.end, c.ttft = c.end+m+len("TTFT"), &ttft
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// agrees says whether a cell of the matrix shows a row of the list.
func (c matrixCell) agrees(r *row) bool {
	if c.status != "" && c.status != r.status {
		return false
	}
	if (c.total == nil) != (r.n[mTotal] == nil) || c.total != nil && !same(*c.total, *r.n[mTotal]) {
		return false
	}
	return c.ttft == nil || r.n[mTTFT] != nil && same(*c.ttft, *r.n[mTTFT])
}

// String shows a cell with its separators.
func (c matrixCell) String() string {
	var parts []string
	if c.total != nil {
		parts = append(parts, show(c.total))
	}
	if c.status != "" && (c.status != record.Valid || c.total == nil) {
		parts = append(parts, c.status.Words())
	}
	if c.ttft != nil {
		parts = append(parts, show(c.ttft)+" TTFT")
	}
	return strings.Join(parts, ", ")
}

// fitMatrixRow reads the cells of a glued row of the matrix against the
// readings of their rows in the list. It returns, cell by cell, the readings
// that take part in some way to read the whole of s; nil if there is no way.
func fitMatrixRow(s string, cells [][]*row, work *budget) [][]*row {
	// reach[j] holds the places in s at which cell j can begin, forwards; live[j]
	// those of them from which the end can be reached.
	type edge struct {
		from, to int
		r        *row
	}
	n := len(cells)
	edges := make([][]edge, n)
	reach := map[int]bool{0: true}
	for j, rows := range cells {
		next := map[int]bool{}
		for from := range reach {
			for _, c := range matrixCells(s, from) {
				for _, r := range rows {
					if !work.spend() {
						return nil
					}
					if c.agrees(r) {
						edges[j] = append(edges[j], edge{from, c.end, r})
						next[c.end] = true
					}
				}
			}
		}
		reach = next
	}
	live := map[int]bool{len(s): true}
	out := make([][]*row, n)
	for j := n - 1; j >= 0; j-- {
		before := map[int]bool{}
		for _, e := range edges[j] {
			if live[e.to] {
				before[e.from] = true
				if !slices.Contains(out[j], e.r) {
					out[j] = append(out[j], e.r)
				}
			}
		}
		live = before
	}
	if !live[0] {
		return nil
	}
	return out
}

// barReadings lists the readings of a prefill bar without its label:
// "2,1863,727msTTFT" is 2,186 and 3,727 ms.
func barReadings(s string) (all [][2]number) {
	s, ok := strings.CutSuffix(s, "TTFT")
	if !ok {
		return nil
	}
	for _, f := range []form{decimal, compact, integer} {
		for _, n := range f.prefixes(s) {
			if !slices.Contains(millis.prefixes(s[n:]), len(s)-n) {
				continue
			}
			total, ok1 := parseNumber(s[:n], rate)
			ttft, ok2 := parseNumber(s[n:], seconds)
			if ok1 && ok2 {
				all = append(all, [2]number{total, ttft})
			}
		}
	}
	return all
}

// joinInts writes numbers as the glued header of the matrix has them.
func joinInts(list []int, sep string) string {
	parts := make([]string, len(list))
	for i, v := range list {
		parts[i] = strconv.Itoa(v)
	}
	return strings.Join(parts, sep)
}

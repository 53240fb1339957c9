// Samematrix says how far two runs of one plan are apart: what an executor costs.
//
//	samematrix RUN OTHER
//
// It prints each cell of both and the largest differences, and ends with status 1 if
// they are over the bars: 20 s for the whole run, 0.5 ms for the time between tokens, 5 ms
// for its p99 over chunks, 0.5 % for total tok/s.
package main

import (
	"fmt"
	"math"
	"os"
	"time"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

const (
	barRun   = 20 * time.Second
	barTPOT  = 0.0005 // seconds
	barP99   = 0.005  // seconds
	barTotal = 0.005  // ratio
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "samematrix: give two runs")
		os.Exit(2)
	}
	if err := compare(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "samematrix:", err)
		os.Exit(1)
	}
}

func compare(first, second string) error {
	a, b, err := open(first, second)
	if err != nil {
		return err
	}
	cells := map[string]record.Cell{}
	for c, err := range a.Cells() {
		if err != nil {
			return err
		}
		cells[c.StepID] = c
	}
	fmt.Printf("%-22s %21s %23s %23s\n", "cell", "total tok/s", "between tokens ms", "between chunks p99 ms")
	var total, tpot, p99 float64
	n := 0
	for o, err := range b.Cells() {
		if err != nil {
			return err
		}
		c, ok := cells[o.StepID]
		if !ok || c.Status != record.Valid || o.Status != record.Valid || c.Phase != record.PhaseDecode {
			continue
		}
		pair := func(name string, scale float64) (x, y float64) {
			x, okX := c.Value(name)
			y, okY := o.Value(name)
			if !okX || !okY {
				return math.NaN(), math.NaN()
			}
			return x * scale, y * scale
		}
		t1, t2 := pair(metric.OutputTokensPerSecond, 1)
		g1, g2 := pair(metric.TPOT, 1)
		p1, p2 := pair(metric.ICLP99, 1)
		if math.IsNaN(t1 + g1 + p1) {
			return fmt.Errorf("%s: a figure is missing", o.StepID)
		}
		n++
		total, tpot, p99 = max(total, math.Abs(t2/t1-1)), max(tpot, math.Abs(g2-g1)), max(p99, p2-p1)
		fmt.Printf("%-22s %10.1f %10.1f %11.2f %11.2f %11.2f %11.2f\n", o.StepID, t1, t2, g1*1e3, g2*1e3, p1*1e3, p2*1e3)
	}
	if n == 0 {
		return fmt.Errorf("no decode cell is valid in both")
	}
	took := length(b.Record()) - length(a.Record())
	fmt.Printf("\n%d cells; at most apart: run %v, total %.2f %%, between tokens %.2f ms, between chunks p99 %.2f ms\n", n, took.Round(time.Second/10), total*100, tpot*1e3, p99*1e3)
	if took > barRun || total > barTotal || tpot > barTPOT || p99 > barP99 {
		return fmt.Errorf("over a bar: %v, %.1f %%, %.1f ms, %.0f ms", barRun, barTotal*100, barTPOT*1e3, barP99*1e3)
	}
	return nil
}

func open(first, second string) (a, b *store.Stored, err error) {
	if a, err = store.Open(first); err != nil {
		return nil, nil, err
	}
	if b, err = store.Open(second); err != nil {
		return nil, nil, err
	}
	if x, y := a.Record().PlanDigest, b.Record().PlanDigest; x != y {
		return nil, nil, fmt.Errorf("two plans, %s and %s: only runs of one plan can be held against each other", x, y)
	}
	return a, b, nil
}

func length(r record.Run) time.Duration {
	if r.FinishedAt == nil {
		return 0
	}
	return r.FinishedAt.Sub(r.StartedAt)
}

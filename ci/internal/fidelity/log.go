package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// exchange is one request as the engine's log has it, in Unix nanoseconds.
type exchange struct {
	read   int64 // its last byte was read
	writes []write
	end    int64 // last write of a whole answer, or when the client went; 0: neither
	whole  bool
}

// write is what the engine handed to the socket at once.
type write struct {
	at     int64
	tokens int
	events int
}

// readLog reads a truth log; package simulator says what is in it.
func readLog(r io.Reader) ([]*exchange, error) {
	var all []*exchange
	byID := map[string]*exchange{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		var l struct {
			Start   int64  `json:"start_ns"`
			At      int64  `json:"t_ns"`
			Request string `json:"request"`
			Event   string `json:"event"`
			Tokens  int    `json:"tokens"`
			Events  int    `json:"events"`
			Last    bool   `json:"last"`
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("truth log, line %d: %w", n, err)
		}
		if l.Event == "read" {
			byID[l.Request] = &exchange{read: l.At}
			all = append(all, byID[l.Request])
			continue
		}
		x := byID[l.Request]
		switch {
		case n == 1 && l.Start > 0:
		case x == nil:
			return nil, fmt.Errorf("truth log, line %d: %s of a request that was not read", n, l.Event)
		case l.Event == "write":
			x.writes = append(x.writes, write{l.At, l.Tokens, l.Events})
			if l.Last {
				x.end, x.whole = l.At, true
			}
		case l.Event == "gone":
			x.end = l.At
		default:
			return nil, fmt.Errorf("truth log, line %d: what is %q?", n, l.Event)
		}
	}
	return all, lines.Err()
}

// figures are what is compared. Times are seconds; NaN: there is no such figure.
type figures struct {
	tokens, rate   float64
	ttft           float64 // median over requests
	tpot           float64 // median over requests
	gap            float64 // 99th percentile between output events
	active         float64
	completed      float64
	events         int // inside the window
	first, outputs int // samples of ttft and tpot
}

// truth are the figures of a window by the log. A write less than margin before an
// edge of the window may be read on either side of it, so the tokens are also a
// range.
type truth struct {
	figures
	least, most           float64 // tokens
	leastEnded, mostEnded float64 // completed
	leastMute             float64 // read before the end of the window, without a token before it
	requests              int
	sent                  []int64 // stamps of the output events of all requests, ascending
	reads, firsts         []int64 // of the requests with a first write before to, ascending
}

// margin is how long a write may be on its way where nobody is late.
const margin = 2 * time.Millisecond

// look computes the figures of the requests that were read since launch, over the
// window [from, to), in a way that owes nothing to package metric.
func look(all []*exchange, launch, from, to int64) (truth, error) {
	if to <= from {
		return truth{}, errors.New("there was no window")
	}
	var t truth
	var ttfts, tpots, gaps []float64
	var active int64
	for _, x := range all {
		if x.read < launch {
			continue // a scout
		}
		t.requests++
		if x.read < to-int64(margin) && (len(x.writes) == 0 || x.writes[0].at >= to) {
			t.leastMute++
		}
		if len(x.writes) == 0 {
			continue
		}
		if first := x.writes[0].at; first < to {
			ttfts = append(ttfts, float64(first-x.read)/1e9)
			t.reads, t.firsts = append(t.reads, x.read), append(t.firsts, first)
		}
		end := to
		if x.end > 0 {
			end = min(to, x.end)
		}
		active += max(0, end-max(from, x.writes[0].at))
		if x.whole {
			t.completed += inside(x.end, from, to)
			t.leastEnded += inside(x.end, from, to-int64(margin))
			t.mostEnded += inside(x.end, from-int64(margin), to)
		}
		var seen []write
		for _, w := range x.writes {
			n := float64(w.tokens)
			t.tokens += n * inside(w.at, from, to)
			t.least += n * inside(w.at, from, to-int64(margin))
			t.most += n * inside(w.at, from-int64(margin), to)
			if inside(w.at, from, to) == 1 {
				seen = append(seen, w)
			}
			for range w.events {
				t.sent = append(t.sent, w.at)
			}
		}
		for i, w := range seen {
			t.events += w.events
			if i > 0 {
				gaps = append(gaps, float64(w.at-seen[i-1].at)/1e9)
			}
			for range w.events - 1 {
				gaps = append(gaps, 0)
			}
		}
		if n := len(seen); n > 1 {
			after := 0
			for _, w := range seen[1:] {
				after += w.tokens
			}
			tpots = append(tpots, float64(seen[n-1].at-seen[0].at)/1e9/float64(after))
		}
	}
	t.rate = t.tokens / (float64(to-from) / 1e9)
	t.active = float64(active) / float64(to-from)
	t.ttft, t.first = percentile(ttfts, 50), len(ttfts)
	t.tpot, t.outputs = percentile(tpots, 50), len(tpots)
	if len(gaps) >= 100 { // as ours: of fewer a 99th percentile says nothing
		t.gap = percentile(gaps, 99)
	} else {
		t.gap = math.NaN()
	}
	slices.Sort(t.sent)
	slices.Sort(t.reads)
	slices.Sort(t.firsts)
	return t, nil
}

func inside(at, from, to int64) float64 {
	if at >= from && at < to {
		return 1
	}
	return 0
}

// percentile interpolates linearly at (n − 1)·p, and sorts its sample.
func percentile(sample []float64, p float64) float64 {
	if len(sample) == 0 {
		return math.NaN()
	}
	slices.Sort(sample)
	at := float64(len(sample)-1) * p / 100
	i := int(at)
	return sample[i] + (sample[min(i+1, len(sample)-1)]-sample[i])*(at-float64(i))
}

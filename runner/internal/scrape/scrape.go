// Package scrape reads gauges over time, beside what is measured and never in its
// way.
//
// It does not know what the gauges mean or how they are fetched: it calls a
// function on its own goroutine, gives each call its own deadline, stamps what came
// and keeps it. A call that is slow costs readings, nothing else.
package scrape

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"speedmatrix/results/record"
)

// Value is one gauge or counter at one time.
type Value struct {
	Name  string // as in package record
	Value float64
}

// Read fetches the values that the server tells now. A value it does not tell is
// left out.
type Read func(ctx context.Context) ([]Value, error)

// Reading is what one call gave.
type Reading struct {
	BegunNs int64 // when it was asked for: it tells nothing older
	AtNs    int64 // when it came
	Values  []Value
}

// Get returns a value and whether it was told.
func (r Reading) Get(name string) (float64, bool) {
	for _, v := range r.Values {
		if v.Name == name {
			return v.Value, true
		}
	}
	return 0, false
}

// Take makes one reading.
func Take(ctx context.Context, deadline time.Duration, clock func() int64, read Read) (Reading, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, deadline, errSlow)
	defer cancel()
	r := Reading{BegunNs: clock()}
	values, err := read(ctx)
	r.AtNs = clock()
	for _, v := range values {
		if !math.IsNaN(v.Value) && !math.IsInf(v.Value, 0) {
			r.Values = append(r.Values, v)
		}
	}
	return r, err
}

var errSlow = errors.New("no reply within the deadline of a reading")

// lostAfter failures in a row the last reading is no longer news.
const lostAfter = 3

// Scraper reads again and again.
type Scraper struct {
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu       sync.Mutex
	readings []Reading
	inARow   int // failures since the last reading
}

// Start reads at once and then every so often, until Stop.
func Start(ctx context.Context, every, deadline time.Duration, clock func() int64, read Read) *Scraper {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Scraper{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		tick := time.NewTicker(every) // drops ticks that a slow reading missed
		defer tick.Stop()
		for {
			r, err := Take(ctx, deadline, clock, read)
			if ctx.Err() != nil {
				return
			}
			s.keep(r, err)
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return s
}

func (s *Scraper) keep(r Reading, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.inARow++
		return
	}
	s.inARow = 0
	s.readings = append(s.readings, r)
}

// Last returns the newest reading; ok is false if there is none, or if reading has
// failed since, several times in a row.
func (s *Scraper) Last() (r Reading, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.readings) == 0 || s.inARow >= lostAfter {
		return Reading{}, false
	}
	return s.readings[len(s.readings)-1], true
}

// Stop gives up a reading in progress, ends the goroutine and returns everything
// that was read. It may be called again.
func (s *Scraper) Stop() []record.Sample {
	s.cancel(nil)
	<-s.done
	var out []record.Sample
	for _, r := range s.readings {
		out = append(out, r.Samples()...)
	}
	return out
}

// Samples are the values as they are stored.
func (r Reading) Samples() []record.Sample {
	out := make([]record.Sample, len(r.Values))
	for i, v := range r.Values {
		out[i] = record.Sample{AtNs: r.AtNs, Source: record.SourceMetrics, Name: v.Name, Value: v.Value}
	}
	return out
}

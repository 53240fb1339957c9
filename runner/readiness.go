package runner

import "time"

// readiness decides when the window opens. It is a pure state machine: it is shown
// what was seen, in order of time, and knows no clock.
//
// Ready: every stream has had a first token, no reading says that anything waits,
// and both held for settle, during which output came and, where the server tells,
// at least one reading was taken.
//
// Saturated: the server runs all it can. In every reading for hold something
// waited, output came, and no further stream had its first token. Without readings
// this cannot be told from slowness, so it is never said.
type readiness struct {
	streams      int
	settle, hold time.Duration

	ready, full stretch
	firstAtFull int
	lastReading int64
}

// stretch is a time during which a condition holds.
type stretch struct {
	on       bool
	sinceNs  int64
	outputs  int64 // at its begin
	readings int   // within it
}

func (s *stretch) begin(l look) { *s = stretch{on: true, sinceNs: l.atNs, outputs: l.outputs} }

// held says whether the condition held for d with output in it.
func (s *stretch) held(l look, d time.Duration) bool {
	return s.on && l.atNs-s.sinceNs >= int64(d) && l.outputs > s.outputs
}

// look is what is seen at one moment.
type look struct {
	atNs    int64
	first   int   // streams that have had a first token since the launch
	outputs int64 // output events so far
	// reading is when the newest reading of the server's gauges was asked for, 0 if
	// it tells nothing; waiting is what it said.
	reading int64
	waiting float64
}

type verdict int

const (
	wait verdict = iota
	ready
	saturated
)

func (r *readiness) see(l look) verdict {
	fresh := l.reading > r.lastReading
	r.lastReading = max(r.lastReading, l.reading)
	queue := l.reading > 0 && l.waiting > 0

	switch {
	case l.first < r.streams || queue:
		r.ready.on = false
	case !r.ready.on:
		r.ready.begin(l)
	case fresh && l.reading >= r.ready.sinceNs: // asked for since then
		r.ready.readings++
	}
	if r.ready.held(l, r.settle) && (l.reading == 0 || r.ready.readings > 0) {
		return ready
	}

	switch {
	case !queue:
		r.full.on = false
	case !r.full.on || l.first > r.firstAtFull:
		r.full.begin(l)
		r.firstAtFull = l.first
	case fresh && l.reading >= r.full.sinceNs:
		r.full.readings++
	}
	if r.full.held(l, r.hold) && r.full.readings > 1 {
		return saturated
	}
	return wait
}

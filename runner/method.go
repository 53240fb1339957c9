package runner

import (
	"time"

	"speedmatrix/experiments/plan"
)

// Thresholds and limits of the method. The package comment says what each is for;
// a change of any can move a number or a status, so it raises [MethodVersion].
const (
	// scrapeEvery is how often /metrics is read during a trial; each reading has its
	// own deadline, so a slow one costs readings and nothing else.
	scrapeEvery    = 500 * time.Millisecond
	scrapeDeadline = 5 * time.Second

	// idlePoll is how often the server is asked whether it is idle; it must be seen
	// so for idleHold: gauges are updated between two steps of the engine.
	idlePoll = 50 * time.Millisecond
	idleHold = 2

	// queuedPercent: requests waited in more than so many of the window's readings.
	queuedPercent = 5
	// activePercent: fewer streams than this share of those asked is too few.
	activePercent = 95

	// lagLimit: a ticker of this client was later than this in 1 of 100 ticks. A
	// token of the fastest published cells comes every 4 ms, a stamp that is 50 ms
	// late is a visible error of any latency on a page.
	lagLimit = 50 * time.Millisecond
	// cpuLimit: above this share of the cores it may use, the client has no room
	// for the next burst.
	cpuLimit = 0.9
	// sendLagLimit: a request left this much after it was due. TTFT counts from the
	// moment of sending, so what is lost is that the streams start together. A
	// request has left when its last piece is handed to the socket, so a server that
	// reads slowly makes it late: what the wave's bodies take at 25 MB a second is added.
	sendLagLimit   = 250 * time.Millisecond
	sendLagPerByte = 40 * time.Nanosecond
	// Most output events came in reads of so many events or more: something between
	// the engine and our clock (a proxy, or this client) held them back. Below
	// coalescedMin output events nothing is said; a proxy of 16 KiB in front of one
	// slow stream gives one lump of 65 in a window.
	coalescedEvents = 4
	coalescedMin    = 16

	// Loop guard: the same text at least so often, over so many bytes.
	loopCycles = 4
	loopBytes  = 4096

	// firstToken is what a request is given for its first token beside the time its
	// prompt takes.
	firstToken = 60 * time.Second
	// slowestPrefill is the time for a prompt token while nothing was measured: 50
	// tokens a second, a tenth of the slowest published.
	slowestPrefill = 20 * time.Millisecond

	// quietLimit: after a window that ended with so long a silence the engine is
	// asked whether it lives.
	quietLimit = 2 * time.Second

	// failGrace lets the requests that fail together be counted together.
	failGrace = 100 * time.Millisecond
	// exitGrace is how long a broken connection waits for the news that the engine
	// ended, which is the better explanation.
	exitGrace = time.Second
	// probeLimit is the time a server has to answer when it is asked whether it is
	// still there at all.
	probeLimit = 5 * time.Second
	// defaultStart is the start limit of plans that state none.
	defaultStart = 30 * time.Minute
	// defaultLimit stands in for a stall or idle limit that a plan does not state.
	defaultLimit = 60 * time.Second
)

// rate is the slowest prefill seen for the longest prompt so far, from which the
// limits of longer and shorter ones follow.
type rate struct {
	tokens int64
	took   time.Duration
}

// saw takes a first token into account.
func (r *rate) saw(tokens int64, took time.Duration) {
	if tokens > r.tokens || tokens == r.tokens && took > r.took {
		r.tokens, r.took = tokens, took
	}
}

// expect is a generous time for a prompt of so many tokens: for one that is not
// longer than what was measured, that time; for each doubling beyond, four times as
// much, since attention grows with the square; and without a measurement
// slowestPrefill.
func (r *rate) expect(tokens int64) time.Duration {
	if r.tokens <= 0 {
		return time.Duration(tokens) * slowestPrefill
	}
	took := r.took
	for n := r.tokens; n < tokens && took < 24*time.Hour; n += n { // no further: it could overflow
		took *= 4
	}
	return took
}

// scoutLimit is the time for a request that loads a prompt.
func scoutLimit(l plan.Limits, r *rate, tokens int64) time.Duration {
	if l.ScoutNs > 0 {
		return time.Duration(l.ScoutNs)
	}
	return firstToken + 4*r.expect(tokens)
}

// readyLimit is the time from the launch until all streams must run: enough for an
// engine without a prefix cache that reads every stream's prompt again, one after
// another, at half the scout's speed.
func readyLimit(l plan.Limits, streams int, scout, settle time.Duration) time.Duration {
	if l.ReadyNs > 0 {
		return time.Duration(l.ReadyNs)
	}
	return firstToken + 2*time.Duration(streams)*scout + 4*max(settle, saturatedHold(settle, scout))
}

// saturatedHold is how long nothing may change before a queue is taken for a full
// engine: longer than the prompt of the next stream takes, which makes no progress
// that can be seen.
func saturatedHold(settle, scout time.Duration) time.Duration {
	return max(settle, scout+scout>>1)
}

func orDefault(ns int64, d time.Duration) time.Duration {
	if ns > 0 {
		return time.Duration(ns)
	}
	return d
}

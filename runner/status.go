package runner

import (
	"fmt"
	"time"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/openai"
)

// Stages of a trial, in order. They are also the words of [Progress].
const (
	stageIdle      = "idle"
	stageScout     = "scout"
	stageWarmup    = "warmup"
	stageReadiness = "readiness"
	stageWindow    = "window"
	stageDrain     = "drain"
)

// facts are what is known of a trial beside its record, when its status is decided.
type facts struct {
	stage string // where it ended; stageDrain when it went through

	engine  *EngineError // the engine ended or hung
	drained bool         // a person asked to end early
	// failed: the server did not count a prompt, or counted it in two ways; why says how.
	failed record.FailureKind
	// limit says that the stage's own limit passed; why, what was seen then. Before
	// the trial: the server was not idle.
	limit time.Duration
	why   string
	// running and waiting are what the server last said; nil: it tells nothing.
	running, waiting *float64

	bodyBytes int64 // of the wave: what was to be sent at once

	unknown string // a count that a valid trial is without, described

	silent bool // not one output event came in the whole window

	loop string // a repetition loop, described
	// cacheHits are the prompt tokens the engine took from its prefix cache during a
	// prefill; cacheFree those it may, since they stand before the nonce.
	cacheHits, cacheFree int64
}

// judge decides how a trial ended. It is pure: the same record and facts give the
// same status. The first rule that applies decides:
//
//  1. the engine ended or hung: failed (engine_exit, stall);
//  2. a person ended it: interrupted;
//  3. a request failed: failed, with the kind of the first; or a prompt could not be
//     counted, or usage and /tokenize contradict each other in its length: failed;
//  4. the limit of a stage passed: over_capacity (no_output) if not one token came
//     and the server either ran nothing or let requests wait; failed (timeout) for
//     a scout; else not_ready;
//  5. not one token came in the whole window: failed (stall);
//  6. the model repeated itself: loop;
//  7. the server's counts of tokens contradict what was asked or came: failed (encoding);
//  8. a prefill took tokens from the prefix cache: not_ready, since what was to be
//     measured did not take place;
//  9. the server was not idle again afterwards: failed (timeout);
//  10. this client was the limit: client_limited;
//  11. requests waited or were put back to wait, or fewer ran than asked: queued;
//  12. fewer streams were decoding than asked although the server ran all: underfilled;
//  13. valid; the reason then says which count is not known.
func judge(t *record.Trial, f facts) (status record.Status, kind record.FailureKind, reason string) {
	if f.engine != nil {
		return record.Failed, f.engine.Kind, f.engine.Reason
	}
	if f.drained {
		return record.Interrupted, "", "ended early during: " + f.stage
	}
	if kind, reason, bad := failedRequests(t); bad {
		return record.Failed, kind, reason
	}
	if f.failed != "" {
		return record.Failed, f.failed, f.why
	}
	if f.limit > 0 {
		return limitPassed(t, f)
	}
	if f.silent {
		return record.Failed, record.FailStall, "no token came in the whole window"
	}
	if f.loop != "" {
		return record.Loop, "", f.loop
	}
	if wrong := wrongUsage(t); wrong != "" {
		return record.Failed, record.FailEncoding, usageWrong + wrong
	}
	if t.Phase == record.PhasePrefill && f.cacheHits > f.cacheFree {
		return record.NotReady, "", record.ReasonCacheHits
	}
	if t.IdleAfter != nil && !*t.IdleAfter {
		return record.Failed, record.FailTimeout, "the server was not idle again after the trial: " + f.why
	}
	if why := clientLimited(t, f); why != "" {
		return record.ClientLimited, "", why
	}
	if t.WindowStartNs != nil && t.WindowEndNs != nil {
		if status, reason := filled(t); status != record.Valid {
			return status, "", reason
		}
	}
	return record.Valid, "", f.unknown
}

// failedRequests finds the first failure among the requests that the trial's
// outcome depends on, and counts the others.
func failedRequests(t *record.Trial) (kind record.FailureKind, reason string, bad bool) {
	var first *record.Request
	failed := 0
	streams := make(map[int]bool)
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Role == record.RoleMeasured {
			streams[r.Stream] = true
		}
		if r.Outcome != record.OutcomeFailed {
			continue
		}
		failed++
		if first == nil || endOf(r) < endOf(first) {
			first = r
		}
	}
	if first == nil {
		return "", "", false
	}
	what := first.Role + " request: "
	if first.Role == record.RoleMeasured && t.Concurrency > 1 {
		what = fmt.Sprintf("%d of %d streams: ", failed, len(streams))
	}
	if openai.ContextLength(first) {
		what += "context longer than the model allows: "
	}
	if first.FailureKind == record.FailHTTP {
		what += fmt.Sprintf("HTTP status %d", first.HTTPStatus)
		if first.Message != "" {
			what += ": "
		}
	}
	return first.FailureKind, what + first.Message, true
}

func endOf(r *record.Request) int64 {
	if r.EndNs == nil {
		return r.DueNs
	}
	return *r.EndNs
}

func limitPassed(t *record.Trial, f facts) (record.Status, record.FailureKind, string) {
	if f.stage == stageIdle {
		return record.NotReady, "", fmt.Sprintf("the server was not idle within %v before the trial: %s", f.limit, f.why)
	}
	blocked := f.running != nil && *f.running == 0 || f.waiting != nil && *f.waiting > 0
	if blocked && !anyOutput(t) {
		return record.OverCapacity, "", record.ReasonNoOutput
	}
	if f.stage != stageReadiness {
		what := f.stage
		if what == stageWindow {
			what = record.RoleMeasured
		}
		return record.Failed, record.FailTimeout, fmt.Sprintf("the %s request had not ended after %v: %s", what, f.limit, f.why)
	}
	return record.NotReady, "", fmt.Sprintf("not all streams ran within %v: %s", f.limit, f.why)
}

// anyOutput says whether one token came that belongs to what the trial waited for.
func anyOutput(t *record.Trial) bool {
	launched := t.LaunchNs != nil
	for i := range t.Requests {
		r := &t.Requests[i]
		if launched && r.Role != record.RoleMeasured {
			continue
		}
		if _, ok := firstOutput(r); ok {
			return true
		}
	}
	return false
}

func firstOutput(r *record.Request) (atNs int64, ok bool) {
	for i := range r.Chunks {
		if r.Chunks[i].Output {
			return r.Chunks[i].AtNs, true
		}
	}
	return 0, false
}

// clientLimited says which sign of an overloaded client was seen.
func clientLimited(t *record.Trial, f facts) string {
	c := &t.Client
	if c.LagP99Ns != nil && *c.LagP99Ns > int64(lagLimit) {
		return fmt.Sprintf("this client was late: 1 in 100 ticks by more than %v, allowed are %v", time.Duration(*c.LagP99Ns).Round(time.Millisecond), lagLimit)
	}
	if c.CPURatio != nil && *c.CPURatio > cpuLimit {
		return fmt.Sprintf("this client used %.2f of the cores it may use, allowed are %.2f", *c.CPURatio, cpuLimit)
	}
	allowed := sendLagLimit + time.Duration(f.bodyBytes)*sendLagPerByte
	if c.SendLagMaxNs != nil && *c.SendLagMaxNs > int64(allowed) {
		return fmt.Sprintf("a request was sent %v after it was due, allowed are %v", time.Duration(*c.SendLagMaxNs).Round(time.Millisecond), allowed.Round(time.Millisecond))
	}
	if t.Phase == record.PhaseDecode {
		outputs, clumped := 0, 0
		eachOutput(t, func(c *record.Chunk) {
			outputs++
			if c.ReadEvents >= coalescedEvents {
				clumped++
			}
		})
		if outputs >= coalescedMin && clumped*2 > outputs {
			return fmt.Sprintf("%d of %d output events came in reads of %d or more: a proxy or this client held them back", clumped, outputs, coalescedEvents)
		}
	}
	return ""
}

// eachOutput visits the output events of measured requests inside the window.
func eachOutput(t *record.Trial, visit func(*record.Chunk)) {
	if t.WindowStartNs == nil || t.WindowEndNs == nil {
		return
	}
	for i := range t.Requests {
		if t.Requests[i].Role != record.RoleMeasured {
			continue
		}
		for j := range t.Requests[i].Chunks {
			c := &t.Requests[i].Chunks[j]
			if c.Output && c.AtNs >= *t.WindowStartNs && c.AtNs < *t.WindowEndNs {
				visit(c)
			}
		}
	}
}

// filled compares how many streams ran in the window with how many were asked.
// Shares are compared by multiplication.
func filled(t *record.Trial) (record.Status, string) {
	from, to := *t.WindowStartNs, *t.WindowEndNs
	asked := int64(t.Concurrency)

	var readings, waited int
	var ran float64 // sum over the readings that tell
	var running int
	for _, s := range t.Samples {
		if s.Source != record.SourceMetrics || s.AtNs < from || s.AtNs > to {
			continue
		}
		switch s.Name {
		case record.SampleWaiting:
			readings++
			if s.Value > 0 {
				waited++
			}
		case record.SampleRunning:
			running++
			ran += s.Value
		}
	}
	preempted := grew(t, record.SamplePreemptions)
	if waited*100 > queuedPercent*readings || preempted > 0 {
		reason := fmt.Sprintf("requests waited in %d of %d readings of the window", waited, readings)
		if preempted > 0 {
			reason += fmt.Sprintf(", and the server preempted %v: the KV cache did not hold all of them", preempted)
		}
		return record.Queued, reason
	}
	active := activeNs(t, from, to) // stream-nanoseconds
	whole := asked * (to - from)
	if active*100 >= activePercent*whole {
		return record.Valid, ""
	}
	ranAll := running > 0 && ran*100 >= float64(activePercent*asked)*float64(running)
	if ranAll {
		return record.Underfilled, fmt.Sprintf("fewer than %d %% of %d streams were decoding, though nothing waited and the server ran all", activePercent, asked)
	}
	return record.Queued, fmt.Sprintf("fewer than %d %% of %d streams were decoding", activePercent, asked)
}

// activeNs is the time that streams spent between first output and end, summed
// over the requests and cut to the window.
func activeNs(t *record.Trial, from, to int64) int64 {
	var sum int64
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Role != record.RoleMeasured {
			continue
		}
		first, ok := firstOutput(r)
		if !ok {
			continue
		}
		end := to
		if r.EndNs != nil {
			end = *r.EndNs
		}
		if a, b := max(first, from), min(end, to); b > a {
			sum += b - a
		}
	}
	return sum
}

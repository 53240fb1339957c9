package main

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// line is a case for the terminal.
func (o *outcome) line() string {
	s := fmt.Sprintf("%-60s %-15s total %s (%s)  TTFT %s of %s to %s ms  between tokens %s of %s ms  gap p99 %s of %s ms  active %s of %s  completed %s of %s  there %s, first %s, back %s, %s ms, least %s ms",
		o.load, o.status, number(o.ours.rate, 0), percent(o.ours.rate, o.truth.rate), ms(o.ours.ttft), ms(o.truth.ttft), ms(o.sent), ms(o.ours.tpot), ms(o.truth.tpot),
		ms(o.ours.gap), ms(o.truth.gap), number(o.ours.active, 1), number(o.truth.active, 1), number(o.ours.completed, 0), number(o.truth.completed, 0),
		ms(o.there.median), ms(o.first.median), ms(o.back.median), ms(o.back.p99), number(min(o.there.least, o.back.least)*1e3, 3))
	if o.reason != "" {
		s += "\n  " + o.reason
	}
	for _, w := range o.wrong {
		s += "\n  FAIL: " + w
	}
	return s
}

func number(v float64, digits int) string {
	if math.IsNaN(v) {
		return "–"
	}
	return fmt.Sprintf("%.*f", digits, v)
}

func ms(seconds float64) string { return number(seconds*1e3, 2) }

func percent(got, want float64) string {
	if math.IsNaN(got) || want == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.2f %%", (got/want-1)*100)
}

// page is docs/fidelity.md.
func page(all []outcome) string {
	var b strings.Builder
	say := func(format string, a ...any) { fmt.Fprintf(&b, format, a...) }
	var drift time.Duration
	early := math.Inf(1)
	var limited, wrong []outcome
	for _, o := range all {
		drift = max(drift, o.drift)
		if len(o.truth.sent) > 0 {
			early = min(early, o.there.least, o.back.least)
		}
		switch {
		case len(o.wrong) > 0:
			wrong = append(wrong, o)
		case o.couldNot():
			limited = append(limited, o)
		}
	}
	say(`# Our numbers against the truth

Made by `+"`ci/fidelity --write`"+`; do not edit by hand. Machine: %s.

Each row is a run of its own. The engine is `+"`speedmatrix simulate --truth FILE`"+` in a
process of its own: a real HTTP server with %d tokens/s a stream and a first token after
%d ms, that logs each write of tokens just before it happens. The client is
`+"`speedmatrix run --attach`"+` in another process, with a window of %g s, on the same cores.
What the client stored in `+"`cells.parquet`"+` stands beside what was computed from the log
alone, over the same window, by code that the client does not have.

- **Total**: tokens a second of the window. The log's are the tokens written inside it.
- **TTFT**: median over requests. The log's first is from the last byte of the request
  read to the first write of tokens; its second is to the same write, but from our stamp
  of sending. What is true lies between: a request is on the wire after it was sent and
  before it was read.
- **Between tokens**: median over requests, and the 99th percentile of the gaps between
  output events.
- **Active**: streams between first token and end, weighted by time. **Completed**:
  requests that ended by themselves inside the window.
- **On the way**: from write to our stamp, median and 99th percentile, the k-th event
  that was stamped against the k-th that was written.

A cell that says valid (or queued, where the engine has fewer slots than there are
streams) must be within %g %% of the log's total (a write less than %v before an edge of
the window may count on either side), max(%g ms, %g %%) of its two TTFTs, %g %% of its time
between tokens, %g %% of its active requests, and have completed, and left without a
first token, as many requests as the log says. A cell that says client_limited is shown
and not held to that: that it says so is its right answer, and the only one behind the
proxy, whose row shows the numbers that should not be believed.

Where nothing else is said, usage is running and the streams begin before the window and
outlast it. Where requests end, each has %d tokens, so that some begin before the window,
some inside, and some end after it.

The clocks: both programs count on from a wall clock reading of the same machine by the
monotonic clock, so the error between them is how far the wall clock was stepped or
slewed between the two readings, and what is lost in storing. At most %v in these runs.
As a check, no event was stamped before it was written: the least time on the way was
%s ms.

`, machine(), perSecond, ttftMs, windowMs/1e3, rateBound*100, margin, ttftLeast*1e3, ttftBound*100, tpotBound*100, activeBound*100, endsInside,
		(drift + alignment).Round(time.Microsecond), number(early*1e3, 3))

	say("%d of %d cells are as they should be", len(all)-len(limited)-len(wrong), len(all))
	if len(limited) == 0 {
		say("; this machine could follow all of them.\n")
	} else {
		say(". This machine could not follow, and said so:\n\n")
		for _, o := range limited {
			say("- %s: %s\n", o.load, strings.ReplaceAll(o.reason, "\n", " "))
		}
	}
	if len(wrong) > 0 {
		say("\n**Not true:**\n\n")
		for _, o := range wrong {
			say("- %s: %s\n", o.load, strings.ReplaceAll(strings.Join(o.wrong, "; "), "\n", " "))
		}
	}
	first := true
	for _, o := range all {
		if o.before == nil {
			continue
		}
		if first {
			say("\nMeasured twice, since the first try was client_limited or off, as by something\nelse that ran on this machine; of the first:\n\n")
			first = false
		}
		say("- %s: %s\n", o.load, strings.ReplaceAll(strings.Trim(strings.Join(o.before, "; "), "; "), "\n", " "))
	}
	say("\n| Engine | Streams | Status | Tokens from | Total, log | Ours | Off | TTFT, log | since sent | Ours | Between tokens, log | Ours | Gap p99, log | Ours | Active, log | Ours | Completed, log | Ours | On the way p50 | p99 |\n")
	say("|---|--:|---|---|%s\n", strings.Repeat("--:|", 16))
	for _, o := range all {
		say("| %s | %d | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", o.name, o.streams, o.status, o.source,
			number(o.truth.rate, 1), number(o.ours.rate, 1), percent(o.ours.rate, o.truth.rate), ms(o.truth.ttft), ms(o.sent), ms(o.ours.ttft), ms(o.truth.tpot), ms(o.ours.tpot),
			ms(o.truth.gap), ms(o.ours.gap), number(o.truth.active, 2), number(o.ours.active, 2), number(o.truth.completed, 0), number(o.ours.completed, 0), ms(o.back.median), ms(o.back.p99))
	}
	say("\nTotals are tokens/s, times are milliseconds.\n")
	return b.String()
}

// machine says on what this ran, as far as it is known.
func machine() string {
	s := fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return s
	}
	lines := strings.Split(string(info), "\n")
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "model name") }); i >= 0 {
		_, name, _ := strings.Cut(lines[i], ":")
		s = strings.TrimSpace(name) + ", " + s
	}
	return s
}

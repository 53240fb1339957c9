package metric

import (
	"fmt"
	"math"
	"slices"

	"speedmatrix/results/record"
)

const (
	second   = 1e9     // nanoseconds
	maxParts = 1 << 16 // into which a window is divided for its peak; stored times may be nonsense
)

// look is one trial, looked at once: every metric takes its value from it.
type look struct {
	t       *record.Trial
	prefill bool

	// The window [from, to) in nanoseconds of the trial; false where there is none.
	windowed bool
	from, to int64

	scored []scoredRequest // measured, not failed

	source  string // token source of the cell; empty if no request had output in the window
	refused string // why token figures are refused; empty: they stand
	tokens  int64  // inside the window
	peak    float64
}

// scoredRequest is a request that counts, with what its output events stand for.
type scoredRequest struct {
	*record.Request
	credits
	// Its output events inside the window, as indices into credits.
	lo, hi int
}

func newLook(t *record.Trial) *look {
	l := &look{t: t, prefill: t.Phase == record.PhasePrefill}
	if !l.prefill && t.WindowStartNs != nil && t.WindowEndNs != nil && *t.WindowEndNs > *t.WindowStartNs && *t.WindowEndNs-*t.WindowStartNs > 0 { // an overflow is no window
		l.windowed, l.from, l.to = true, *t.WindowStartNs, *t.WindowEndNs
	}
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Role != record.RoleMeasured || r.Outcome == record.OutcomeFailed {
			continue
		}
		s := scoredRequest{Request: r, credits: credit(r)}
		if l.windowed {
			s.lo, _ = slices.BinarySearch(s.at, l.from)
			s.hi, _ = slices.BinarySearch(s.at[s.lo:], l.to)
			s.hi += s.lo
		}
		l.scored = append(l.scored, s)
	}
	if l.windowed {
		l.count()
	}
	return l
}

// count sums the tokens of the window and holds them against the events they
// were made from.
func (l *look) count() {
	var total float64
	length := float64(l.to-l.from) / second
	parts := make([]float64, max(1, min(int(length), maxParts)))
	for i := range l.scored {
		s := &l.scored[i]
		if s.unplaced > 0 && s.SentNs != nil && *s.SentNs >= l.from && s.EndNs != nil && *s.EndNs < l.to {
			// Not one output event, but the whole request is inside the window.
			total += s.unplaced
			l.source = worse(l.source, s.source)
		}
		if s.lo == s.hi {
			continue
		}
		l.source = worse(l.source, s.source)
		if s.source == record.TokensUnknown {
			continue
		}
		for j := s.lo; j < s.hi; j++ {
			total += s.tokens[j]
			part := int(float64(s.at[j]-l.from) / float64(l.to-l.from) * float64(len(parts)))
			part = max(0, min(part, len(parts)-1)) // stamps out of order are nonsense, but stored
			parts[part] += s.tokens[j]
		}
		if sum := s.sum(); sum > float64(s.last)+0.5 && l.refused == "" {
			l.refused = fmt.Sprintf("token figures refused: request %d was credited %.0f tokens, but the server's count ended at %d", s.Index, sum, s.last)
		}
	}
	l.tokens = int64(math.Round(total))
	for _, n := range parts {
		l.peak = max(l.peak, n*float64(len(parts))/length)
	}
	if why := peakBelowMean(l.peak, total/length); why != "" && l.refused == "" && l.source != record.TokensUnknown {
		l.refused = why
	}
}

// peakBelowMean says what is wrong when the highest rate of a part is below the
// rate of the whole: then the two were not counted in the same unit.
func peakBelowMean(peak, mean float64) string {
	if peak >= mean*(1-1e-9) {
		return ""
	}
	return fmt.Sprintf("token figures refused: the highest rate within the window, %.1f tokens/s, is below its mean, %.1f tokens/s", peak, mean)
}

// haveTokens says whether the window's tokens are known and consistent.
func (l *look) haveTokens() bool {
	return l.windowed && l.refused == "" && l.source != "" && l.source != record.TokensUnknown
}

// of computes a metric, if the status and the tokens allow it.
func (m Metric) of(l *look) (float64, bool) {
	if !m.In(l.t.Phase) ||
		m.Headline && !HasNumbers(l.t.Status) ||
		m.Tokens && !l.haveTokens() {
		return 0, false
	}
	v, ok := m.value(l)
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, false
	}
	if m.Integer {
		v = math.Round(v)
	}
	return v, true
}

// Cell makes the row of a trial; seq is its place on the page.
func Cell(t *record.Trial, seq int) record.Cell {
	c := record.Cell{
		Seq: seq, StepID: t.StepID, Point: t.Point, Repeat: t.Repeat, Launch: t.Launch,
		Status: t.Status, Reason: t.Reason, FailureKind: t.FailureKind,
		Warnings: slices.Clone(t.Warnings),
	}
	if !t.StartedAt.IsZero() {
		at := t.StartedAt.UTC().Truncate(1000) // microseconds, as stored
		c.StartedAt = &at
	}
	l := newLook(t)
	c.TokenSource = l.source
	if l.refused != "" {
		c.TokenSource = record.TokensUnknown
		if HasNumbers(t.Status) && !slices.Contains(c.Warnings, l.refused) {
			c.Warnings = append(c.Warnings, l.refused)
		}
	}
	for _, m := range All() {
		if v, ok := m.of(l); ok {
			if c.Values == nil {
				c.Values = make(map[string]float64)
			}
			c.Values[m.Name] = v
		}
	}
	return c
}

// --- the window

func (l *look) windowSeconds() (float64, bool) {
	return float64(l.to-l.from) / second, l.windowed
}

func (l *look) outputTokens() (float64, bool) { return float64(l.tokens), true }

func (l *look) throughput() (float64, bool) {
	return float64(l.tokens) / (float64(l.to-l.from) / second), true
}

func (l *look) peakRate() (float64, bool) { return l.peak, true }

func (l *look) tpots() []float64 {
	var out []float64
	for i := range l.scored {
		s := &l.scored[i]
		if s.hi-s.lo < 2 || s.source == record.TokensUnknown {
			continue
		}
		var n float64 // after the first event
		for _, k := range s.tokens[s.lo+1 : s.hi] {
			n += k
		}
		// Events that one read brought have one stamp: no time passed between them that
		// we know of.
		if ns := s.at[s.hi-1] - s.at[s.lo]; ns > 0 && n > 0 {
			out = append(out, float64(ns)/second/n)
		}
	}
	return out
}

func (l *look) requestRates() []float64 { return inverse(l.tpots()) }

func (l *look) icls() []float64 {
	var out []float64
	for i := range l.scored {
		s := &l.scored[i]
		for j := s.lo + 1; j < s.hi; j++ {
			out = append(out, float64(s.at[j]-s.at[j-1])/second)
		}
	}
	return out
}

func (l *look) active() (float64, bool) {
	var ns int64
	for i := range l.scored {
		s := &l.scored[i]
		first, ok := s.first()
		if !ok {
			continue
		}
		end := l.to
		if s.EndNs != nil {
			end = min(end, *s.EndNs)
		}
		ns += max(0, end-max(first, l.from))
	}
	return float64(ns) / float64(l.to-l.from), l.windowed
}

func (l *look) completed() (float64, bool) {
	if !l.prefill && !l.windowed {
		return 0, false
	}
	n := 0
	for i := range l.scored {
		s := &l.scored[i]
		if s.Outcome == record.OutcomeCompleted && (l.prefill || s.EndNs != nil && *s.EndNs >= l.from && *s.EndNs < l.to) {
			n++
		}
	}
	return float64(n), l.prefill && len(l.t.Requests) > 0 || l.windowed
}

func (l *look) chunkCount() (n int) {
	for i := range l.scored {
		n += l.scored[i].hi - l.scored[i].lo
	}
	return n
}

func (l *look) tokensPerChunk() (float64, bool) {
	n := l.chunkCount()
	return float64(l.tokens) / float64(n), n > 0
}

func (l *look) tokensPerChunkMax() (most float64, ok bool) {
	if l.source != record.TokensRunning {
		return 0, false // a share of a total says nothing of one event
	}
	for i := range l.scored {
		s := &l.scored[i]
		for _, n := range s.tokens[s.lo:s.hi] {
			most, ok = max(most, n), true
		}
	}
	return most, ok
}

// --- the requests

// ttft of a request whose first output event came before the end of the window.
func (l *look) ttft(s *scoredRequest) (float64, bool) {
	first, ok := s.first()
	if !ok || s.SentNs == nil || first < *s.SentNs || l.windowed && first >= l.to {
		return 0, false
	}
	return float64(first-*s.SentNs) / second, true
}

func (l *look) ttftsWhere(keep func(*scoredRequest) bool) []float64 {
	var out []float64
	for i := range l.scored {
		if s := &l.scored[i]; keep(s) {
			if v, ok := l.ttft(s); ok {
				out = append(out, v)
			}
		}
	}
	return out
}

func (l *look) ttfts() []float64 {
	return l.ttftsWhere(func(*scoredRequest) bool { return true })
}

func (l *look) waveTTFTs() []float64 {
	return l.ttftsWhere(func(s *scoredRequest) bool { return s.Generation == 0 })
}

func (l *look) steadyTTFTs() []float64 {
	return l.ttftsWhere(func(s *scoredRequest) bool { return s.Generation > 0 })
}

func (l *look) prefillRates() []float64 {
	var out []float64
	for i := range l.scored {
		s := &l.scored[i]
		prompt := s.PromptTokens
		if prompt == nil {
			prompt = l.t.PromptTokens
		}
		if v, ok := l.ttft(s); ok && v > 0 && prompt != nil && *prompt > 0 {
			out = append(out, float64(*prompt)/v)
		}
	}
	return out
}

func (l *look) failed() (float64, bool) {
	n, any := 0, false
	for i := range l.t.Requests {
		if r := &l.t.Requests[i]; r.Role == record.RoleMeasured {
			any = true
			if r.Outcome == record.OutcomeFailed {
				n++
			}
		}
	}
	return float64(n), any
}

func (l *look) noFirstToken() (float64, bool) {
	n := 0
	for i := range l.scored {
		s := &l.scored[i]
		if s.SentNs == nil || l.windowed && *s.SentNs >= l.to {
			continue
		}
		if first, ok := s.first(); !ok || l.windowed && first >= l.to {
			n++
		}
	}
	return float64(n), len(l.scored) > 0
}

func (l *look) promptTokens() (float64, bool) {
	if l.t.PromptTokens == nil {
		return 0, false
	}
	return float64(*l.t.PromptTokens), true
}

// --- the trial

func between(from, to *int64) (float64, bool) {
	if from == nil || to == nil || *to < *from {
		return 0, false
	}
	return float64(*to-*from) / second, true
}

func (l *look) scoutSeconds() (float64, bool) { return between(l.t.ScoutStartNs, l.t.ScoutEndNs) }

func (l *look) readinessSeconds() (float64, bool) { return between(l.t.LaunchNs, l.t.WindowStartNs) }

func (l *look) drainSeconds() (float64, bool) { return between(l.t.WindowEndNs, &l.t.EndNs) }

func clientNs(field func(*record.ClientHealth) *int64) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) {
		p := field(&l.t.Client)
		if p == nil {
			return 0, false
		}
		return float64(*p) / second, true
	}
}

func clientCount(field func(*record.ClientHealth) int) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) {
		n := field(&l.t.Client)
		return float64(n), n > 0
	}
}

func (l *look) clientCPU() (float64, bool) {
	if l.t.Client.CPURatio == nil {
		return 0, false
	}
	return *l.t.Client.CPURatio, true
}

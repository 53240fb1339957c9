package published

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"speedmatrix/results/record"
)

// Kinds of findings about a published page.
const (
	totalVsTokens     = "total_vs_tokens"
	speedVsGap        = "speed_vs_gap"
	promptLength      = "prompt_length"
	notRunButRan      = "not_run_but_ran"
	servedName        = "served_name"
	notPinned         = "unpinned"
	queuedAlone       = "queued_alone"
	windowBeforeReady = "window_before_ready"
	ttftHasPrefill    = "ttft_has_prefill"
	prefillBeyondCap  = "prefill_beyond_cap"
	activeBelowAsked  = "active_below_asked"
	capacityRule      = "capacity_rule"
)

// ServedNames says which model names a launch command serves, and whether it
// gives them with --served-model-name rather than by the model's own name.
type ServedNames func(command string) (names []string, given bool)

// Findings returns what does not add up on a page, each with its arithmetic:
// first what concerns the page, then its rows in their order. A printed number
// stands for every number that rounds to it, so nothing is found that rounding
// explains. Without served the names are not checked.
func Findings(p *Page, served ServedNames) []record.Finding {
	var out []record.Finding
	add := func(kind, where, format string, args ...any) {
		out = append(out, record.Finding{Kind: kind, Where: where, Text: fmt.Sprintf(format, args...)})
	}
	for _, s := range unpinned(p) {
		add(notPinned, "", "%s", s)
	}
	if text := p.checkServed(served); text != "" {
		add(servedName, "", "%s", text)
	}
	if e := p.Experiment; e.CapacityHigh > 0 && e.CapacityLow >= e.CapacityHigh {
		add(capacityRule, "", "by (context + %s) × requests ≤ KV cache a cell of %s tokens ran and one of %s was over capacity: no one capacity explains both",
			grouped(float64(e.MaxOutput)), grouped(float64(e.CapacityLow)), grouped(float64(e.CapacityHigh)))
	}
	if text := p.checkTTFTNote(); text != "" {
		add(ttftHasPrefill, "", "%s", text)
	}
	out = append(out, p.findings...)
	repeats := map[record.Point]int{}
	for _, r := range p.rows {
		at := record.Point{Phase: r.phase, ContextLabel: r.label, ContextTokens: r.context, Concurrency: r.requests}
		repeats[at]++
		n := len(out)
		p.checkRow(r, func(kind, format string, args ...any) { add(kind, r.where(), format, args...) })
		for i := n; i < len(out); i++ {
			out[i].StepID = r.stepID(repeats[at])
		}
	}
	return out
}

func (p *Page) checkRow(r *row, add func(kind, format string, args ...any)) {
	total, each, ttft, gap := r.n[mTotal], r.n[mEach], r.n[mTTFT], r.n[mGap]
	active, tokens, measured := r.n[mActive], r.n[mTokens], r.n[mMeasured]

	if r.phase == record.PhasePrefill {
		p.checkPrompt(r, add)
		if limit := p.prefillCap(); limit > 0 && r.context > limit {
			add(prefillBeyondCap, "%s measures prefill up to %s tokens (%s), and %s is %s: the tool was changed, or the row is from elsewhere",
				p.Run.Load.BenchmarkTool, grouped(float64(limit)), contextLabel(limit), r.label, grouped(float64(r.context)))
		}
		return
	}
	if total != nil && tokens != nil && measured != nil && !totalFits(*total, *tokens, *measured) {
		add(totalVsTokens, "%s tokens ÷ %s = %.1f tok/s, the page has a total of %s tok/s",
			tokens.text, show(measured), tokens.value/measured.value, total.text)
	}
	if each != nil && gap != nil && gap.value > gap.half && gap.value > 0 {
		lo, hi := gap.interval()
		slow, fast := 1/hi, 1/lo
		slack := 1e-6
		span := fmt.Sprintf("%.1f to %.1f", slow, fast)
		if lo, hi, _ := strings.Cut(span, " to "); lo == hi {
			span = lo
		}
		if gap.half == 0 { // exact values: what the pages' rounding would hide is no finding
			slack, span = 0.01, fmt.Sprintf("%.1f", slow)
		}
		if a, b := each.interval(); b < slow*(1-slack) || a > fast*(1+slack) {
			add(speedVsGap, "1 ÷ %s between tokens is %s tok/s, the page has %s tok/s per request: both are medians, of requests of unlike speed",
				show(gap), span, each.text)
		}
	}
	if r.status == record.OverCapacity && r.ran() {
		add(notRunButRan, "over capacity means not run, yet it ran: %s", strings.Join(signsOfRun(r), ", "))
	}
	if r.status == record.Queued && r.requests == 1 {
		add(queuedAlone, "requests queued, at one request: there was nothing to queue behind")
	}
	if active != nil && active.value+active.half < float64(r.requests) {
		add(activeBelowAsked, "%s requests were active on average of %d asked, %.1f %% fewer; the status is %s",
			active.text, r.requests, 100*(1-active.value/float64(r.requests)), r.status.Words())
	}
	if text := p.checkReady(r, ttft); text != "" {
		add(windowBeforeReady, "%s", text)
	}
}

// signsOfRun lists the numbers that only a run can give.
func signsOfRun(r *row) []string {
	var out []string
	if n := r.n[mMeasured]; n != nil {
		out = append(out, "measured for "+show(n))
	}
	if n := r.n[mActive]; n != nil {
		out = append(out, n.text+" requests active")
	}
	if n := r.n[mTokens]; n != nil {
		out = append(out, n.text+" tokens")
	}
	return out
}

// checkPrompt holds the prompt that rate and TTFT imply against the label.
func (p *Page) checkPrompt(r *row, add func(kind, format string, args ...any)) {
	label := float64(r.context)
	if r.context == 0 {
		return
	}
	if r.promptTokens != nil {
		if n := *r.promptTokens; math.Abs(n-label) > 0.001*label {
			add(promptLength, "the server counted %s prompt tokens, %s is %s: %s", grouped(n), r.label, grouped(label), offBy(n, label))
		}
		return
	}
	total, ttft := r.n[mTotal], r.n[mTTFT]
	if total == nil || ttft == nil {
		return
	}
	rlo, rhi := total.interval()
	tlo, thi := ttft.interval()
	lo, hi := max(0, rlo)*max(0, tlo), rhi*thi
	if lo <= label && label <= hi {
		return
	}
	n := total.value * ttft.value
	add(promptLength, "%s tok/s × %s = %s prompt tokens (%s to %s by rounding), %s is %s: %s",
		total.text, show(ttft), grouped(n), grouped(math.Ceil(lo)), grouped(math.Floor(hi)), r.label, grouped(label), offBy(n, label))
}

func offBy(n, label float64) string {
	word := "short"
	if n > label {
		word = "too long"
	}
	off := math.Abs(math.Round(n) - label)
	return fmt.Sprintf("%s tokens (%.1f %%) %s", grouped(off), 100*off/label, word)
}

// readyLimit is how long the reference tool waits for its streams, counted from
// before the scout, which loads the prompt. Then its window opens anyway.
func readyLimit(context int) time.Duration {
	switch {
	case context < 64<<10:
		return 60 * time.Second
	case context < 128<<10:
		return 120 * time.Second
	}
	return 180 * time.Second
}

// checkReady finds windows that opened before their streams had a token: the
// scout, as long as the cold prefill, alone took more than the limit.
func (p *Page) checkReady(r *row, ttft *number) string {
	if r.notReady != "" {
		return "the tool opened the window although its streams were not ready: " + r.notReady
	}
	if v, ok := p.benchVersion(); !ok || before(v, version{0, 4, 14}) || p.Format == JSON || !r.ran() {
		return ""
	}
	var scout *row
	for _, s := range p.rows {
		if s.phase == record.PhasePrefill && s.context <= r.context && s.n[mTTFT] != nil &&
			(scout == nil || s.context > scout.context) {
			scout = s
		}
	}
	limit := readyLimit(r.context)
	if scout == nil || scout.n[mTTFT].value <= limit.Seconds() {
		return ""
	}
	text := fmt.Sprintf("the tool waits %.0f s for its streams, counted from before its scout, and a cold prefill of %s alone takes %s: the window opened before a stream had a token",
		limit.Seconds(), scout.label, show(scout.n[mTTFT]))
	asked := p.Experiment.Duration.Seconds()
	each, tokens := r.n[mEach], r.n[mTokens]
	switch {
	case tokens != nil && tokens.value == 0:
		text += ", and it closed before one came"
	case ttft != nil && each != nil && tokens != nil && asked > ttft.value && each.value > 0:
		left := asked - ttft.value
		took := tokens.value / each.value / float64(r.requests)
		per := fmt.Sprintf("%s tok/s", each.text)
		if r.requests > 1 {
			per = fmt.Sprintf("(%d × %s tok/s)", r.requests, each.text)
		}
		text += fmt.Sprintf(". %s s − %.1f s TTFT leave %.1f s for decoding, and %s tokens ÷ %s = %.1f s",
			strconv.FormatFloat(asked, 'f', -1, 64), ttft.value, left, tokens.text, per, took)
		if math.Abs(left-took) <= 0.1*left && r.n[mTotal] != nil {
			text += fmt.Sprintf(": the total of %s tok/s is diluted by the wait", r.n[mTotal].text)
		}
	}
	return text
}

// slowTTFT is the TTFT from which a cell at one request is held against the note
// that TTFT mostly excludes prefill: with the prompt cached and nothing to wait
// for, a first token takes about as long as any other.
const slowTTFT = time.Second

// checkTTFTNote holds the note against the cells at one request.
func (p *Page) checkTTFTNote() string {
	if !slices.ContainsFunc(p.Footnotes, func(s string) bool { return strings.Contains(s, "mostly excludes prefill") }) {
		return ""
	}
	var list []string
	for _, r := range p.rows {
		ttft := r.n[mTTFT]
		if r.phase != record.PhaseDecode || r.requests != 1 || ttft == nil || ttft.value < slowTTFT.Seconds() {
			continue
		}
		s := show(ttft) + " at " + r.label
		for _, c := range p.rows {
			if c.phase == record.PhasePrefill && c.context == r.context && c.n[mTTFT] != nil && c.n[mTTFT].value > 0 {
				s += fmt.Sprintf(" (%.0f %% of its cold prefill)", 100*ttft.value/c.n[mTTFT].value)
			}
		}
		list = append(list, s)
	}
	if list == nil {
		return ""
	}
	return "TTFT is said to mostly exclude prefill, but one request alone, with nothing to wait for, waited " + strings.Join(list, ", ")
}

// checkServed holds the served model against the command.
func (p *Page) checkServed(served ServedNames) string {
	name, command := p.Run.Load.ServedModel, p.Run.Command.Text
	if served == nil || name == "" || command == "" {
		return ""
	}
	names, given := served(command)
	if slices.Contains(names, name) || len(names) == 0 {
		return ""
	}
	how := "and has no --served-model-name"
	if given {
		how = "by its --served-model-name"
	}
	return fmt.Sprintf("the served model is %s, but the launch command serves %s %s", clip(name, 200), clip(strings.Join(names, ", "), 400), how)
}

// unpinned says what the page leaves open for someone who wants the same.
func unpinned(p *Page) []string {
	var out []string
	switch rev := p.Run.Load.Revision; {
	case rev == "":
		out = append(out, "the page does not name the model's revision")
	case !isCommit(rev):
		out = append(out, fmt.Sprintf("the model's revision is %q, which can move: only a commit of 40 digits pins it", clip(rev, 100)))
	}
	e := p.Run.Engine
	switch {
	case isCommit(e.Commit) || strings.Contains(e.Build, "@sha256:"):
	case e.Commit != "":
		out = append(out, fmt.Sprintf("the engine's commit %s is not written out: %d of 40 digits", clip(e.Commit, 60), len(e.Commit)))
	case strings.ContainsAny(e.Build, ":/"):
		out = append(out, fmt.Sprintf("the engine's image %s is a tag without a digest, and tags can move", clip(e.Build, 200)))
	case e.Version != "":
		out = append(out, fmt.Sprintf("the engine is named by its version %s only, without commit or image digest", clip(e.Version, 100)))
	default:
		out = append(out, "the page does not say which version of the engine it was")
	}
	return out
}

func isCommit(s string) bool {
	return len(s) == 40 && strings.Trim(s, "0123456789abcdef") == ""
}

type version [3]int

func before(a, b version) bool { return slices.Compare(a[:], b[:]) < 0 }

// benchVersion is the version of llm-inference-bench that made the page.
func (p *Page) benchVersion() (v version, ok bool) {
	s, ok := strings.CutPrefix(p.Run.Load.BenchmarkTool, "llm-inference-bench ")
	if !ok {
		return v, false
	}
	parts := strings.Split(strings.TrimPrefix(s, "v"), ".")
	if len(parts) != 3 {
		return v, false
	}
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// prefillCap is the longest context for which the tool measures prefill; 0: not
// known of this version.
func (p *Page) prefillCap() int {
	v, ok := p.benchVersion()
	if !ok || before(v, version{0, 4, 18}) || before(version{0, 7, 7}, v) {
		return 0
	}
	return 128 << 10
}

// grouped writes a whole number with thousands commas.
func grouped(v float64) string {
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

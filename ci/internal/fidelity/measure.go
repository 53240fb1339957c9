package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/results/store"
)

// outcome of one case.
type outcome struct {
	load
	status record.Status
	reason string
	source string // of the tokens
	ours   figures
	truth  truth
	sent   float64 // median TTFT of the log's first writes by our stamps of sending
	there  way     // requests: from our stamp of sending to the engine's of reading
	first  way     // first tokens: from the engine's write to our stamp
	back   way     // all tokens
	mute   float64 // requests without a first token, by the cell
	drift  time.Duration
	wrong  []string // what is off by more than a bound, though the cell says valid
	before []string // the same, and the reason, of a first try that was not as it should be
}

// couldNot says whether this machine could not follow the load.
func (o *outcome) couldNot() bool {
	return o.status == record.ClientLimited && o.want != record.ClientLimited
}

const caseLimit = 60 * time.Second

// measure runs one case: the engine in one process, the whole program in another.
func measure(ctx context.Context, program, dir string, l load) (o outcome, err error) {
	o.load = l
	ctx, cancel := context.WithTimeoutCause(ctx, caseLimit, fmt.Errorf("not over within %v", caseLimit))
	defer cancel()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"profile.yaml": l.profile(), "experiment.yaml": l.experiment()} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			return o, err
		}
	}
	before := time.Now()
	var log bytes.Buffer
	engine := exec.CommandContext(ctx, program, "simulate", "--addr", "127.0.0.1:0", "--profile", at("profile.yaml"),
		"--truth", at("truth"), "--url-file", at("url"), "--faults", l.faults)
	engine.Stderr = &log
	if err := engine.Start(); err != nil {
		return o, err
	}
	ended := make(chan error, 1)
	go func() { ended <- engine.Wait() }()
	stop := func() error {
		engine.Process.Signal(os.Interrupt)
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			engine.Process.Kill()
			return errors.Join(context.Cause(ctx), <-ended)
		}
	}
	url, err := listening(ctx, at("url"), ended)
	if err != nil {
		return o, fmt.Errorf("the engine did not start: %w: %s", err, &log)
	}
	client := exec.CommandContext(ctx, program, "run", at("experiment.yaml"), "--attach", url, "--results", at("results"), "--plain")
	client.Cancel = func() error { return client.Process.Signal(syscall.SIGTERM) }
	var said bytes.Buffer
	client.Stderr = &said
	out, clientErr := client.Output()
	if err := stop(); err != nil {
		return o, fmt.Errorf("the engine ended: %w: %s", err, &log)
	}
	var exit *exec.ExitError
	if clientErr != nil && !errors.As(clientErr, &exit) {
		return o, clientErr
	}
	o.drift = (time.Duration(time.Now().UnixNano()-before.UnixNano()) - time.Since(before)).Abs()
	run := strings.TrimSpace(string(out))
	if run == "" {
		return o, fmt.Errorf("nothing was stored: %w: %s", clientErr, &said)
	}
	return o, o.compare(run, at("truth"))
}

// listening waits for the file that holds the engine's URL.
func listening(ctx context.Context, file string, ended <-chan error) (string, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(file); err == nil && bytes.HasSuffix(b, []byte("\n")) {
			return strings.TrimSpace(string(b)), nil
		}
		select {
		case <-tick.C:
		case err := <-ended:
			return "", err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// compare reads the cell and the trial of the stored run, and the log beside them.
func (o *outcome) compare(run, log string) error {
	stored, err := store.Open(run)
	if err != nil {
		return err
	}
	var cell *record.Cell
	for c, err := range stored.Cells() {
		if err != nil {
			return err
		}
		cell = &c
	}
	var trial *record.Trial
	for t, err := range stored.Trials() {
		if err != nil {
			return err
		}
		trial = &t
	}
	if cell == nil || trial == nil {
		return errors.New("the run has no cell")
	}
	o.status, o.reason, o.source = cell.Status, cell.Reason, cell.TokenSource
	value := func(name string) float64 {
		if v, ok := cell.Values[name]; ok {
			return v
		}
		return math.NaN()
	}
	o.ours = figures{
		tokens: value(metric.OutputTokens), rate: value(metric.OutputTokensPerSecond), ttft: value(metric.TTFT),
		tpot: value(metric.TPOT), gap: value(metric.ICLP99), active: value(metric.ActiveRequests), completed: value(metric.CompletedRequests),
	}
	o.mute = value(metric.NoFirstTokenRequests)
	if trial.LaunchNs == nil || trial.WindowStartNs == nil || trial.WindowEndNs == nil {
		o.wrong = append(o.wrong, fmt.Sprintf("%s: no window: %s", o.status, o.reason))
		return nil
	}
	f, err := os.Open(log)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := readLog(f)
	if err != nil {
		return err
	}
	base := trial.StartedAt.UnixNano()
	o.truth, err = look(all, base+*trial.LaunchNs, base+*trial.WindowStartNs, base+*trial.WindowEndNs)
	if err != nil {
		return err
	}
	c := clientStamps(trial)
	o.sent = between(c.sents, o.truth.firsts).median
	o.there, o.first, o.back = between(c.sents, o.truth.reads), between(o.truth.firsts, c.firsts), between(o.truth.sent, c.outputs)
	o.judge()
	return nil
}

// stamps are what the client noted, in Unix nanoseconds, ascending.
type stamps struct {
	outputs       []int64 // of output events
	sents, firsts []int64 // of requests with a first output event before the end of the window
}

func clientStamps(t *record.Trial) (s stamps) {
	base := t.StartedAt.UnixNano()
	for i := range t.Requests {
		r := &t.Requests[i]
		if r.Role != record.RoleMeasured {
			continue
		}
		first := int64(math.MaxInt64)
		for _, c := range r.Chunks {
			if c.Output {
				s.outputs = append(s.outputs, base+c.AtNs)
				first = min(first, c.AtNs)
			}
		}
		if r.SentNs != nil && first < *t.WindowEndNs {
			s.sents, s.firsts = append(s.sents, base+*r.SentNs), append(s.firsts, base+first)
		}
	}
	slices.Sort(s.outputs)
	slices.Sort(s.sents)
	slices.Sort(s.firsts)
	return s
}

// way is how long something took from one program to the other, in seconds.
type way struct{ least, median, p99 float64 }

// between pairs the k-th departure with the k-th arrival. None can be early: of
// things that each arrive after they left the k-th arrives after the k-th left,
// whichever they are.
func between(left, came []int64) way {
	all := make([]float64, min(len(left), len(came)))
	for i := range all {
		all[i] = float64(came[i]-left[i]) / 1e9
	}
	return way{percentile(all, 0), percentile(all, 50), percentile(all, 99)}
}

// The bounds, for cells that say valid.
const (
	rateBound   = 0.01
	ttftBound   = 0.05
	ttftLeast   = 2e-3 // seconds
	tpotBound   = 0.02
	activeBound = 0.01
)

// judge holds the figures of a cell that says valid, or queued where requests do
// queue, against the truth.
func (o *outcome) judge() {
	bad := func(format string, a ...any) { o.wrong = append(o.wrong, fmt.Sprintf(format, a...)) }
	switch want := cmp.Or(o.want, record.Valid); {
	case o.status == record.ClientLimited:
		return // it says that it should not be believed
	case o.status != want:
		bad("%s, and should be %s: %s", o.status, want, o.reason)
		return
	}
	t, w := &o.truth, &o.ours
	// Not below or above what could have come: NaN is neither.
	if slack := rateBound * t.tokens; !(w.tokens >= t.least-slack && w.tokens <= t.most+slack) {
		bad("%.0f tokens, the engine wrote %.0f", w.tokens, t.tokens)
	}
	off := func(name string, got, want, bound float64) {
		if !(math.Abs(got-want) <= bound) {
			bad("%s %.4g, the log says %.4g", name, got, want)
		}
	}
	// A request was on the wire after we sent it and before the engine had read it.
	if slack := max(ttftLeast, ttftBound*t.ttft); !(w.ttft >= t.ttft-slack && w.ttft <= max(t.ttft, o.sent)+slack) {
		bad("TTFT in ms %.4g, the log says %.4g since it had read, %.4g since we sent", w.ttft*1e3, t.ttft*1e3, o.sent*1e3)
	}
	off("time between tokens in ms", w.tpot*1e3, t.tpot*1e3, tpotBound*t.tpot*1e3)
	off("active requests", w.active, t.active, activeBound*t.active)
	if !(w.completed >= t.leastEnded && w.completed <= t.mostEnded) {
		bad("%.0f completed, the log says %.0f", w.completed, t.completed)
	}
	if !(o.mute >= t.leastMute) {
		bad("%.0f requests without a first token, the log says at least %.0f", o.mute, t.leastMute)
	}
	if least := min(o.there.least, o.back.least); least < -float64(o.drift+alignment)/1e9 {
		bad("something came %.4g ms before it was sent: the clocks do not agree", -least*1e3)
	}
}

// alignment is the error of two programs' zeros beside the drift of the wall clock:
// a trial's is stored in whole microseconds.
const alignment = 2 * time.Microsecond

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

func viewPlan() *plan.Plan {
	p := &plan.Plan{Text: plan.Text{Title: "Tiny \x1b]0;owned\x07matrix"}}
	p.Identity.WindowNs, p.Identity.SettleNs = int64(10*time.Second), int64(time.Second)
	p.Identity.Steps = []plan.Step{
		{ID: "prefill-8k-r1", Phase: "prefill", ContextLabel: "8K", ContextTokens: 8192, Concurrency: 1},
		{ID: "decode-8k-c1-r1", Phase: "decode", ContextLabel: "8K", ContextTokens: 8192, Concurrency: 1},
		{ID: "decode-8k-c4-r1", Phase: "decode", ContextLabel: "8K", ContextTokens: 8192, Concurrency: 4},
		{ID: "decode-64k-c1-r1", Phase: "decode", ContextLabel: "64K", ContextTokens: 65536, Concurrency: 1},
		{ID: "decode-64k-c4-r1", Phase: "decode", ContextLabel: "64K", ContextTokens: 65536, Concurrency: 4},
	}
	return p
}

func viewCell(id, phase, label string, concurrency int, s record.Status, reason string, values map[string]float64) record.Cell {
	now := time.Now()
	return record.Cell{StepID: id, Point: record.Point{Phase: phase, ContextLabel: label, Concurrency: concurrency},
		Status: s, Reason: reason, StartedAt: &now, Values: values}
}

// TestLiveMatrix is what a person sees while the matrix fills in.
func TestLiveMatrix(t *testing.T) {
	p := viewPlan()
	var m tea.Model = newLiveModel(p, newRemaining(p))
	for _, msg := range []tea.Msg{
		tea.WindowSizeMsg{Width: 90, Height: 30},
		record.Launch{Number: 1, Executor: "host", Version: "0.32.0\x1b[31m", MetricsAvailable: true},
		viewCell("prefill-8k-r1", "prefill", "8K", 1, record.Valid, "", map[string]float64{"prefill_tokens_per_second": 32712}),
		viewCell("decode-8k-c1-r1", "decode", "8K", 1, record.Valid, "", map[string]float64{"output_tokens_per_second": 1327.34}),
		viewCell("decode-64k-c4-r1", "decode", "64K", 4, record.OverCapacity, "predicted", nil),
		viewCell("decode-64k-c1-r1", "decode", "64K", 1, record.Queued, "", map[string]float64{"output_tokens_per_second": 83.04}),
		runner.Progress{Stage: "window", StepID: "decode-8k-c4-r1", Elapsed: 3200 * time.Millisecond, Total: 10 * time.Second, Tokens: 2210, Active: 4},
	} {
		m, _ = m.Update(msg)
	}
	want := `Tiny ]0;ownedmatrix
engine ready (launch 1, host), version 0.32.0[31m, KV capacity unknown

prefill, tok/s
  8K       32.7K

decode, tok/s  (rows: context, columns: simultaneous requests)
                    1          4
  8K          1,327.3        ▸ …
  64K          83.0 q       over

decode-8k-c4-r1 · window 3.2 s of 10.0 s · 4 active · 2,210 tokens
`
	got := m.View()
	if !strings.HasPrefix(got, want) {
		t.Errorf("the view differs (-want +got):\n%s", cmp.Diff(want, got))
	}
	if !strings.Contains(got, "1 cell left, about") || !strings.Contains(got, "Ctrl-C") {
		t.Errorf("no time left in %q", got)
	}
	m, _ = m.Update(endMsg{})
	if strings.Contains(m.View(), "Ctrl-C") {
		t.Error("the finished view still speaks of Ctrl-C")
	}
}

func TestPlainLines(t *testing.T) {
	p := viewPlan()
	var out, result bytes.Buffer
	v := &plainView{stderr: &out, stdout: &result, left: newRemaining(p)}
	v.progress(runner.Progress{Stage: "start", Text: "building\x1b[2J the environment"})
	v.progress(runner.Progress{Stage: "start", Text: "building\x1b[2J the environment"})
	v.progress(runner.Progress{Stage: "window", StepID: "decode-8k-c1-r1", Text: "not in a log"})
	v.trial(viewCell("decode-8k-c1-r1", "decode", "8K", 1, record.Failed, "HTTP 503: \x1b]8;;http://evil\x07busy", nil))
	v.trial(viewCell("decode-8k-c4-r1", "decode", "8K", 4, record.Valid, "", map[string]float64{
		"output_tokens_per_second": 2185.1, "ttft_seconds_p50": 1.5254, "tpot_seconds_p50": 0.0281, "active_requests_mean": 4}))
	if err := v.result("results/r", "1 valid, 1 failed"); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{
		"start: building[2J the environment\nsustained decode 8K × 1     Failed           (HTTP 503: ]8;;http://evilbusy)",
		"sustained decode 8K × 4     Valid              2,185.1 tok/s  1,525 ms TTFT  28.1 ms between tokens  4.0 active  [",
		"1 valid, 1 failed\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") || strings.Contains(got, "not in a log") {
		t.Errorf("got %q", got)
	}
	if result.String() != "results/r/report/index.html\n" {
		t.Errorf("standard output has %q", result.String())
	}
}

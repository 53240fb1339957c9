package main

import (
	"bytes"
	"encoding/json"
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

q queued · over = over capacity

decode-8k-c4-r1 · window 3.2 s of 10.0 s · 4 active · 2,210 tokens
`
	got := m.View()
	if !strings.HasPrefix(got, want) {
		t.Errorf("the view differs (-want +got):\n%s", cmp.Diff(want, got))
	}
	if !strings.Contains(got, "1 cell left, about") || !strings.Contains(got, "Ctrl-C") {
		t.Errorf("no time left in %q", got)
	}
	m, _ = m.Update(endingMsg{})
	if got := m.View(); !strings.Contains(got, endingNotice+"\n") || strings.Contains(got, "cell left") {
		t.Errorf("after the first signal: %q", got)
	}
	m, _ = m.Update(viewCell("decode-8k-c4-r1", "decode", "8K", 4, record.Interrupted, "interrupted", nil))
	m, cmd := m.Update(endMsg{})
	if got := m.View(); strings.Contains(got, "Ctrl-C") || strings.Contains(got, "▸") || !strings.Contains(got, "1,327.3        cut\n") {
		t.Errorf("the finished view is %q", got)
	}
	if cmd == nil {
		t.Error("the finished view does not end the program")
	}
}

// TestLiveCells: between two columns there is always a blank, and a mark that
// occurs is explained.
func TestLiveCells(t *testing.T) {
	p := viewPlan()
	p.Identity.Steps = p.Identity.Steps[:0]
	for i, s := range record.Statuses {
		p.Identity.Steps = append(p.Identity.Steps, plan.Step{ID: string(s), Phase: "decode", ContextLabel: "16777216", Concurrency: 1 << i})
	}
	for _, value := range []map[string]float64{nil, {"output_tokens_per_second": 9999.94}} {
		m := newLiveModel(p, newRemaining(p))
		m.Update(tea.WindowSizeMsg{Width: 80})
		for i, s := range record.Statuses {
			m.Update(viewCell(string(s), "decode", "16777216", 1<<i, s, "", value))
		}
		var rows []string
		for line := range strings.Lines(m.View()) {
			if n := len([]rune(line)) - 1; n > 80 {
				t.Errorf("%d characters: %q", n, line)
			}
			if strings.Contains(line, "16777216") {
				rows = append(rows, line)
			}
		}
		fields := strings.Fields(strings.NewReplacer(" q", "-q", " !", "-!", "not ready", "not-ready").Replace(strings.Join(rows, "")))
		if len(rows) != 2 || len(fields) != len(rows)+len(record.Statuses) {
			t.Errorf("%q", rows)
		}
		if !strings.Contains(m.View(), "cut = ended early") || strings.Contains(m.View(), "! read the status on the page") != (value != nil) {
			t.Errorf("legend %q", m.legend())
		}
	}
}

// TestRemaining: a cell that was kept took no time of this launch.
func TestRemaining(t *testing.T) {
	p := viewPlan()
	r := newRemaining(p)
	for _, id := range []string{"prefill-8k-r1", "decode-8k-c1-r1", "decode-8k-c4-r1"} {
		r.done(viewCell(id, "decode", "8K", 1, record.Valid, "", nil))
	}
	if got, want := r.String(), "2 cells left, about 23s once the engine is ready"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.begin()
	if got, want := r.String(), "2 cells left, about 23s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	r.since = time.Now().Add(-40 * time.Second)
	r.done(viewCell("decode-64k-c1-r1", "decode", "64K", 1, record.Valid, "", nil))
	if got, want := r.String(), "1 cell left, about 40s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestJSONEvents(t *testing.T) {
	var out bytes.Buffer
	v := &jsonView{enc: json.NewEncoder(&out)}
	v.trial(viewCell("decode-8k-c4-r1", "decode", "8K", 4, record.Valid, "", map[string]float64{"output_tokens_per_second": 2}))
	if err := v.result("results/r", map[record.Status]int{record.Valid: 2, record.Failed: 1}); err != nil {
		t.Fatal(err)
	}
	var events []map[string]any
	for d := json.NewDecoder(&out); d.More(); {
		var e map[string]any
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	cell := events[0]["cell"].(map[string]any)
	if _, ok := cell["seq"]; ok || cell["step_id"] != "decode-8k-c4-r1" || cell["concurrency"] != 4.0 {
		t.Errorf("cell %v", cell)
	}
	if diff := cmp.Diff(map[string]any{"valid": 2.0, "failed": 1.0}, events[1]["statuses"]); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
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
	if err := v.result("results/r", map[record.Status]int{record.Failed: 1, record.Valid: 1}); err != nil {
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

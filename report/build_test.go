package report_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/report"
	"speedmatrix/report/internal/pagetest"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

func build(t *testing.T, src report.Source) *report.Page {
	t.Helper()
	p, err := report.Build(src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func published(t *testing.T, name string) *report.Page {
	t.Helper()
	r, err := pagetest.Published(name)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, r)
}

// Every number, status and word of the published lists comes out as it went in.
func TestPublishedRows(t *testing.T) {
	for name, rows := range map[string]int{"qwen-rtx-pro-6000": 55, "qwen-fp8-rtx-3060": 53} {
		t.Run(name, func(t *testing.T) {
			want, err := pagetest.Rows(name)
			if err != nil {
				t.Fatal(err)
			}
			p := published(t, name)
			var got [][]string
			var head []string
			for _, c := range p.Measurements.Columns {
				head = append(head, c.Label)
			}
			got = append(got, head)
			for _, r := range p.Measurements.Rows {
				var texts []string
				for _, f := range r.Fields {
					texts = append(texts, f.Text)
				}
				got = append(got, texts)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the list differs (-published +page):\n%s", diff)
			}
			if len(p.Measurements.Rows) != rows {
				t.Errorf("%d rows, want %d", len(p.Measurements.Rows), rows)
			}
			if p.Reference != nil {
				t.Error("a published page has no second scope")
			}
		})
	}
}

func TestPublishedTop(t *testing.T) {
	a, b := published(t, "qwen-rtx-pro-6000"), published(t, "qwen-fp8-rtx-3060")
	if got, want := a.Subject, "vllm · 0.30.1rc1.dev452+g73a583112 · BF16"; got != want {
		t.Errorf("subject %q, want %q", got, want)
	}
	if got, want := a.Axes, "6 contexts (8K–251K) × 8 concurrency levels (1–128) · prefill at 8K, 16K, 32K, 64K, 128K, 251K, 256K"; got != want {
		t.Errorf("axes %q, want %q", got, want)
	}
	if got, want := b.Axes, "6 contexts (0–248K) × 8 concurrency levels (1–128) · prefill at 8K, 16K, 32K, 64K, 128K"; got != want {
		t.Errorf("axes %q, want %q", got, want)
	}
	if got, want := b.Legend[0]+"\n"+b.Legend[1], "Requests queued: the server could not run all requests at once, so some waited in a queue. Over capacity: not run because this many requests at this context would exceed the server's KV cache.\nAs the published pages say: TTFT is measured after the benchmark warms the server's prompt cache, so it mostly excludes prefill."; got != want {
		t.Errorf("legend %q", got)
	}
	var labels []string
	for _, bl := range a.Facts {
		labels = append(labels, bl.Title)
		for _, f := range bl.Fields {
			labels = append(labels, f.Label)
		}
	}
	want := []string{"Hardware", "Type", "GPU", "VRAM", "OS",
		"Engine", "Engine", "Version", "Quantization", "Backend", "Repository", "Build", "Commit",
		"Run", "Served model", "Revision", "Benchmark tool", "Decode test", "Prefill mode", "Time per measurement", "Max output"}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

func TestPublishedBarsAndMatrix(t *testing.T) {
	a, b := published(t, "qwen-rtx-pro-6000"), published(t, "qwen-fp8-rtx-3060")
	var bars []string
	for _, p := range []*report.Page{a, b} {
		for _, x := range p.Prefill.Bars {
			bars = append(bars, x.Context+" context "+x.Rate.Text+" "+x.TTFT.Text+" TTFT")
		}
	}
	wantBars := []string{"8K context 32.7K 250 ms TTFT", "16K context 32.9K 493 ms TTFT", "32K context 29.9K 1,079 ms TTFT",
		"64K context 24.9K 2,588 ms TTFT", "128K context 18.6K 6,923 ms TTFT", "251K context 12.4K 20,344 ms TTFT", "256K context 12.3K 20,999 ms TTFT",
		"8K context 2,186 3,727 ms TTFT", "16K context 1,779 9,064 ms TTFT", "32K context 1,325 24,215 ms TTFT", "64K context 875.0 73,169 ms TTFT", "128K context 523.0 244,675 ms TTFT"}
	if diff := cmp.Diff(wantBars, bars); diff != "" {
		t.Errorf("bars (-want +got):\n%s", diff)
	}
	row := func(p *report.Page, i int) (texts []string) {
		for _, c := range p.Decode.Rows[i].Cells {
			s := strings.TrimPrefix(strings.Join([]string{c.Values[0].Text, c.Status, c.Values[2].Text}, "/"), "—")
			texts = append(texts, strings.TrimSuffix(s, "/—"))
		}
		return texts
	}
	if diff := cmp.Diff([]string{"203.9//56 ms", "400.8//81 ms", "754.1//86 ms", "1,327.3//92 ms", "1,829.9//305 ms", "2,433.6//657 ms", "2,692.1//1,064 ms", "2,777.1/Requests queued/2,079 ms"}, row(a, 0)); diff != "" {
		t.Errorf("first page, 8K (-want +got):\n%s", diff)
	}
	over := "/Over capacity"
	if diff := cmp.Diff([]string{"8.3/Requests queued/13,783 ms", "2.3/Requests queued/22,260 ms", over, over, over, over, over, over}, row(b, 4)); diff != "" {
		t.Errorf("second page, 128K (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(slices.Repeat([]string{over}, 8), row(b, 5)); diff != "" {
		t.Errorf("second page, 248K (-want +got):\n%s", diff)
	}
	m := a.Decode.Metrics[0]
	if !m.Log || m.Lowest.Text != "28.4" || m.Highest.Text != "2,777.1" {
		t.Errorf("scale %+v", m)
	}
	if h := a.Decode.Rows[0].Cells[7].Values[0].Heat; h == nil || *h != 1 {
		t.Error("the largest total is not the brightest")
	}
	if h := a.Decode.Rows[0].Cells[0].Values[2].Heat; h == nil || *h != 1 {
		t.Error("the shortest TTFT is not the brightest")
	}
}

func TestHeadlines(t *testing.T) {
	var got []string
	for _, h := range published(t, "qwen-rtx-pro-6000").Headlines {
		got = append(got, h.Label+": "+h.Value.Text+" "+h.Unit+", "+h.Condition+" #"+h.Anchor)
	}
	want := []string{
		"Highest decode total, nothing queued: 2,692.1 tok/s, 8K context · 64 requests at once · 1,064 ms TTFT #decode-8k-c64",
		"One request alone: 203.9 tok/s, 8K context · decode · 4.8 ms between tokens #decode-8k-c1",
		"Fastest prefill: 32.9K tok/s, 16K context · 493 ms TTFT #prefill-16k",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headlines (-want +got):\n%s", diff)
	}
	for _, h := range build(t, &pagetest.Run{}).Headlines {
		if h.Value.Known() || h.Value.Text != "—" {
			t.Errorf("an empty run has the headline %+v", h)
		}
	}
}

func TestMeasuredPage(t *testing.T) {
	p := build(t, pagetest.Measured())
	var marks []string
	for _, m := range p.Marks {
		marks = append(marks, m.Text)
	}
	if diff := cmp.Diff([]string{"MEASURED", "PINNED", "INTERRUPTED", "2 LAUNCHES", "n = 3", "CLIENT LIMITED", "1 FINDING"}, marks); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
	c := p.Decode.Rows[0].Cells
	if c[0].Spread == nil || c[0].Spread.N != 3 || !strings.HasPrefix(c[0].Spread.Text, "median of 3, ") {
		t.Errorf("spread %+v", c[0].Spread)
	}
	if got, want := c[3].Status, "Requests queued (2 of 3)"; got != want {
		t.Errorf("status %q, want %q", got, want)
	}
	if got := p.Decode.Rows[2].Cells[1]; got.Status != "Failed" || got.Values[0].Known() || got.Values[0].Heat != nil {
		t.Errorf("failed cell %+v", got)
	}
	if len(p.Measurements.Rows) != 45 {
		t.Errorf("%d rows, want one a trial", len(p.Measurements.Rows))
	}
	if got, want := p.Measurements.Rows[2].Anchor, "prefill-512-r3"; got != want {
		t.Errorf("anchor %q, want %q", got, want)
	}
	column := func(label string) int {
		return slices.IndexFunc(p.Measurements.Columns, func(c report.Column) bool { return c.Label == label })
	}
	labels := func(t *report.Table) (out []string) {
		for _, c := range t.Columns {
			out = append(out, c.Label)
		}
		return out
	}
	if diff := cmp.Diff([]string{"Reason", "Repeat"}, labels(p.Measurements)[12:]); diff != "" {
		t.Errorf("columns after the published ones (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Phase", "Context", "Requests at once", "Status", "Prompt tokens", "TTFT n", "Client lag p99", "Client CPU share",
		"Repeat", "Launch", "Token source"}, labels(p.More)); diff != "" {
		t.Errorf("further columns (-want +got):\n%s", diff)
	}
	if len(p.More.Rows) != len(p.Measurements.Rows) || p.More.Rows[0].Fields[7].Text != "2.1 %" || p.More.Rows[0].Anchor != "" {
		t.Errorf("further columns %+v", p.More.Rows[0])
	}
	if column("Preemptions") >= 0 || column("Warnings") >= 0 {
		t.Error("a column without any value is shown")
	}
	failed := slices.IndexFunc(p.Measurements.Rows, func(r report.Row) bool { return r.Status == record.Failed })
	if got, want := p.Measurements.Rows[failed].Fields[column("Reason")].Text, "engine_exit: signal: killed"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
	if p.Reference == nil || len(p.Reference.Columns) != 12 || p.Reference.Rows[9].Fields[11].Text != "9.9 s" {
		t.Errorf("reference scope %+v", p.Reference)
	}
	if diff := cmp.Diff([]report.Compared{
		{Label: "Type", Claimed: "CPU", Found: "—"},
		{Label: "CPU", Claimed: "AMD EPYC 9654", Found: "AMD EPYC 9654 96-Core Processor"},
	}, p.Environment[:2]); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, want := range []report.Compared{
		{Label: "Version", Claimed: "0.32.0", Found: "0.32.0"},
		{Label: "Served model", Claimed: "tiny", Found: "tiny"},
		{Label: "KV capacity", Claimed: "—", Found: "286,720 tokens (from the server's metrics)"},
		{Label: "Attention backend", Claimed: "—", Found: "TORCH_SDPA"},
	} {
		if !slices.Contains(p.Environment, want) {
			t.Errorf("environment lacks %+v: %+v", want, p.Environment)
		}
	}
	if got, want := p.Environment[len(p.Environment)-1], (report.Compared{Label: "Kernel", Claimed: "—", Found: "6.1.0"}); got != want {
		t.Errorf("found only: %+v, want %+v", got, want)
	}
	for _, want := range []report.Download{
		{Label: "run.json", Href: "../run.json", Note: "the record of the run"},
		{Label: "chunks.parquet", Href: "../chunks.parquet", Note: "one row an output event; every metric can be computed from it again, 1.4 MB"},
		{Label: "logs/engine-1.log", Href: "../logs/engine-1.log", Note: "log, 900 B"},
	} {
		if !slices.Contains(p.Downloads, want) {
			t.Errorf("no download %+v in %+v", want, p.Downloads)
		}
	}
}

// A finding that names a cell marks it, the heaviest come first, and what each
// prefill row would say again is one line.
func TestFindings(t *testing.T) {
	src, err := pagetest.Published("qwen-fp8-rtx-3060")
	if err != nil {
		t.Fatal(err)
	}
	src.Run.Findings = []record.Finding{
		{Kind: "unpinned", Text: "a tag can move"},
		{Kind: "prompt_length", Where: "prefill 8K", Text: "8,147 of 8,192"},
		{Kind: "active_below_asked", Where: "decode 248K × 1", Text: "fewer were active"},
		{Kind: "prompt_length", Where: "prefill 16K", Text: "16,125 of 16,384"},
		{Kind: "not_run_but_ran", Where: "decode 248K × 1", Text: "it ran"},
	}
	p := build(t, src)
	want := []report.Finding{
		{Anchor: "finding-1", Where: "decode 248K × 1", Text: "it ran"},
		{Anchor: "finding-2", Text: "Prompts are shorter than their labels: 8K 8,147 (0.5 %), 16K 16,125 (1.6 %)",
			Parts: []report.Finding{{Where: "prefill 8K", Text: "8,147 of 8,192"}, {Where: "prefill 16K", Text: "16,125 of 16,384"}}},
		{Anchor: "finding-3", Text: "a tag can move"},
		{Anchor: "finding-4", Where: "decode 248K × 1", Text: "fewer were active"},
	}
	if diff := cmp.Diff(want, p.Findings); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
	if got, want := p.Decode.Rows[5].Cells[0].Flag, (&report.Flag{Anchor: "finding-1", Text: "it ran; fewer were active"}); !cmp.Equal(got, want) {
		t.Errorf("flag %+v, want %+v", got, want)
	}
	if f := p.Decode.Rows[5].Cells[1].Flag; f != nil {
		t.Errorf("another cell is marked: %+v", f)
	}
	if m := p.Marks[len(p.Marks)-1]; m.Text != "5 FINDINGS" || m.Href != "#findings" {
		t.Errorf("mark %+v", m)
	}
}

// Where some requests got no first token, TTFT says of how many it is.
func TestTTFTOfSome(t *testing.T) {
	r := pagetest.Measured()
	r.Trial = slices.DeleteFunc(r.Trial, func(c record.Cell) bool { return c.Repeat > 1 })
	i := slices.IndexFunc(r.Trial, func(c record.Cell) bool { return c.Phase == record.PhaseDecode && c.Concurrency == 8 })
	r.Trial[i].Values[metric.TTFTN], r.Trial[i].Values[metric.NoFirstTokenRequests] = 8, 8
	p := build(t, r)
	if c := p.Decode.Rows[0].Cells[3]; c.TTFTOf != "8 of 16" || strings.Contains(c.Values[2].Text, "of") {
		t.Errorf("cell %+v", c)
	}
	if c := p.Decode.Rows[0].Cells[2]; c.TTFTOf != "" {
		t.Errorf("a cell whose requests all got one says %q", c.TTFTOf)
	}
	at := slices.IndexFunc(p.Measurements.Columns, func(c report.Column) bool { return c.Label == "No first token" })
	if at < 12 || p.Measurements.Rows[i].Fields[at].Text != "8" {
		t.Errorf("no column of them, or another number: %d", at)
	}
	if !slices.ContainsFunc(p.Legend, func(s string) bool { return strings.Contains(s, "TTFT counts requests that got a first token") }) {
		t.Errorf("legend %q", p.Legend)
	}
}

// A server that was there already was not started again by being measured again.
func TestSessionsOfAttach(t *testing.T) {
	r := pagetest.Measured()
	for i := range r.Run.Launches {
		r.Run.Launches[i].Executor = "attach"
	}
	for _, m := range build(t, r).Marks {
		if strings.Contains(m.Text, "LAUNCHES") || strings.Contains(m.Why, "was started more") {
			t.Errorf("mark %+v", m)
		}
	}
}

// What was read from a page was not measured by this program, and took no time.
func TestImportedPlan(t *testing.T) {
	src, err := pagetest.Published("qwen-fp8-rtx-3060")
	if err != nil {
		t.Fatal(err)
	}
	src.Run.Tool.Name, src.Run.FinishedAt = "speedmatrix", &src.Run.StartedAt
	var labels []string
	for _, f := range build(t, src).Plan {
		labels = append(labels, f.Label)
	}
	if diff := cmp.Diff([]string{"Run", "Imported by", "Source"}, labels); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func TestSimulatedIsSaidEverywhere(t *testing.T) {
	p := build(t, pagetest.Simulated())
	texts := map[string]string{
		"mark": p.Marks[0].Text, "prefill": p.Prefill.Caption, "bars": p.Prefill.Axis, "matrix": p.Decode.Caption, "list": p.Measurements.Caption,
		"reference": p.Reference.Caption, "chart": p.Scaling.Title, "axis": p.Scaling.YAxis,
	}
	for _, h := range p.Headlines {
		texts["headline "+h.Label] = h.Condition
	}
	for where, text := range texts {
		if !strings.Contains(text, "SIMULATED") {
			t.Errorf("%s does not say it: %q", where, text)
		}
	}
}

func TestSameSourceSamePage(t *testing.T) {
	if diff := cmp.Diff(build(t, pagetest.Measured()), build(t, pagetest.Measured())); diff != "" {
		t.Error(diff)
	}
}

func TestPageOrderIsSeq(t *testing.T) {
	r := pagetest.Measured()
	want := build(t, pagetest.Measured())
	slices.Reverse(r.Trial)
	if diff := cmp.Diff(want, build(t, r)); diff != "" {
		t.Errorf("the order of reading shows (-want +got):\n%s", diff)
	}
}

func TestCellsError(t *testing.T) {
	r := pagetest.Measured()
	r.Err = errors.New("file cut short")
	if _, err := report.Build(r); !errors.Is(err, r.Err) {
		t.Errorf("error %v, want %v", err, r.Err)
	}
}

// Labels that differ only in what an anchor cannot hold stay apart, and odd
// points do not break a page.
func TestAnchorsAreUnique(t *testing.T) {
	r := &pagetest.Run{}
	for i, label := range []string{"8K", "8k", "８Ｋ", "", "…"} {
		r.Trial = append(r.Trial, record.Cell{Seq: i, Status: record.Valid,
			Point:  record.Point{Phase: record.PhaseDecode, ContextLabel: label, Concurrency: 1},
			Values: map[string]float64{metric.OutputTokensPerSecond: 1}})
	}
	seen := make(map[string]bool)
	for _, row := range build(t, r).Measurements.Rows {
		if row.Anchor == "" || seen[row.Anchor] {
			t.Errorf("anchor %q twice or empty", row.Anchor)
		}
		seen[row.Anchor] = true
	}
}

func TestDownloadsStayInTheRun(t *testing.T) {
	r := &pagetest.Run{}
	for _, p := range []string{"../secret", "/etc/passwd", "a/../../b", `a\b`, "report/index.html", "logs/a b#?.log"} {
		r.Run.Files = append(r.Run.Files, record.File{Path: p})
	}
	var hrefs []string
	for _, d := range build(t, r).Downloads {
		hrefs = append(hrefs, d.Href)
	}
	if diff := cmp.Diff([]string{"../run.json", "../logs/a%20b%23%3F.log"}, hrefs); diff != "" {
		t.Errorf("downloads (-want +got):\n%s", diff)
	}
}

// What a reader must not have to guess: the unit and the better direction of every
// axis (F02, F10, F13), what K is (F01), and that nothing is drawn where nothing was
// measured (F08).
func TestNothingIsGuessed(t *testing.T) {
	p := build(t, pagetest.Measured())
	for where, axis := range map[string]string{"prefill": p.Prefill.Axis, "scaling": p.Scaling.YAxis} {
		if !strings.Contains(axis, "tok/s") || !strings.Contains(axis, "higher is better") {
			t.Errorf("%s: axis %q", where, axis)
		}
	}
	if !strings.Contains(p.Scaling.XAxis, "requests") {
		t.Errorf("scaling: axis %q", p.Scaling.XAxis)
	}
	if !slices.Contains(p.Legend, "In context lengths K is 1,024 tokens; in tok/s K is 1,000.") {
		t.Errorf("legend %q", p.Legend)
	}
	for _, b := range p.Prefill.Bars {
		if !b.PromptTokens.Known() {
			t.Errorf("%s: no exact length beside the label", b.Context)
		}
	}
	for _, m := range p.Decode.Metrics {
		if latency := m.Unit == "ms"; m.Unit == "" || m.LowerIsBetter != latency {
			t.Errorf("heat of %s in %q: lower is better is %v", m.Label, m.Unit, m.LowerIsBetter)
		}
	}
	// 8K has one request that was measured, and three columns that failed, were not
	// ready and were over capacity.
	line := p.Scaling.Lines[2]
	for i, point := range line.Points {
		if point.Known != (i == 0) || point.V != 0 && !point.Known {
			t.Errorf("%s: point %d is %+v", line.Context, i, point)
		}
	}
	for _, c := range p.Decode.Rows[2].Cells[1:] {
		for _, v := range c.Values {
			if v.Text != "—" || v.Heat != nil {
				t.Errorf("%s: %+v", c.Status, v)
			}
		}
	}
}

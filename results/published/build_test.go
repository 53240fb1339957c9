package published

import (
	"bytes"
	"errors"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// TestSeedBlocks holds all of a seed page that is not in its tables.
func TestSeedBlocks(t *testing.T) {
	k := func(labels ...string) (out []Context) {
		for _, l := range labels {
			n, ok := parseContext(l)
			if !ok {
				t.Fatal(l)
			}
			out = append(out, Context{n, l})
		}
		return out
	}
	levels := []int{1, 2, 4, 8, 16, 32, 64, 128}

	p := read(t, "rtx-pro-6000.txt")
	want := Experiment{
		Name:  "qwen3.5-4b-on-rtx-pro-6000-blackwell-server-edition-96gb",
		Title: "Qwen3.5-4B on RTX PRO 6000 Blackwell Server Edition 96GB",
		Hardware: record.Hardware{Type: "Discrete GPU", GPU: "RTX PRO 6000 Blackwell Server Edition",
			VRAM: "96 GB", OS: "linux"},
		Engine: record.Engine{Engine: "vllm", Version: "0.30.1rc1.dev452+g73a583112", Quantization: "BF16", Backend: "cuda",
			Repository: "github.com/vllm-project/vllm", Build: "cuda-13.2", Commit: "73a5831127a9"},
		ServedModel: "qwen", Revision: "main", Quantization: "BF16",
		Command: `env MAX_JOBS=2 FLASHINFER_NVCC_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 ` +
			`"$HOME/env_rtxpro6k-z-lab-vllm-73a5831127a9/bin/vllm" serve Qwen/Qwen3.5-4B --served-model-name qwen ` +
			`--trust-remote-code --tensor-parallel-size 1 --reasoning-parser qwen3 --enable-auto-tool-choice ` +
			`--tool-call-parser qwen3_coder --max-model-len 262144 --gpu-memory-utilization 0.86 --host 0.0.0.0 ` +
			`--port 8000 --api-key <redacted> --speculative-config ` +
			`'{"method":"dflash","model":"z-lab/Qwen3.5-4B-DFlash","num_speculative_tokens":7}'`,
		Contexts: k("8K", "16K", "32K", "64K", "128K", "251K"), Concurrency: levels,
		Prefill:  k("8K", "16K", "32K", "64K", "128K", "251K", "256K"),
		Duration: 30 * time.Second, MaxOutput: 4096, CapacityLow: 1_572_864, CapacityHigh: 2_088_960,
	}
	if diff := cmp.Diff(want, p.Experiment); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	wantLoad := record.Load{ServedModel: "qwen", Revision: "main", BenchmarkTool: "llm-inference-bench v0.7.6",
		DecodeTest: "Fixed duration", PrefillMode: "Measured during decode warm-up", TimePerMeasure: "30 s", MaxOutput: "4,096 tokens"}
	if diff := cmp.Diff(wantLoad, p.Run.Load); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	wantBars := []Bar{{"8K", 32700, 0.250}, {"16K", 32900, 0.493}, {"32K", 29900, 1.079}, {"64K", 24900, 2.588},
		{"128K", 18600, 6.923}, {"251K", 12400, 20.344}, {"256K", 12300, 20.999}}
	if diff := cmp.Diff(wantBars, p.Bars); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}
	notes := []string{
		"Requests queued: the server could not run all requests at once, so some waited in a queue. Over capacity: not run because this many requests at this context would exceed the server's KV cache.",
		"TTFT is measured after the benchmark warms the server's prompt cache, so it mostly excludes prefill.",
	}
	if diff := cmp.Diff(notes, p.Footnotes); diff != "" {
		t.Errorf("first page (-want +got):\n%s", diff)
	}

	p = read(t, "rtx-3060.txt")
	want = Experiment{
		Name:   "qwen3.5-4b-fp8-dynamic-on-rtx-3060-12gb",
		Title:  "Qwen3.5-4B-FP8-dynamic on RTX 3060 12GB",
		Author: "@Sandberg",
		Hardware: record.Hardware{Type: "Discrete GPU", GPU: "RTX 3060", VRAM: "12 GB", CPU: "Intel Xeon E5-2680 v4 (14C)",
			RAM: "32 GB", OS: "Ubuntu 24.04.5"},
		Engine: record.Engine{Engine: "vllm", Version: "0.32.0", Quantization: "FP8 dynamic", Backend: "cuda",
			Build: "vllm/vllm-openai:v0.32.0-x86_64"},
		ServedModel: "bench", Revision: "main", Quantization: "FP8 dynamic",
		Command: "# Untuned out-of-the-box baseline. Spec decode: MTP, 2 tokens lookahead. KV cache: int4_per_token_head\n" +
			"# 1x RTX 3060 12GB, stock 170 W limit, PCIe Gen3 x16 | Intel Xeon E5-2680 v4 14C | 32 GB DDR4-2400 | Ubuntu 24.04.5, NVIDIA driver 580.178.04\n" +
			`vllm serve RedHatAI/Qwen3.5-4B-FP8-dynamic --max-model-len 262144 --gpu-memory-utilization 0.94 --max-num-seqs 128 ` +
			`--enable-prefix-caching --trust-remote-code --language-model-only --speculative-config ` +
			`{"method":"mtp","num_speculative_tokens":2} --kv-cache-dtype int4_per_token_head --attention-backend TRITON_ATTN`,
		Contexts: k("0", "16K", "32K", "64K", "128K", "248K"), Concurrency: levels,
		Prefill:  k("8K", "16K", "32K", "64K", "128K"),
		Duration: 30 * time.Second, MaxOutput: 8192, CapacityLow: 278_528, CapacityHigh: 294_912,
	}
	if diff := cmp.Diff(want, p.Experiment); diff != "" {
		t.Errorf("second page (-want +got):\n%s", diff)
	}
	wantLoad = record.Load{ServedModel: "bench", Revision: "main", BenchmarkTool: "llm-inference-bench v0.8.0",
		DecodeTest: "Fixed duration", PrefillMode: "Measured during decode warm-up", TimePerMeasure: "30 s", MaxOutput: "8,192 tokens"}
	if diff := cmp.Diff(wantLoad, p.Run.Load); diff != "" {
		t.Errorf("second page (-want +got):\n%s", diff)
	}
	wantBars = []Bar{{"8K", 2186, 3.727}, {"16K", 1779, 9.064}, {"32K", 1325, 24.215}, {"64K", 875, 73.169}, {"128K", 523, 244.675}}
	if diff := cmp.Diff(wantBars, p.Bars); diff != "" {
		t.Errorf("second page (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(notes, p.Footnotes); diff != "" {
		t.Errorf("second page (-want +got):\n%s", diff)
	}
	if len(p.Run.Command.Comments) != 2 || !strings.HasPrefix(p.Run.Command.Comments[0], "Untuned") {
		t.Errorf("comments of the command are %q", p.Run.Command.Comments)
	}
	wantTool := record.Tool{Name: "llm-inference-bench", Version: "0.8.0"}
	if p.Run.Kind != record.Published || p.Run.Tool != wantTool || p.Run.Source != "rtx-3060.txt" {
		t.Errorf("run is %q by %v from %q", p.Run.Kind, p.Run.Tool, p.Run.Source)
	}
}

// TestAnomalies names the rows that a tidier reader would lose.
func TestAnomalies(t *testing.T) {
	cells := map[string]record.Cell{}
	for _, c := range read(t, "rtx-3060.txt").Cells {
		cells[c.StepID] = c
	}
	ran := cells["decode-248k-c1-r1"]
	if diff := cmp.Diff(map[string]float64{metric.RefActiveRequests: 1, metric.RefCompletedRequests: 0,
		metric.RefOutputTokens: 0, metric.RefWindowSeconds: 30}, ran.Values); ran.Status != record.OverCapacity || ran.Reason != "no_output" || diff != "" {
		t.Errorf("248K × 1 is %s (%s):\n%s", ran.Status, ran.Reason, diff)
	}
	if c := cells["decode-248k-c2-r1"]; c.Status != record.OverCapacity || c.Reason != "predicted" || c.Values != nil {
		t.Errorf("248K × 2 is %s (%s) with %v", c.Status, c.Reason, c.Values)
	}
	alone := cells["decode-128k-c1-r1"]
	if alone.Status != record.Queued || alone.Values[metric.RefActiveRequests] != 0.8 || alone.Values[metric.RefWindowSeconds] != 29.9 {
		t.Errorf("128K × 1 is %s with %v", alone.Status, alone.Values)
	}
	if c := cells["decode-0-c1-r1"]; c.ContextTokens != 0 || c.ContextLabel != "0" || c.Values[metric.RefTTFT] != 0.096 {
		t.Errorf("0 × 1 has context %d (%q) with %v", c.ContextTokens, c.ContextLabel, c.Values)
	}
}

// pageHTML writes rows as a page of ours does: exact values beside the texts,
// columns that follow the twelve, and sections that are not for reading.
func pageHTML(rows []string) string {
	var b strings.Builder
	esc := html.EscapeString
	b.WriteString(`<!doctype html><html><head><title>x</title><style>td{color:red}</style></head><body>
<header><p class="kicker">Speed test matrix</p><h1>A &amp; B &lt;tag&gt; on GPU|X</h1>
<p>vllm · 0.32.0 · FP8 <span>1 context (0–0) × 1 concurrency level (1–1)</span></p><p>by @some one · llm-inference-bench v0.8.0</p></header>
<h2>Findings</h2><p>Hardware</p><table><tr><th>Phase</th></tr><tr><td>junk</td></tr></table>
<h2 id="hardware">Hardware</h2><dl><dt>GPU</dt><dd>GPU|X &amp; more</dd><dt>VRAM</dt><dd>12&nbsp;GB</dd><dt>Driver</dt><dd>580</dd></dl>
<h2>Engine</h2><dl><div><dt>Engine</dt><dd>vllm</dd></div><div><dt>Commit<dd>—</div></dl>
<h2>Run</h2><dl><dt>Max output</dt><dd>8,192 tokens</dd><dt>Time per measurement</dt><dd><b>30</b> s</dd></dl>
<h2>Launch command</h2><pre><code># a &lt;b&gt;
vllm serve 'a|b' \
  --x {&#34;y&#34;: 1}
</code></pre><pre>again</pre>
<h2>Sustained decode</h2><table><thead><tr><th>Context</th><th>1</th></tr></thead><tbody><tr><th scope=row>0</th><td>see below</td></tr></table>
<h3>Scaling</h3><svg><text>All measurements</text></svg>
<h2>All measurements</h2><p>Latencies are medians.</p><div><table><caption>x</caption><thead><tr>`)
	for _, c := range append(columnNames(), "Prompt tokens") {
		fmt.Fprintf(&b, "<th scope=col>%s</th>", c)
	}
	b.WriteString("</tr></thead><tbody>\n")
	for _, r := range rows {
		b.WriteString("<tr>")
		for i, c := range strings.Split(r, "\t") {
			exact := ""
			if i >= 4 && c != dash {
				n, ok := parseNumber(c, metrics[i-4].quantity)
				if !ok {
					panic(c)
				}
				v := n.value
				if strings.HasSuffix(c, " ms") {
					v *= 1000
				}
				exact = fmt.Sprintf(" data-value=%q", strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.6f", v), "0"), "."))
			}
			fmt.Fprintf(&b, "<td%s>%s</td>", exact, esc(c))
		}
		b.WriteString("<td>1</td></tr>\n")
	}
	b.WriteString("</tbody></table></div><h2>Downloads</h2><dl><dt>GPU</dt><dd>not this</dd></dl></body></html>")
	return b.String()
}

func pageMarkdown(rows []string) string {
	var b strings.Builder
	b.WriteString("# A & B \\<tag\\> on GPU\\|X\n\nvllm · 0.32.0\n\nby @some one\n\n## Findings\n\n- **GPU:** not this\n\n" +
		"## Hardware\n\n- **GPU:** GPU\\|X &amp; more\n- **VRAM:** 12 GB\n- **Driver:** 580\n\n## Engine\n\n- **Engine:** vllm\n- **Commit:** —\n\n" +
		"## Run\n\n- **Max output:** 8,192 tokens\n- **Time per measurement:** 30 s\n\n" +
		"## Launch command\n\n````sh\n# a <b>\nvllm serve 'a|b' \\\n  --x {\"y\": 1}\n````\n\n## All measurements\n\nLatencies are medians.\n\n| " +
		strings.Join(append(columnNames(), "Prompt tokens"), " | ") + " |\n|" + strings.Repeat("---|", 13) + "\n")
	for _, r := range rows {
		b.WriteString("| " + strings.ReplaceAll(r, "\t", " | ") + " | `1` |\n")
	}
	b.WriteString("\n## Downloads\n\n| Phase | x |\n|---|---|\n| a | b |\n")
	return b.String()
}

// TestOwnPages reads the rows of both seeds out of pages of our own.
func TestOwnPages(t *testing.T) {
	for _, seed := range []string{"rtx-pro-6000", "rtx-3060"} {
		rows := golden(t, seed)
		for format, text := range map[Format]string{HTML: pageHTML(rows), Markdown: pageMarkdown(rows)} {
			t.Run(seed+" as "+string(format), func(t *testing.T) {
				p, err := Read("page", []byte(text))
				if err != nil {
					t.Fatal(err)
				}
				if p.Format != format {
					t.Errorf("read as %s", p.Format)
				}
				checkRows(t, p, rows)
				if diff := cmp.Diff(read(t, seed+".txt").Cells, p.Cells); diff != "" {
					t.Errorf("cells differ from those of the published text:\n%s", diff)
				}
				e := p.Experiment
				if e.Title != "A & B <tag> on GPU|X" || e.Author != "@some one" || e.Hardware.GPU != "GPU|X & more" || e.Hardware.VRAM != "12 GB" ||
					e.Engine.Engine != "vllm" || e.Engine.Commit != "" || e.MaxOutput != 8192 || e.Duration != 30*time.Second {
					t.Errorf("blocks are %+v", e)
				}
				if e.Command != "# a <b>\nvllm serve 'a|b' \\\n  --x {\"y\": 1}" {
					t.Errorf("command is %q", e.Command)
				}
				if diff := cmp.Diff([]record.Field{{Label: "Driver", Value: "580"}}, p.Other); diff != "" {
					t.Errorf("other fields:\n%s", diff)
				}
			})
		}
	}
}

func TestExactValues(t *testing.T) {
	page := func(total, ttft string) []byte {
		s := pageHTML([]string{"Sustained decode\t8K\t1\tValid\t203.9\t208.2\t56 ms\t4.8 ms\t1.0\t1\t6,116\t30.0 s"})
		s = strings.Replace(s, `data-value="203.9"`, `data-value="`+total+`"`, 1)
		return []byte(strings.Replace(s, `data-value="56"`, `data-value="`+ttft+`"`, 1))
	}
	p, err := Read("x.html", page("203.8667", "56.41"))
	if err != nil {
		t.Fatal(err)
	}
	if v := p.Cells[0].Values; v[metric.RefOutputTokensPerSecond] != 203.8667 || v[metric.RefTTFT] != 0.05641 {
		t.Errorf("values are %v", v)
	}
	for _, bad := range [][2]string{{"204.1", "56"}, {"203.9", "57"}, {"NaN", "56"}, {"0x1p3", "56"}, {"203.9", "0.056"}} {
		if _, err := Read("x.html", page(bad[0], bad[1])); err == nil || !strings.Contains(err.Error(), "data-value") {
			t.Errorf("data-value %v is accepted: %v", bad, err)
		}
	}
}

func TestBenchRows(t *testing.T) {
	p := read(t, "v0.4.18-vllm-0.32.0-cpu.json")
	var got []string
	for _, c := range p.Cells {
		got = append(got, words(c)+"\t"+c.Reason)
	}
	want := strings.Split(strings.TrimSpace(`
Prefill	1K	1	Valid	3,871.0	—	321 ms	—	—	1	—	—	
Prefill	2K	1	Valid	3,738.0	—	588 ms	—	—	1	—	—	
Prefill	4K	1	Valid	2,918.0	—	1,405 ms	—	—	1	—	—	
Sustained decode	0	1	Valid	87.4	102.6	57 ms	9.7 ms	1.0	2	721	8.3 s	
Sustained decode	0	4	Valid	288.3	77.2	79 ms	13.1 ms	4.0	4	2,358	8.2 s	
Sustained decode	0	8	Requests queued	304.4	77.0	13,368 ms	13.0 ms	4.0	20	2,397	7.9 s	
Sustained decode	2K	1	Valid	95.4	81.7	62 ms	12.3 ms	1.0	1	763	8.0 s	
Sustained decode	2K	4	Valid	186.1	55.9	156 ms	17.9 ms	4.0	0	1,500	8.1 s	
Sustained decode	2K	8	Over capacity	—	—	—	—	—	—	—	—	predicted
Sustained decode	4K	1	Valid	96.8	92.3	66 ms	10.8 ms	0.8	1	775	8.0 s	
Sustained decode	4K	4	Over capacity	—	—	—	—	—	—	—	—	predicted
Sustained decode	4K	8	Over capacity	—	—	—	—	—	—	—	—	predicted
`), "\n")
	for i := range want {
		want[i] = strings.TrimRight(want[i], "\t")
		got[i] = strings.TrimRight(got[i], "\t")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	e := p.Experiment
	if e.MaxOutput != 1024 || e.Duration != 8*time.Second || e.KVCapacity != 16384 || e.CapacityLow != 12288 || e.CapacityHigh != 20480 {
		t.Errorf("experiment is %+v", e)
	}
}

// TestBenchStatuses holds the words for what the tool stores.
func TestBenchStatuses(t *testing.T) {
	file := func(result string) []byte {
		return []byte(`{"metadata":{"version":"0.7.7","engine":"vllm","model":"m","max_tokens":100,"max_total_tokens":1000,
			"concurrency_levels":[1],"context_lengths":[0]},"prefill":{},"results":[` + result + `]}`)
	}
	for _, tt := range []struct {
		result string
		status record.Status
		reason string
		values int
	}{
		{`{"concurrency":1,"context_tokens":0,"aggregate_tps":5,"client_output_tokens":150,"measurement_seconds":30}`, record.Valid, "", 3},
		{`{"concurrency":1,"context_tokens":0,"aggregate_tps":5,"capacity_limited":true}`, record.Queued, "", 1},
		{`{"concurrency":1,"context_tokens":0,"aggregate_tps":0,"capacity_limited":true,"client_output_tokens":0,"measurement_seconds":30}`, record.OverCapacity, "no_output", 2},
		{`{"concurrency":1,"context_tokens":0,"aggregate_tps":null,"failure_reason":"HTTP 500"}`, record.Failed, "HTTP 500", 0},
		{`{"concurrency":1,"context_tokens":0,"aggregate_tps":-3,"loop_detected":true}`, record.Loop, "", 0},
		{``, record.Skipped, "not in the results", 0},
	} {
		p, err := Read("x.json", file(tt.result))
		if err != nil {
			t.Errorf("%s: %v", tt.result, err)
			continue
		}
		if c := p.Cells[0]; c.Status != tt.status || c.Reason != tt.reason || len(c.Values) != tt.values {
			t.Errorf("%s\n\tis %s (%s) with %v", tt.result, c.Status, c.Reason, c.Values)
		}
	}
}

// edit returns a seed with one change, which must be possible.
func edit(t *testing.T, name string, pairs ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if bytes.Count(data, []byte(pairs[i])) == 0 {
			t.Fatalf("%s has no %q", name, pairs[i])
		}
		data = bytes.Replace(data, []byte(pairs[i]), []byte(pairs[i+1]), 1)
	}
	return data
}

// TestUnreadable holds that what is unreadable is an error with its line, and
// that nothing is guessed.
func TestUnreadable(t *testing.T) {
	const glued = "rtx-3060.txt"
	for _, tt := range []struct {
		name  string
		data  []byte
		wants []string
	}{
		{"nothing", []byte(" \n"), []string{"p: the file is empty"}},
		{"binary", []byte("\xff\xfe<\x00"), []string{"p: not UTF-8"}},
		{"prose", []byte("Speed test matrix\nTitle\n"), []string{`p: no table "All measurements"`}},
		{"html without the table", []byte("<p>hello"), []string{`p: no table "All measurements"`}},
		{"a row short of its time", edit(t, glued, "1.001,90330.0 s", "1.001,903"), []string{
			"p:94: the numbers of the row cannot be told apart"}},
		{"two rows at once", edit(t, glued, "1.001,90330.0 s", "1.001,903", "01Valid63.565.0", "01Unheard63.565.0", "1.001,34830.0 s", "1.0?1,34830.0 s"),
			[]string{"p:94: no known status", "p:102: the numbers of the row"}},
		{"an axis that has no one reading", edit(t, glued, "Context1248163264128", "Context12481632641281"), []string{
			`p:73: "12481632641281" are the numbers of requests, and can be read in 0 ways`}},
		{"the matrix against the list", edit(t, glued, "063.596 ms TTFT", "064.596 ms TTFT"), []string{
			"p:74: the row of the matrix agrees with the list in 0 ways"}},
		{"a bar against the list", edit(t, glued, "8K context2,1863,727 ms TTFT", "8K context2,1864,7271 ms TTFT"), []string{
			"p:64: the prefill at 8K can be read in 0 ways"}},
		{"a bar of nothing", edit(t, glued, "8K context2,186", "9K context2,186"), []string{
			"p:89: \"8K1\" is context and requests, and can be read in 0 ways"}},
		{"an unknown field", edit(t, glued, "VRAM\n", "Memory\n"), []string{`p:18: "Memory" is no field of the section Hardware`}},
		{"a time that is none", edit(t, glued, "30 s\nMax", "thirty\nMax"), []string{`p:50: time per measurement "thirty"`}},
		{"a column that is missing", edit(t, "rtx-pro-6000.txt", "| Output tokens |", "| Output |"), []string{`p:64: the table "All measurements" has no column "Output tokens"`}},
		{"cells that are no numbers", edit(t, "rtx-pro-6000.txt", "| 203.9 | 208.2 |", "| fast | 2,08.2 |", "| 400.8 |", "| -400.8 |"), []string{
			`p:73: Total tok/s: "fast" is no number`, `p:73: Per request tok/s: "2,08.2" is no number`, `p:74: Total tok/s: "-400.8" is no number`}},
		{"json that is none", []byte(`{"metadata": [`), []string{"p: not readable as the output of llm-inference-bench"}},
		{"json of something else", []byte(`{"a":1}`), []string{"p: no metadata and results"}},
		{"a result twice", []byte(`{"metadata":{"concurrency_levels":[1],"context_lengths":[0]},"results":[{"concurrency":1},{"concurrency":1},{"concurrency":2}]}`),
			[]string{"results[1]: context 0 with 1 requests stands twice", "results[2]: context 0 with 2 requests is not in the lists"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Read("p", tt.data)
			if err == nil {
				t.Fatalf("it was read, with %d rows", len(p.Cells))
			}
			for _, want := range tt.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no message %q in\n%v", want, err)
				}
			}
			var e *Error
			if errors.As(err, &e) && len(e.Messages) > maxErrors+1 {
				t.Errorf("%d messages", len(e.Messages))
			}
		})
	}
}

// TestAmbiguous holds that two readings are an error even where a person would
// bet on one of them.
func TestAmbiguous(t *testing.T) {
	row := "Sustained decode128K2Requests queued2.37.922,260 ms224.0 ms1.507030.0 s"
	// 7|110.0 s, 71|10.0 s and 711|0.0 s are told apart by the total; without one nothing does.
	data := edit(t, "rtx-3060.txt", row, "Sustained decode128K2Requests queued——22,260 ms224.0 ms1.507110.0 s",
		"2.3Requests queued22,260 ms TTFT", "—")
	_, err := Read("p", data)
	if err == nil || !strings.Contains(err.Error(), "p:127: the row can be read in 3 ways and nothing on the page decides: — | — | 22,260 ms | 224.0 ms | 1.5 | 0 | 7 | 110.0 s; ") {
		t.Errorf("error is %v", err)
	}
}

// TestContradictions holds that what a page clearly says twice and differently is
// kept, and said.
func TestContradictions(t *testing.T) {
	p, err := Read("p", edit(t, "rtx-pro-6000.txt",
		"| 203.956 ms TTFT |", "| 203.957 ms TTFT |",
		"8K context32.7K250 ms TTFT", "8K context32.6K250 ms TTFT",
		"8 concurrency levels", "7 concurrency levels",
		"| 12,023 | 30.0 s |", "| 11,023 | 30.0 s |"))
	if err != nil {
		t.Fatal(err)
	}
	got := findingLines(p, nil)
	for _, want := range []string{
		"matrix_vs_list · decode 8K × 1\n\tthe matrix shows 203.9, 57 ms TTFT, the list shows 203.9, 56 ms TTFT\n",
		"bars_vs_list · prefill 8K\n\tthe prefill section shows 32.6K tok/s and 250 ms, the list shows 32.7K and 250 ms\n",
		"headline_vs_list · line 3\n",
		"total_vs_tokens · decode 8K × 2\n\t11,023 tokens ÷ 30.0 s = 367.4 tok/s, the page has a total of 400.8 tok/s\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no finding %q in\n%s", want, got)
		}
	}
}

func TestImpliedCapacity(t *testing.T) {
	cell := func(ctx, c int, st record.Status) record.Cell {
		return record.Cell{Point: record.Point{Phase: record.PhaseDecode, ContextTokens: ctx, Concurrency: c}, Status: st}
	}
	for _, tt := range []struct {
		cells     []record.Cell
		low, high int64
	}{
		{nil, 0, 0},
		{[]record.Cell{cell(0, 8, record.Valid)}, 800, 0},
		{[]record.Cell{cell(0, 8, record.OverCapacity)}, 0, 800},
		{[]record.Cell{cell(0, 2, record.Queued), cell(900, 1, record.OverCapacity), cell(0, 4, record.Skipped)}, 200, 1000},
		{[]record.Cell{cell(0, 20, record.Valid), cell(900, 1, record.OverCapacity)}, 2000, 1000},
	} {
		if low, high := ImpliedCapacity(tt.cells, 100); low != tt.low || high != tt.high {
			t.Errorf("%v: %d to %d, want %d to %d", tt.cells, low, high, tt.low, tt.high)
		}
	}
}

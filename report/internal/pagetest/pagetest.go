// Package pagetest holds runs for the tests of pages: the two published pages,
// a measured and a simulated run with repeats and every status, and a run with
// hostile text in each of its fields.
package pagetest

import (
	"embed"
	"encoding/csv"
	"fmt"
	"iter"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

//go:embed testdata/*.tsv
var files embed.FS

// Run is a run in memory; it is a report.Source.
type Run struct {
	Run   record.Run
	Trial []record.Cell
	Err   error // ends the cells
}

// Record returns the run.
func (r *Run) Record() record.Run { return r.Run }

// Cells yields the trials, then Err.
func (r *Run) Cells() iter.Seq2[record.Cell, error] {
	return func(yield func(record.Cell, error) bool) {
		for _, c := range r.Trial {
			if !yield(c, nil) {
				return
			}
		}
		if r.Err != nil {
			yield(record.Cell{}, r.Err)
		}
	}
}

// Rows returns the list of measurements of a published page, as its texts, with
// the header first. Names: "qwen-rtx-pro-6000", "qwen-fp8-rtx-3060".
func Rows(name string) ([][]string, error) {
	f, err := files.Open("testdata/" + name + ".tsv")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes = '\t', true
	return r.ReadAll()
}

// Published returns the run of a published page.
func Published(name string) (*Run, error) {
	rows, err := Rows(name)
	if err != nil {
		return nil, err
	}
	r := &Run{Run: published(name)}
	for i, row := range rows[1:] {
		c, err := cell(row)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", i+2, err)
		}
		c.Seq = i
		r.Trial = append(r.Trial, c)
	}
	return r, nil
}

func published(name string) record.Run {
	run := record.Run{
		SchemaVersion: record.SchemaVersion, ID: "20261130T201947Z-" + name + "-1a2b3c",
		Kind: record.Published, Name: name, Source: name + ".txt",
		StartedAt: time.Date(2026, 11, 30, 20, 19, 47, 0, time.UTC),
		Again:     "speedmatrix run experiments/" + name + ".yaml",
		Load: record.Load{Revision: "main", DecodeTest: "Fixed duration",
			PrefillMode: "Measured during decode warm-up", TimePerMeasure: "30 s"},
		Unpinned: []string{"The revision of the model is main, a branch."},
		Files:    []record.File{{Path: "cells.parquet", Bytes: 14_212}, {Path: "experiment.yaml", Bytes: 1_630}},
	}
	switch name {
	case "qwen-rtx-pro-6000":
		run.Title = "Qwen3.5-4B on RTX PRO 6000 Blackwell Server Edition 96GB"
		run.Hardware = record.Hardware{Type: "Discrete GPU", GPU: "RTX PRO 6000 Blackwell Server Edition", VRAM: "96 GB", OS: "linux"}
		run.Engine = record.Engine{Engine: "vllm", Version: "0.30.1rc1.dev452+g73a583112", Quantization: "BF16", Backend: "cuda",
			Repository: "github.com/vllm-project/vllm", Build: "cuda-13.2", Commit: "73a5831127a9"}
		run.Load.ServedModel, run.Load.BenchmarkTool, run.Load.MaxOutput = "qwen", "llm-inference-bench v0.7.6", "4,096 tokens"
		run.Command.Text = `env MAX_JOBS=2 FLASHINFER_NVCC_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 "$HOME/env_rtxpro6k-z-lab-vllm-73a5831127a9/bin/vllm" serve Qwen/Qwen3.5-4B --served-model-name qwen --trust-remote-code --tensor-parallel-size 1 --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser qwen3_coder --max-model-len 262144 --gpu-memory-utilization 0.86 --host 0.0.0.0 --port 8000 --api-key <redacted> --speculative-config '{"method":"dflash","model":"z-lab/Qwen3.5-4B-DFlash","num_speculative_tokens":7}'`
		run.Findings = []record.Finding{
			{Kind: "per_request_vs_tpot", Where: "decode 251K × 2", Text: "Per request 32.8 tok/s, but 1,000 ÷ 30.6 ms between tokens is 32.7."},
			{Kind: "prompt_length", Where: "prefill 128K", Text: "18.6K tok/s × 6.923 s is 128,768 tokens, 98.2 % of the 131,072 that the label says."},
		}
	default:
		run.Title, run.Author = "Qwen3.5-4B-FP8-dynamic on RTX 3060 12GB", "@Sandberg"
		run.Hardware = record.Hardware{Type: "Discrete GPU", GPU: "RTX 3060", VRAM: "12 GB", CPU: "Intel Xeon E5-2680 v4 (14C)", RAM: "32 GB", OS: "Ubuntu 24.04.5"}
		run.Engine = record.Engine{Engine: "vllm", Version: "0.32.0", Quantization: "FP8 dynamic", Backend: "cuda", Build: "vllm/vllm-openai:v0.32.0-x86_64"}
		run.Load.ServedModel, run.Load.MaxOutput = "bench", "8,192 tokens"
		run.Load.BenchmarkTool = "llm-inference-bench v0.8.0"
		run.Notes = "Untuned **out-of-the-box** baseline. 170 W, PCIe Gen3 x16 | Intel Xeon. See [the method](https://example.org/method)."
		run.Command.Text = `# Untuned out-of-the-box baseline. Spec decode: MTP, 2 tokens lookahead. KV cache: int4_per_token_head
# 1x RTX 3060 12GB, stock 170 W limit, PCIe Gen3 x16 | Intel Xeon E5-2680 v4 14C | 32 GB DDR4-2400 | Ubuntu 24.04.5, NVIDIA driver 580.178.04
vllm serve RedHatAI/Qwen3.5-4B-FP8-dynamic --max-model-len 262144 --gpu-memory-utilization 0.94 --max-num-seqs 128 --enable-prefix-caching --trust-remote-code --language-model-only --speculative-config {"method":"mtp","num_speculative_tokens":2} --kv-cache-dtype int4_per_token_head --attention-backend TRITON_ATTN`
		run.Findings = []record.Finding{
			{Kind: "early_window", Where: "decode 128K × 1", Text: "The window opened before the stream was ready: 30 s − 13.8 s TTFT leaves 16.2 s, and 248 tokens ÷ 14.9 tok/s is 16.6 s."},
			{Kind: "ran_but_over_capacity", Where: "decode 248K × 1", Text: "“Not run” stands beside a duration of 30.0 s and 1.0 active requests."},
		}
	}
	return run
}

// cell reads one row of texts.
func cell(row []string) (record.Cell, error) {
	var c record.Cell
	if len(row) != 12 {
		return c, fmt.Errorf("%d fields", len(row))
	}
	phase := record.PhaseDecode
	if row[0] == record.PhaseWords(record.PhasePrefill) {
		phase = record.PhasePrefill
	}
	tokens, err := strconv.Atoi(strings.TrimSuffix(row[1], "K"))
	if err != nil {
		return c, err
	}
	concurrency, err := strconv.Atoi(row[2])
	if err != nil {
		return c, err
	}
	c = record.Cell{
		Point:       record.Point{Phase: phase, ContextTokens: tokens * 1024, ContextLabel: row[1], Concurrency: concurrency},
		Repeat:      1,
		TokenSource: record.TokensPublished, Values: map[string]float64{},
	}
	for _, s := range record.Statuses {
		if s.Words() == row[3] {
			c.Status = s
		}
	}
	if c.Status == "" {
		return c, fmt.Errorf("status %q", row[3])
	}
	total := metric.RefOutputTokensPerSecond
	if phase == record.PhasePrefill {
		total = metric.RefPrefillTokensPerSecond
	}
	for i, name := range []string{total, metric.RefRequestTokensPerSecond, metric.RefTTFT, metric.RefTPOT, metric.RefActiveRequests,
		metric.RefCompletedRequests, metric.RefOutputTokens, metric.RefWindowSeconds} {
		text := row[4+i]
		if text == "—" {
			continue
		}
		factor := 1.0
		number, unit, _ := strings.Cut(strings.ReplaceAll(text, ",", ""), " ")
		if strings.HasSuffix(number, "K") {
			number, factor = strings.TrimSuffix(number, "K"), 1000
		}
		if unit == "ms" {
			factor = 1e-3
		}
		v, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return c, err
		}
		c.Values[name] = v * factor
	}
	return c, nil
}

// Measured returns a run of ours: three repeats, two launches, and a cell of
// each status.
func Measured() *Run {
	ready, capacity, length := 48.25, int64(286_720), int64(32_768)
	started := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	ended := started.Add(23*time.Minute + 4*time.Second)
	r := &Run{Run: record.Run{
		SchemaVersion: record.SchemaVersion, ID: "20261130T080000Z-tiny-cpu-0a1b2c", Kind: record.Measured,
		Name: "tiny-cpu", Title: "Tiny model on a CPU", StartedAt: started, FinishedAt: &ended, Interrupted: true,
		PlanDigest: "h1:4mEwT0iM6rQzqVQ0qW8m1yJx2b8n5t7c9d0e1f2a3b4=", MethodVersion: "1",
		Tool:     record.Tool{Name: "speedmatrix", Version: "v0.1.0", Commit: "ba2852b", Go: "go1.26.0"},
		Hardware: record.Hardware{Type: "CPU", CPU: "AMD EPYC 9654", RAM: "64 GB", OS: "Debian 12"},
		Engine:   record.Engine{Engine: "vllm", Version: "0.32.0", Quantization: "BF16", Backend: "cpu", Build: "vllm==0.32.0+cpu"},
		Load: record.Load{ServedModel: "tiny", Model: "tiny", Revision: "5d3c1f", BenchmarkTool: "speedmatrix v0.1.0", DecodeTest: "Fixed duration",
			PrefillMode: "Cold, one request at a time", TimePerMeasure: "10 s", MaxOutput: "512 tokens"},
		Command: record.Command{Text: "vllm serve tiny --max-num-seqs 4 \\\n  --max-model-len 32768", Comments: []string{"# dummy weights"}},
		Found:   []record.Field{{Label: "CPU", Value: "AMD EPYC 9654 96-Core Processor"}, {Label: "Kernel", Value: "6.1.0"}},
		Launches: []record.Launch{
			{Number: 1, Executor: "host", StartedAt: started, ReadySeconds: &ready, EndedAt: &ended, ExitStatus: "signal: killed", LogTail: []string{"INFO loading", "Killed"}},
			{Number: 2, Executor: "host", StartedAt: started.Add(time.Minute), ReadySeconds: &ready, EndedAt: &ended, Version: "0.32.0", Models: []string{"tiny"},
				MaxModelLen: &length, MetricsAvailable: true, KVCapacityTokens: &capacity, KVCapacitySource: "label",
				Settings: []record.Field{{Label: "Attention backend", Value: "TORCH_SDPA"}}},
		},
		Findings: []record.Finding{{Kind: "client", Where: "decode 2K × 8", Text: "This program used 92 % of its processors."}},
		Plan:     []record.Field{{Label: "Cells", Value: "12 decode, 3 prefill, 3 repeats, interleaved"}, {Label: "Prompts", Value: "shared"}},
		Again:    "speedmatrix run experiments/vllm-cpu-tiny.yaml",
		Files:    []record.File{{Path: "cells.parquet", Bytes: 20_000}, {Path: "chunks.parquet", Bytes: 1_400_000}, {Path: "logs/engine-1.log", Bytes: 900}},
	}}
	seq := 0
	add := func(c record.Cell) {
		c.Seq, c.Launch, c.TokenSource = seq, 2, record.TokensRunning
		seq++
		r.Trial = append(r.Trial, c)
	}
	contexts := []struct {
		label  string
		tokens int
	}{{"512", 512}, {"2K", 2048}, {"8K", 8192}}
	for _, ctx := range contexts {
		for repeat := 1; repeat <= 3; repeat++ {
			rate := 5200/math.Sqrt(float64(ctx.tokens)/512) + 20*float64(repeat)
			add(record.Cell{Point: record.Point{Phase: record.PhasePrefill, ContextTokens: ctx.tokens, ContextLabel: ctx.label, Concurrency: 1},
				Repeat: repeat, Status: record.Valid, Values: map[string]float64{
					metric.PrefillTokensPerSecond: rate, metric.TTFT: float64(ctx.tokens) / rate, metric.CompletedRequests: 3,
					metric.PromptTokens: float64(ctx.tokens), metric.TTFTN: 3, metric.ClientCPU: 0.021,
					metric.RefPrefillTokensPerSecond: rate * 0.99, metric.RefTTFT: float64(ctx.tokens) / rate, metric.RefCompletedRequests: 3}})
		}
	}
	statuses := map[string]record.Status{"512/8": record.Queued, "2K/8": record.ClientLimited, "8K/2": record.Failed, "8K/4": record.NotReady, "8K/8": record.OverCapacity}
	for _, ctx := range contexts {
		for _, n := range []int{1, 2, 4, 8} {
			for repeat := 1; repeat <= 3; repeat++ {
				c := record.Cell{Point: record.Point{Phase: record.PhaseDecode, ContextTokens: ctx.tokens, ContextLabel: ctx.label, Concurrency: n},
					Repeat: repeat, Status: record.Valid, Values: map[string]float64{}}
				if s := statuses[ctx.label+"/"+strconv.Itoa(n)]; s != "" && (s != record.Queued || repeat < 3) {
					c.Status = s
				}
				switch c.Status {
				case record.Failed:
					c.FailureKind, c.Reason = record.FailEngineExit, "signal: killed"
				case record.OverCapacity:
					c.Reason = "predicted"
				case record.NotReady:
					c.Reason = "3 of 4 streams had a first token after 60 s"
				}
				if metric.HasNumbers(c.Status) {
					each := 60 / (1 + float64(n)/10) / (1 + float64(ctx.tokens)/16384)
					total := each*float64(n)*0.98 + float64(repeat)/3
					c.Values = map[string]float64{
						metric.OutputTokensPerSecond: total, metric.RequestTokensPerSecond: each, metric.TTFT: 0.0123 * float64(n), metric.TPOT: 1 / each,
						metric.ActiveRequests: float64(n), metric.CompletedRequests: float64(n), metric.OutputTokens: math.Round(total * 10), metric.WindowSeconds: 10,
						metric.PromptTokens: float64(ctx.tokens), metric.TTFTN: float64(2 * n), metric.ClientCPU: 0.11, metric.ClientLagP99: 0.0004,
						metric.RefOutputTokensPerSecond: total * 1.01, metric.RefRequestTokensPerSecond: each, metric.RefTTFT: 0.013 * float64(n), metric.RefTPOT: 1 / each,
						metric.RefActiveRequests: float64(n), metric.RefCompletedRequests: float64(n + 1), metric.RefOutputTokens: math.Round(total * 10), metric.RefWindowSeconds: 9.9}
				}
				add(c)
			}
		}
	}
	return r
}

// Simulated returns a small run of the embedded simulator.
func Simulated() *Run {
	r := Measured()
	r.Run.Kind, r.Run.Title, r.Run.Interrupted = record.Simulated, "Quickstart", false
	r.Run.Launches = r.Run.Launches[1:]
	return r
}

// Hostile markup: for HTML, SVG, Markdown, a table, a code fence, a terminal.
const Hostile = "<script>alert(1)</script>|**x**`\x1b[31m\n```\n# h\n\"'><img src=x onerror=alert(1)>" + `[l](javascript:alert(1))&lt;b&gt; {{.}} R&D <test>`

// HostileRun returns a run with Hostile in every string there is.
func HostileRun() *Run {
	r := Measured()
	fill(reflect.ValueOf(&r.Run).Elem())
	r.Run.Kind = record.Measured
	for i := range r.Trial {
		phase := r.Trial[i].Phase
		r.Trial[i].Warnings = []string{""}
		fill(reflect.ValueOf(&r.Trial[i]).Elem())
		r.Trial[i].Phase = phase
	}
	// Statuses and phases are closed sets, yet what is stored could say anything.
	r.Trial[0].Status = Hostile
	r.Trial[1].Phase = Hostile
	return r
}

// fill sets every string below v.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.Type() != reflect.TypeFor[record.Status]() {
			v.SetString(Hostile)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem())
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	}
}

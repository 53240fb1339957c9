package vllm

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
)

func TestStartupLog(t *testing.T) {
	f := logFacts(t, "testdata/vllm-0.32.0-cpu/startup.log")
	want := []record.Field{
		{Label: "vLLM version", Value: "0.32.0"},
		{Label: "Non-default arguments", Value: "model_tag='models/tiny', host='127.0.0.1', port=8100, model='models/tiny', dtype='bfloat16', max_model_len=8192, enforce_eager=True, served_model_name=['tiny'], load_format='dummy', max_num_seqs=4"},
		{Label: "Architecture", Value: "Qwen3ForCausalLM"},
		{Label: "Model length", Value: "8192"},
		{Label: "Data type", Value: "torch.bfloat16"},
		{Label: "Quantization", Value: "None"},
		{Label: "KV cache data type", Value: "auto"},
		{Label: "Prefix caching", Value: "True"},
		{Label: "Chunked prefill", Value: "True"},
		{Label: "Eager mode", Value: "True"},
		{Label: "Speculation", Value: "None"},
		{Label: "Tensor parallel", Value: "1"},
		{Label: "Pipeline parallel", Value: "1"},
		{Label: "Data parallel", Value: "1"},
		{Label: "Load format", Value: "dummy"},
		{Label: "Device", Value: "cpu"},
		{Label: "Seed", Value: "0"},
		{Label: "KV cache size", Value: "2,097,152 tokens"},
		{Label: "Maximum concurrency", Value: "8,192 tokens × 256.00"},
		{Label: "KV cache memory", Value: "1.0 GiB"},
		{Label: "KV cache layout", Value: "LBHNC"},
		{Label: "CUDA graph mode", Value: "NONE"},
		{Label: "Engine start", Value: "2.23 s"},
		{Label: "Tasks", Value: "'generate'"},
	}
	if diff := cmp.Diff(want, f.Settings()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	each, tolerance := f.Capacity()
	if !cmp.Equal(each, []int64{2097152}) || tolerance != 41 || *f.KVCacheTokens != 2097152 || *f.MaxModelLen != 8192 || !f.Started || f.Version != "0.32.0" {
		t.Errorf("capacity %v ± %d, facts %+v", each, tolerance, f)
	}
}

// TestLines: lines as other versions write them.
func TestLines(t *testing.T) {
	for _, c := range []struct{ line, label, want string }{
		{"INFO 06-18 15:48:39 [api_server.py:1287] vLLM API server version 0.9.2.dev140+g8b6e1d639.d20250618", labelVersion, "0.9.2.dev140+g8b6e1d639.d20250618"},
		{"INFO 11-03 15:47:45 llm_engine.py:237] Initializing an LLM engine (v0.6.3) with config: model='m', dtype=torch.float16, enforce_eager=False", labelVersion, "0.6.3"},
		{"(EngineCore pid=1) INFO 07-28 10:03:02 [cuda.py:482] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN', 'FLASHINFER'].", labelAttention, "FLASH_ATTN"},
		{"INFO 06-18 15:48:50 [cuda.py:259] Using Flash Attention backend on V1 engine.", labelAttention, "Flash Attention"},
		{"INFO 01-07 14:56:15 [selector.py:144] Using XFormers backend.", labelAttention, "XFormers"},
		{"(EngineCore_DP0 pid=212) INFO 11-30 12:03:11 [gpu_worker.py:440] Available KV cache memory: 3.71 GiB", labelKVMemory, "3.71 GiB"},
		{"INFO 07-25 13:42:16 [vllm.py:1042] Asynchronous scheduling is enabled.", labelAsync, "enabled"},
		{"INFO 11-03 15:47:45 [model_runner.py:1671] Graph capturing finished in 8 secs, took 0.31 GiB", labelGraphs, "8 secs, took 0.31 GiB"},
		{"INFO 09-21 12:50:12 [model_runner.py:404] Model loading took 17.7 GiB memory and 12.003756 seconds", labelLoading, "17.7 GiB"},
		{"INFO 09-21 12:50:12 [interface.py:918] Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba page size.", labelAttnBlock, "1568"},
		{"INFO 06-18 15:48:44 [config.py:2197] Chunked prefill is enabled with max_num_batched_tokens=2048.", labelBatched, "2048"},
		{"INFO 06-18 15:48:37 [__init__.py:244] Automatically detected platform cuda.", labelPlatform, "cuda"},
		{"INFO 02-01 executor_base.py:111] # GPU blocks: 27896, # CPU blocks: 2048", labelBlocks, "27896"},
		{"\x1b[0;36m(EngineCore pid=3)\x1b[0;0m INFO 11-30 12:03:11 [kv_cache_utils.py:1319] GPU KV cache size: 74,480 tokens\r\n", labelKVSize, "74,480 tokens"},
		{"x] Initializing a V1 LLM engine (v0.30.1rc1.dev452+g73a583112) with config: compilation_config={'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>, 'cudagraph_capture_sizes': [1, 2, 4]}", labelGraphMode, "FULL_AND_PIECEWISE"},
		{"x] Initializing a V1 LLM engine (v0.30.1) with config: compilation_config={'cudagraph_mode': 0, 'cudagraph_capture_sizes': [1, 2, 4]}", labelGraphSizes, "1, 2, 4"},
		{"x] Initializing a V1 LLM engine (v0.30.1) with config: speculative_config=SpeculativeConfig(method='mtp', model=None, num_spec_tokens=2), dtype=torch.bfloat16", "Speculation", "SpeculativeConfig(method='mtp', model=None, num_spec_tokens=2)"},
		{"x] non-default args: {'api_key': ['sk-very-secret'], 'hf_token': 'hf_x', 'max_num_batched_tokens': 2048}", labelArgs, "api_key=<redacted>, hf_token=<redacted>, max_num_batched_tokens=2048"},
	} {
		var f LogFacts
		f.Line(c.line)
		if got := f.values[c.label]; got != c.want {
			t.Errorf("%s\n%s: got %q, want %q", c.line, c.label, got, c.want)
		}
	}
}

func TestSeveralEngines(t *testing.T) {
	var f LogFacts
	for _, line := range []string{
		"(EngineCore_DP0 pid=1) INFO x] Maximum concurrency for 1,000 tokens per request: 2.5x",
		"(EngineCore_DP1 pid=2) INFO x] Maximum concurrency for 1,000 tokens per request: 3x",
		"(EngineCore_DP0 pid=1) INFO x] Maximum concurrency for 1,000 tokens per request: 2.51x", // again
		"(EngineCore_DP0 pid=1) INFO x] Using FLASH_ATTN attention backend out of potential backends: []",
		"(EngineCore_DP1 pid=2) INFO x] Using FLASH_ATTN attention backend out of potential backends: []",
		"(EngineCore_DP1 pid=2) INFO x] Using TRITON_ATTN attention backend.",
	} {
		f.Line(line)
	}
	each, tolerance := f.Capacity()
	if !cmp.Equal(each, []int64{2510, 3000}) || tolerance != 10 {
		t.Errorf("capacity %v ± %d", each, tolerance)
	}
	if got := f.values[labelAttention]; got != "FLASH_ATTN, TRITON_ATTN" {
		t.Errorf("attention backends %q", got)
	}
	if each, _ := (*LogFacts)(nil).Capacity(); each != nil {
		t.Error("no log has a capacity")
	}
}

func FuzzLine(f *testing.F) {
	for line := range strings.Lines(string(read(f, "testdata/vllm-0.32.0-cpu/startup.log"))) {
		f.Add(line)
	}
	f.Add("Maximum concurrency for 9,999,999,999,999,999 tokens per request: 99999999999999999999.99x")
	f.Add("non-default args: {'a': '}")
	f.Fuzz(func(t *testing.T, line string) {
		var facts LogFacts
		facts.Line(line)
		facts.Line(line)
		each, tolerance := facts.Capacity()
		for _, n := range each {
			if n < 0 || tolerance < 0 {
				t.Fatalf("capacity %v ± %d", each, tolerance)
			}
		}
		for _, s := range facts.Settings() {
			if s.Value == "" || len(s.Value) > maxValue+len("…") {
				t.Fatalf("%s: value of %d bytes", s.Label, len(s.Value))
			}
		}
	})
}

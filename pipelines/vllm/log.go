package vllm

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"speedmatrix/results/record"
)

// LogFacts is what the start-up log says the engine settled on. The zero value is
// ready; it is fed by one goroutine. Text in it comes from the server: bounded, but
// to be escaped where it is shown.
type LogFacts struct {
	// Version of vLLM, without the v in front; empty: not seen.
	Version string
	// KVCacheTokens is the "KV cache size" line. In some versions it is wrong for
	// models with Mamba layers; [LogFacts.Capacity] does not use it.
	KVCacheTokens *int64
	// MaxModelLen in tokens.
	MaxModelLen *int64
	// Started is true once the API server said that it serves. That is no readiness.
	Started bool

	concurrency []concurrency
	values      map[string]string // by label
}

// concurrency is one "Maximum concurrency" line; each engine of a data-parallel
// server writes one.
type concurrency struct {
	process    string // "EngineCore_DP0 pid=212"
	tokens     int64  // of one request
	hundredths int64  // how many of them, × 100
}

const (
	maxLine  = 64 << 10
	maxValue = 1 << 10
)

// Lines of the log, by what they hold. All are matched behind the prefix
// "(EngineCore pid=1) INFO 11-30 18:47:48 [core.py:133] ".
var (
	reEscape      = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]`)
	reProcess     = regexp.MustCompile(`^\(([^)]*)\) `)
	reConcurrency = regexp.MustCompile(`Maximum concurrency for ([0-9,]+) tokens per request: ([0-9]+)(?:\.([0-9]{1,2}))?x`)
	reCacheSize   = regexp.MustCompile(`KV cache size: ([0-9,]+) tokens`)
	reEngine      = regexp.MustCompile(`Initializing an? (?:V\d+ )?LLM engine \(v?([^)]+)\) with config: (.*)`)
	reArgs        = regexp.MustCompile(`non-default args: \{(.*)\}`)
	reModelLen    = regexp.MustCompile(`Using max model len (\d+)`)
	reAPIVersion  = regexp.MustCompile(`vLLM API server version (\S+)`)
)

// plain are the lines whose value is taken as it stands. Several lines of one label
// with different values are all kept: a draft model has an attention backend too.
var plain = []struct {
	label string
	mark  string // the line must contain it: cheaper than the expression
	re    *regexp.Regexp
}{
	{labelPlatform, "detected platform", regexp.MustCompile(`Automatically detected platform (\S+?)\.?$`)},
	{labelArchitecture, "Resolved architecture", regexp.MustCompile(`Resolved architecture: (\S+)`)},
	{labelAttention, "attention backend", regexp.MustCompile(`Using (\S+) attention backend`)},
	{labelAttention, "backend on V1 engine", regexp.MustCompile(`Using (.+?) backend on V1 engine`)},
	{labelAttention, "backend.", regexp.MustCompile(`\[selector\.py:\d+\] Using (\S+(?: Attention)?) backend\.`)},
	{labelLayout, "KV cache layout", regexp.MustCompile(`Using (\S+) KV cache layout`)},
	{labelKVMemory, "Available KV cache memory", regexp.MustCompile(`Available KV cache memory: (\S+ GiB)`)},
	{labelKVMemory, "GiB for KV cache", regexp.MustCompile(`Explicitly set \(([0-9.]+)/[0-9.]+\) GiB for KV cache`)},
	{labelBlocks, "GPU blocks: ", regexp.MustCompile(`# GPU blocks: (\d+)`)},
	{labelBatched, "max_num_batched_tokens=", regexp.MustCompile(`max_num_batched_tokens=(\d+)`)},
	{labelAttnBlock, "attention block size", regexp.MustCompile(`Setting attention block size to (\d+) tokens`)},
	{labelAsync, "synchronous scheduling is", regexp.MustCompile(`Asynchronous scheduling is (enabled|disabled)`)},
	{labelLoading, "Model loading took", regexp.MustCompile(`Model loading took ([0-9.]+ Gi?B)`)},
	{labelGraphs, "Graph capturing finished", regexp.MustCompile(`Graph capturing finished in (.+)`)},
	{labelCompile, "torch.compile takes", regexp.MustCompile(`torch\.compile takes ([0-9.]+ s)`)},
	{labelInit, "init engine", regexp.MustCompile(`init engine \([^)]*\) took ([0-9.]+ s)`)},
	{labelTasks, "Supported tasks", regexp.MustCompile(`Supported tasks: \[(.*?)\]`)},
}

// Labels of settings, in the order of a page.
const (
	labelVersion      = "vLLM version"
	labelArgs         = "Non-default arguments"
	labelPlatform     = "Platform"
	labelArchitecture = "Architecture"
	labelModelLen     = "Model length"
	labelAttention    = "Attention backend"
	labelKVSize       = "KV cache size"
	labelConcurrency  = "Maximum concurrency"
	labelKVMemory     = "KV cache memory"
	labelLayout       = "KV cache layout"
	labelBlocks       = "GPU blocks"
	labelAttnBlock    = "Attention block size"
	labelBatched      = "Batched tokens"
	labelAsync        = "Asynchronous scheduling"
	labelLoading      = "Model memory"
	labelGraphs       = "Graph capturing"
	labelCompile      = "torch.compile"
	labelInit         = "Engine start"
	labelTasks        = "Tasks"
	labelGraphMode    = "CUDA graph mode"
	labelGraphSizes   = "CUDA graph sizes"
)

// config are the settings taken from the engine's own list, by its names.
var config = []struct{ label, key string }{
	{"Data type", "dtype"},
	{"Quantization", "quantization"},
	{"KV cache data type", "kv_cache_dtype"},
	{"Prefix caching", "enable_prefix_caching"},
	{"Chunked prefill", "enable_chunked_prefill"},
	{"Eager mode", "enforce_eager"},
	{"Speculation", "speculative_config"},
	{"Tensor parallel", "tensor_parallel_size"},
	{"Pipeline parallel", "pipeline_parallel_size"},
	{"Data parallel", "data_parallel_size"},
	{"Load format", "load_format"},
	{"Device", "device_config"},
	{"Seed", "seed"},
}

// order is the order of Settings.
func order() []string {
	head := []string{labelVersion, labelArgs, labelPlatform, labelArchitecture, labelModelLen}
	for _, c := range config {
		head = append(head, c.label)
	}
	return append(head, labelAttention, labelKVSize, labelConcurrency, labelKVMemory,
		labelLayout, labelBlocks, labelAttnBlock, labelBatched, labelAsync, labelGraphMode, labelGraphSizes,
		labelGraphs, labelCompile, labelLoading, labelInit, labelTasks)
}

// Line takes one line of the log. Lines that say nothing are cheap.
func (f *LogFacts) Line(line string) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	line = strings.TrimRight(line, "\r\n")
	if strings.Contains(line, "\x1b") {
		line = reEscape.ReplaceAllString(line, "")
	}
	if strings.Contains(line, "Application startup complete") {
		f.Started = true
		return
	}
	if strings.Contains(line, "KV cache size: ") {
		if m := reCacheSize.FindStringSubmatch(line); m != nil {
			f.KVCacheTokens = tokens(strings.ReplaceAll(m[1], ",", ""))
			f.set(labelKVSize, m[1]+" tokens")
		}
	}
	if strings.Contains(line, "Maximum concurrency for ") {
		f.addConcurrency(line)
	}
	if strings.Contains(line, "Using max model len ") {
		if m := reModelLen.FindStringSubmatch(line); m != nil {
			f.MaxModelLen = tokens(m[1])
			f.set(labelModelLen, m[1])
		}
	}
	if strings.Contains(line, "API server version ") {
		if m := reAPIVersion.FindStringSubmatch(line); m != nil {
			f.setVersion(m[1])
		}
	}
	if strings.Contains(line, "non-default args: ") {
		if m := reArgs.FindStringSubmatch(line); m != nil {
			f.set(labelArgs, arguments(m[1]))
		}
	}
	if strings.Contains(line, "LLM engine (") {
		if m := reEngine.FindStringSubmatch(line); m != nil {
			f.setVersion(m[1])
			f.engineConfig(m[2])
			return // the list names things that the lines below look for
		}
	}
	for i := range plain {
		p := &plain[i]
		if !strings.Contains(line, p.mark) {
			continue
		}
		if m := p.re.FindStringSubmatch(line); m != nil {
			value := m[1]
			if p.label == labelKVMemory && !strings.Contains(value, "GiB") {
				value += " GiB"
			}
			f.add(p.label, value)
		}
	}
}

func (f *LogFacts) addConcurrency(line string) {
	m := reConcurrency.FindStringSubmatch(line)
	if m == nil {
		return
	}
	length := tokens(strings.ReplaceAll(m[1], ",", ""))
	// "1.08" and "1.1" in hundredths, exactly.
	times, err := strconv.ParseInt(m[2]+(m[3] + "00")[:2], 10, 64)
	if length == nil || err != nil || times <= 0 || times > maxCount / *length {
		return
	}
	f.add(labelConcurrency, m[1]+" tokens × "+strings.TrimSuffix(m[0][strings.LastIndex(m[0], " ")+1:], "x"))
	c := concurrency{tokens: *length, hundredths: times}
	if p := reProcess.FindStringSubmatch(line); p != nil {
		c.process = p[1]
	}
	at := slices.IndexFunc(f.concurrency, func(o concurrency) bool { return o.process == c.process })
	switch {
	case at >= 0: // said again
		f.concurrency[at] = c
	case len(f.concurrency) < 1024:
		f.concurrency = append(f.concurrency, c)
	}
}

// Capacity gives the KV capacity of each engine in tokens, by "Maximum concurrency
// for L tokens per request: Cx": C × L, rounded down. C is rounded to two decimals,
// so the sum can be off by tolerance. None: the log does not say. It may be called
// on nil.
//
// Note: the line "KV cache size" looks better and is not. vLLM 0.19 counts the
// blocks of one kind of layer there.
func (f *LogFacts) Capacity() (each []int64, tolerance int64) {
	if f == nil {
		return nil, 0
	}
	var lengths int64
	for _, c := range f.concurrency {
		each = append(each, c.tokens*c.hundredths/100)
		lengths += c.tokens
	}
	return each, (lengths*5 + 999) / 1000 // half a hundredth of each length, rounded up
}

// Settings lists what was seen, in the order of a page.
func (f *LogFacts) Settings() []record.Field {
	if f == nil {
		return nil
	}
	var out []record.Field
	for _, label := range order() {
		if v, ok := f.values[label]; ok {
			out = append(out, record.Field{Label: label, Value: v})
		}
	}
	return out
}

func (f *LogFacts) setVersion(v string) {
	f.Version = strings.TrimPrefix(v, "v")
	f.set(labelVersion, f.Version)
}

func (f *LogFacts) set(label, value string) {
	if f.values == nil {
		f.values = map[string]string{}
	}
	if value = clip(value); value != "" {
		f.values[label] = value
	}
}

// add sets a value beside the ones that the label has.
func (f *LogFacts) add(label, value string) {
	old, ok := f.values[label]
	if !ok {
		f.set(label, value)
		return
	}
	if !slices.Contains(strings.Split(old, ", "), clip(value)) && len(old)+len(value) < maxValue {
		f.set(label, old+", "+value)
	}
}

// clip bounds a value.
func clip(s string) string {
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) <= maxValue {
		return s
	}
	return strings.ToValidUTF8(s[:maxValue], "") + "…"
}

// engineConfig takes the engine's list: key=value, …, with Python's text of nested
// values.
func (f *LogFacts) engineConfig(list string) {
	values := map[string]string{}
	for _, item := range items(list) {
		if key, value, ok := strings.Cut(item, "="); ok {
			values[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	for _, c := range config {
		if v, ok := values[c.key]; ok {
			f.set(c.label, unquote(v))
		}
	}
	if n := tokens(values["max_seq_len"]); n != nil && f.MaxModelLen == nil {
		f.MaxModelLen = n
		f.set(labelModelLen, values["max_seq_len"])
	}
	compile := values["compilation_config"]
	if !strings.HasPrefix(compile, "{") || !strings.HasSuffix(compile, "}") {
		return
	}
	for _, item := range items(compile[1 : len(compile)-1]) {
		key, value, ok := strings.Cut(item, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		switch unquote(strings.TrimSpace(key)) {
		case "cudagraph_mode":
			// <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>
			value = strings.TrimPrefix(value, "<CUDAGraphMode.")
			value, _, _ = strings.Cut(value, ":")
			f.set(labelGraphMode, value)
		case "cudagraph_capture_sizes":
			if value != "[]" {
				f.set(labelGraphSizes, strings.Trim(value, "[]"))
			}
		}
	}
}

// arguments renders the dict of non-default arguments with the values of keys
// replaced that are secrets by their name.
func arguments(dict string) string {
	list := items(dict)
	for i, item := range list {
		key, value, ok := strings.Cut(item, ":")
		if !ok {
			continue
		}
		key, value = unquote(strings.TrimSpace(key)), strings.TrimSpace(value)
		if secretName(key) {
			value = record.Redacted
		}
		list[i] = key + "=" + value
	}
	return strings.Join(list, ", ")
}

func secretName(key string) bool {
	for _, end := range []string{"api_key", "token", "password", "secret"} {
		if key == end || strings.HasSuffix(key, "_"+end) {
			return true
		}
	}
	return false
}

// items splits a list at its commas, outside brackets and quotes. The list is
// Python's, and may be cut short.
func items(list string) []string {
	var out []string
	depth, from := 0, 0
	var quote byte
	for i := 0; i < len(list); i++ {
		c := list[i]
		switch {
		case quote != 0:
			if c == '\\' {
				i++
			} else if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.IndexByte("([{<", c) >= 0:
			depth++
		case strings.IndexByte(")]}>", c) >= 0:
			depth--
		case c == ',' && depth <= 0:
			out = append(out, strings.TrimSpace(list[from:i]))
			from = i + 1
		}
	}
	if last := strings.TrimSpace(list[from:]); last != "" {
		out = append(out, last)
	}
	return out
}

func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '\'' || s[0] == '"') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

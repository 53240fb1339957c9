package vllm

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
)

// wantMetrics is a want.json of testdata/metrics.
type wantMetrics struct {
	Available           bool     `json:"available"`
	Engines             int      `json:"engines"`
	KVCapacityTokens    *int64   `json:"kv_capacity_tokens"`
	KVCapacitySource    string   `json:"kv_capacity_source"`
	KVCapacityPerEngine []int64  `json:"kv_capacity_per_engine"`
	KVCapacityTolerance int64    `json:"kv_capacity_tolerance"`
	Running             *int64   `json:"running"`
	Waiting             *int64   `json:"waiting"`
	KVUsage             *float64 `json:"kv_usage"`
	Preemptions         *int64   `json:"preemptions"`
	PrefixQueries       *int64   `json:"prefix_queries"`
	PrefixHits          *int64   `json:"prefix_hits"`
	WithoutLog          *struct {
		KVCapacityTokens *int64 `json:"kv_capacity_tokens"`
		KVCapacitySource string `json:"kv_capacity_source"`
	} `json:"without_log"`
	Notes string `json:"notes"`
}

func bodies(t testing.TB) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, pattern := range []string{"metrics/*.prom", "metrics/*.html", "vllm-0.32.0-cpu/*.prom"} {
		names, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: no files (%v)", pattern, err)
		}
		for _, name := range names {
			out[name] = read(t, name)
		}
	}
	return out
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func logFacts(t testing.TB, name string) *LogFacts {
	t.Helper()
	var f LogFacts
	for line := range strings.Lines(string(read(t, name))) {
		f.Line(line)
	}
	return &f
}

func TestParse(t *testing.T) {
	names, _ := filepath.Glob("testdata/metrics/*.want.json")
	if len(names) != 8 {
		t.Fatalf("%d samples, want 8", len(names))
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			var want wantMetrics
			dec := json.NewDecoder(bytes.NewReader(read(t, name)))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&want); err != nil {
				t.Fatal(err)
			}
			base := strings.TrimSuffix(name, ".want.json")
			var body []byte
			for _, ext := range []string{".prom", ".html"} {
				if b, err := os.ReadFile(base + ext); err == nil {
					body = b
				}
			}
			var log *LogFacts
			if _, err := os.Stat(base + ".log"); err == nil {
				log = logFacts(t, base+".log")
			}
			m := Parse(body, log)
			got := wantMetrics{
				Available: m.Available, Engines: m.Engines,
				KVCapacityTokens: m.KVCapacityTokens, KVCapacitySource: m.KVCapacitySource,
				KVCapacityPerEngine: m.KVCapacityPerEngine, KVCapacityTolerance: m.KVCapacityTolerance,
				Running: m.Running, Waiting: m.Waiting, KVUsage: m.KVUsage, Preemptions: m.Preemptions,
				PrefixQueries: m.PrefixQueries, PrefixHits: m.PrefixHits,
				WithoutLog: want.WithoutLog, Notes: want.Notes,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if w := want.WithoutLog; w != nil {
				m := Parse(body, nil)
				if m.KVCapacitySource != w.KVCapacitySource || cmp.Diff(m.KVCapacityTokens, w.KVCapacityTokens) != "" {
					t.Errorf("without the log: %v %s", m.KVCapacityTokens, m.KVCapacitySource)
				}
			}
		})
	}
}

// TestReal reads what vLLM 0.32.0 sent.
func TestReal(t *testing.T) {
	type real struct {
		Capacity                                 int64
		Queries, Hits, Preempted, Prompt, Output int64
	}
	for name, want := range map[string]real{
		"metrics-after-one": {Capacity: 2097152, Queries: 15, Prompt: 15, Output: 6},
		"metrics-kv":        {Capacity: 8192, Queries: 14504, Preempted: 5, Prompt: 14504, Output: 12000},
	} {
		t.Run(name, func(t *testing.T) {
			m := Parse(read(t, "testdata/vllm-0.32.0-cpu/"+name+".prom"), nil)
			if m.Engines != 1 || m.KVCapacitySource != CapacityLabel || m.KVUsage == nil || m.SpecDrafts != nil ||
				m.Running == nil || *m.Running != 0 || m.Waiting == nil || *m.Waiting != 0 {
				t.Errorf("%+v", m)
			}
			got := real{*m.KVCapacityTokens, *m.PrefixQueries, *m.PrefixHits, *m.Preemptions, *m.PromptTokens, *m.GenerationTokens}
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	m := Parse(read(t, "testdata/vllm-0.32.0-cpu/metrics-ngram.prom"), nil)
	if *m.SpecDrafts != 12 || *m.SpecDraftTokens != 46 || *m.SpecAccepted != 46 {
		t.Errorf("speculation: %d drafts, %d tokens, %d accepted", *m.SpecDrafts, *m.SpecDraftTokens, *m.SpecAccepted)
	}
}

// TestGaugesAgree holds the fast path to the whole parse.
func TestGaugesAgree(t *testing.T) {
	for name, body := range bodies(t) {
		if diff := cmp.Diff(Parse(body, nil).Reading, Gauges(body)); diff != "" {
			t.Errorf("%s: -Parse +Gauges:\n%s", name, diff)
		}
	}
}

func TestOddMetrics(t *testing.T) {
	number := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		body    string
		running *int64
		avail   bool
	}{
		"absent":                  {"vllm:num_requests_waiting 1\n", nil, true},
		"NaN":                     {"vllm:num_requests_running NaN\n", nil, true},
		"negative":                {"vllm:num_requests_running{engine=\"0\"} -1\n", nil, true},
		"one of two unknown":      {"vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} NaN\n", nil, true},
		"infinite":                {"vllm:num_requests_running +Inf\n", nil, true},
		"half a request":          {"vllm:num_requests_running 1.5\n", nil, true},
		"one line":                {"vllm:num_requests_running 2\n", number(2), true},
		"time behind the value":   {"vllm:num_requests_running{engine=\"0\"} 2 1796040000000\n", number(2), true},
		"brace in a label":        {"vllm:num_requests_running{model_name=\"a} 9\"} 2\n", number(2), true},
		"another server":          {"sglang:num_running_reqs 4\n", nil, false},
		"cut inside a line":       {"vllm:num_requests_waiting 1\nvllm:num_requests_runn", nil, false},
		"no value":                {"vllm:num_requests_running{engine=\"0\"}\n", nil, false},
		"no number":               {"vllm:num_requests_running many\n", nil, false},
		"JSON":                    {"{\"detail\":\"Not Found\"}", nil, false},
		"nothing":                 {"", nil, false},
		"zero stays zero":         {"vllm:num_requests_running 0.0\n", number(0), true},
		"blanks before the value": {"vllm:num_requests_running{engine=\"0\"}\t 2\n", number(2), true},
	} {
		t.Run(name, func(t *testing.T) {
			m, g := Parse([]byte(c.body), nil), Gauges([]byte(c.body))
			if diff := cmp.Diff(c.running, m.Running); diff != "" || m.Available != c.avail {
				t.Errorf("Parse: available %v, running -want +got:\n%s", m.Available, diff)
			}
			if diff := cmp.Diff(m.Reading, g); diff != "" {
				t.Errorf("-Parse +Gauges:\n%s", diff)
			}
		})
	}
}

func TestCapacityNeedsAllEngines(t *testing.T) {
	const body = `vllm:cache_config_info{engine="10",kv_cache_size_tokens="300",block_size="16",num_gpu_blocks="7"} 1
vllm:cache_config_info{engine="9",kv_cache_size_tokens="None",block_size="16",num_gpu_blocks="5"} 1
`
	m := Parse([]byte(body), nil)
	if m.KVCapacitySource != CapacityBlocks || *m.KVCapacityTokens != 192 || !cmp.Equal(m.KVCapacityPerEngine, []int64{80, 112}) {
		t.Errorf("%+v", m)
	}
	m = Parse([]byte(strings.ReplaceAll(body, `"7"`, `"999999999999999999"`)), nil)
	if m.KVCapacitySource != CapacityUnknown || m.KVCapacityTokens != nil {
		t.Errorf("a capacity that cannot be: %+v", m)
	}
}

// TestCapacityOfSomeEngines: what one of two engines has is not what the server has.
func TestCapacityOfSomeEngines(t *testing.T) {
	const gauges = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 1\n"
	var log LogFacts
	log.Line("INFO x] Maximum concurrency for 1,000 tokens per request: 2.00x")
	for name, body := range map[string]string{
		"metrics": gauges + "vllm:cache_config_info{engine=\"0\",kv_cache_size_tokens=\"300\"} 1\n",
		"log":     gauges,
	} {
		if m := Parse([]byte(body), &log); m.Engines != 2 || m.KVCapacityTokens != nil || m.KVCapacitySource != CapacityUnknown {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if m := Parse([]byte("<html>"), &log); m.KVCapacityTokens == nil || *m.KVCapacityTokens != 2000 || m.KVCapacitySource != CapacityLog {
		t.Errorf("log without metrics: %+v", m)
	}
}

func TestReadingValues(t *testing.T) {
	m := Gauges([]byte("vllm:num_requests_running 3\nvllm:num_requests_waiting NaN\nvllm:kv_cache_usage_perc 0.5\n"))
	want := map[string]float64{record.SampleRunning: 3, record.SampleKVUsage: 0.5}
	if diff := cmp.Diff(want, maps.Collect(m.Values())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// FuzzMetrics: whatever comes, nothing breaks, numbers are numbers, and both ways
// agree where the body is one that both read line by line.
func FuzzMetrics(f *testing.F) {
	for _, b := range bodies(f) {
		f.Add(b[:min(len(b), 4096)])
	}
	f.Add([]byte("vllm:cache_config_info{engine=\"-1\",block_size=\"0\",num_gpu_blocks=\"9\"} 1\n"))
	f.Fuzz(func(t *testing.T, body []byte) {
		m, g := Parse(body, nil), Gauges(body)
		for _, r := range []Reading{m.Reading, g} {
			for _, p := range []*int64{r.Running, r.Waiting, r.Preemptions, r.PrefixQueries, r.PrefixHits} {
				if p != nil && *p < 0 {
					t.Fatalf("negative count %d", *p)
				}
			}
			if r.KVUsage != nil && !(*r.KVUsage >= 0) {
				t.Fatalf("KV usage %v", *r.KVUsage)
			}
		}
		if (m.KVCapacityTokens == nil) != (m.KVCapacitySource == CapacityUnknown) ||
			m.KVCapacityTokens != nil && *m.KVCapacityTokens <= 0 {
			t.Fatalf("capacity %+v", m)
		}
	})
}

func BenchmarkGauges(b *testing.B) {
	body := read(b, "testdata/vllm-0.32.0-cpu/metrics-after-one.prom")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		Gauges(body)
	}
}

func BenchmarkParse(b *testing.B) {
	body := read(b, "testdata/vllm-0.32.0-cpu/metrics-after-one.prom")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		Parse(body, nil)
	}
}

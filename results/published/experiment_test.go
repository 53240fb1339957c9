package published

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSeedExperiments holds that the experiments written by hand say what their
// pages say. It reads their lines, since YAML is not this package's business;
// that they are valid is tested where experiments are read.
func TestSeedExperiments(t *testing.T) {
	for file, seed := range map[string]string{
		"qwen3.5-4b-rtx-pro-6000.yaml": "rtx-pro-6000.txt",
		"qwen3.5-4b-fp8-rtx-3060.yaml": "rtx-3060.txt",
	} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("..", "..", "experiments", file))
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(data), "\n")
			for i, l := range lines {
				lines[i], _, _ = strings.Cut(l, " # ")
				if strings.HasPrefix(l, "    ") { // of the command or of a text: no comment of YAML's
					lines[i] = l
				}
			}
			e := read(t, seed).Experiment
			var want []string
			field := func(format string, value any) {
				if s := fmt.Sprint(value); s != "" && s != "0" {
					want = append(want, fmt.Sprintf(format, s))
				}
			}
			labels := func(list []Context) string {
				var out []string
				for _, c := range list {
					out = append(out, c.Label)
				}
				return strings.Join(out, ", ")
			}
			field("title: %s", e.Title)
			field("author: %q", e.Author)
			field("  version: %s", e.Engine.Version)
			field("  quantization: %s", e.Engine.Quantization)
			field("  backend: %s", e.Engine.Backend)
			field("  repository: %s", e.Engine.Repository)
			field("  build: %s", e.Engine.Build)
			field("  commit: %s", e.Engine.Commit)
			if e.Engine.Commit != "" {
				field("  source: {commit: %s, repo: github.com/vllm-project/vllm}", e.Engine.Commit)
			} else {
				field("  source: {image: %q}", e.Engine.Build)
			}
			field("  kv_capacity_tokens: %s", e.CapacityLow)
			for _, l := range strings.Split(e.Command, "\n") {
				field("    %s", l)
			}
			field("  type: %s", e.Hardware.Type)
			field("  gpu: %s", e.Hardware.GPU)
			field("  vram: %s", e.Hardware.VRAM)
			field("  cpu: %s", e.Hardware.CPU)
			field("  ram: %s", e.Hardware.RAM)
			field("  os: %s", e.Hardware.OS)
			field("  prefill: [%s]", labels(e.Prefill))
			field("  contexts: [%s]", labels(e.Contexts))
			field("  concurrency: [%s]", joinInts(e.Concurrency, ", "))
			field("  duration: %s", e.Duration)
			field("  max_output: %s", e.MaxOutput)
			for _, w := range want {
				if !slices.Contains(lines, w) {
					t.Errorf("the experiment has no line %q, which its page implies", w)
				}
			}
			model := fmt.Sprintf(", revision: %s, quantization: %s}", e.Revision, e.Quantization)
			if !slices.ContainsFunc(lines, func(l string) bool {
				return strings.HasPrefix(l, "model: {id: ") && strings.HasSuffix(l, model)
			}) {
				t.Errorf("the experiment has no model with %q", model)
			}
		})
	}
}

package published

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// TestSeedExperiments holds that the experiments written by hand say what their
// pages say.
func TestSeedExperiments(t *testing.T) {
	type asWritten struct {
		Title, Author string
		Engine        struct {
			Source                                                             struct{ Image, Commit string }
			Version, Quantization, Backend, Repository, Build, Commit, Command string
			KV                                                                 int64 `yaml:"kv_capacity_tokens"`
		}
		Model    struct{ ID, Revision, Quantization string }
		Hardware struct{ Type, GPU, VRAM, CPU, RAM, OS string }
		Matrix   struct {
			Prefill, Contexts []string
			Concurrency       []int
			Duration          string
			MaxOutput         int `yaml:"max_output"`
		}
	}
	for file, seed := range map[string]string{
		"qwen3.5-4b-rtx-pro-6000.yaml": "rtx-pro-6000.txt",
		"qwen3.5-4b-fp8-rtx-3060.yaml": "rtx-3060.txt",
	} {
		t.Run(file, func(t *testing.T) {
			data, err := os.ReadFile(filepath.Join("..", "..", "experiments", file))
			if err != nil {
				t.Fatal(err)
			}
			var got asWritten
			if err := yaml.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			e := read(t, seed).Experiment
			labels := func(list []Context) (out []string) {
				for _, c := range list {
					out = append(out, c.Label)
				}
				return out
			}
			var want asWritten
			want.Title, want.Author = e.Title, e.Author
			en := e.Engine
			want.Engine.Version, want.Engine.Quantization, want.Engine.Backend = en.Version, en.Quantization, en.Backend
			want.Engine.Repository, want.Engine.Build, want.Engine.Commit = en.Repository, en.Build, en.Commit
			want.Engine.Command, want.Engine.KV = e.Command+"\n", e.CapacityLow
			if en.Commit != "" {
				want.Engine.Source.Commit = en.Commit
			} else {
				want.Engine.Source.Image = en.Build
			}
			names, _ := served(strings.ReplaceAll(e.Command, "--served-model-name qwen", ""))
			want.Model.ID, want.Model.Revision, want.Model.Quantization = names[0], e.Revision, e.Quantization
			h := e.Hardware
			want.Hardware.Type, want.Hardware.GPU, want.Hardware.VRAM = h.Type, h.GPU, h.VRAM
			want.Hardware.CPU, want.Hardware.RAM, want.Hardware.OS = h.CPU, h.RAM, h.OS
			want.Matrix.Prefill, want.Matrix.Contexts, want.Matrix.Concurrency = labels(e.Prefill), labels(e.Contexts), e.Concurrency
			want.Matrix.Duration, want.Matrix.MaxOutput = e.Duration.String(), e.MaxOutput
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the experiment differs from its page (-page +experiment):\n%s", diff)
			}
		})
	}
}

//go:build linux

package host

import (
	"slices"
	"strings"
	"testing"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
)

// TestRefs: the names under which the engine will look for each model's files.
func TestRefs(t *testing.T) {
	hex := strings.Repeat("a", 40)
	pin := func(field, asked string) plan.Pin { return plan.Pin{Field: field, Asked: asked, Found: hex} }
	for _, c := range []struct {
		name, model string
		argv        []string
		pins        []plan.Pin
		want        []string
	}{
		{"the experiment's name of a revision is not the engine's", "o/m", nil, []plan.Pin{pin("model.revision", "o/m@v1")}, []string{"main"}},
		{"the command's is", "o/m", []string{"--revision", "v2"}, []plan.Pin{pin("engine.command: --revision", "o/m@v2")}, []string{"v2"}},
		{"a commit needs no name", "o/m", []string{"--revision", hex}, []plan.Pin{pin("engine.command: --revision", "o/m@"+hex)}, nil},
		{"a tokenizer by two names", "o/tok", nil, []plan.Pin{pin("model.revision", "o/m"), pin("engine.command: --tokenizer", "o/tok@v9"), pin("engine.command: --generation-config", "o/tok")}, []string{"main", "v9"}},
		{"a draft model", "o/draft", []string{"--revision", "v2"}, []plan.Pin{pin("engine.command: --speculative-config", "o/draft@v3")}, []string{"v3"}},
	} {
		p := &plan.Plan{Pins: c.pins}
		p.Identity.Model.ID, p.Identity.Engine.Argv = "o/m", append([]string{"vllm", "serve", "o/m"}, c.argv...)
		j := &job{Job: pipelines.Job{Plan: p}}
		if got := j.refs(plan.Snapshot{ID: c.model, Revision: hex}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

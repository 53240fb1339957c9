package resolve

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/spec"
)

func experiment() *spec.Experiment {
	zero := 0.0
	return &spec.Experiment{
		File: "e.yaml", Name: "e", Title: "E", Notes: "n", Prompts: "shared",
		Engine: spec.Engine{
			Source:  spec.Source{Image: "vllm/vllm-openai:v0.32.0-x86_64"},
			Command: "# a note\nHF_TOKEN=hf_madeup vllm serve org/m --served-model-name bench --host 0.0.0.0 --port 8000 --api-key sk-madeup --max-model-len 4096",
		},
		Model:    spec.Model{Revision: "main"},
		Sampling: spec.Sampling{Temperature: &zero},
		Limits:   spec.Limits{Start: 30 * time.Minute, Stall: time.Minute, Idle: time.Minute},
		Matrix: spec.Matrix{
			Contexts:    []spec.Context{{Tokens: 0, Label: "0"}, {Tokens: 1024, Label: "1K"}},
			Concurrency: []int{1, 2},
			Prefill:     []spec.Context{{Tokens: 1024, Label: "1K"}},
			Duration:    30 * time.Second, Settle: 3 * time.Second, MaxOutput: 64, Repeats: 2, Capacity: "worst_case",
		},
	}
}

func mustResolve(t *testing.T, e *spec.Experiment, o Options) *Resolved {
	t.Helper()
	if o.ReadFile == nil {
		o.ReadFile = func(string) ([]byte, error) { return nil, errors.New("no file") }
	}
	r, err := Resolve(context.Background(), e, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func ids(steps []plan.Step) []string {
	var out []string
	for _, s := range steps {
		out = append(out, s.ID)
	}
	return out
}

func TestStepsInterleaveRepeats(t *testing.T) {
	got := ids(mustResolve(t, experiment(), Options{}).Plan.Identity.Steps)
	want := []string{
		"prefill-1k-r1", "decode-0-c1-r1", "decode-0-c2-r1", "decode-1k-c1-r1", "decode-1k-c2-r1",
		"prefill-1k-r2", "decode-0-c1-r2", "decode-0-c2-r2", "decode-1k-c1-r2", "decode-1k-c2-r2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestSeededOrder(t *testing.T) {
	order := func(seed int64) []string {
		e := experiment()
		e.Matrix.Order, e.Matrix.OrderSeed = "seeded", seed
		return ids(mustResolve(t, e, Options{}).Plan.Identity.Steps)
	}
	plain := ids(mustResolve(t, experiment(), Options{}).Plan.Identity.Steps)
	a, b := order(7), order(8)
	if slices.Equal(a, plain) || slices.Equal(a, b) {
		t.Errorf("seeds do not order: %v %v", a, b)
	}
	if !slices.Equal(a, order(7)) {
		t.Error("the same seed gives another order")
	}
	for i, id := range a {
		if strings.HasSuffix(id, "-r1") != (i < 5) {
			t.Errorf("repeats are mixed: %v", a)
		}
	}
	slices.Sort(a)
	slices.Sort(plain)
	if !slices.Equal(a, plain) {
		t.Errorf("steps lost or doubled: %v", a)
	}
}

func TestCommandIsBoundAndRedacted(t *testing.T) {
	r := mustResolve(t, experiment(), Options{})
	id := r.Plan.Identity
	if want := []string{"vllm", "serve", "org/m", "--served-model-name", "bench", "--max-model-len", "4096"}; !slices.Equal(id.Engine.Argv, want) {
		t.Errorf("argv %q", id.Engine.Argv)
	}
	if id.Engine.Env["HF_TOKEN"] != "<redacted>" {
		t.Errorf("env %v", id.Engine.Env)
	}
	if id.Model.ID != "org/m" || !slices.Equal(id.Model.Served, []string{"bench"}) || id.Capacity.MaxModelLen != 4096 {
		t.Errorf("model %+v, capacity %+v", id.Model, id.Capacity)
	}
	b, err := r.Plan.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"hf_madeup", "sk-madeup"} {
		if strings.Contains(string(b), secret) {
			t.Errorf("%s stands in the plan", secret)
		}
	}
	if !slices.Equal(r.Plan.Text.Comments, []string{"a note"}) || !strings.Contains(r.Plan.Text.Command, "--port 8000") {
		t.Errorf("text %+v", r.Plan.Text)
	}
}

// TestDigestSides holds, at the level of the experiment, what makes another plan and
// what does not.
func TestDigestSides(t *testing.T) {
	base := mustResolve(t, experiment(), Options{MethodVersion: "1"}).Plan.Digest
	same := map[string]func(*spec.Experiment){
		"title":    func(e *spec.Experiment) { e.Title = "other" },
		"notes":    func(e *spec.Experiment) { e.Notes = "other" },
		"name":     func(e *spec.Experiment) { e.Name = "other" },
		"hardware": func(e *spec.Experiment) { e.Hardware.GPU = "other" },
		"comment":  func(e *spec.Experiment) { e.Engine.Command = strings.Replace(e.Engine.Command, "a note", "b", 1) },
		"port":     func(e *spec.Experiment) { e.Engine.Command = strings.Replace(e.Engine.Command, "8000", "8001", 1) },
		"key":      func(e *spec.Experiment) { e.Engine.Command = strings.Replace(e.Engine.Command, "sk-madeup", "sk-2", 1) },
		"expect":   func(e *spec.Experiment) { e.Expect.RelTol = 0.5 },
	}
	for name, change := range same {
		e := experiment()
		change(e)
		if got := mustResolve(t, e, Options{MethodVersion: "1"}).Plan.Digest; got != base {
			t.Errorf("%s makes another plan", name)
		}
	}
	other := map[string]func(*spec.Experiment){
		"flag": func(e *spec.Experiment) { e.Engine.Command += " --enforce-eager" },
		"env": func(e *spec.Experiment) {
			e.Engine.Command = strings.Replace(e.Engine.Command, "vllm serve", "A=1 vllm serve", 1)
		},
		"image":    func(e *spec.Experiment) { e.Engine.Source.Image += "2" },
		"duration": func(e *spec.Experiment) { e.Matrix.Duration++ },
		"repeats":  func(e *spec.Experiment) { e.Matrix.Repeats++ },
		"order":    func(e *spec.Experiment) { e.Matrix.Order = "seeded" },
		"prompts":  func(e *spec.Experiment) { e.Prompts = "distinct" },
		"sampling": func(e *spec.Experiment) { e.Sampling.Temperature = nil },
		"eos":      func(e *spec.Experiment) { f := false; e.Sampling.IgnoreEOS = &f },
		"revision": func(e *spec.Experiment) { e.Model.Revision = "v2" },
		"loop":     func(e *spec.Experiment) { e.Loop = "off" },
		"capacity": func(e *spec.Experiment) { e.Engine.KVCapacityTokens = 5000 },
		"limit":    func(e *spec.Experiment) { e.Limits.Stall++ },
	}
	for name, change := range other {
		e := experiment()
		change(e)
		if mustResolve(t, e, Options{MethodVersion: "1"}).Plan.Digest == base {
			t.Errorf("%s leaves the plan as it was", name)
		}
	}
	if mustResolve(t, experiment(), Options{MethodVersion: "2"}).Plan.Digest == base {
		t.Error("another method leaves the plan as it was")
	}
}

func TestFilesBecomeHashes(t *testing.T) {
	files := map[string]string{"lock.txt": "a==1", "make.py": "print()"}
	e := experiment()
	e.Engine.Source = spec.Source{Wheel: &spec.Wheel{Lock: "lock.txt", Python: "3.12", Model: "make.py"}}
	o := Options{ReadFile: func(name string) ([]byte, error) {
		if s, ok := files[name]; ok {
			return []byte(s), nil
		}
		return nil, errors.New("no such file")
	}}
	r := mustResolve(t, e, o)
	if len(r.Plan.Unpinned) != 0 {
		t.Errorf("unpinned: %v", r.Plan.Unpinned)
	}
	if string(r.Lock) != "a==1" || !strings.HasPrefix(r.Plan.Identity.Engine.Lock, "sha256:") {
		t.Errorf("lock %q %q", r.Lock, r.Plan.Identity.Engine.Lock)
	}
	before := r.Plan.Digest
	files["make.py"] = "print(1)"
	if mustResolve(t, e, o).Plan.Digest == before {
		t.Error("another model script leaves the plan as it was")
	}
	delete(files, "lock.txt")
	if _, err := Resolve(context.Background(), e, o); err == nil || !strings.Contains(err.Error(), "e.yaml: engine.source.wheel.lock: no such file") {
		t.Errorf("missing lock: %v", err)
	}
}

func TestUnpinned(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*spec.Experiment)
		want   []string // substrings, one for each sentence
	}{
		{"tag and branch", func(*spec.Experiment) {}, []string{"is the tag", `org/m is "main"`}},
		{"digest and commit", func(e *spec.Experiment) {
			e.Engine.Source.Image = "vllm/vllm-openai@sha256:" + strings.Repeat("a", 64)
			e.Model.Revision = strings.Repeat("b", 40)
		}, nil},
		{"short commit", func(e *spec.Experiment) {
			e.Engine.Source = spec.Source{Commit: "73a5831127a9"}
			e.Model.Revision = strings.Repeat("b", 40)
		}, []string{"73a5831127a9", "how its image is made"}},
		{"draft model", func(e *spec.Experiment) {
			e.Engine.Source.Image = "vllm/vllm-openai@sha256:" + strings.Repeat("a", 64)
			e.Model.Revision = strings.Repeat("b", 40)
			e.Engine.Command += ` --speculative-config '{"method":"dflash","model":"z/draft"}'`
		}, []string{"z/draft"}},
		{"other models", func(e *spec.Experiment) {
			e.Engine.Source.Image = "vllm/vllm-openai@sha256:" + strings.Repeat("a", 64)
			e.Model.Revision = strings.Repeat("b", 40)
			e.Engine.Command += " --tokenizer o/tok --lora-modules a=./lora b=o/lora"
		}, []string{`--tokenizer names "o/tok"`, "--lora-modules names the folder ./lora", `--lora-modules names "o/lora"`}},
		{"attach", func(e *spec.Experiment) {
			e.Engine.Source = spec.Source{Attach: "http://x"}
			e.Model.Revision = strings.Repeat("b", 40)
		}, []string{"somebody else started"}},
		{"simulator", func(e *spec.Experiment) { e.Engine.Source = spec.Source{Simulator: "default"} }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := experiment()
			c.change(e)
			got := mustResolve(t, e, Options{}).Plan.Unpinned
			if len(got) != len(c.want) {
				t.Fatalf("got %q", got)
			}
			for i, w := range c.want {
				if !strings.Contains(got[i], w) {
					t.Errorf("got %q, want %q in it", got[i], w)
				}
			}
		})
	}
}

func TestEstimate(t *testing.T) {
	id := &mustResolve(t, experiment(), Options{}).Plan.Identity
	// 2 repeats of 1 prefill cell (0.5 s) and 4 decode cells (30 + 3 + 0.5 s).
	if got, want := Estimate(id, plan.Capacity{}), 2*(500*time.Millisecond+4*33500*time.Millisecond); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	// A capacity of 100 tokens leaves only 0 × 1 to be decoded.
	if got, want := Estimate(id, plan.Capacity{KVTokens: 100}), 2*33500*time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

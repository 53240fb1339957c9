package plan

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func sample() *Plan {
	f, n := 0.5, int64(1)
	return &Plan{
		Text: Text{Name: "n", Title: "t", Notes: "m", Comments: []string{"c"}, Command: "vllm serve m",
			Hardware: map[string]string{"gpu": "g"}, Labels: map[string]string{"a": "b"},
			Experiment: "e.yaml", Overrides: []string{"matrix.repeats=2"}},
		Identity: Identity{
			MethodVersion: "1",
			Engine: Engine{Source: "host", Image: "i", Commit: "c", Repo: "r", Lock: "l", Python: "3.12", Program: "p",
				Profile: "q", Argv: []string{"vllm", "serve"}, Env: map[string]string{"A": "b"}, Version: "0.32.0",
				Locked: &Image{Platform: "linux/amd64", Index: "sha256:1", Manifest: "sha256:2", Config: "sha256:3"},
				Build: &Build{Way: "wheel", Image: "i", Base: "b", BaseLocked: &Image{Platform: "p", Index: "sha256:1", Manifest: "sha256:2", Config: "sha256:3"},
					WheelURL: "u", WheelSHA256: "s", Platform: "p", Dockerfile: "d", Target: "t", Args: map[string]string{"A": "1"}, Patches: []Patch{{Name: "n", SHA256: "s"}}},
				Base: "b", BaseLocked: &Image{Platform: "p", Index: "sha256:1", Manifest: "sha256:2", Config: "sha256:3"}},
			Model: Model{ID: "m", Revision: "main", Quantization: "FP8", Served: []string{"s"}, Files: "f",
				Snapshots: []Snapshot{{ID: "m", Revision: "r", Files: []File{{Path: "p", Bytes: 1, SHA256: "a", Git: "b"}}, Bytes: 1}}},
			Prompts:   "shared",
			Sampling:  Sampling{Temperature: &f, TopP: &f, Seed: &n, IgnoreEOS: true},
			MaxOutput: 8192, WindowNs: 30e9, SettleNs: 3e9,
			Capacity:  Capacity{Rule: "worst_case", KVTokens: 10000, PerEngine: 9000, Source: "option", MaxModelLen: 9000},
			Limits:    Limits{StartNs: 1, ScoutNs: 2, ReadyNs: 3, StallNs: 4, IdleNs: 5},
			LoopGuard: true,
			Steps:     []Step{{ID: "decode-8k-c1-r1", Phase: "decode", ContextTokens: 8192, ContextLabel: "8K", Concurrency: 1, Repeat: 1, Skip: "s"}},
		},
		Unpinned: []string{"u"},
		Pins:     []Pin{{Field: "f", Asked: "a", Found: "g"}},
	}
}

// mutations changes one leaf after the other of the value that field points to and
// calls f with the leaf's name while it is changed.
func mutations(t *testing.T, v reflect.Value, name string, f func(string)) {
	switch v.Kind() {
	case reflect.Pointer:
		mutations(t, v.Elem(), name, f)
	case reflect.Struct:
		for i := range v.NumField() {
			mutations(t, v.Field(i), name+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Slice:
		if v.Len() == 0 {
			t.Fatalf("%s is empty in the sample: it is not tested", name)
		}
		mutations(t, v.Index(0), name+"[0]", f)
	case reflect.Map:
		key := v.MapKeys()[0]
		old := v.MapIndex(key)
		v.SetMapIndex(key, reflect.ValueOf(old.String()+"x"))
		f(name)
		v.SetMapIndex(key, old)
	default:
		old := reflect.New(v.Type()).Elem()
		old.Set(v)
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		default:
			t.Fatalf("%s has kind %v: teach the test", name, v.Kind())
		}
		f(name)
		v.Set(old)
	}
}

func TestDigestCoversWhatCanMoveANumber(t *testing.T) {
	p := sample()
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(p.Digest, "h1:") {
		t.Fatalf("digest %q names no algorithm", p.Digest)
	}
	leaves := 0
	mutations(t, reflect.ValueOf(&p.Identity), "Identity", func(name string) {
		leaves++
		if d, _ := Digest(&p.Identity); d == p.Digest {
			t.Errorf("a change of %s leaves the digest as it was", name)
		}
	})
	if leaves < 30 {
		t.Errorf("only %d leaves were changed", leaves)
	}
}

func TestDigestLeavesTextOut(t *testing.T) {
	p := sample()
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	want := p.Digest
	mutations(t, reflect.ValueOf(&p.Text), "Text", func(name string) {
		if err := p.Seal(); err != nil || p.Digest != want {
			t.Errorf("a change of %s makes another plan", name)
		}
	})
	p.Unpinned, p.Pins = nil, nil
	if err := p.Seal(); err != nil || p.Digest != want {
		t.Error("what is said of the plan makes another plan")
	}
}

func TestParseRoundTrip(t *testing.T) {
	p := sample()
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	b, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, p) {
		t.Errorf("got %+v\nwant %+v", got, p)
	}
	changed := strings.Replace(string(b), `"max_output": 8192`, `"max_output": 4096`, 1)
	if _, err := Parse([]byte(changed)); err == nil || !strings.Contains(err.Error(), "changed by hand") {
		t.Errorf("a plan changed by hand: %v", err)
	}
}

// TestPredictSeeds holds the rule against the two published pages: which cells were
// over capacity there, with the capacity that the pages imply.
func TestPredictSeeds(t *testing.T) {
	for _, seed := range []struct {
		name      string
		kv        int64
		maxOutput int
		contexts  []int // × 1,024
		fits      []int // how many of the columns 1, 2, 4 … 128 ran
	}{
		{"RTX PRO 6000", 1572864, 4096, []int{8, 16, 32, 64, 128, 251}, []int{8, 7, 6, 5, 4, 3}},
		{"RTX PRO 6000, upper end", 2088959, 4096, []int{8, 16, 32, 64, 128, 251}, []int{8, 7, 6, 5, 4, 3}},
		// 248K × 1 fits, ran and gave no token.
		{"RTX 3060", 278528, 8192, []int{0, 16, 32, 64, 128, 248}, []int{6, 4, 3, 2, 2, 1}},
		{"RTX 3060, upper end", 294911, 8192, []int{0, 16, 32, 64, 128, 248}, []int{6, 4, 3, 2, 2, 1}},
	} {
		t.Run(seed.name, func(t *testing.T) {
			id := Identity{MaxOutput: seed.maxOutput}
			c := Capacity{Rule: "worst_case", KVTokens: seed.kv, MaxModelLen: 262144}
			for i, context := range seed.contexts {
				for j := range 8 {
					v := id.Predict(c, Step{Phase: "decode", ContextTokens: context * 1024, Concurrency: 1 << j})
					if want := j < seed.fits[i]; v.Fits != want {
						t.Errorf("%dK × %d: fits %v, want %v (%s)", context, 1<<j, v.Fits, want, v.Why)
					}
				}
			}
		})
	}
}

func TestPredict(t *testing.T) {
	id := Identity{MaxOutput: 100}
	step := Step{Phase: "decode", ContextTokens: 1000, Concurrency: 4}
	for _, c := range []struct {
		name string
		c    Capacity
		s    Step
		want Verdict
	}{
		{"unknown capacity predicts nothing", Capacity{Rule: "worst_case"}, step, Verdict{Fits: true}},
		{"exactly full fits", Capacity{Rule: "worst_case", KVTokens: 4400}, step, Verdict{Fits: true}},
		{"one token over", Capacity{Rule: "worst_case", KVTokens: 4399}, step, Verdict{Status: "over_capacity", Reason: "predicted",
			Why: "(1000 + 100) × 4 = 4400 tokens exceed the KV cache of 4399"}},
		{"try runs it", Capacity{Rule: "try", KVTokens: 1}, step, Verdict{Fits: true}},
		{"the model length is no capacity", Capacity{Rule: "try", MaxModelLen: 1099}, step, Verdict{Status: "skipped", Reason: "model_len",
			Why: "1000 + 100 tokens exceed the model length 1099"}},
		{"one engine of several", Capacity{Rule: "worst_case", KVTokens: 240000, PerEngine: 1000}, step, Verdict{Status: "over_capacity", Reason: "predicted",
			Why: "1000 + 100 tokens exceed the KV cache of one engine, 1000"}},
		{"A44 exactly the model length", Capacity{Rule: "worst_case", MaxModelLen: 1100}, step, Verdict{Fits: true}},
		{"A44 too long for the model is not over capacity", Capacity{Rule: "worst_case", KVTokens: 1000, MaxModelLen: 1099}, step, Verdict{Status: "skipped", Reason: "model_len",
			Why: "1000 + 100 tokens exceed the model length 1099"}},
		{"D26 the model takes it, the cache does not", Capacity{Rule: "worst_case", KVTokens: 76640, MaxModelLen: 262144}, Step{Phase: "decode", ContextTokens: 102400, Concurrency: 1},
			Verdict{Status: "over_capacity", Reason: "predicted", Why: "(102400 + 100) × 1 = 102500 tokens exceed the KV cache of 76640"}},
		{"D26 the same for a prefill", Capacity{Rule: "worst_case", KVTokens: 76640, MaxModelLen: 262144}, Step{Phase: "prefill", ContextTokens: 102400, Concurrency: 1},
			Verdict{Status: "over_capacity", Reason: "predicted", Why: "(102400 + 1) × 1 = 102401 tokens exceed the KV cache of 76640"}},
		{"prefill asks for one token", Capacity{Rule: "worst_case", KVTokens: 1001}, Step{Phase: "prefill", ContextTokens: 1000, Concurrency: 1}, Verdict{Fits: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := id.Predict(c.c, c.s); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func ExampleDigest() {
	d, err := Digest(&Identity{MethodVersion: "1"})
	fmt.Println(d[:3], len(d), err)
	// Output: h1: 47 <nil>
}

func TestTold(t *testing.T) {
	for _, c := range []struct {
		name      string
		in        Capacity
		perEngine []int64
		want      Capacity
	}{
		{"one engine", Capacity{Rule: "worst_case"}, []int64{100}, Capacity{Rule: "worst_case", KVTokens: 100, Source: "label"}},
		{"the smallest of several", Capacity{}, []int64{60, 40}, Capacity{KVTokens: 100, PerEngine: 40, Source: "label"}},
		{"the plan's own stands", Capacity{KVTokens: 7, Source: "option"}, []int64{60, 40}, Capacity{KVTokens: 7, Source: "option"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := c.in.Told(100, c.perEngine, "label"); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

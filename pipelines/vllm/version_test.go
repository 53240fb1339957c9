package vllm

import (
	"encoding/json"
	"testing"
)

func TestVersionSamples(t *testing.T) {
	var samples struct {
		Versions []struct {
			Text string
			Want map[string]any
		}
		Order []struct{ Ascending []string }
	}
	if err := json.Unmarshal(read(t, "testdata/versions.json"), &samples); err != nil {
		t.Fatal(err)
	}
	if len(samples.Versions) != 10 || len(samples.Order) != 1 {
		t.Fatalf("%d versions, %d orders", len(samples.Versions), len(samples.Order))
	}
	for _, s := range samples.Versions {
		v, err := ParseVersion(s.Text)
		if err != nil {
			t.Errorf("%s: %v", s.Text, err)
			continue
		}
		var dev any
		if v.Dev != nil {
			dev = float64(*v.Dev)
		}
		got := map[string]any{
			"kind": v.Kind, "release": v.Release, "pre": v.Pre, "dev": dev, "commit": v.Commit,
			"dirty_date": v.DirtyDate, "variant": v.Variant, "arch": v.Arch, "digest": v.Digest,
			"moving": v.Moving, "pinned": v.Pinned,
		}
		for key, want := range s.Want {
			if key == "note" {
				continue
			}
			value, known := got[key]
			if !known {
				t.Errorf("%s: %s is not read", s.Text, key)
			}
			if value == "" {
				value = nil
			}
			if value != want {
				t.Errorf("%s: %s is %v, want %v", s.Text, key, value, want)
			}
		}
	}
	for _, o := range samples.Order {
		checkOrder(t, o.Ascending)
	}
}

func checkOrder(t *testing.T, ascending []string) {
	t.Helper()
	for i, a := range ascending {
		for j, b := range ascending {
			va, errA := ParseVersion(a)
			vb, errB := ParseVersion(b)
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got, ok := va.Compare(vb); !ok || got != want {
				t.Errorf("%s against %s: %d, %v; want %d", a, b, got, ok, want)
			}
		}
	}
}

// TestOrder is the order that PEP 440 gives as its example, and more.
func TestOrder(t *testing.T) {
	checkOrder(t, []string{
		"1.dev0", "1.0.dev456", "1.0a1", "1.0a2.dev456", "1.0a12.dev456", "1.0a12", "1.0b1.dev456",
		"1.0b2", "1.0b2.post345.dev456", "1.0b2.post345", "1.0rc1.dev456", "1.0rc1", "1.0",
		"1.0+abc.5", "1.0+abc.7", "1.0+5", "1.0.post456.dev34", "1.0.post456", "1.0.15", "1.1.dev1", "1!0.1",
	})
	a, _ := ParseVersion("v1.0")
	b, _ := ParseVersion("1.0.0")
	if c, ok := a.Compare(b); c != 0 || !ok {
		t.Errorf("v1.0 against 1.0.0: %d, %v", c, ok)
	}
	n, _ := ParseVersion("nightly")
	if _, ok := n.Compare(a); ok {
		t.Error("nightly has an order")
	}
}

func TestVersionForms(t *testing.T) {
	const commit = "e47c98ef7a38792996e452ef53914e21e41928e9"
	for text, want := range map[string]Version{
		commit:                       {Kind: KindCommit, Commit: commit, Pinned: true},
		"vllm/vllm-openai:v0.32.0":   {Kind: KindImage, Release: "0.32.0"},
		"vllm/vllm-openai":           {Kind: KindImage, Moving: true},
		"localhost:5000/vllm:latest": {Kind: KindImage, Moving: true},
		"cu129-nightly-" + commit:    {Kind: KindTag, Commit: commit, Variant: "cu129"},
		"v0.25.1-cu129":              {Kind: KindTag, Release: "0.25.1", Variant: "cu129"},
		"nightly-aarch64":            {Kind: KindTag, Arch: "aarch64", Moving: true},
	} {
		v, err := ParseVersion(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if v.Kind != want.Kind || v.Commit != want.Commit || v.Release != want.Release || v.Arch != want.Arch ||
			v.Variant != want.Variant || v.Moving != want.Moving || v.Pinned != want.Pinned {
			t.Errorf("%s: %+v", text, v)
		}
	}
	for _, text := range []string{"", "  ", "a b", "vllm@sha256:12", "vllm:", "-x", "@sha256:" + commit} {
		if v, err := ParseVersion(text); err == nil {
			t.Errorf("%q: read as %+v", text, v)
		}
	}
}

func TestSameCommit(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"73a583112", "73a5831127a9", true},
		{"73A5831127a9", "73a583112", true},
		{"73a583", "73a5831127a9", false}, // too short to mean anything
		{"73a583113", "73a5831127a9", false},
		{"", "73a5831127a9", false},
		{"main", "main", false},
	} {
		if got := SameCommit(c.a, c.b); got != c.want {
			t.Errorf("%q, %q: %v", c.a, c.b, got)
		}
	}
}

// FuzzVersion: whatever the text, a version equals itself, and what is pinned names
// a digest or a commit.
func FuzzVersion(f *testing.F) {
	for _, s := range []string{"0.30.1rc1.dev452+g73a583112", "v0.32.0-x86_64", "nightly", "a/b:c@sha256:0", "1!2.post3", "+", "0+g"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseVersion(text)
		if err != nil {
			return
		}
		if c, ok := v.Compare(v); ok && c != 0 {
			t.Fatalf("%q is not itself", text)
		}
		if v.Pinned && v.Digest == "" && v.Commit == "" || v.Pinned && v.Moving {
			t.Fatalf("%q: pinned to nothing: %+v", text, v)
		}
	})
}

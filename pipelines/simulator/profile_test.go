package simulator

import (
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const small = `
models: [a, b]
max_model_len: 1000
slots: 2
kv_tokens: 4000
base_ttft_ms: 5
prefill:
  - {context: 1000, tokens_per_second: 5000}
  - {context: 0, tokens_per_second: 10000}
decode:
  active: [1, 4]
  rows:
    - {context: 0, ms: [10, 40]}
    - {context: 1000, ms: [20, null]}
`

func TestParseProfile(t *testing.T) {
	p, err := ParseProfile([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	if p.BlockTokens != 16 || p.TokensPerChunk != 1 || p.Usage != UsageRunning || !p.PrefixCaching {
		t.Errorf("defaults: %+v", p)
	}
	if p.Prefill[0].Context != 0 {
		t.Errorf("points are not in order: %+v", p.Prefill)
	}
	for _, c := range []struct {
		context float64
		active  int
		ms      float64
	}{
		{0, 1, 10}, {0, 4, 40}, {0, 2, 20}, {0, 9, 40}, // interpolated, then the nearest
		{500, 1, 15}, {1000, 1, 20}, {5000, 1, 20},
		{1000, 4, 20}, // null: the value before it
		{500, 4, 30},
	} {
		if got := p.step(c.context, c.active); got != millis(c.ms) {
			t.Errorf("step(%v, %d) = %v, want %v ms", c.context, c.active, got, c.ms)
		}
	}
	if got := p.prefill(0, 1000); got != 200*time.Millisecond {
		t.Errorf("prefill of 1000 tokens: %v", got)
	}
	whole, parts := p.prefill(0, 1000), p.prefill(0, 400)+p.prefill(400, 1000)
	if (whole - parts).Abs() > time.Microsecond {
		t.Errorf("prefill in parts takes %v, at once %v", parts, whole)
	}

	b, err := p.YAML("made by a test\n\nthe second line")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(b), "# made by a test\n#\n# the second line\n") {
		t.Errorf("comment:\n%s", b)
	}
	again, err := ParseProfile(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	if d := cmp.Diff(p, again); d != "" {
		t.Errorf("written and read again:\n%s", d)
	}
}

func TestParseProfileMistakes(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "slots: 2", "slotz: 2", "slotz"},
		{"no model", "models: [a, b]", "models: []", "models: at least one"},
		{"model twice", "models: [a, b]", "models: [a, a]", "twice"},
		{"no slots", "slots: 2", "slots: 0", "slots: 0 is not from 1"},
		{"kv too small", "kv_tokens: 4000", "kv_tokens: 999", "cannot hold one request"},
		{"kv in blocks", "kv_tokens: 4000", "kv_tokens: 1000", "in whole blocks of 16"},
		{"usage", "slots: 2", "slots: 2\nusage: sometimes", `"sometimes"`},
		{"infinite", "base_ttft_ms: 5", "base_ttft_ms: .inf", "base_ttft_ms"},
		{"not a number", "base_ttft_ms: 5", "base_ttft_ms: .nan", "base_ttft_ms"},
		{"prefill rate", "tokens_per_second: 5000", "tokens_per_second: 0", "prefill at 1000"},
		{"prefill twice", "{context: 0, tokens", "{context: 1000, tokens", "context 1000 is there twice"},
		{"columns", "active: [1, 4]", "active: [4, 1]", "does not rise"},
		{"row too short", "ms: [10, 40]", "ms: [10]", "1 values for 2 columns"},
		{"null first", "ms: [10, 40]", "ms: [null, 40]", "first value is null"},
		{"zero step", "ms: [10, 40]", "ms: [0, 40]", "0 ms is not above 0"},
		{"tag", "models:", "models: !", "tags, anchors"},
		{"alias", "models: [a, b]", "models: &x [a, *x]", "tags, anchors"},
		{"two documents", "models:", "---\nslots: 1\n---\nmodels:", "2 documents"},
		{"no YAML", "models:", "models: [", ""},
	} {
		_, err := ParseProfile([]byte(strings.Replace(small, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error is %v, want one with %q", c.name, err, c.want)
		}
	}
	// All at once.
	_, err := ParseProfile([]byte(strings.NewReplacer("slots: 2", "slots: 0", "5000", "-1", "[10, 40]", "[10]").Replace(small)))
	if n := strings.Count(err.Error(), "\n"); n != 2 {
		t.Errorf("want three mistakes at once, got:\n%v", err)
	}
}

func FuzzParseProfile(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte(""))
	f.Add([]byte("models: ! "))
	f.Add([]byte("decode: {active: [], rows: [{context: 1, ms: []}]}"))
	f.Add([]byte("models: &x [*x]\n<<: *x"))
	f.Add([]byte("models: [a]\nmax_model_len: 99999999999999999999"))
	f.Add([]byte("decode: {active: [1], rows: [{context: -1, ms: [null]}]}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseProfile(b)
		if err != nil {
			return
		}
		// What is valid can be computed with.
		for _, c := range []float64{0, 1, 1e4, 1e9} {
			for _, n := range []int{1, 3, 1 << 20} {
				if d := p.step(c, n); d < 0 {
					t.Fatalf("step(%v, %d) = %v", c, n, d)
				}
			}
			if d := p.prefill(0, int(c)) + p.admission(int(c)); d < 0 {
				t.Fatalf("prefill of %v = %v", c, d)
			}
		}
		if out, err := p.YAML(""); err != nil {
			t.Fatal(err)
		} else if _, err := ParseProfile(out); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	})
}

func TestProfilesOfTheRepository(t *testing.T) {
	for _, name := range []string{"quickstart", "rtx-pro-6000-qwen3.5-4b"} {
		b, err := os.ReadFile("../../experiments/profiles/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseProfile(b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The page that describes the format names every key, and no other.
func TestFormatPageNamesEveryKey(t *testing.T) {
	page, err := os.ReadFile("../../experiments/profiles/README.md")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for f := range reflect.TypeFor[Profile]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		keys[name] = true
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("the page has no line for %s", name)
		}
	}
	for line := range strings.Lines(string(page)) {
		if f := strings.Split(line, "|"); len(f) == 6 && strings.Contains(f[1], "`") {
			if name := strings.Trim(f[1], " `"); !keys[name] {
				t.Errorf("the page has a line for %s, which is no key", name)
			}
		}
	}
}

func TestPlace(t *testing.T) {
	keys := []float64{0, 10, 20}
	for _, c := range []struct {
		x    float64
		i, j int
		f    float64
	}{{-1, 0, 0, 0}, {0, 0, 0, 0}, {5, 0, 1, 0.5}, {10, 0, 1, 1}, {20, 1, 2, 1}, {21, 2, 2, 0}} {
		i, j, f := place(3, func(i int) float64 { return keys[i] }, c.x)
		if i != c.i || j != c.j || math.Abs(f-c.f) > 1e-9 {
			t.Errorf("place(%v) = %d, %d, %v", c.x, i, j, f)
		}
	}
}

package record

import (
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	cases := []struct{ name, text, want string }{
		{"wherever a long one stands", "notes: long-secret-1 and xlong-secret-1x", "notes: <redacted> and x<redacted>x"},
		{"a short one by its name", "command: vllm serve m --api-key vllm", "command: vllm serve m --api-key <redacted>"},
		{"joined", `"VLLM_API_KEY=vllm" --api-key='vllm'`, `"VLLM_API_KEY=<redacted>" --api-key='<redacted>'`},
		{"in JSON", `{"api_key": "vllm", "program":"vllm"}`, `{"api_key": "<redacted>", "program":"vllm"}`},
		{"not in a longer word", "--api-key vllm2", "--api-key vllm2"},
		{"by its shape", "my hf_0123456789abcdef0123456789abcdef01", "my <redacted>"},
		{"the longer one first", "long-secret-1-and-more long-secret-1", "<redacted> <redacted>"},
		{"side by side", "long-secret-1long-secret-1", "<redacted><redacted>"},
		{"within a shape", "Bearer abc.long-secret-1.def.ghi", "Bearer <redacted>"},
		{"again", "--api-key <redacted>, Bearer <redacted>", "--api-key <redacted>, Bearer <redacted>"},
		{"nothing", "", ""},
		{"prose stays", "Untuned basic settings; the bearer of bad news", "Untuned basic settings; the bearer of bad news"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := NewRedactor("", "vllm", "long-secret-1", "long-secret-1-and-more").Redact(c.text); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// A text that is cut where it may be has the same secrets as in one piece.
func TestCut(t *testing.T) {
	r := NewRedactor("1", "long-secret-1")
	for _, unit := range []string{"words and more ", "key: 1 ", "xlong-secret-1x ", "hf_0123456789abcdef0123456789abcdef01 ", `"api_key" :   '1', `} {
		text := strings.Repeat(unit, 60)
		for at := 1; at < 2*len(unit); at++ {
			cut := r.Cut(text, at)
			if cut > at {
				t.Fatalf("%q: cut at %d, asked %d", unit, cut, at)
			}
			if got, want := r.Redact(text[:cut])+r.Redact(text[cut:]), r.Redact(text); got != want {
				t.Fatalf("%q: cut at %d of %d:\ngot  %s\nwant %s", unit, cut, at, got, want)
			}
		}
	}
	if text := "Bearer " + strings.Repeat("x", 1000); r.Cut(text, 500) != 0 {
		t.Error("a secret was cut")
	}
}

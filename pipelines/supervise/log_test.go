//go:build linux

package supervise

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
)

func TestLog(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	tests := []struct {
		name    string
		secrets []string
		chunks  []string
		want    string
	}{
		{"lines", nil, []string{"a\nb", "c\n"}, "a\nbc\n"},
		{"no end of line", nil, []string{"a"}, "a\n"},
		{"secret across chunks", []string{"hunter22"}, []string{"key hun", "te", "r22 ok\n"}, "key <redacted> ok\n"},
		{"secret at the end", []string{"hunter22"}, []string{"key hunter22"}, "key <redacted>\n"},
		{"the longer secret first", []string{"abcdefgh", "abcdefghij"}, []string{"abcdefghij abcdefgh\n"}, "<redacted> <redacted>\n"},
		{"a short secret that is in every number", []string{"1", "vllm"}, []string{"max_model_len 8192, api_key='1', vllm 0.11\n"}, "max_model_len 8192, api_key='<redacted>', vllm 0.11\n"},
		{"a short secret across chunks", []string{"1"}, []string{"API_K", "EY: ", "1", "\n8192\n"}, "API_KEY: <redacted>\n8192\n"},
		{"a short secret where a long line is cut", []string{"1"}, []string{long[:maxLine-9] + " api_key: ", "1 and 8192", long, "\n"}, long[:maxLine-9] + " api_key: <redacted> and 8192" + long + "\n"},
		{"a secret that never ends", nil, []string{"Bearer " + long, long, long, "\nb\n"}, "<redacted>\nb\n"},
		{"by its shape", nil, []string{"hf_0123456789abcdef", "0123456789abcdef01 x\n"}, "<redacted> x\n"},
		{"an empty secret is none", []string{""}, []string{"abc\n"}, "abc\n"},
		{"secret where a long line is cut", []string{"hunter22"}, []string{long + "hunt", "er22\n"}, long + "<redacted>\n"},
		{"byte by byte", []string{"hunter22"}, strings.Split("a hunter22 b\n", ""), "a <redacted> b\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			w := NewLog(&out, tt.secrets, nil)
			for _, c := range tt.chunks {
				if n, err := w.Write([]byte(c)); n != len(c) || err != nil {
					t.Fatalf("Write = %d, %v", n, err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLogBounds(t *testing.T) {
	var out strings.Builder
	lines := 0
	w := NewLog(&out, nil, func(string) { lines++ })
	line := strings.Repeat("y", 64<<10) + "\n"
	n := MaxLog/len(line) + 10
	for range n {
		_, _ = w.Write([]byte(line))
	}
	if out.Len() > MaxLog+100 || !strings.Contains(out.String(), "the log is cut here") {
		t.Errorf("%d bytes kept", out.Len())
	}
	if tail := w.Tail(); len(tail) != tailLines || len(tail[0]) > maxTailLine+5 {
		t.Errorf("tail of %d lines, the first of %d bytes", len(tail), len(tail[0]))
	}
	if lines != n {
		t.Errorf("%d of %d lines were shown", lines, n)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, os.ErrClosed }

// A full disk must not block the engine's output, and is told at the end.
func TestLogFullDisk(t *testing.T) {
	w := NewLog(fullDisk{}, nil, nil)
	if _, err := w.Write([]byte("one\ntwo\n")); err != nil {
		t.Error(err)
	}
	if w.Close() == nil {
		t.Error("no error")
	}
	if diff := cmp.Diff([]string{"one", "two"}, w.Tail()); diff != "" {
		t.Error(diff)
	}
}

// However the pipe cuts the text, no secret comes through and nothing else is lost.
func FuzzLog(f *testing.F) {
	f.Add("a key-1234 b\nc", 3)
	f.Add(strings.Repeat("z", 60)+"key-1234\n"+strings.Repeat("key-1234", 20), 7)
	f.Fuzz(func(t *testing.T, text string, size int) {
		const secret = "key-1234"
		size = max(1, size%64)
		var out strings.Builder
		w := NewLog(&out, []string{secret}, nil)
		w.maxLine = 64
		for chunk := range slices.Chunk([]byte(text), size) {
			_, _ = w.Write(chunk)
		}
		_ = w.Close()
		if strings.Contains(out.String(), secret) {
			t.Fatalf("the secret is in %q", out.String())
		}
		want := strings.ReplaceAll(text, secret, record.Redacted)
		if got := out.String(); strings.TrimSuffix(got, "\n") != strings.TrimSuffix(want, "\n") {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

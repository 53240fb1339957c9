package pipelines

import (
	"slices"
	"strings"
	"testing"
)

func TestWithEntrypoint(t *testing.T) {
	module := []string{"python3", "-m", "vllm.entrypoints.openai.api_server"}
	for _, tt := range []struct {
		name       string
		entrypoint []string
		argv       string
		want       string
		note       string
	}{
		{"as published", []string{"vllm", "serve"}, "vllm serve M --a 1", "vllm serve M --a 1", ""},
		{"path of another machine", nil, "$HOME/venv/bin/vllm serve M", "vllm serve M", "$HOME/venv/bin/vllm, which is of another machine"},
		{"serve alone", []string{"vllm"}, "serve M", "vllm serve M", ""},
		{"what follows the image", []string{"vllm", "serve"}, "M --max-model-len 32768", "vllm serve M --max-model-len 32768", ""},
		{"options only", []string{"vllm", "serve"}, "--model M", "vllm serve --model M", ""},
		{"entrypoint is the program", []string{"/usr/local/bin/vllm"}, "M", "/usr/local/bin/vllm serve M", ""},
		{"entrypoint is the module", module, "--model M", "python3 -m vllm.entrypoints.openai.api_server --model M", ""},
		{"the module takes no bare model", module, "M --a 1", "python3 -m vllm.entrypoints.openai.api_server --model M --a 1", ""},
		{"the module, published", []string{"vllm", "serve"}, "python3 -m vllm.entrypoints.openai.api_server --model M", "python3 -m vllm.entrypoints.openai.api_server --model M", ""},
		{"no entrypoint", nil, "M", "vllm serve M", "no entrypoint"},
		{"a shell", []string{"/bin/bash"}, "M", "vllm serve M", "/bin/bash starts no server"},
		{"a wrapper", []string{"/opt/nvidia/nvidia_entrypoint.sh"}, "--model M", "vllm serve --model M", "nvidia_entrypoint.sh starts no server"},
		{"a wrapper before the server", []string{"/entry.sh", "vllm", "serve"}, "M", "/entry.sh vllm serve M", ""},
	} {
		got, note, err := WithEntrypoint(tt.entrypoint, strings.Fields(tt.argv))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if !slices.Equal(got, strings.Fields(tt.want)) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if (note == "") != (tt.note == "") || !strings.Contains(note, tt.note) {
			t.Errorf("%s: note %q, want %q", tt.name, note, tt.note)
		}
	}
	if _, _, err := WithEntrypoint([]string{"vllm", "serve"}, nil); err == nil {
		t.Error("an empty command was taken")
	}
}

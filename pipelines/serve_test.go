package pipelines

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/servecmd"
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
		{"the module, another Python", module, "/opt/conda/bin/python -m vllm.entrypoints.openai.api_server --model M", "python -m vllm.entrypoints.openai.api_server --model M", "/opt/conda/bin/python, which is of another machine"},
		{"the module alone", []string{"vllm", "serve"}, "-m vllm.entrypoints.openai.api_server --model M", "python3 -m vllm.entrypoints.openai.api_server --model M", ""},
		{"a path as the model", []string{"vllm", "serve"}, "/models/m --port 1", "vllm serve /models/m --port 1", ""},
		{"a model of that name", []string{"vllm", "serve"}, "org/vllm-m", "vllm serve org/vllm-m", ""},
		{"twice is once", []string{"vllm", "serve"}, "/usr/bin/vllm serve M", "vllm serve M", "/usr/bin/vllm, which"},
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
	for argv, want := range map[string]string{
		"":                     "empty",
		"$MODEL --port 1":      "no shell runs here",
		"~/models/m":           "no shell runs here",
		"/opt/my-vllm serve M": "must begin with vllm",
	} {
		if got, _, err := WithEntrypoint([]string{"vllm", "serve"}, strings.Fields(argv)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %q, %v; want an error with %q", argv, got, err, want)
		}
	}
}

func TestModelArgument(t *testing.T) {
	for argv, want := range map[string]string{
		"vllm serve M --a 1":         "M",
		"$HOME/x/bin/vllm serve M":   "M",
		"vllm serve --a 1 --model M": "M",
		"serve M":                    "M",
		"M --a 1":                    "M",
		"--a 1 --model=M":            "M",
		"python3 -m vllm.entrypoints.openai.api_server --model M": "M",
		"python3 -m vllm.entrypoints.openai.api_server":           "",
		"--a 1": "",
		"":      "",
	} {
		if got := ModelArgument(strings.Fields(argv)); got != want {
			t.Errorf("%q: %q, want %q", argv, got, want)
		}
	}
}

// What people publish, through to the words of the container: one server, nothing lost.
func TestServeCommandOfPublished(t *testing.T) {
	b := Bind{Host: "0.0.0.0", Port: 8000, Getenv: func(name string) string { return map[string]string{"HF_TOKEN": "of-mine"}[name] }}
	for published, want := range map[string]string{
		"docker run --gpus all -p 8001:8000 vllm/vllm-openai:v1 org/M --max-model-len 32768 --port 9000":                    "vllm serve org/M --max-model-len 32768 --host 0.0.0.0 --port 8000",
		"docker run vllm/vllm-openai:v1 vllm serve /models/m --port 9527":                                                   "vllm serve /models/m --host 0.0.0.0 --port 8000",
		"docker run --entrypoint vllm vllm/vllm-openai:v1 serve org/M":                                                      "vllm serve org/M --host 0.0.0.0 --port 8000",
		"docker run --entrypoint python3 vllm/vllm-openai:v1 -m vllm.entrypoints.openai.api_server --model org/M --host=::": "python3 -m vllm.entrypoints.openai.api_server --model org/M --host 0.0.0.0 --port 8000",
		`env A=1 "$HOME/e/bin/vllm" serve org/M --host 127.0.0.1 --api-key <redacted>`:                                      "vllm serve org/M --host 0.0.0.0 --port 8000",
		"python3 -m vllm.entrypoints.openai.api_server --model org/M --host=0.0.0.0":                                        "python3 -m vllm.entrypoints.openai.api_server --model org/M --host 0.0.0.0 --port 8000",
	} {
		c, err := servecmd.Parse(published)
		if err != nil {
			t.Errorf("%s: %v", published, err)
			continue
		}
		p := &plan.Plan{}
		p.Identity.Engine = plan.Engine{Source: "image", Argv: servecmd.Unbound(c.Argv)}
		s, err := ServeCommand(&Job{Plan: p}, b)
		if err != nil {
			t.Errorf("%s: %v", published, err)
			continue
		}
		got, _, err := WithEntrypoint([]string{"vllm", "serve"}, s.Args)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s:\n got %q, %v\nwant %q", published, got, err, want)
		}
	}
}

func TestServeCommandEnvironment(t *testing.T) {
	b := Bind{Host: "0.0.0.0", Port: 8000, Getenv: func(name string) string { return map[string]string{"HF_TOKEN": "of-mine"}[name] }}
	job := func(env map[string]string) *Job {
		p := &plan.Plan{}
		p.Identity.Engine = plan.Engine{Source: "image", Argv: []string{"vllm", "serve", "M"}, Env: env}
		return &Job{Plan: p}
	}
	j := job(map[string]string{"A": "1", "HF_TOKEN": "<redacted>", "MY_KEY": "<redacted>", KeyVariable: "<redacted>"})
	j.Env = map[string]string{"A": "1", "HF_TOKEN": "<redacted>", "MY_KEY": "told", KeyVariable: "theirs"}
	s, err := ServeCommand(j, b)
	if err != nil {
		t.Fatal(err)
	}
	want := Serve{
		Args:      []string{"vllm", "serve", "M", "--host", "0.0.0.0", "--port", "8000"},
		Shown:     []string{"vllm", "serve", "M", "--host", "0.0.0.0", "--port", "8000"},
		Env:       map[string]string{"A": "1"},
		SecretEnv: map[string]string{"HF_TOKEN": "of-mine", "MY_KEY": "told"},
		ShownEnv:  []string{"A=1", "HF_TOKEN=<redacted>", "MY_KEY=<redacted>"},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	for name, value := range map[string]string{"OTHER": "<redacted>", "HOME_OF": "$HOME/x"} {
		if _, err := ServeCommand(job(map[string]string{name: value}), b); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
	if _, err := ServeCommand(&Job{Plan: &plan.Plan{}}, b); err == nil {
		t.Error("no command was taken")
	}
}

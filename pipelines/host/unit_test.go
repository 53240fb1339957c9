//go:build linux

package host

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
)

func testJob(argv []string, env map[string]string, environ ...string) *job {
	p := &plan.Plan{}
	p.Identity.Engine.Argv, p.Identity.Engine.Env = argv, env
	return &job{Job: pipelines.Job{Plan: p}, environ: environ}
}

func TestServeCommand(t *testing.T) {
	json := `{"method":"mtp","id":"$ENGINE_ID"}`
	tests := []struct {
		name string
		argv []string
		want []string
		err  string
	}{
		{"word for word", []string{"vllm", "serve", "m", "--speculative-config", json, "-O3"}, []string{"serve", "m", "--speculative-config", json, "-O3"}, ""},
		{"where it listens", []string{"vllm", "serve", "m", "--host", "0.0.0.0", "--port=8000", "--x"}, []string{"serve", "m", "--x"}, ""},
		{"the program is replaced", []string{"$HOME/env/bin/vllm", "serve", "m"}, []string{"serve", "m"}, ""},
		{"key", []string{"vllm", "serve", "m", "--api-key", "<redacted>"}, nil, "--api-key: the value was redacted"},
		{"other secret", []string{"vllm", "serve", "m", "--hf-token=<redacted>"}, nil, "--hf-token: the value was redacted"},
		{"variable", []string{"vllm", "serve", "$HOME/m"}, nil, "no shell runs here"},
		{"home", []string{"vllm", "serve", "m", "--download-dir=~/x"}, nil, "no shell runs here"},
		{"none", nil, nil, "there is none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := testJob(tt.argv, nil).serveCommand("/p/vllm", 8123, "k")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := append(tt.want, "--host", "127.0.0.1", "--port", "8123")
			if diff := cmp.Diff(want, c.args); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestServeEnv(t *testing.T) {
	j := testJob([]string{"vllm"}, map[string]string{"VLLM_X": "1", "HF_TOKEN": "<redacted>", "MY_KEY": "<redacted>", "VLLM_API_KEY": "<redacted>"},
		"PATH=/bin", "HOME=/home/somebody", "VLLM_Y=2", "OMP_NUM_THREADS=1", "LD_PRELOAD=x", "PYTHONPATH=/x", "SECRET=s",
		"HF_TOKEN=hf_abc", "HF_HOME=/home/somebody/hf", "CUDA_VISIBLE_DEVICES=1")
	j.Env = map[string]string{"VLLM_X": "1", "HF_TOKEN": "<redacted>", "MY_KEY": "real", "VLLM_API_KEY": "theirs"}
	c, err := j.serveCommand("/p/vllm", 8123, "ours")
	if err != nil {
		t.Fatal(err)
	}
	env, shown := c.env, c.shownEnv
	if diff := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES=1", "HF_HOME=/home/somebody/hf", "HF_TOKEN=hf_abc", "HOME=/home/somebody", "MY_KEY=real", "PATH=/bin", "VLLM_API_KEY=ours", "VLLM_X=1"}, env); diff != "" {
		t.Errorf("environment: %s", diff)
	}
	if diff := cmp.Diff([]string{"CUDA_VISIBLE_DEVICES=1", "HF_HOME=~/hf", "HF_TOKEN=<redacted>", "MY_KEY=<redacted>", "VLLM_API_KEY=<redacted>", "VLLM_X=1"}, j.display(shown...)); diff != "" {
		t.Errorf("recorded: %s", diff)
	}

	j = testJob([]string{"vllm"}, map[string]string{"HF_TOKEN": "<redacted>"})
	if _, err := j.serveCommand("/p/vllm", 8123, "ours"); err == nil || !strings.Contains(err.Error(), "set it in your environment") {
		t.Errorf("a token that is not there: %v", err)
	}
}

func TestEnvSecrets(t *testing.T) {
	got := envSecrets([]string{"HF_TOKEN=t", "PIP_EXTRA_INDEX_URL=http://a:p%20w@h/ http://h/", "https_proxy=http://u:q@h:1", "OTHER=http://a:b@h"})
	if diff := cmp.Diff([]string{"t", "p w", "q"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPort(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	want := "(process " + strconv.Itoa(os.Getpid()) + ")"
	if err := portFree(port); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := portFree(port); err != nil {
		t.Error(err)
	}
	if port, err := choosePort(); err != nil || port < 20000 || port >= 30000 {
		t.Errorf("%d, %v", port, err)
	}
}

func TestGPUMemory(t *testing.T) {
	got := parseGPUMemory("0, 1234\n1, [N/A]\n2, 5\nNVIDIA-SMI has failed\n")
	if diff := cmp.Diff(map[string]int{"0": 1234, "2": 5}, got); diff != "" {
		t.Error(diff)
	}
	if got := parseGPUMemory("No devices were found\n"); got != nil {
		t.Errorf("no GPU: %v", got)
	}
	before := map[string]int{"0": 1234}
	for _, tt := range []struct {
		now  map[string]int
		held bool
	}{
		{map[string]int{"0": 1234}, false},
		{map[string]int{"0": 1234 + gpuSlack}, false},
		{map[string]int{"0": 1235 + gpuSlack}, true},
		{map[string]int{"3": 90000}, false}, // not known before: no judgement
		{nil, false},
	} {
		if held := moreMemory(before, tt.now); (held != "") != tt.held {
			t.Errorf("%v: %q", tt.now, held)
		}
	}
}

// An nvidia-smi that is a script: memory that stays in use is an error.
func TestGPUMemoryHeld(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\n[ \"$1\" = --query-gpu=index,memory.used ] || exit 1\necho '0, 70000'\n"
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	environ := []string{"PATH=" + dir + ":/bin:/usr/bin"}
	before := gpuMemory(t.Context(), environ)
	if diff := cmp.Diff(map[string]int{"0": 70000}, before); diff != "" {
		t.Fatal(diff)
	}
	if err := awaitGPUMemory(t.Context(), environ, before, 1); err != nil {
		t.Error(err)
	}
	err := awaitGPUMemory(t.Context(), environ, map[string]int{"0": 300}, 1)
	if err == nil || !strings.Contains(err.Error(), "GPU 0 has 70000 MiB in use, 300 before the start") {
		t.Errorf("got %v", err)
	}
	if gpuMemory(t.Context(), []string{"PATH=/nowhere"}) != nil {
		t.Error("numbers without nvidia-smi")
	}
}

func TestModelArgument(t *testing.T) {
	for _, tt := range []struct {
		argv []string
		want string
	}{
		{[]string{"vllm", "serve", "models/tiny", "--x"}, "models/tiny"},
		{[]string{"vllm", "serve", "--model", "m"}, "m"},
		{[]string{"python", "-m", "vllm.entrypoints.openai.api_server", "--model=m"}, "m"},
		{[]string{"vllm"}, ""},
	} {
		if got := pipelines.ModelArgument(tt.argv); got != tt.want {
			t.Errorf("%q: %q", tt.argv, got)
		}
	}
}

func TestHostProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"vllm": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	j := testJob(nil, nil, "HOME="+dir, "PATH="+dir)
	j.dir = dir
	for _, tt := range []struct{ name, want, err string }{
		{"./vllm", filepath.Join(dir, "vllm"), ""},
		{"~/vllm", filepath.Join(dir, "vllm"), ""},
		{"vllm", filepath.Join(dir, "vllm"), ""},
		{filepath.Join(dir, "vllm"), filepath.Join(dir, "vllm"), ""},
		{"none", "", "no program \"none\" on the PATH"},
		{"./none", "", "use source wheel"},
		{"./text", "", "no program that can be run"},
		{"", "", "names no program"},
	} {
		got, err := j.hostProgram(tt.name)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %q, %v", tt.name, got, err)
		}
	}
}

func TestHashFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"b": "2", "a": "1"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	one, err := hashFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	// sha256sum a b | sha256sum
	if want := "sha256:68c2919f4305e50800082ab7f11eb17d96c7832f59154e97b1d373a5179a63ea"; one != want {
		t.Errorf("%s, want %s", one, want)
	}
	if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")); err != nil {
		t.Fatal(err)
	}
	if two, err := hashFiles(dir); err != nil || two == one {
		t.Errorf("another name, the same hash: %v", err)
	}
}

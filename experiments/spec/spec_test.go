package spec

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var update = flag.Bool("update", false, "write testdata, schema.json and the tables of FORMAT.md anew")

// checkCommand stands for the reader of serve commands: it finds the word BAD, or
// what the twelve mistakes have.
func checkCommand(text string, report func(line, column int, message string)) {
	for i, l := range strings.Split(text, "\n") {
		for _, bad := range []string{"BAD", "method:mtp"} {
			if at := strings.Index(l, bad); at >= 0 {
				report(i+1, at+1, "--speculative-config: the value is no JSON")
			}
		}
	}
}

const minimal = "name: n\nengine: {source: {simulator: default}}\nmatrix: {contexts: [0], concurrency: [1]}\n"

func golden(t *testing.T, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if string(want) == got {
		return
	}
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Errorf("%s is not current (-want +got); go test -update writes it:\n%s", path, cmp.Diff(string(want), got))
}

func TestTwelveMistakes(t *testing.T) {
	data, err := os.ReadFile("testdata/twelve-mistakes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e, err := Parse("twelve-mistakes.yaml", data, Options{CheckCommand: checkCommand})
	var list ErrorList
	if e != nil || !errors.As(err, &list) || len(list) != 12 {
		t.Errorf("%d mistakes, want 12", len(list))
	}
	golden(t, "testdata/twelve-mistakes.golden", err.Error()+"\n")
}

func TestParse(t *testing.T) {
	data := `
name: full
title: "A: b"
author: me
notes: |
  Some *notes*.

  - more
engine:
  source:
    wheel: {lock: a/lock.txt, python: 3.10, model: m.py}
  command: vllm serve m
  kv_capacity_tokens: 18432
  version: 0.32.0
  engine: sglang
  quantization: FP8
  backend: CPU
  repository: r
  build: b
  commit: c
model: {id: m, revision: main, quantization: FP8 dynamic}
hardware: {type: t, gpu: RTX 3060, vram: 12GB, cpu: c, ram: 32 GB, os: Ubuntu 24.04.5}
matrix:
  contexts: [0, 8K, 32768, 1M]
  concurrency: [1, 2]
  prefill: ["16K"]
  duration: 5s
  settle: 500ms
  max_output: 64
  repeats: 3
  capacity: try
  order: seeded
  order_seed: 7
prompts: distinct
sampling: {temperature: 0.5, top_p: 1, seed: -1, ignore_eos: false}
limits: {start: 10m, scout: 1m30s, ready: 2m, stall: 5s, idle: 1h}
loop: off
expect: {rel_tol: 5%}
`
	f := func(v float64) *float64 { return &v }
	i, no := int64(-1), false
	want := &Experiment{
		Name: "full", Title: "A: b", Author: "me", Notes: "Some *notes*.\n\n- more\n",
		Engine: Engine{Source: Source{Wheel: &Wheel{Lock: "a/lock.txt", Python: "3.10", Model: "m.py"}}, Command: "vllm serve m", KVCapacityTokens: 18432, Version: "0.32.0",
			Engine: "sglang", Quantization: "FP8", Backend: "CPU", Repository: "r", Build: "b", Commit: "c"},
		Model:    Model{"m", "main", "FP8 dynamic"},
		Hardware: Hardware{"t", "RTX 3060", "12GB", "c", "32 GB", "Ubuntu 24.04.5"},
		Matrix: Matrix{Contexts: []Context{{0, "0"}, {8192, "8K"}, {32768, "32768"}, {1 << 20, "1M"}}, Concurrency: []int{1, 2}, Prefill: []Context{{16384, "16K"}},
			Duration: 5 * time.Second, Settle: 500 * time.Millisecond, MaxOutput: 64, Repeats: 3, Capacity: "try", Order: "seeded", OrderSeed: 7},
		Prompts: "distinct", Sampling: Sampling{f(0.5), f(1), &i, &no},
		Limits: Limits{10 * time.Minute, 90 * time.Second, 2 * time.Minute, 5 * time.Second, time.Hour},
		Loop:   "off", Expect: Expect{0.05}, File: "x.yaml", Raw: []byte(data),
	}
	got, err := Parse("x.yaml", []byte(data), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	roundTrip(t, got)

	// Every key is in the text above, so a key that is read into nothing is seen.
	for _, name := range allNames("", keys(New())) {
		last := name[strings.LastIndexByte(name, '.')+1:]
		if !strings.Contains(data, last+":") && !strings.HasPrefix(name, "engine.source.") {
			t.Errorf("%s is not in this test", name)
		}
	}
}

// TestParseSources reads the sources that name images, each as it is written, and writes
// it again.
func TestParseSources(t *testing.T) {
	for text, want := range map[string]Source{
		`{image: "oci-archive:images/my vllm.tar"}`: {Image: "oci-archive:images/my vllm.tar"},
		`{commit: main}`: {Commit: "main", Repo: DefaultRepo},
		`{commit: main, repo: ./vllm, build: {way: nightly, image: "h.example:5000/vllm"}}`: {Commit: "main", Repo: "./vllm",
			Build: &Build{Way: "nightly", Image: "h.example:5000/vllm", Dockerfile: "docker/Dockerfile"}},
		`{commit: main, build: {image: "vllm/vllm-openai:cu130-nightly-{commit}"}}`: {Commit: "main", Repo: DefaultRepo,
			Build: &Build{Way: "auto", Image: "vllm/vllm-openai:cu130-nightly-{commit}", Dockerfile: "docker/Dockerfile"}},
		`{commit: main, build: {way: wheel, base: "b:1", wheels: "https://h.example/{commit}/cpu"}}`: {Commit: "main", Repo: DefaultRepo,
			Build: &Build{Way: "wheel", Image: "vllm/vllm-openai", Base: "b:1", Wheels: "https://h.example/{commit}/cpu", Dockerfile: "docker/Dockerfile"}},
		`{commit: main, build: {way: dockerfile, dockerfile: docker/Dockerfile.cpu, target: vllm-openai, args: ["A=1, 2", "B=", "C=a=[b] # c", 'D="{x}"'], patches: [a.patch, ./b c.patch]}}`: {Commit: "main", Repo: DefaultRepo,
			Build: &Build{Way: "dockerfile", Image: "vllm/vllm-openai", Dockerfile: "docker/Dockerfile.cpu", Target: "vllm-openai",
				Args: []string{"A=1, 2", "B=", "C=a=[b] # c", `D="{x}"`}, Patches: []string{"a.patch", "./b c.patch"}}},
		`{wheel: {lock: lock.txt, python: 3.12, base: "python:3.12-slim"}}`: {Wheel: &Wheel{Lock: "lock.txt", Python: "3.12", Base: "python:3.12-slim"}},
	} {
		data := "name: n\nengine: {source: " + text + ", command: vllm serve m}\nmatrix: {prefill: [1K]}\n"
		e, err := Parse("x.yaml", []byte(data), Options{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if d := cmp.Diff(want, e.Engine.Source); d != "" {
			t.Errorf("%s (-want +got):\n%s", text, d)
		}
		roundTrip(t, e)
	}
}

func TestOfCommit(t *testing.T) {
	for _, c := range []struct{ image, wheels, wantImage, wantWheels string }{
		{"o/r", "http://h/w/", "o/r:nightly-abc", "http://h/w/abc"},
		{"h:5000/r", "http://h", "h:5000/r:nightly-abc", "http://h/abc"},
		{"o/r:cu130-nightly-{commit}", "http://h/{commit}/cpu/", "o/r:cu130-nightly-abc", "http://h/abc/cpu"},
	} {
		b := &Build{Image: c.image, Wheels: c.wheels}
		if image, wheels := b.ImageOf("abc"), b.WheelsOf("abc"); image != c.wantImage || wheels != c.wantWheels {
			t.Errorf("%s, %s: got %s, %s", c.image, c.wheels, image, wheels)
		}
	}
}

func TestDefaults(t *testing.T) {
	got, err := Parse("x.yaml", []byte(strings.Replace(minimal, "simulator: default", "commit: main", 1)+"prompts: shared\n"),
		Options{Sets: []string{"engine.command=vllm serve m"}})
	if err != nil {
		t.Fatal(err)
	}
	want := New()
	want.Name, want.Engine.Source = "n", Source{Commit: "main", Repo: DefaultRepo}
	want.Engine.Command = "vllm serve m"
	want.Matrix.Contexts, want.Matrix.Concurrency = []Context{{0, "0"}}, []int{1}
	want.Overrides = []string{"engine.command=vllm serve m"}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(Experiment{}, "File", "Raw")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestMistakes has one experiment a line: what is put into the minimal one, and
// all messages.
func TestMistakes(t *testing.T) {
	with := func(s string) string { return minimal + s }
	source := func(s string) string {
		return "name: n\nengine: {source: " + s + ", command: c}\nmatrix: {prefill: [1K]}\n"
	}
	tests := []struct {
		name, data string
		sets       []string
		want       string
	}{
		{"empty", "", nil, "x:1:1: the file holds no experiment: expected name, engine, matrix"},
		{"a list", "- a\n", nil, "x:1:1: expected keys with values, such as name: …\nx:1:1: name: missing: a short name for files and pages\nx:1:1: engine: missing: where the server comes from (engine.source) and how it is started (engine.command)\nx:1:1: matrix: missing: what to measure: contexts and concurrency, or prefill"},
		{"no YAML", "name: [a\n", nil, "x:1:7: not valid YAML: sequence end token ']' not found"},
		{"no UTF-8", "name: a\nb: \xff", nil, "x:2:1: a byte is no UTF-8"},
		{"two documents", minimal + "---\nname: b\n", nil, "x:5:5: a second YAML document: expected one"},
		{"an alias", with("title: &a x\nauthor: *a\n"), nil, "x:4:8: anchors, aliases and tags of YAML are not read: write the value out\nx:5:9: anchors, aliases and tags of YAML are not read: write the value out"},
		{"a merge", with("model: {<<: {id: x}}\n"), nil, "x:4:9: expected a plain name as key"},
		{"a tag", with("title: !!str x\n"), nil, "x:4:8: anchors, aliases and tags of YAML are not read: write the value out"},
		{"unknown key", with("hardwear: {gpu: x}\n"), nil, `x:4:1: hardwear: unknown key (did you mean "hardware"?)`},
		{"key in the wrong place", with("concurrency: [1]\n"), nil, `x:4:1: concurrency: concurrency stands in matrix, not at the top level`},
		{"top key in the matrix", strings.Replace(minimal, "[1]", "[1], prompts: shared", 1), nil, "x:3:43: matrix.prompts: prompts stands at the top level, not in matrix"},
		{"colon in a command", strings.Replace(minimal, "engine: {source: {simulator: default}}", "engine:\n  source: {simulator: default}\n  command: vllm serve m --hf-overrides {\"a\": 1}", 1), nil, "x:4:12: not valid YAML: the text has a colon and a blank in it; put it under `command: |`"},
		{"a key too deep", "name: n\n  title: a\n", nil, "x:1:7: not valid YAML: a key stands in the text that begins here; look at the indentation of this line and the next"},
		{"colon in a title", with("title: a: b\n"), nil, "x:4:8: not valid YAML: the text has a colon and a blank in it; put it in quotes"},
		{"a tab", "name: n\nengine:\n\tsource: {simulator: default}\n", nil, "x:3:1: a tab indents this line; YAML wants spaces"},
		{"a tab behind spaces", "name: n\nengine:\n  source:\n  \tsimulator: default\n", nil, "x:4:3: a tab indents this line; YAML wants spaces"},
		{"a tab in a block", "name: n\nnotes: |\n  a\n\tb\n", nil, "x:4:1: a tab indents this line; YAML wants spaces"},
		{"a tab in a line", strings.Replace(minimal, "[0], c", "[0],\tc", 1), nil, "x:3:24: not valid YAML: a tab stands here; YAML wants spaces"},
		{"tokens", strings.Replace(minimal, "[0]", "[0], max_output: 8k", 1), []string{"engine.kv_capacity_tokens=2000000000M"}, `x:3:37: matrix.max_output: expected a number of tokens from 1 to 16777216, such as 8192 or 8K (K = 1,024), got "8k" (did you mean "8K"?)
--set engine.kv_capacity_tokens=…: expected a number of tokens from 1 to 1125899906842624, such as 8192 or 8K (K = 1,024), got "2000000000M"`},
		{"key like nothing", with("zzzzzz: 1\n"), nil, "x:4:1: zzzzzz: unknown key"},
		{"a key twice", with("title: a\ntitle: b\n"), nil, "x:5:1: title: given twice, first in line 4"},
		{"no value", with("title:\n"), nil, "x:4:1: title: has no value: give one, or leave the key out"},
		{"truth for text", with("title: true\n"), nil, "x:4:8: title: expected a text, got the truth value true: put it in quotes"},
		{"list for text", with("title: [a]\n"), nil, "x:4:8: title: expected a text"},
		{"lines in a title", with("title: |\n  a\n  b\n"), nil, "x:4:8: title: expected one line"},
		{"escape in a title", with("title: \"a\\e[31m\"\n"), nil, "x:4:8: title: holds the control character U+001B"},
		{"text for keys", with("model: qwen\n"), nil, "x:4:8: model: expected keys with values, such as id: …"},
		{"choice", with("prompts: shard\n"), nil, `x:4:10: prompts: expected shared or distinct, got "shard" (did you mean "shared"?)`},
		{"boolean", with("sampling: {ignore_eos: yes}\n"), nil, `x:4:24: sampling.ignore_eos: expected true or false, got "yes"`},
		{"number", with("sampling: {top_p: 1.5, seed: 1.5}\n"), nil, "x:4:19: sampling.top_p: expected a number from 0 to 1, got \"1.5\"\nx:4:30: sampling.seed: expected a whole number from -9007199254740991 to 9007199254740991, got \"1.5\""},
		{"not a number", with("sampling: {temperature: .nan, top_p: .inf}\n"), nil, "x:4:25: sampling.temperature: expected a number from 0 to 10, got \".nan\"\nx:4:38: sampling.top_p: expected a number from 0 to 1, got \".inf\""},
		{"times", with("limits: {start: 30, stall: 5 min, idle: 0s, scout: 90d}\n"), nil, `x:4:17: limits.start: expected a time with its unit, got the number 30 (did you mean "30s"?)
x:4:28: limits.stall: expected a time from 100ms to 24h, such as 30s or 5m, got "5 min"
x:4:41: limits.idle: expected a time from 100ms to 24h, such as 30s or 5m, got "0s"
x:4:52: limits.scout: expected a time from 1s to 24h, such as 30s or 5m, got "90d"`},
		{"share", with("expect: {rel_tol: 0}\n"), nil, `x:4:19: expect.rel_tol: expected a share above 0 and up to 100%, such as 5% or 0.05, got "0"`},
		{"contexts", "name: n\nengine: {source: {simulator: default}}\nmatrix: {contexts: [-1, 8KiB, 17M, 1.5K, 010, 0x10, [1], 4K, 4096], concurrency: [1]}\n", nil,
			`x:3:21: matrix.contexts[0]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "-1"
x:3:25: matrix.contexts[1]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "8KiB" (did you mean "8K"?)
x:3:31: matrix.contexts[2]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "17M"
x:3:36: matrix.contexts[3]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "1.5K"
x:3:42: matrix.contexts[4]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "010"
x:3:47: matrix.contexts[5]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024), got "0x10"
x:3:53: matrix.contexts[6]: expected a length in tokens from 0 to 16M, such as 8K or 32768 (K = 1,024)
x:3:62: matrix.contexts[8]: 4096 stands twice, first as 4K`},
		{"concurrency", "name: n\nengine: {source: {simulator: default}}\nmatrix: {contexts: [0], concurrency: [0, -1, 1, 1, 2000000], prefill: [0]}\n", nil,
			`x:3:39: matrix.concurrency[0]: expected a whole number from 1 to 65536, got "0"
x:3:42: matrix.concurrency[1]: expected a whole number from 1 to 65536, got "-1"
x:3:49: matrix.concurrency[3]: 1 stands twice
x:3:52: matrix.concurrency[4]: expected a whole number from 1 to 65536, got "2000000"
x:3:72: matrix.prefill[0]: expected a length in tokens from 1 to 16M, such as 8K or 32768 (K = 1,024), got "0"`},
		{"no list", "name: n\nengine: {source: {simulator: default}}\nmatrix: {contexts: 8K, concurrency: [1]}\n", nil, `x:3:20: matrix.contexts: expected a list of lengths (did you mean "[8K]"?)`},
		{"empty matrix", "name: n\nengine: {source: {simulator: default}}\nmatrix: {repeats: 2}\n", nil, "x:3:9: matrix: is empty: give contexts and concurrency, or prefill"},
		{"half a matrix", "name: n\nengine: {source: {simulator: default}}\nmatrix: {contexts: [0], prefill: [1K]}\n", nil, "x:3:9: matrix.concurrency: missing: matrix.contexts alone measures nothing"},
		{"large matrix", strings.Replace(minimal, "[0]", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], repeats: 1000", 1), nil, "x:3:9: matrix: has 11000 trials, at most 10000 are planned"},
		{"seed without order", strings.Replace(minimal, "[0]", "[0], order_seed: 1", 1), nil, "x:3:37: matrix.order_seed: has no effect without order: seeded"},
		{"no source", "name: n\nengine: {version: 1}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:9: engine.source: missing: one of image, commit, wheel, host, attach, simulator"},
		{"empty source", "name: n\nengine: {source: {}}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:18: engine.source: expected one of image, commit, wheel, host, attach, simulator"},
		{"source as text", "name: n\nengine: {source: simulator}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:18: engine.source: expected keys with values, such as image: …"},
		{"two sources", "name: n\nengine: {source: {host: /v, simulator: default}}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:18: engine.source: has host and simulator: expected exactly one source"},
		{"no command, no lock", "name: n\nengine: {source: {wheel: {python: 3.12}, repo: x}}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil,
			"x:2:9: engine.command: missing: the serve command, as source wheel starts the engine\nx:2:26: engine.source.wheel.lock: missing: the path of the lock with hashes\nx:2:48: engine.source.repo: belongs to source commit, not to wheel"},
		{"key in an address", "name: n\nengine: {source: {attach: \"http://me:secret@h\"}}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:27: engine.source.attach: holds a user or password: a key comes from an environment variable or a file"},
		{"build of another source", source(`{simulator: default, build: {way: auto}}`), nil, "x:2:46: engine.source.build: belongs to source commit, not to simulator"},
		{"build: not of this way", source(`{commit: c, build: {way: nightly, base: b, wheels: "http://h", dockerfile: d, target: t, args: [A=1], patches: [p]}}`), nil,
			`x:2:58: engine.source.build.base: has no effect with way nightly: it belongs to way wheel
x:2:69: engine.source.build.wheels: has no effect with way nightly: it belongs to way wheel
x:2:93: engine.source.build.dockerfile: has no effect with way nightly: it belongs to way dockerfile
x:2:104: engine.source.build.target: has no effect with way nightly: it belongs to way dockerfile
x:2:113: engine.source.build.args: has no effect with way nightly: it belongs to way dockerfile
x:2:129: engine.source.build.patches: has no effect with way nightly: it belongs to way dockerfile`},
		{"build: patches for a wheel", source(`{commit: c, build: {way: wheel, base: b, wheels: "http://h", patches: [p]}}`), nil,
			"x:2:88: engine.source.build.patches: has no effect with way wheel: it belongs to way dockerfile"},
		{"build: a wheel of nothing", source(`{commit: c, build: {way: wheel}}`), nil,
			"x:2:37: engine.source.build.base: missing: way wheel needs it\nx:2:37: engine.source.build.wheels: missing: way wheel needs it"},
		{"build: half a wheel", source(`{commit: c, build: {base: b}}`), nil, "x:2:37: engine.source.build.wheels: missing: way wheel needs it"},
		{"build: an unknown way", source(`{commit: c, build: {way: weel, patches: [p]}}`), nil,
			`x:2:43: engine.source.build.way: expected auto or nightly or wheel or dockerfile, got "weel" (did you mean "wheel"?)`},
		{"build: names", source(`{commit: c, build: {image: "o/r:latest", base: "oci-archive:x", wheels: "https://h?q=1", dockerfile: ../Dockerfile}}`), nil,
			`x:2:45: engine.source.build.image: expected a repository such as vllm/vllm-openai, or a name with {commit} in its tag
x:2:65: engine.source.build.base: expected an image of a registry: an archive can be engine.source.image only
x:2:90: engine.source.build.wheels: expected an address without ? and #
x:2:119: engine.source.build.dockerfile: expected a path within the repository`},
		{"build: a digest is of one commit", source(`{commit: c, build: {image: "o/{commit}"}}`), nil,
			`x:2:45: engine.source.build.image: expected a repository such as vllm/vllm-openai, or a name with {commit} in its tag`},
		{"build: lists", source(`{commit: c, build: {args: [A, "A=1", "A=2", "1=x", [B=1]], patches: [p, ./p]}}`), nil,
			`x:2:45: engine.source.build.args[0]: expected NAME=value, got "A"
x:2:55: engine.source.build.args[2]: A stands twice
x:2:62: engine.source.build.args[3]: expected NAME=value, got "1=x"
x:2:69: engine.source.build.args[4]: expected a text
x:2:90: engine.source.build.patches[1]: p stands twice`},
		{"an archive of no file", source(`{image: "oci-archive:"}`), nil, "x:2:26: engine.source.image: expected the path of a file behind oci-archive:"},
		{"a base that is a file", source(`{wheel: {lock: l, base: "oci-archive:x"}}`), nil, "x:2:42: engine.source.wheel.base: expected an image of a registry: an archive can be engine.source.image only"},
		{"no address", "name: n\nengine: {source: {attach: localhost:8000}}\nmatrix: {contexts: [0], concurrency: [1]}\n", nil, "x:2:27: engine.source.attach: expected an address such as http://127.0.0.1:8000"},
		{"name", strings.Replace(minimal, "name: n", "name: ../n", 1), nil, "x:1:7: name: expected only letters, digits and . _ - (a letter or digit first), as it names files"},
		{"command in a block", strings.Replace(minimal, "default}", "default}, command: x", 1), []string{"engine.command=a BAD"}, "--set engine.command=…: --speculative-config: the value is no JSON"},
		{"command in quotes", strings.Replace(minimal, "default}", "default}, command: 'a BAD'", 1), nil, "x:2:52: engine.command: --speculative-config: the value is no JSON"},
		{"plain command", strings.Replace(minimal, "default}", "default}, command: a BAD", 1), nil, "x:2:51: engine.command: --speculative-config: the value is no JSON"},
		{"sets", minimal, []string{"matrix.duration=5", "matrix.concurency=[1]", "x", "matrix.repeats=[", "expect.rel_tol=7", "engine.source.image=a b"},
			`--set engine.source.image=…: expected one word, without blanks
--set expect.rel_tol=…: expected a share above 0 and up to 100%, such as 5% or 0.05, got "7" (did you mean "7%"?)
--set matrix.concurency=…: unknown key (did you mean "concurrency"?)
--set matrix.duration=…: expected a time with its unit, got the number 5 (did you mean "5s"?)
--set matrix.repeats=…: not valid YAML: sequence end token ']' not found
--set x=…: expected path.to.key=value`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("x", []byte(tt.data), Options{Sets: tt.sets, CheckCommand: checkCommand})
			got := fmt.Sprint(err)
			if tt.name == "sets" { // the second source is told in the file
				got = strings.Replace(got, "x:2:18: engine.source: has image and simulator: expected exactly one source\n", "", 1)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestSets(t *testing.T) {
	e, err := Parse("x", []byte(minimal+"sampling: {seed: 1}\n"), Options{Sets: []string{
		"matrix.duration=5s", "matrix.prefill=[8K]", "matrix.max_output=2K", "engine.kv_capacity_tokens=256K", "sampling.temperature=0", "engine.source={attach: http://h}", "limits.start=1m", "matrix.duration=6s"}})
	if err != nil {
		t.Fatal(err)
	}
	if e.Matrix.Duration != 6*time.Second || len(e.Matrix.Prefill) != 1 || *e.Sampling.Temperature != 0 || *e.Sampling.Seed != 1 ||
		e.Engine.Source != (Source{Attach: "http://h"}) || e.Limits.Start != time.Minute || e.Matrix.MaxOutput != 2048 || e.Engine.KVCapacityTokens != 262144 || len(e.Overrides) != 8 {
		t.Errorf("%+v", e)
	}
}

// roundTrip checks the promise of Marshal.
func roundTrip(t *testing.T, e *Experiment) []byte {
	t.Helper()
	out, err := Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("again", out, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(e, again, cmpopts.IgnoreFields(Experiment{}, "File", "Raw", "Overrides"), cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s\n(-want +got):\n%s", out, d)
	}
	if twice, err := Marshal(again); err != nil || string(twice) != string(out) {
		t.Fatalf("written\n%s\nwritten again (%v)\n%s", out, err, twice)
	}
	return out
}

func TestMarshal(t *testing.T) {
	e := New()
	e.Name, e.Title, e.Notes = "exp", "a: b # c", "One.\n\n  - two\n"
	e.Engine.Source.Image = "vllm/vllm-openai:v0.32.0"
	e.Engine.Command = "# x\nvllm serve m \\\n  --hf-overrides '{\"a\":1}'"
	e.Matrix.Contexts, e.Matrix.Concurrency = []Context{{0, "0"}, {8192, "8K"}}, []int{1, 2}
	e.Loop, e.Expect.RelTol = "off", 0.05
	e.Hardware.VRAM = "12GB"
	want := `name: exp
title: "a: b # c"
notes: |
  One.

    - two

engine:
  source:
    image: "vllm/vllm-openai:v0.32.0"
  command: |-
    # x
    vllm serve m \
      --hf-overrides '{"a":1}'

hardware:
  vram: "12GB"

matrix:
  contexts: [0, 8K]
  concurrency: [1, 2]
loop: "off"

expect:
  rel_tol: 5%
`
	if d := cmp.Diff(want, string(roundTrip(t, e))); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	e.Title = "\x1b[31m"
	if _, err := Marshal(e); err == nil {
		t.Error("a title with a terminal escape was written")
	}
}

// Texts that a YAML reader could take for something else.
var trickyTexts = []string{"a", "true", "Null", "~", "- a", "a: b", "a #b", "#a", "'", `"`, `\`, "0x1f", "1e3", "012", "1_000", "3.10", "0.32.0", "2024-01-01", "12:30", "=", "<<",
	"[a]", "{a}", "a, b", "*a", "&a", "!a", "%a", "@a", "`a`", "|", ">", "?", "? a", "---", "...", "a ", " a", "é — ≥", "\u00a0x", "x\u200bx", "🙂", "a  b", ".", "-", ".5", "+1", "1.", "1.2.3e4", "12e03", "y", "No", "(a)", "a;b"}

func TestMarshalTexts(t *testing.T) {
	for _, s := range append(trickyTexts, "a\nb", "a\nb\n", "a\n\nb\n\n", " a\nb", "\na", "a\n b\n\n  c: d\n# e", "a \nb", "a\n\tb", "a\tb\nc", "a\n---\nb", "\u00a0\nb", "a\n...\n", "a\\\n  b") {
		e := New()
		e.Name, e.Engine.Source.Simulator, e.Matrix.Prefill = "n", "default", []Context{{1, "1"}}
		if e.Notes, e.Engine.Command = s, s; !strings.Contains(s, "\n") {
			e.Title, e.Hardware.GPU, e.Engine.Version = s, s, s
		}
		roundTrip(t, e)
	}
}

// TestExperiments reads every experiment of the repository.
func TestExperiments(t *testing.T) {
	files, err := filepath.Glob("../*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		e, err := Parse(f, data, Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		roundTrip(t, e)
	}
}

func TestSchema(t *testing.T) { golden(t, "../schema.json", string(Schema())) }

// TestFormat holds the tables of FORMAT.md to the table of keys, and reads its
// examples.
func TestFormat(t *testing.T) {
	data, err := os.ReadFile("../FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- keys: made by go test -update -->\n", "<!-- end of keys -->\n"
	head, rest, ok1 := strings.Cut(string(data), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatal("FORMAT.md has no place for the keys")
	}
	var b strings.Builder
	b.WriteString("| key | type | default | meaning | digest |\n|---|---|---|---|---|\n")
	writeTable(&b, "", keys(New()))
	golden(t, "../FORMAT.md", head+begin+b.String()+end+tail)

	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(data), -1)
	if len(examples) < 2 {
		t.Errorf("%d examples", len(examples))
	}
	for _, x := range examples {
		if _, err := Parse("FORMAT.md", []byte(x[1]), Options{}); err != nil {
			t.Errorf("%s\n%v", x[1], err)
		}
	}
}

func writeTable(b *strings.Builder, path string, fields []field) {
	for _, f := range fields {
		full := join(path, f.name)
		standard, digest := f.standardText(), ""
		switch {
		case f.required:
			standard = "**required**"
		case standard == "":
			standard = "—"
		}
		o, isObject := f.value.(*object)
		if isObject && !f.required {
			standard = "—"
		}
		if f.digest {
			digest = "yes"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", full, f.value.kind(), standard, f.doc, digest)
		if isObject {
			writeTable(b, full, o.fields)
		}
	}
}

// TestLongFiles holds the reading of large files to a time that anything
// quadratic would miss by far.
func TestLongFiles(t *testing.T) {
	const size = MaxSize / 4
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	var names strings.Builder
	for i := range 30000 {
		fmt.Fprintf(&names, "k%d: 1\n", i)
	}
	for name, data := range map[string]string{
		"keys": names.String()[:size], "brackets": fill("["), "braces": fill("{a: "), "dashes": fill("- "), "questions": fill("? "), "anchors": fill("&a "), "tags": fill("!a "),
		"aliases": fill("*a "), "list": "a: [" + fill("1,")[:size-10] + "]", "block": "a:\n" + fill(" - 1\n")[:size-10], "comments": fill("# x\n"), "single": fill("'"), "double": fill(`"`),
		"backslash": fill(`\`), "colons": fill(":"), "pipes": fill("|"), "lines": fill("|\n"), "percent": fill("%\n"), "commas": fill(","), "blank": fill(" "), "tabs": fill("\t"), "ends": fill("\n"),
		"docs": fill("---\n"), "docs2": fill("---\na\n"), "words": fill("a b\n"), "open": "a: \"" + fill("x")[:size-10], "lit": "a: |\n" + fill("  xxxxx\n")[:size-10], "fold": "a: >\n" + fill("  xxxxx\n")[:size-10],
		"dedent": fill("a:\n b:\n"), "quotes": "a: [" + fill(`"x",`)[:size-10] + "]", "values": fill("a: b: c\n"), "unclosed": fill("a: [\n"), "crlf": fill("a\r\n"), "bom": fill("\ufeff"),
	} {
		start := time.Now()
		_, err := Parse("x", []byte(data), Options{})
		if err == nil {
			t.Errorf("%s: no mistake", name)
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: %v", name, d)
		} else if d > time.Second {
			t.Logf("%s: %v", name, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(minimal, "matrix.duration=5s")
	if data, err := os.ReadFile("testdata/twelve-mistakes.yaml"); err == nil {
		f.Add(string(data), "a.b.c=[{d: e}]")
	}
	for _, s := range trickyTexts {
		f.Add(minimal+"title: "+s+"\n", "title="+s)
		f.Add(minimal+"title: "+quoteText(s)+"\nnotes: |\n  "+s+"\n  b\n", "notes="+quoteText(s))
	}
	f.Fuzz(func(t *testing.T, data, set string) {
		if len(data) > 4096 || len(set) > 256 {
			return
		}
		e, err := Parse("x", []byte(data), Options{Sets: []string{set}, CheckCommand: checkCommand})
		if err == nil {
			roundTrip(t, e)
		} else if e != nil || err.Error() == "" {
			t.Errorf("%q: %v", data, err)
		}
		Parse("x", []byte(data), Options{})
	})
}

func TestByteOrderMark(t *testing.T) {
	e, err := Parse("x.yaml", []byte("\ufeffname: x\r\nengine: {source: {simulator: default}}\r\nmatrix: {contexts: [1K], concurrency: [1]}\r\n"), Options{})
	if err != nil || e.Name != "x" {
		t.Errorf("%v, %v", e, err)
	}
}

package servecmd

import (
	"path"
	"strings"
)

// Flag returns the value of a flag in argv, the last one if it is given more than
// once. The value of a switch is empty. Any spelling of the name finds it:
// --max-model-len, --max_model_len, and -tp for --tensor-parallel-size.
func Flag(argv []string, name string) (value string, ok bool) {
	want := canonical(name)
	for _, u := range scan(argv) {
		if u.name == want {
			value, ok = "", true
			if len(u.values) > 0 {
				value = u.values[0]
			}
		}
	}
	return value, ok
}

// Values returns all values of a flag that takes more than one; see [Flag].
func Values(argv []string, name string) []string {
	want := canonical(name)
	var out []string
	for _, u := range scan(argv) {
		if u.name == want {
			out = u.values
		}
	}
	return out
}

// Without returns argv without the flag and its values. Argv itself is not changed.
func Without(argv []string, name string) []string {
	want := canonical(name)
	var out []string
	from := 0
	for _, u := range scan(argv) {
		if u.name == want {
			out = append(out, argv[from:u.from]...)
			from = u.to
		}
	}
	return append(out, argv[from:]...)
}

// Unbound returns argv without what says only where the server listens and who may
// ask it: whoever starts the engine binds it anew, and it cannot move a number.
func Unbound(argv []string) []string {
	for _, flag := range []string{"--host", "--port", "--api-key"} {
		argv = Without(argv, flag)
	}
	return argv
}

// flagUse is one flag in argv: argv[from:to], its values among them.
type flagUse struct {
	name     string // canonical
	from, to int
	values   []string
	at       int  // index in argv of the first value
	joined   bool // --flag=value
}

// scan finds the flags of the server's part of argv. Every word is looked at once.
func scan(argv []string) []flagUse {
	var uses []flagUse
	for i := argsStart(argv); i < len(argv); {
		if argv[i] == "--" {
			break
		}
		if !isFlag(argv[i]) {
			i++
			continue
		}
		u := flagUse{name: canonical(argv[i]), from: i, to: i + 1, at: i}
		if eq := strings.IndexByte(argv[i], '='); eq >= 0 {
			u.values, u.joined = []string{argv[i][eq+1:]}, true
		} else {
			n := arity(u.name)
			for u.to < len(argv) && n != 0 && !isFlag(argv[u.to]) {
				u.to, n = u.to+1, n-1
			}
			u.values, u.at = argv[u.from+1:u.to], u.from+1
		}
		uses = append(uses, u)
		i = u.to
	}
	return uses
}

// argsStart is the index of the first word behind the program: behind vllm serve,
// behind -m MODULE, or 0 where argv has neither (what follows an image).
func argsStart(argv []string) int {
	for i := 0; i+1 < len(argv); i++ {
		if argv[i+1] == "serve" && path.Base(argv[i]) == "vllm" {
			return i + 2
		}
		if argv[i] == "-m" && strings.HasPrefix(argv[i+1], "vllm.entrypoints.") {
			if i+2 < len(argv) && argv[i+2] == "serve" {
				return i + 3
			}
			return i + 2
		}
	}
	if len(argv) > 0 && argv[0] == "serve" {
		return 1
	}
	return 0
}

// isFlag says whether the server would read a word as the name of a flag;
// negative numbers are values.
func isFlag(s string) bool {
	if len(s) < 2 || s[0] != '-' {
		return false
	}
	return strings.Trim(s[1:], "0123456789.") != "" || s == "-."
}

// canonical returns the one spelling of a flag's name: long, with dashes, without
// a value.
func canonical(s string) string {
	s, _, _ = strings.Cut(s, "=")
	if !strings.HasPrefix(s, "-") {
		s = "--" + s
	}
	if !strings.HasPrefix(s, "--") {
		if long, ok := shortFlag(s); ok {
			return long
		}
		return s
	}
	// Behind a dot stand keys of a JSON value, which keep their spelling.
	head, tail, dotted := strings.Cut(s, ".")
	head = strings.ReplaceAll(head, "_", "-")
	if dotted {
		return head + "." + tail
	}
	return head
}

func shortFlag(s string) (long string, ok bool) {
	switch s {
	case "-tp":
		return "--tensor-parallel-size", true
	case "-pp":
		return "--pipeline-parallel-size", true
	case "-dp":
		return "--data-parallel-size", true
	case "-dpl":
		return "--data-parallel-size-local", true
	case "-dcp":
		return "--decode-context-parallel-size", true
	case "-ep":
		return "--enable-expert-parallel", true
	case "-q":
		return "--quantization", true
	case "-cc":
		return "--compilation-config", true
	}
	return "", false
}

// arity is the number of words behind a flag that are its values; -1: all up to
// the next flag. Flags that we do not know take one: a switch that we do not know
// and that stands before a word which is no flag is the only case read wrongly,
// and vLLM's model stands directly behind serve.
func arity(name string) int {
	switch name {
	case "--served-model-name", "--api-key", "--lora-modules", "--middleware", "--cudagraph-capture-sizes",
		"--collect-detailed-traces", "--model-impl-args":
		return -1
	case "--trust-remote-code", "--language-model-only", "--async-scheduling", "--aggregate-engine-logging",
		"--calculate-kv-scales", "--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--headless",
		"--return-tokens-as-token-ids", "--skip-tokenizer-init", "--skip-mm-profiling", "--fully-sharded-loras",
		"--use-tqdm-on-load", "--multi-step-stream-outputs", "--allow-credentials", "--ray-workers-use-nsight",
		"--interleave-mm-strings", "--exclude-tools-when-tool-choice-none", "--help", "--version", "-h", "-v":
		return 0
	}
	// --enable-…, --disable-… and --no-… are switches, as are -O3 and its like.
	for _, prefix := range []string{"--enable-", "--disable-", "--no-", "--enforce-", "--log-error"} {
		if strings.HasPrefix(name, prefix) {
			return 0
		}
	}
	if len(name) > 2 && strings.HasPrefix(name, "-O") {
		return 0
	}
	return 1
}

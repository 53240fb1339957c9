package servecmd

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, text string
		want       Command
	}{
		{"export lines", "# a\nexport A=1 B='x y'\n\nvllm serve m\n",
			Command{Comments: []string{"a"}, Env: []EnvVar{{"A", "1"}, {"B", "x y"}}, Argv: []string{"vllm", "serve", "m"}, Model: "m"}},
		{"env with quotes", `env "A=x y" B="$HOME/x" vllm serve m`,
			Command{Env: []EnvVar{{"A", "x y"}, {"B", "$HOME/x"}}, Unexpanded: []string{"HOME"}, Argv: []string{"vllm", "serve", "m"}, Model: "m"}},
		{"a repeated variable", `A=1 A=2 vllm serve m`,
			Command{Env: []EnvVar{{"A", "2"}}, Argv: []string{"vllm", "serve", "m"}, Model: "m"}},
		{"model behind switches", `vllm serve --trust-remote-code --port 8100 org/m`,
			Command{Argv: []string{"vllm", "serve", "--trust-remote-code", "--port", "8100", "org/m"}, Model: "org/m", Port: 8100}},
		{"wrapper", `numactl -m 0 uv run vllm serve m --max-model-len 32k`,
			Command{Argv: []string{"numactl", "-m", "0", "uv", "run", "vllm", "serve", "m", "--max-model-len", "32k"}, Model: "m", MaxModelLen: 32000}},
		{"auto length", `vllm serve m --max-model-len -1 --num-gpu-blocks-override 64`,
			Command{Argv: []string{"vllm", "serve", "m", "--max-model-len", "-1", "--num-gpu-blocks-override", "64"}, Model: "m", NumGPUBlocks: 64}},
		{"unquoted JSON with blanks and a brace in a text", `vllm serve m --hf-overrides {"a": {"b": "}"}, "c": [1]} --port 1`,
			Command{Argv: []string{"vllm", "serve", "m", "--hf-overrides", `{"a": {"b": "}"}, "c": [1]}`, "--port", "1"}, Model: "m", Port: 1, Lenient: true}},
		{"joined docker options", `docker run -dit --gpus all -eA=1 -e B -p 127.0.0.1:9000:8000/tcp img@sha256:` + strings.Repeat("a", 64) + ` --model m`,
			Command{Env: []EnvVar{{"A", "1"}, {"B", "$B"}}, Unexpanded: []string{"B"}, Image: "img@sha256:" + strings.Repeat("a", 64), Argv: []string{"--model", "m"}, Model: "m", HostPort: 9000}},
		{"docker passes its own environment", `HF_HUB_OFFLINE=1 sudo podman container run -e HF_HUB_OFFLINE vllm/vllm-openai:v1 m`,
			Command{Env: []EnvVar{{"HF_HUB_OFFLINE", "1"}}, Image: "vllm/vllm-openai:v1", Argv: []string{"m"}, Model: "m", Warnings: []string{"image_not_pinned"}}},
		{"entrypoint", `docker run --entrypoint vllm vllm/vllm-openai:v1 serve m --config x.yaml`,
			Command{Image: "vllm/vllm-openai:v1", Argv: []string{"serve", "m", "--config", "x.yaml"}, Model: "m", Warnings: []string{"image_not_pinned", "config_file_not_read"}}},
		{"an image that starts nothing", `docker run rocm/vllm:x vllm serve m`,
			Command{Image: "rocm/vllm:x", Argv: []string{"vllm", "serve", "m"}, Model: "m", Warnings: []string{"image_not_pinned"}}},
		{"compose file", `# from our box
services:
  vllm:
    image: vllm/vllm-openai:v0.32.0
    restart: unless-stopped
    ipc: host
    environment:
      - HF_TOKEN=${HF_TOKEN}
      - VLLM_LOGGING_LEVEL=INFO
    ports: ["8001:8000"]
    command: >
      --model org/m
      --speculative-config '{"method":"mtp","num_speculative_tokens":2}'
`, Command{Comments: []string{"from our box"}, Env: []EnvVar{{"HF_TOKEN", "${HF_TOKEN}"}, {"VLLM_LOGGING_LEVEL", "INFO"}}, Unexpanded: []string{"HF_TOKEN"},
			Image: "vllm/vllm-openai:v0.32.0", Argv: []string{"--model", "org/m", "--speculative-config", `{"method":"mtp","num_speculative_tokens":2}`},
			Model: "org/m", HostPort: 8001, Warnings: []string{"image_not_pinned"}}},
		{"compose body, list", `image: vllm/vllm-openai:v1
command: ["vllm", "serve", "org/m", "--hf-overrides", '{"a b":"$$X"}', "--port", "9000"]
environment: {A: 1, B: "x y", C: }
deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
cpuset: "0-3"
`, Command{Image: "vllm/vllm-openai:v1", Argv: []string{"org/m", "--hf-overrides", `{"a b":"$X"}`, "--port", "9000"}, Model: "org/m", Port: 9000,
			Env: []EnvVar{{"A", "1"}, {"B", "x y"}, {"C", "$C"}}, Unexpanded: []string{"C"}, Warnings: []string{"compose_keys_ignored", "program_repeated", "image_not_pinned"}}},
		{"compose service with an entrypoint", "v:\n  image: i:1\n  entrypoint: [\"python3\", \"-m\", \"vllm.entrypoints.openai.api_server\"]\n  command: |\n    --model m # x\n    --port 1\n",
			Command{Comments: []string{"x"}, Image: "i:1", Argv: []string{"-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--port", "1"}, Model: "m", Port: 1, Warnings: []string{"image_not_pinned"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Parse(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want.Port == 0 {
				tt.want.Port = 8000
			}
			tt.want.ServedModelNames = []string{tt.want.Model}
			if d := cmp.Diff(tt.want, *c, cmpopts.IgnoreUnexported(Command{}), cmpopts.IgnoreFields(Command{}, "JSONValues"), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			roundTrip(t, tt.text)
		})
	}
}

func TestMistakes(t *testing.T) {
	tests := []struct{ text, want string }{
		{"", "1:1: no program"},
		{"# only a comment\n", "1:1: no program"},
		{"A=1 B=2", "1:1: assignments without a program"},
		{"MODEL=m\nvllm serve $MODEL", "1:1: a variable set on a line of its own"},
		{"vllm serve m\n  --port 8000", `2:3: a second line: the line before it needs a backslash`},
		{"vllm serve m\ncurl x", "2:1: a second command"},
		{"vllm serve m \\ \n --port 1", "1:14: the backslash is followed by blanks"},
		{"vllm serve m > log", "1:14: shell redirection >"},
		{"vllm serve m 2>&1 | tee x", "1:15: shell redirection >"},
		{"vllm serve $(cat m)", "1:12: shell syntax $("},
		{"vllm serve \"`cat m`\"", "1:13: shell syntax `"},
		{"vllm serve {\"a\":`x`}", "1:17: shell syntax `"},
		{"vllm serve ${A", "1:12: ${ is not closed"},
		{"vllm serve ${A:-$(x)}", "1:12: only ${NAME}"},
		{"vllm serve \"m", `1:12: the quote " is not closed`},
		{"vllm serve --hf-overrides {\"a\"", "1:27: the brace { is not closed"},
		{"vllm serve m \u2014port 1", "1:14: U+2014 is no hyphen"},
		{"vllm serve \u201cm\u201d", "1:12: typographic quote U+201C"},
		{"vllm serve\u00a0m", "1:11: U+00A0 looks like a blank"},
		{"vllm serve \x1b[31m", "1:12: control character U+001B"},
		{"vllm serve 'a\x00'", "1:14: control character U+0000"},
		{"vllm serve \xff", "1:12: a byte is no UTF-8"},
		{"vllm serve m --port http", "1:21: --port: expected a whole number from 1 to 65535"},
		{"vllm serve m --port=70000", "1:14: --port: expected a whole number"},
		{"vllm serve m --port", "1:14: --port: needs a value"},
		{"vllm serve m --max-model-len 1.5K", "1:30: --max-model-len: expected a whole number"},
		{"vllm serve m --speculative-config [1]", "1:35: --speculative-config: the value is no JSON object"},
		{"bash -c 'vllm serve m'", "1:1: the command is given to a shell (bash)"},
		{"env -i vllm serve m", "1:5: expected a program"},
		{"A=1 'B=2' vllm serve m", "1:5: a quoted assignment"},
		{"docker exec x vllm serve m", "1:1: expected docker run"},
		{"docker run --rm", "1:12: no image"},
		{"docker run -e", "1:12: the option needs a value"},
		{"docker run img bash -c 'vllm serve m'", "1:16: the command is given to a shell (bash)"},
		{"services:\n  a: {image: x}\n  b: {image: y}\n", "1:1: 2 services"},
		{"services:\n  a:\n    command: x\n", "3:5: no image"},
		{"image: x\ncommand: a && b\n", "2:10: shell syntax &&"},
		{"image: &a x\ncommand: *a\n", "1:8: expected a text"},
		{"image: [\n", "this YAML cannot be read"},
	}
	for _, tt := range tests {
		c, err := Parse(tt.text)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%q: no error, argv %q", tt.text, c.Argv)
		} else if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q:\n got %v\nwant %s", tt.text, err, tt.want)
		}
	}
	all := Mistakes("vllm serve m --port x --speculative-config y --max-num-seqs 0")
	if len(all) != 3 || all[0].Flag != "--port" || all[1].Kind != BadJSONValue || all[2].Column != 61 {
		t.Errorf("all mistakes: %v", all)
	}
}

func TestCheck(t *testing.T) {
	var got []string
	Check("vllm serve m --port x\n# a\n", func(line, column int, message string) {
		got = append(got, fmt.Sprintf("%d:%d: %s", line, column, message))
	})
	if want := []string{"1:21: --port: expected a whole number from 1 to 65535"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSecrets(t *testing.T) {
	tests := []struct {
		text    string
		secrets []string
	}{
		{`vllm serve m --api-key k1aa k2bb --port 1`, []string{"k1aa", "k2bb"}},
		{`WANDB_API_KEY=w1xx AWS_SECRET_ACCESS_KEY=a1xx HF_TOKEN=$HF_TOKEN HF_TOKEN_PATH=/x vllm serve m`, []string{"w1xx", "a1xx"}},
		{`HF_TOKEN='$HF_TOKEN' vllm serve m`, []string{"$HF_TOKEN"}},
		{`HF_TOKEN=${HF_TOKEN:-hf_default} vllm serve m`, []string{"${HF_TOKEN:-hf_default}"}},
		{`vllm serve m --kv-transfer-config '{"apiKey": "inner1", "list": [{"auth_token":["t1xx","t2xx"]}], "num_tokens": 3, "eos_token": "<e>"}'`,
			[]string{"inner1", "t1xx", "t2xx"}},
		{`vllm serve m --otlp-traces-endpoint https://me:pass1@host/x --max-num-batched-tokens 8192 --tokenizer t`, []string{"pass1"}},
		{`vllm serve m --header "Authorization: Bearer abcdefgh1"`, []string{"abcdefgh1"}},
		{`HF_TOKEN=outer1 docker run -e HF_TOKEN -e X_PASSWORD=p1xx img m --ssl-keyfile k.pem --ssl_keyfile_password=kpw1`, []string{"outer1", "p1xx", "kpw1"}},
		{`docker run --label=auth_token=lab1 -l x_secret=lab2 --log-opt splunk-token=lab3 img m`, []string{"lab1", "lab2", "lab3"}},
		{`AB_TOKEN=outer2 docker run img m`, []string{"outer2"}},
		{"# the key is inner9\nvllm serve m --api-key=inner9", []string{"inner9"}},
		{"image: i\nenvironment: {HF_TOKEN: hf_inner8}\ncommand: --model m --api-key ab$${X}cd", []string{"hf_inner8", "ab${X}cd"}},
		{`vllm serve m --api-key <redacted> --hf-token "" `, nil},
	}
	for _, tt := range tests {
		c, err := Parse(tt.text)
		if err != nil {
			t.Fatalf("%s: %v", tt.text, err)
		}
		if d := cmp.Diff(tt.secrets, c.Secrets, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, d)
		}
		roundTrip(t, tt.text)
	}
}

func TestShell(t *testing.T) {
	tests := []struct{ text, want string }{
		{`A=1 vllm serve m --port 8000`, "env A=1 vllm serve m --port 8000\n"},
		{"#  two\r\n#\r\nvllm serve \"it's\" '' '$X' a\\ b \"$X\"y \"$X\"-~ ~/x/\"y z\" '\"'\\''' {\"a\":1}",
			"#  two\n#\nvllm serve \"it's\" '' '$X' 'a b' \"$X\"\"y\" \"$X-~\" ~/'x/y z' '\"'\\''' '{\"a\":1}'\n"},
		{`env HF_TOKEN=hf_x1 B=~/x vllm serve m --api-key k1 --trust-remote-code --served-model-name a b --gpu-memory-utilization 0.9 --x=$Y`,
			"env \\\n  HF_TOKEN='<redacted>' \\\n  B=~/x \\\n  vllm serve m \\\n  --api-key '<redacted>' \\\n  --trust-remote-code \\\n  --served-model-name a b \\\n  --gpu-memory-utilization 0.9 \\\n  \"--x=$Y\"\n"},
		{`docker run --rm -v ~/.cache:/c -e HF_TOKEN=hf_1 -p 1:8000 img:1 m --port 8000`,
			"docker run --rm -v ~/.cache:/c -p 1:8000 -e HF_TOKEN='<redacted>' img:1 m --port 8000\n"},
	}
	for _, tt := range tests {
		c, err := Parse(tt.text)
		if err != nil {
			t.Fatalf("%s: %v", tt.text, err)
		}
		if d := cmp.Diff(tt.want, c.Shell()); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, d)
		}
	}
	c, _ := Parse(`vllm serve "$M"`)
	c.Argv = append(c.Argv, "--port", "8100")
	c.Argv[2] = "other m"
	c.Env = append(c.Env, EnvVar{"A", "b c"})
	if got, want := c.Shell(), "env A='b c' vllm serve 'other m' --port 8100\n"; got != want {
		t.Errorf("changed command: %s", got)
	}
}

// TestShellInShell lets a real shell read what Shell writes.
func TestShellInShell(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no sh on this machine: that Shell's text can be run was not checked")
	}
	for _, f := range fixtures(t) {
		c, err := Parse(f.Raw)
		if err != nil || c.Image != "" || len(c.Unexpanded) > 0 {
			continue
		}
		_, want := c.Redacted()
		text := strings.TrimPrefix(c.Shell(), "env")
		text = text[strings.LastIndex(text[:strings.Index(text, want[0])], "\n")+1:]
		i := strings.Index(text, want[0])
		out, err := exec.Command(sh, "-c", "printf '%s\\0' "+text[i:]).Output()
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")); d != "" {
			t.Errorf("%s (-want +got):\n%s", f.ID, d)
		}
	}
}

// roundTrip checks the promise of Shell.
func roundTrip(t *testing.T, text string) {
	t.Helper()
	c, err := Parse(text)
	if c == nil {
		return
	}
	shell := c.Shell()
	for _, s := range c.Secrets {
		// A secret that is also an ordinary word of the command cannot be told from it.
		if len(s) >= 4 && strings.Contains(shell, s) && strings.Count(text, s) == 1 && !strings.Contains(Placeholder, s) {
			t.Errorf("%q: the secret %q stands in %q", text, s, shell)
		}
	}
	again, err2 := Parse(shell)
	if again == nil {
		t.Fatalf("%q: %q cannot be read: %v", text, shell, err2)
	}
	if (err == nil) != (err2 == nil) {
		t.Errorf("%q: error %v, read again %v", text, err, err2)
	}
	wantEnv, want := c.Redacted()
	env, argv := again.Redacted()
	if !slices.Equal(argv, want) || !slices.Equal(again.Argv, want) {
		t.Errorf("%q: argv\n%q\nread again from %q\n%q", text, want, shell, again.Argv)
	}
	if !slices.Equal(env, wantEnv) {
		t.Errorf("%q: env\n%q\nread again\n%q", text, wantEnv, env)
	}
	if again.Image != c.Image || again.Model != c.Model && !slices.Contains(c.Secrets, c.Model) {
		t.Errorf("%q: image %q, model %q; read again %q, %q", text, c.Image, c.Model, again.Image, again.Model)
	}
	if again.Lenient {
		t.Errorf("%q: %q is lenient", text, shell)
	}
	if got := again.Shell(); got != shell {
		t.Errorf("%q: written %q, written again %q", text, shell, got)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, f := range fixtures(t) {
		roundTrip(t, f.Raw)
	}
}

func TestFlags(t *testing.T) {
	argv := strings.Fields("vllm serve m --max_model_len 1 -tp=2 --served-model-name a b --trust-remote-code --port 1 --port=2 --temp -1 -- --x 1")
	for name, want := range map[string]string{"--max-model-len": "1", "max_model_len": "1", "--tensor-parallel-size": "2", "-tp": "2",
		"--served_model_name": "a", "--trust-remote-code": "", "--port": "2", "--temp": "-1"} {
		if got, ok := Flag(argv, name); !ok || got != want {
			t.Errorf("Flag(%s) = %q, %v; want %q", name, got, ok, want)
		}
	}
	if _, ok := Flag(argv, "--x"); ok {
		t.Error("--x stands behind --")
	}
	before := strings.Join(argv, " ")
	join := func(s []string) string { return strings.Join(s, " ") }
	if got := join(Without(argv, "served-model-name")); !strings.Contains(got, "-tp=2 --trust-remote-code") {
		t.Errorf("Without: %s", got)
	}
	if got := join(Unbound(argv)); got != strings.Replace(before, " --port 1 --port=2", "", 1) {
		t.Errorf("Unbound: %s", got)
	}
	if join(argv) != before {
		t.Error("argv was changed")
	}
	if got := join(Unbound([]string{"m", "--api-key", "k", "--host=h"})); got != "m" {
		t.Errorf("image argv: %s", got)
	}
}

// TestLongTexts holds the reading of large texts to a time that anything
// quadratic would miss by far.
func TestLongTexts(t *testing.T) {
	const size = MaxSize / 4
	fill := func(head, body, tail string) string {
		return head + strings.Repeat(body, (size-len(head)-len(tail))/len(body)) + tail
	}
	for name, text := range map[string]string{
		"words":      fill("vllm serve m", " --a b", ""),
		"variables":  fill("", "$A", ""),
		"names":      "vllm serve " + strings.Join(numbered("$A", 30000), ""),
		"env":        strings.Join(numbered("A", 20000), "=1 ") + "=1 vllm serve m",
		"pass":       "docker run -e " + strings.Join(numbered("A", 20000), " -e ") + " img m",
		"secrets":    fill("# ", "a b c d", "\nvllm serve m "+strings.Join(numbered("--token=abcd", 5000), " ")),
		"braces":     fill("vllm serve ", `{"a":`, ""),
		"backslash":  fill("vllm serve ", "\\ ", ""),
		"dollars":    fill("vllm serve ", "${", ""),
		"quotes":     fill("vllm serve m ", `''`, ""),
		"json":       fill("vllm serve m --speculative-config '[", `{"token":"aaaa"},`, "{}]'"),
		"colons":     fill("vllm serve m ", "://a:", ""),
		"compose":    fill("image: i\ncommand: ", "[", "")[:maxCompose],
		"compose2":   fill("image: i\ncommand: [", "a,", "]")[:maxCompose],
		"compose3":   ("image: i\n" + strings.Join(numbered("k", 10000), ": x\n"))[:maxCompose],
		"lines":      fill("", "# x\n", "vllm serve m"),
		"unbalanced": fill("vllm serve ", "{", ""),
	} {
		start := time.Now()
		c, _ := Parse(text)
		if c != nil {
			c.Shell()
		}
		if d := time.Since(start); d > 20*time.Second {
			t.Errorf("%s: %v", name, d)
		} else {
			t.Logf("%s: %v", name, d)
		}
	}
	if _, err := Parse(strings.Repeat(" ", MaxSize+1)); err == nil {
		t.Error("a text over the limit was read")
	}
}

func numbered(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s + strings.Repeat("i", i%5) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676%26)) + string(rune('a'+i/17576%26))
	}
	return out
}

func FuzzParse(f *testing.F) {
	for _, c := range fixtures(f) {
		f.Add(c.Raw)
	}
	for _, s := range []string{"A=~/x:~ vllm serve ~u/\"$A\"b", "docker run -e A -v ~:/x i:1 m", "image: i\ncommand: [a, $$b]\nenvironment: {A: }",
		"vllm serve m --api-key=\"${X:-y}\"", "services: {a: {image: x, command: 'a \"$b\" ''c'''}}", "vllm serve {\\\"a\\\":1} \\\n #x\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		roundTrip(t, text)
	})
}

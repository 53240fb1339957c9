//go:build linux

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"speedmatrix/experiments/servecmd"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
)

// keyVariable is where vLLM takes an API key from that is not on its command line,
// where every user of the machine could read it.
const keyVariable = "VLLM_API_KEY"

// serveCommand is the plan's command as it will be executed, and as it may be shown.
type serveCommand struct {
	program     string
	args, shown []string // without the program
	env         []string
	shownEnv    []string
}

// serveCommand binds the plan's argv to this launch. It stays word for word, but
// for the program, which is ours to choose, and where the engine listens.
func (j *job) serveCommand(program string, port int, key string) (serveCommand, error) {
	real, shown := j.Argv, j.Plan.Identity.Engine.Argv
	if real == nil {
		real = shown
	}
	if len(real) == 0 || len(shown) == 0 {
		return serveCommand{}, errors.New("engine.command: there is none; source wheel and host need the serve command")
	}
	for i, word := range real {
		switch {
		case i > 0 && unexpanded.MatchString(word):
			return serveCommand{}, fmt.Errorf("engine.command: %q: no shell runs here that could expand it; write the value out", word)
		case strings.Contains(word, servecmd.Placeholder):
			return serveCommand{}, fmt.Errorf("engine.command: %s: the value was redacted when the command was published; write your own, or leave the option out", flagBefore(real, i))
		}
	}
	c := serveCommand{
		program: program,
		args:    bind(real, port)[1:],
		shown:   bind(shown, port)[1:],
	}
	var err error
	if c.env, c.shownEnv, err = j.serveEnv(key); err != nil {
		return serveCommand{}, err
	}
	return c, nil
}

// unexpanded finds what a shell would have replaced at the start of a word or of
// the value in it. A variable further inside stays: JSON may hold one on purpose.
var unexpanded = regexp.MustCompile(`^(--[A-Za-z0-9_-]+=)?(~(/|$)|\$[A-Za-z_{])`)

func flagBefore(argv []string, i int) string {
	if i > 0 && !strings.HasPrefix(argv[i], "-") {
		return argv[i-1]
	}
	flag, _, _ := strings.Cut(argv[i], "=")
	return flag
}

func bind(argv []string, port int) []string {
	return append(servecmd.Unbound(argv), "--host", "127.0.0.1", "--port", strconv.Itoa(port))
}

// serveEnv makes the engine's environment and the part of it that is recorded:
// what the plan sets, and what of ours can move a number.
func (j *job) serveEnv(key string) (env, shown []string, err error) {
	env = engineEnv(j.environ)
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if hasPrefix(name, recordedPrefixes) {
			shown = append(shown, kv)
		}
	}
	planned := j.Env
	if planned == nil {
		planned = j.Plan.Identity.Engine.Env
	}
	for name, value := range planned {
		switch {
		case name == keyVariable:
			continue // ours is set below
		case unexpanded.MatchString(value):
			return nil, nil, fmt.Errorf("engine.command: %s=%s: no shell runs here that could expand it; write the value out", name, value)
		case value == servecmd.Placeholder:
			if value = supervise.Getenv(j.environ, name); value == "" {
				return nil, nil, fmt.Errorf("engine.command: %s was redacted when the command was published; set it in your environment, or leave it out", name)
			}
			j.secrets = append(j.secrets, value)
		}
		env = supervise.Setenv(env, name, value)
		if redactedValue, ok := j.Plan.Identity.Engine.Env[name]; ok {
			value = redactedValue
		}
		shown = supervise.Setenv(shown, name, value)
	}
	env = supervise.Setenv(env, keyVariable, key)
	shown = supervise.Setenv(shown, keyVariable, servecmd.Placeholder)
	slices.Sort(env)
	slices.Sort(shown)
	return env, shown, nil
}

// display makes words fit for a record that may be published: no secret, and the
// person's home folder as ~.
func (j *job) display(words ...string) []string {
	home := supervise.Getenv(j.environ, "HOME")
	out := make([]string, len(words))
	secrets := record.NewRedactor(j.secrets...)
	for i, w := range words {
		w = secrets.Redact(w)
		if len(home) > 1 {
			w = strings.ReplaceAll(w, home+"/", "~/")
		}
		out[i] = w
	}
	return out
}

// modelArgument is how the serve command names the model.
func modelArgument(argv []string) string {
	if i := slices.Index(argv, "serve"); i >= 0 && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
		return argv[i+1]
	}
	model, _ := servecmd.Flag(argv, "--model")
	return model
}

// wheelProgram is the program of a virtual environment that stands for argv[0].
func wheelProgram(v *venv, argv []string) (string, error) {
	if len(argv) == 0 {
		return "", errors.New("engine.command: there is none; source wheel needs the serve command")
	}
	name := filepath.Base(argv[0])
	if name == "python3" {
		name = "python"
	}
	if name != "vllm" && name != "python" {
		return "", fmt.Errorf("engine.command: it begins with %q; with source wheel it must begin with vllm (or python -m …)", argv[0])
	}
	if _, err := os.Stat(v.bin(name)); err != nil {
		return "", fmt.Errorf("engine.source.wheel.lock: no package in it brings the program %s: %w", name, err)
	}
	return v.bin(name), nil
}

// hostProgram finds the program of source host: a path, from the experiment's
// folder if it is relative, or a name on the PATH.
func (j *job) hostProgram(name string) (string, error) {
	path := name
	switch {
	case name == "":
		return "", errors.New("engine.source.host: it names no program")
	case strings.HasPrefix(name, "~/"):
		path = filepath.Join(supervise.Getenv(j.environ, "HOME"), name[2:])
	case !strings.ContainsRune(name, '/'):
		found, ok := supervise.LookPath(name, j.environ)
		if !ok {
			return "", fmt.Errorf("engine.source.host: no program %q on the PATH; give its full path, or use source wheel", name)
		}
		return found, nil
	case !filepath.IsAbs(name):
		path = filepath.Join(j.dir, name)
	}
	fi, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("engine.source.host: %w; give the path of a vllm program that is installed, or use source wheel", err)
	}
	if !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return "", fmt.Errorf("engine.source.host: %s is no program that can be run", path)
	}
	return path, nil
}

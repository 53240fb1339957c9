//go:build linux

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"speedmatrix/experiments/servecmd"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
)

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
	s, err := pipelines.ServeCommand(&j.Job, pipelines.Bind{
		Host: "127.0.0.1", Port: port,
		Getenv: func(name string) string { return supervise.Getenv(j.environ, name) },
	})
	if err != nil {
		return serveCommand{}, err
	}
	c := serveCommand{program: program, args: s.Args[1:], shown: s.Shown[1:]}
	c.env, c.shownEnv = j.serveEnv(s, key)
	return c, nil
}

// serveEnv makes the engine's environment and the part of it that is recorded:
// what the plan sets, and what of ours can move a number.
func (j *job) serveEnv(s pipelines.Serve, key string) (env, shown []string) {
	env = engineEnv(j.environ)
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if hasPrefix(name, recordedPrefixes) {
			shown = append(shown, kv)
		}
	}
	for name, value := range s.Env {
		env = supervise.Setenv(env, name, value)
	}
	for name, value := range s.SecretEnv {
		env = supervise.Setenv(env, name, value)
		j.secrets = append(j.secrets, value)
	}
	for _, kv := range s.ShownEnv {
		name, value, _ := strings.Cut(kv, "=")
		shown = supervise.Setenv(shown, name, value)
	}
	for _, kv := range j.env {
		name, value, _ := strings.Cut(kv, "=")
		env, shown = supervise.Setenv(env, name, value), supervise.Setenv(shown, name, value)
	}
	env = supervise.Setenv(env, pipelines.KeyVariable, key)
	shown = supervise.Setenv(shown, pipelines.KeyVariable, servecmd.Placeholder)
	slices.Sort(env)
	slices.Sort(shown)
	return env, shown
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

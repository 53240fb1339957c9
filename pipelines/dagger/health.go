package dagger

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"speedmatrix/pipelines/supervise"
)

// Health is what a machine offers for measuring in containers.
type Health struct {
	CLI        string // path; empty: none
	CLIVersion string
	CLIError   error // why it cannot be used
	// Engine is the version of the engine that is named in the environment; empty: none is
	// named, or it does not answer.
	Engine      string
	EngineError error
	// Starts: no engine is named, and the CLI can start one with this program.
	Starts string
	GPUs   bool // support was asked for in the environment
}

// Look finds out. It asks an engine that is named, and never starts one.
func Look(ctx context.Context, environ []string) Health {
	h := Health{GPUs: supervise.Getenv(environ, gpuVariable) != ""}
	named := supervise.Getenv(environ, RunnerVariable) != "" || inSession(environ)
	if !inSession(environ) {
		if h.CLI, h.CLIError = FindCLI(environ); h.CLIError != nil {
			return h
		}
		h.CLIVersion, h.CLIError = cliVersion(ctx, h.CLI, environ)
		if h.CLIError == nil && !sameMinor(h.CLIVersion, SDKVersion) {
			h.CLIError = fmt.Errorf("it is version %s: %s", h.CLIVersion, Install)
		}
		if h.CLIError != nil {
			return h
		}
	}
	if !named {
		for _, name := range []string{"docker", "podman", "nerdctl", "finch", "container"} {
			if path, ok := supervise.LookPath(name, environ); ok {
				h.Starts = path
				break
			}
		}
		return h
	}
	s, err := connect(ctx, environ, secretStore{}, io.Discard)
	if err != nil {
		h.EngineError = err
		return h
	}
	h.Engine = s.version
	h.EngineError = s.close()
	return h
}

// cliVersion asks the CLI: "dagger v0.21.9 (…) linux/amd64".
func cliVersion(ctx context.Context, cli string, environ []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("%s version took more than 10 s", cli))
	defer cancel()
	cmd := exec.CommandContext(ctx, cli, "version")
	cmd.Env = sessionEnv(environ)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s version: %w", filepath.Base(cli), err)
	}
	for _, word := range strings.Fields(string(out)) {
		if len(word) > 2 && word[0] == 'v' && strings.Count(word, ".") >= 2 {
			return strings.TrimPrefix(word, "v"), nil
		}
	}
	return "", fmt.Errorf("%s version printed %.100q", filepath.Base(cli), out)
}

// checkEngine finds what would spoil a run before anything is started: a cache that the
// engine would empty while it is filled.
func (j *job) checkEngine(ctx context.Context) error {
	cache := j.session.Engine().LocalCache()
	most, err := cache.MaxUsedSpace(ctx)
	if err != nil {
		return nil // an engine that does not tell is no reason not to measure
	}
	free, err := cache.MinFreeSpace(ctx)
	if err != nil {
		return nil
	}
	j.cacheLimits = cacheLimits{most: int64(most), free: int64(free)}
	return nil
}

// cacheLimits are the engine's, in bytes; 0: none.
type cacheLimits struct{ most, free int64 }

// warning says, for a disk of the engine, whether its garbage collection is about to throw
// away what a run needs.
func (l cacheLimits) warning(size, free int64) string {
	if l.free > 0 && size > 0 && free < l.free {
		return fmt.Sprintf("the disk of the Dagger engine has %d GB free, and the engine empties its cache below %d GB: images are pulled again and again; free some space, or give it limits of its own in engine.json (docs/dagger.md)", free>>30, l.free>>30)
	}
	return ""
}

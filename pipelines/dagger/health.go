package dagger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	sdk "dagger.io/dagger"

	"speedmatrix/pipelines/container"
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
	// Warning: the engine is about to empty its cache.
	Warning string
}

// Look finds out. It asks an engine that is named, and never starts one. Self is a static
// build of this program, which looks at the engine's disk; empty: there is none.
func Look(ctx context.Context, self string, environ []string) Health {
	h := Health{GPUs: supervise.Getenv(environ, gpuVariable) != ""}
	named := supervise.Getenv(environ, RunnerVariable) != "" || inSession(environ)
	if !inSession(environ) {
		if h.CLI, h.CLIError = findCLI(environ); h.CLIError != nil {
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
	if self != "" && staticBinary(self, defaultPlatform) == nil {
		h.Warning = s.diskWarning(ctx, self)
	}
	h.EngineError = s.close()
	return h
}

// lookWithin bounds the step that looks at the engine's disk.
const lookWithin = 30 * time.Second

// diskWarning looks at the disk from inside a container. What cannot be told is no warning.
func (s *session) diskWarning(ctx context.Context, self string) string {
	ctx, cancel := context.WithTimeoutCause(ctx, lookWithin, errors.New("the engine did not show its disk"))
	defer cancel()
	dir, err := os.MkdirTemp("", "speedmatrix-")
	if err != nil {
		return ""
	}
	defer os.RemoveAll(dir)
	const facts = "/speedmatrix/facts.json"
	out := filepath.Join(dir, "facts.json")
	_, err = s.Container(sdk.ContainerOpts{Platform: defaultPlatform}).
		WithFile(container.Binary, s.hostFile(self), sdk.ContainerWithFileOpts{Permissions: 0o755}).
		WithEnvVariable(container.RunVariable, rand.Text()).
		WithExec([]string{container.Binary, "inspect", "--out", facts}).
		File(facts).Export(ctx, out)
	if err != nil {
		return ""
	}
	f, err := container.ReadFacts(out)
	if err != nil || len(f.Disks) == 0 {
		return ""
	}
	limits, err := s.cacheLimits(ctx)
	if err != nil {
		return ""
	}
	return limits.warning(f.Disks[0].TotalBytes, f.Disks[0].FreeBytes)
}

// cliVersion asks the CLI: "dagger v0.21.9 (…) linux/amd64".
func cliVersion(ctx context.Context, cli string, environ []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("%s version took more than 10 s", cli))
	defer cancel()
	cmd := exec.CommandContext(ctx, cli, "version")
	cmd.Env, cmd.WaitDelay = sessionEnv(environ), time.Second
	out, err := cmd.Output()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return "", cause
		}
		return "", fmt.Errorf("%s version: %w", filepath.Base(cli), err)
	}
	for _, word := range strings.Fields(string(out)) {
		if len(word) > 2 && word[0] == 'v' && strings.Count(word, ".") >= 2 {
			return strings.TrimPrefix(word, "v"), nil
		}
	}
	return "", fmt.Errorf("%s version printed %.100q", filepath.Base(cli), out)
}

// cacheLimits asks the engine for the limits of its garbage collection.
func (s *session) cacheLimits(ctx context.Context) (cacheLimits, error) {
	free, err := s.Engine().LocalCache().MinFreeSpace(ctx)
	return cacheLimits{free: int64(free)}, err
}

// cacheLimits are the engine's, in bytes; 0: none.
type cacheLimits struct{ free int64 }

// warning says, for a disk of the engine, whether its garbage collection is about to throw
// away what a run needs.
func (l cacheLimits) warning(size, free int64) string {
	if l.free > 0 && size > 0 && free < l.free {
		return fmt.Sprintf("the disk of the Dagger engine has %d GiB free, and the engine empties its cache below %d GiB: images are pulled again and again; free some space, or give it limits of its own in engine.json (docs/dagger.md)", free>>30, l.free>>30)
	}
	return ""
}

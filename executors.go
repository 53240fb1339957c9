package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/attach"
	"speedmatrix/pipelines/dagger"
	"speedmatrix/pipelines/host"
	"speedmatrix/pipelines/registry"
	"speedmatrix/pipelines/simulator"
)

// executorsOf lists who can carry out a plan, by the source of its engine; the first is
// taken unless a person says otherwise.
var executorsOf = map[string][]string{
	"simulator": {"simulator", "dagger"},
	"attach":    {"attach"},
	"host":      {"host"},
	"wheel":     {"host", "dagger"},
	"image":     {"dagger"},
	"commit":    {"dagger"},
}

// executorFlags say who carries out a plan, and how containers are made.
type executorFlags struct {
	executor string
	gpus     string
	cold     bool
	binary   string
	login    bool
	hub      string
}

func (f *executorFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.executor, "executor", "", "who starts the engine: dagger runs it in containers (default: by the experiment's source)")
	fs.StringVar(&f.gpus, "gpus", "", "in containers: GPUs of the engine, as all, none, or indices and UUIDs with commas (default: all if the experiment claims a GPU)")
	fs.BoolVar(&f.cold, "cold-compile-caches", false, "in containers: start with empty compile caches instead of those of the last run of this image")
	fs.StringVar(&f.binary, "container-binary", "", "in containers: static build of this program for the image's platform (default: this program)")
	fs.BoolVar(&f.login, "registry-login", false, "in containers: use the credentials of docker login for the image's registry")
	fs.StringVar(&f.hub, "hub", "", "in containers: address of the hub of models (default: $HF_ENDPOINT, else "+defaultHub+")")
}

// choose gives the word of the executor for a source.
func (f *executorFlags) choose(source string) (string, error) {
	can := executorsOf[source]
	switch {
	case len(can) == 0:
		return "", usageError{err: fmt.Errorf("engine.source: %q is none of simulator, attach, host, wheel, image, commit", source)}
	case f.executor == "":
		return can[0], nil
	case !slices.Contains(can, f.executor):
		return "", usageError{err: fmt.Errorf("--executor %s: engine.source %s can be run by %s", f.executor, source, strings.Join(can, " or "))}
	}
	return f.executor, nil
}

// make gives the executor of a source.
func (f *executorFlags) make(source string, p process) (pipelines.Executor, error) {
	name, err := f.choose(source)
	if err != nil {
		return nil, err
	}
	switch name {
	case "simulator":
		return simulator.Executor{}, nil
	case "attach":
		return attach.Executor{}, nil
	case "host":
		return host.Executor{Self: p.self, Environ: p.environ(), Hub: f.hubAddress(p)}, nil
	}
	x := dagger.Executor{
		Self:       cmp.Or(f.binary, p.self),
		Environ:    p.environ(),
		GPUs:       f.gpus,
		ColdCaches: f.cold,
		Hub:        f.hubAddress(p),
	}
	if f.login {
		x.Login = func(ctx context.Context, image string) (user, secret string, ok bool, err error) {
			return registry.Credentials(ctx, image)
		}
	}
	return x, nil
}

func (f *executorFlags) hubAddress(p process) string {
	return cmp.Or(f.hub, p.getenv("HF_ENDPOINT"), defaultHub)
}

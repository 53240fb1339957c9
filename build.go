package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/dagger"
	"speedmatrix/pipelines/registry"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// buildCmd makes the image of an experiment without measuring.
func buildCmd(p process) *cobra.Command {
	var o runOptions
	var b dagger.BuildOptions
	c := &cobra.Command{
		Use:   "build EXPERIMENT",
		Short: "Build the container image of an experiment and print its digest",
		Long: `Build pins the experiment, or takes a locked plan, makes its image on a Dagger engine,
and holds the vllm in it against the commit of the plan. The image is written as an OCI
archive, pushed to a registry, or only built, so that run finds it in the engine's cache.

What is printed can stand as engine.source.image of an experiment.`,
		Example: `  speedmatrix build experiments/qwen3.5-4b-fp8-rtx-3060.yaml --output vllm.tar
  speedmatrix build my-commit.plan.json --publish registry.example.org/vllm:mine --registry-login`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := notEmpty(c, "output", "publish", "container-binary", "hub"); err != nil {
				return err
			}
			o.experiment, o.executor = args[0], "dagger"
			return buildVerb(c.Context(), p, o, b)
		},
	}
	c.Flags().StringArrayVar(&o.sets, "set", nil, "change a value of the experiment (may be repeated)")
	c.Flags().StringVarP(&b.Output, "output", "o", "", "file to write the image to, as an OCI archive")
	c.Flags().StringVar(&b.Publish, "publish", "", "repository:tag to push the image to")
	c.Flags().StringVar(&o.binary, "container-binary", "", "static build of this program for the image's platform (default: this program)")
	c.Flags().StringVar(&o.hub, "hub", "", "address of the hub of models (default: $HF_ENDPOINT, else "+defaultHub+")")
	c.Flags().BoolVar(&o.login, "registry-login", false, "use the credentials of docker login")
	return c
}

func buildVerb(ctx context.Context, p process, o runOptions, b dagger.BuildOptions) error {
	if e, _, err := loadExperiment(ctx, o.experiment, o.experimentFlags); err != nil {
		return err
	} else if kind := e.Engine.Source.Kind(); !slices.Contains(executorsOf[kind], "dagger") {
		return usageError{err: fmt.Errorf("engine.source %s has no image to build", kind)}
	}
	s, _, err := resolveFor(ctx, p, o)
	if err != nil {
		return err
	}
	if err := s.prepare(p, "", o.executorFlags); err != nil {
		return err
	}
	x, ok := s.executor.(dagger.Executor)
	if !ok {
		return usageError{err: fmt.Errorf("engine.source %s has no image", s.resolved.Source.Kind())}
	}
	logs, err := os.MkdirTemp("", "speedmatrix-build-")
	if err != nil {
		return err
	}
	job := s.jobOf(p, "build", logs, "", nil)
	job.Launch, job.Done = 1, func(string) bool { return false }
	built, err := x.Build(ctx, job, b, &buildSink{p: p})
	if err != nil {
		log := filepath.Join(logs, "dagger-1.log")
		if fi, statErr := os.Stat(log); statErr != nil || fi.Size() == 0 {
			return errors.Join(err, os.RemoveAll(logs))
		}
		return fmt.Errorf("%w\nits log is %s", err, log)
	}
	if err := os.RemoveAll(logs); err != nil {
		return err
	}
	if built.VLLM != "" {
		fmt.Fprintf(p.stderr, "vllm %s\n", printable(built.VLLM))
	}
	if b.Output != "" {
		pinner, err := registry.New(registry.Options{Platform: built.Platform, Hub: defaultHub})
		if err != nil {
			return err
		}
		abs, err := filepath.Abs(b.Output)
		if err != nil {
			return err
		}
		image, err := pinner.Archive(ctx, abs)
		if err != nil {
			return errors.Join(errors.New("the archive that was written cannot be read"), err)
		}
		fmt.Fprintf(p.stdout, "oci-archive:%s  %s\n", b.Output, image.Manifest)
	}
	if b.Output == "" && b.Publish == "" {
		fmt.Fprintln(p.stderr, "built: it is in the engine's cache; --output or --publish give a digest to pin")
	}
	if built.Ref != "" {
		fmt.Fprintln(p.stdout, built.Ref)
	}
	return nil
}

// buildSink shows what a build does.
type buildSink struct {
	p    process
	last string
}

func (*buildSink) Launched(record.Launch) error { return nil }

func (*buildSink) Trial(record.Trial) error { return nil }

func (s *buildSink) Progress(p runner.Progress) {
	if line := oneLine(p.Stage+": "+p.Text, 200); line != s.last {
		s.last = line
		fmt.Fprintln(s.p.stderr, line)
	}
}

package dagger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/pipelines"
	"speedmatrix/runner"
)

// BuildOptions say what becomes of an image that was built.
type BuildOptions struct {
	Output  string // file for an OCI archive; empty: none
	Publish string // repository:tag to push to; empty: nowhere
}

// Built is an image that was built.
type Built struct {
	Ref  string // repository@sha256:… where it was pushed
	VLLM string // version of its vllm package; empty: it has none
	// Platform is what it was built for: os/architecture.
	Platform string
}

// Build gets or builds the image of a plan, looks into it, and exports it.
func (x Executor) Build(ctx context.Context, pj pipelines.Job, o BuildOptions, sink runner.Sink) (out Built, err error) {
	if err := os.MkdirAll(pj.LogsDir, 0o755); err != nil {
		return out, err
	}
	j, err := x.newJob(ctx, pj, sink, o.Publish)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, j.secrets.remove()) }()
	err = j.inSession(ctx, func() error {
		img, err := j.image(ctx)
		if err != nil {
			return err
		}
		if err := j.inspect(ctx, img); err != nil {
			return err
		}
		out.VLLM, out.Platform = img.facts.VLLM, string(platform(j.Plan))
		if o.Output != "" {
			if err := j.archive(ctx, img, o.Output); err != nil {
				return err
			}
		}
		if o.Publish != "" {
			j.progress("build", "pushing %s", o.Publish)
			c := img.container
			host, _, _ := strings.Cut(o.Publish, "/")
			if user, ok := j.logins[host]; ok {
				c = c.WithRegistryAuth(host, user, j.session.secret(loginSecret(host)))
			}
			if out.Ref, err = c.Publish(ctx, o.Publish); err != nil {
				return j.engineFailed(ctx, "push "+o.Publish, err)
			}
		}
		return nil
	})
	return out, err
}

// archive writes beside and renames: a file of this name is whole.
func (j *job) archive(ctx context.Context, img *image, path string) error {
	j.progress("build", "writing %s", path)
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	beside := filepath.Join(filepath.Dir(abs), "."+filepath.Base(abs)+".partial")
	if _, err := img.container.AsTarball(sdk.ContainerAsTarballOpts{MediaTypes: sdk.ImageMediaTypesOcimediaTypes}).Export(ctx, beside); err != nil {
		return errors.Join(j.engineFailed(ctx, "write "+path, err), os.RemoveAll(beside))
	}
	f, err := os.Open(beside)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(beside, abs)
}

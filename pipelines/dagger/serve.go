package dagger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/simulator"
	"speedmatrix/pipelines/supervise"
)

// serveCommand binds the plan's command to the container: word for word, but for the
// program, which is the container's own, and where the engine listens.
func (j *job) serveCommand() (pipelines.Serve, error) {
	if j.Plan.Identity.Engine.Source == "simulator" {
		return pipelines.Serve{}, nil
	}
	return pipelines.ServeCommand(&j.Job, pipelines.Bind{
		Host: "0.0.0.0", Port: enginePort,
		Getenv: func(name string) string { return supervise.Getenv(j.x.Environ, name) },
	})
}

// simulatorProfile is the profile with the plan's names in it.
func (j *job) simulatorProfile() ([]byte, error) {
	p := simulator.DefaultProfile()
	if j.Profile != nil {
		var err error
		if p, err = simulator.ParseProfile(j.Profile); err != nil {
			return nil, err
		}
	}
	p.Models = simulator.Names(p.Models, j.Plan.Identity.Model)
	return p.YAML("")
}

// service is the engine in its container, under our supervisor. Nothing in it is a shell.
func (j *job) service(img *image, models []modelVolume) (*sdk.Service, error) {
	c := j.withUs(img.container).
		WithoutDockerHealthcheck().
		With(j.mount(container.RunDir, j.runVolume())).
		WithMountedTemp("/dev/shm", sdk.ContainerWithMountedTempOpts{Size: shmBytes}).
		WithEnvVariable(container.LaunchVariable, j.launchID).
		WithSecretVariable(pipelines.KeyVariable, j.session.secret(secretKey)).
		WithSecretVariable(container.SecretsVariable, j.session.secret(secretList)).
		WithExposedPort(enginePort, sdk.ContainerWithExposedPortOpts{ExperimentalSkipHealthcheck: true})
	args := []string{container.Binary, "supervise",
		"--launch-dir", container.LaunchDir(container.RunDir, j.Launch),
		"--launch", j.launchID,
		"--grace", engineGrace.String(),
	}
	keep := append(slices.Clone(img.env), pipelines.KeyVariable)
	for _, name := range slices.Sorted(maps.Keys(j.serve.Env)) {
		keep = append(keep, name)
		c = c.WithEnvVariable(name, j.serve.Env[name])
	}
	for _, name := range slices.Sorted(maps.Keys(j.serve.SecretEnv)) {
		keep = append(keep, name)
		c = c.WithSecretVariable(name, j.session.secret(envSecret(name)))
	}
	for _, name := range j.secretWords {
		c = c.WithSecretVariable(name, j.session.secret(envSecret(name)))
	}
	hub := false
	for _, m := range models {
		c = c.With(j.mount(m.at, m.volume))
		hub = hub || strings.HasPrefix(m.at, container.HubDir+"/")
	}
	if hub {
		// The engine finds the pinned revision under the name it asks for, and nothing else.
		c = c.WithEnvVariable("HF_HUB_CACHE", container.HubDir).WithEnvVariable("HF_HUB_OFFLINE", "1")
		keep = append(keep, "HF_HUB_CACHE", "HF_HUB_OFFLINE")
	}
	caches := j.compileCaches(img)
	for _, dir := range slices.Sorted(maps.Keys(caches)) {
		c = c.With(j.mount(dir, caches[dir]))
		args = append(args, "--cache-dir", dir)
	}
	if img.workdir != "" {
		c = c.WithWorkdir(img.workdir)
	}
	c = j.withGPUs(c)
	slices.Sort(keep)
	args = append(args, "--keep-env", strings.Join(slices.Compact(keep), ","), "--")
	args = append(args, img.argv...)
	return c.AsService(sdk.ContainerAsServiceOpts{Args: args}), nil
}

// imageKey is short and tells images apart: what was compiled for one is not given to
// another.
func imageKey(p *plan.Plan) string {
	e := p.Identity.Engine
	b, _ := json.Marshal([]any{e.Image, e.Commit, e.Build, e.Base, e.Lock}) // strings and maps of strings: cannot fail
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// prepareVolume makes the launch's folder in the run's volume, writable for whatever
// user the image has, and removes an old wish to end early.
func (j *job) prepareVolume(ctx context.Context) error {
	_, err := j.step("prepare", []string{container.Binary, "collect", "--prepare", container.LaunchDir(container.RunDir, j.Launch)}).Sync(ctx)
	if err != nil {
		return j.engineFailed(ctx, "prepare the run's volume", err)
	}
	return nil
}

// step is a command of ours beside the run's volume that is never taken from a cache.
func (j *job) step(name string, args []string) *sdk.Container {
	return j.scratch().
		With(j.mount(container.RunDir, j.runVolume())).
		WithEnvVariable(container.RunVariable, j.launchID+"-"+name).
		WithExec(args)
}

// stop ends the service: TERM, which the supervisor passes on, and KILL when its time is
// over. The container engine alone would wait for ever.
func (j *job) stop(ctx context.Context, service *sdk.Service) error {
	within := cmp.Or(j.x.StopWithin, stopWithin)
	stopping, cancel := context.WithTimeoutCause(ctx, within, errors.New("the engine's container did not stop"))
	_, err := service.Stop(stopping)
	cancel()
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	killing, cancel := context.WithTimeoutCause(ctx, stopWithin, errors.New("the engine's container could not be killed"))
	defer cancel()
	if _, killErr := service.Stop(killing, sdk.ServiceStopOpts{Kill: true}); killErr != nil {
		return fmt.Errorf("the engine's container could not be ended (stop: %w; kill: %w): see `dagger core engine`, or restart the Dagger engine", err, killErr)
	}
	j.note("End", "the engine's container took no notice of TERM for %v and was killed", within)
	return nil
}

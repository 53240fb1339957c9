package dagger

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/nvidia"
)

// chooseGPUs reads the option. Nil: none. Empty: all of them.
func chooseGPUs(option, claimed string) ([]string, error) {
	switch {
	case option == "none", option == "" && claimed == "":
		return nil, nil
	case option == "all", option == "":
		return []string{}, nil
	}
	devices := strings.Split(option, ",")
	if slices.ContainsFunc(devices, func(d string) bool { return !deviceName.MatchString(d) }) {
		return nil, fmt.Errorf("--gpus %q: give all, none, or indices and UUIDs with commas between them", option)
	}
	return devices, nil
}

// deviceName is an index or a UUID of a GPU, or of a part of one.
var deviceName = regexp.MustCompile(`^(?:[0-9]{1,3}|(?:GPU|MIG)-[0-9A-Za-z/-]+)$`)

// withGPUs gives a container the GPUs: the one place that knows how.
func (j *job) withGPUs(c *sdk.Container) *sdk.Container {
	switch {
	case j.gpus == nil:
		return c
	case len(j.gpus) == 0:
		return c.ExperimentalWithAllGPUs()
	}
	return c.ExperimentalWithGPU(j.gpus)
}

// lookAtGPUs asks nvidia-smi in the engine's own image; never from a cache.
func (j *job) lookAtGPUs(ctx context.Context, img *image, name string) (container.Facts, nvidia.Report, error) {
	const facts = "/speedmatrix/facts.json"
	file := j.withGPUs(j.withUs(img.container)).
		WithUser("0:0").
		WithEnvVariable(container.RunVariable, j.launchID+"-"+name).
		WithExec([]string{container.Binary, "inspect", "--out", facts}).
		File(facts)
	out := filepath.Join(j.tmp, name+".json")
	if _, err := file.Export(ctx, out); err != nil {
		return container.Facts{}, nvidia.Report{}, j.engineFailed(ctx, "look at the GPUs", err)
	}
	f, err := container.ReadFacts(out)
	if err != nil {
		return f, nvidia.Report{}, err
	}
	if f.GPU.Error != "" {
		return f, nvidia.Report{}, fmt.Errorf("nvidia-smi in the container: %s", f.GPU.Error)
	}
	report, err := nvidia.Parse([]byte(f.GPU.XML))
	return f, report, err
}

// gpuPreflight holds the GPUs against what the image and the plan want, before anything
// is started.
func (j *job) gpuPreflight(ctx context.Context, img *image) error {
	if j.gpus == nil {
		return nil
	}
	f, report, err := j.lookAtGPUs(ctx, img, "gpus-before")
	if err != nil {
		return err
	}
	j.gpuBefore = &report
	j.note("GPU driver", "%s, CUDA %s", report.Driver, report.CUDA)
	for _, g := range report.GPUs {
		j.note("GPU", "%s", g.Name)
	}
	var refused []string
	for _, finding := range nvidia.Preflight(report, nvidia.ImageCUDA{Version: f.Env["CUDA_VERSION"], Require: f.Env["NVIDIA_REQUIRE_CUDA"]}, nvidia.Want{Devices: j.gpus}) {
		if finding.Refuse {
			refused = append(refused, finding.Text)
			continue
		}
		j.note("GPU warning", "%s", finding.Text)
		j.progress("build", "warning: %s", finding.Text)
	}
	if len(refused) > 0 {
		return fmt.Errorf("the GPUs cannot be measured as they are:\n  %s", strings.Join(refused, "\n  "))
	}
	return nil
}

// gpuAfter sees that the memory which was free before is free again.
func (j *job) gpuAfter(ctx context.Context, img *image) error {
	if j.gpuBefore == nil {
		return nil
	}
	_, report, err := j.lookAtGPUs(ctx, img, "gpus-after")
	if err != nil {
		return err
	}
	if held := nvidia.MemoryHeld(*j.gpuBefore, report); held != "" {
		return fmt.Errorf("after the engine ended %s: another program started meanwhile, or a process of the engine was lost; nvidia-smi shows who holds it", held)
	}
	return nil
}

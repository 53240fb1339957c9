package container

import (
	"path/filepath"
	"time"

	"speedmatrix/pipelines/nvidia"
	"speedmatrix/results/record"
)

// gpuLog reads what nvidia-smi said in the engine's container, as far as it was not read
// before.
type gpuLog struct {
	file    *follower
	samples *[]nvidia.Sample
}

func newGPULog(launchDir string) gpuLog {
	samples := new([]nvidia.Sample)
	return gpuLog{samples: samples, file: &follower{path: filepath.Join(launchDir, gpuFile), most: maxGPULog, line: func(s string) {
		if sample, err := nvidia.ParseSample(s); err == nil {
			*samples = append(*samples, sample)
		}
	}}}
}

// of gives the readings within a trial, and forgets all that were before it ended.
func (g gpuLog) of(t *record.Trial) []record.Sample {
	if g.file == nil || t.StartedAt.IsZero() {
		return nil
	}
	g.file.read()
	out := nvidia.RecordSamples(*g.samples, t.StartedAt, time.Duration(t.EndNs))
	*g.samples = nil
	return out
}

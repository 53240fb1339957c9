//go:build linux

package host

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"speedmatrix/pipelines/supervise"
)

const (
	// gpuSlack is how much more than before the start may be in use afterwards: a
	// driver keeps a little, and other programs breathe.
	gpuSlack = 256 // MiB
	gpuLimit = 30 * time.Second
)

// gpuMemory reads how many MiB of each GPU are in use. Nil: there is no
// nvidia-smi, or it cannot tell.
func gpuMemory(ctx context.Context, environ []string) map[string]int {
	program, ok := supervise.LookPath("nvidia-smi", environ)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("nvidia-smi took more than 10 s"))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--query-gpu=index,memory.used", "--format=csv,noheader,nounits")
	cmd.Env = engineEnv(environ)
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	return parseGPUMemory(string(out))
}

// parseGPUMemory reads lines "0, 1234"; a GPU that does not tell ("[N/A]", as with
// MIG) is left out.
func parseGPUMemory(out string) map[string]int {
	m := map[string]int{}
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		index, used, ok := strings.Cut(lines.Text(), ",")
		mib, err := strconv.Atoi(strings.TrimSpace(used))
		if ok && err == nil && mib >= 0 {
			m[strings.TrimSpace(index)] = mib
		}
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// awaitGPUMemory waits until the memory that was free before the start is free
// again.
func awaitGPUMemory(ctx context.Context, environ []string, before map[string]int, limit time.Duration) error {
	if before == nil {
		return nil
	}
	deadline := time.After(limit)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		held := moreMemory(before, gpuMemory(ctx, environ))
		if held == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline:
			return fmt.Errorf("%v after the engine ended %s: another program started meanwhile, or a process of the engine was lost; nvidia-smi shows who holds it", limit, held)
		}
	}
}

// moreMemory says on which GPU more is in use than before; empty if on none.
func moreMemory(before, now map[string]int) string {
	for index, mib := range now {
		if was, ok := before[index]; ok && mib > was+gpuSlack {
			return fmt.Sprintf("GPU %s has %d MiB in use, %d before the start", index, mib, was)
		}
	}
	return ""
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"speedmatrix/results/record"
)

// found says what this machine is. What cannot be read is left out, never guessed.
func found() []record.Field {
	var out []record.Field
	add := func(label, value string) {
		if value != "" {
			out = append(out, record.Field{Label: label, Value: value})
		}
	}
	add("OS", osRelease())
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		add("Kernel", unix.ByteSliceToString(u.Release[:])+" "+unix.ByteSliceToString(u.Machine[:]))
	}
	add("CPU", cpuModel())
	add("Cores seen", fmt.Sprint(runtime.NumCPU()))
	if n := memory(); n > 0 {
		add("RAM", fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)))
	}
	if gov, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); err == nil {
		add("CPU governor", strings.TrimSpace(string(gov)))
	}
	for i, gpu := range gpus() {
		add(fmt.Sprintf("GPU %d", i), gpu)
	}
	return out
}

func osRelease() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return runtime.GOOS
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	return runtime.GOOS
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// gpus asks nvidia-smi, if there is one.
func gpus() []string {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 5*time.Second, fmt.Errorf("nvidia-smi took more than 5 s"))
	defer cancel()
	b, err := exec.CommandContext(ctx, path, "--query-gpu=name,memory.total,driver_version,power.limit", "--format=csv,noheader").Output()
	if err != nil {
		return nil
	}
	var out []string
	for line := range bytes.Lines(b) {
		if s := strings.TrimSpace(string(line)); s != "" {
			out = append(out, s)
		}
	}
	return out
}

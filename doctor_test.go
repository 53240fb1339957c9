package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"speedmatrix/pipelines/dagger"
)

func TestPythons(t *testing.T) {
	const hint = "give it --set engine.source.wheel.python=3.11"
	tests := []struct {
		name  string
		found map[string]int // minor version by program
		want  string
	}{
		{"both", map[string]int{"python3.12": 12, "python3.11": 11, "python3": 12}, "3.12 at /bin/python3.12, 3.11 at /bin/python3.11"},
		{"only the new one", map[string]int{"python3": 12}, "3.12 at /bin/python3"},
		{"only the old one", map[string]int{"python3.11": 11, "python3": 11}, "3.11 at /bin/python3.11; experiments/vllm-cpu-tiny.yaml wants 3.12: " + hint},
		{"a newer one", map[string]int{"python3": 13}, "3.13 at /bin/python3; experiments/vllm-cpu-tiny.yaml wants 3.12, or 3.11 with --set engine.source.wheel.python=3.11"},
		{"too old", map[string]int{"python3": 9}, ""},
		{"none", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := pythons(func(name string) (string, int) { return "/bin/" + name, tt.found[name] })
			if c.has != tt.want {
				t.Errorf("got %q, want %q", c.has, tt.want)
			}
		})
	}
}

func TestDoctorLines(t *testing.T) {
	var b bytes.Buffer
	// No CLI, and one that is of another version.
	old := filepath.Join(t.TempDir(), "dagger")
	if err := os.WriteFile(old, []byte("#!/bin/sh\necho dagger v0.18.2 linux/amd64\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	lacks := 0
	for _, environ := range [][]string{{"PATH=/none"}, {"PATH=/bin:/usr/bin", dagger.CLIVariable + "=" + old}} {
		for _, c := range containers(t.Context(), process{self: "/none", environ: func() []string { return environ }})[:1] {
			lacks += c.print(&b)
		}
	}
	lacks +=
		check{name: "loopback", why: "the engine listens there", mend: "ip link set lo up"}.print(&b)
	err := verdict(&b, lacks)
	var status exitStatus
	if !errors.As(err, &status) || exitCode(err) != exitWrong || !quiet(err) {
		t.Errorf("error %v", err)
	}
	want := `no     dagger CLI             sources image and commit are measured in containers; install version ` + dagger.SDKVersion + ` of it (docs/dagger.md)
lacks  dagger CLI             sources image and commit are measured in containers; mend it with: it is version 0.18.2: ` + dagger.Install + `
lacks  loopback               the engine listens there; mend it with: ip link set lo up

2 things are lacking; their lines name what mends them
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
	b.Reset()
	if err := verdict(&b, 0); err != nil || !strings.Contains(b.String(), "nothing is lacking") {
		t.Errorf("%v, %q", err, b.String())
	}
}

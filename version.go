package main

import (
	"cmp"
	"runtime/debug"

	"speedmatrix/results/record"
)

// toolVersion is what the Go toolchain knows of this build.
func toolVersion() record.Tool {
	t := record.Tool{Name: "speedmatrix", Version: "(devel)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return t
	}
	t.Version, t.Go = cmp.Or(info.Main.Version, t.Version), info.GoVersion
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			t.Commit = s.Value
		case "vcs.modified":
			t.Dirty = s.Value == "true"
		}
	}
	return t
}

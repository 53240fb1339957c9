package main

import (
	"fmt"
	"slices"
	"strings"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines/vllm"
	"speedmatrix/results/record"
)

// measuredFindings says what a measured run claims and what was found instead, each
// once.
func measuredFindings(r *record.Run, p *plan.Plan) []record.Finding {
	var out []record.Finding
	add := func(kind, format string, a ...any) {
		f := record.Finding{Kind: kind, Text: fmt.Sprintf(format, a...)}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	switch {
	case r.Tool.Commit == "":
		add("tool", "this program was built without its commit, so another run cannot tell whether it was the same (go build in a git checkout records it)")
	case r.Tool.Dirty:
		add("tool", "this program was built from commit %s with changes that are in no commit", r.Tool.Commit)
	}
	for _, l := range r.Launches {
		if claimed := p.Identity.Engine.Version; claimed != "" && l.Version != "" && !sameVersion(claimed, l.Version) {
			add("engine_version", "the experiment claims engine version %s, the engine says %s", claimed, l.Version)
		}
		if commit := r.Engine.Commit; commit != "" && l.Version != "" {
			if v, err := vllm.ParseVersion(l.Version); err == nil && v.Commit != "" && !vllm.SameCommit(v.Commit, commit) {
				add("engine_commit", "the experiment claims commit %s, the engine says %s", commit, l.Version)
			}
		}
		for _, other := range r.Launches {
			if other.Number < l.Number && other.Version != l.Version {
				add("launches_differ", "launch %d was version %s, launch %d is version %s: their cells are of unlike engines", other.Number, other.Version, l.Number, l.Version)
			}
			if a, b := other.KVCapacityTokens, l.KVCapacityTokens; other.Number < l.Number && a != nil && b != nil && *a != *b {
				add("launches_differ", "launch %d had a KV cache of %s tokens, launch %d has %s", other.Number, grouped(*a), l.Number, grouped(*b))
			}
		}
	}
	return out
}

// sameVersion compares as PEP 440 does. A local part that only one of them gives (a
// build's label, such as +cpu) is no difference.
func sameVersion(claimed, found string) bool {
	publicA, localA, _ := strings.Cut(claimed, "+")
	publicB, localB, _ := strings.Cut(found, "+")
	if localA == "" || localB == "" {
		claimed, found = publicA, publicB
	}
	if claimed == found {
		return true
	}
	a, errA := vllm.ParseVersion(claimed)
	b, errB := vllm.ParseVersion(found)
	if errA != nil || errB != nil {
		return false
	}
	c, ordered := a.Compare(b)
	return ordered && c == 0
}

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
)

func TestSameVersion(t *testing.T) {
	for _, c := range []struct {
		claimed, found string
		want           bool
	}{
		{"0.32.0", "0.32.0", true},
		{"0.32", "0.32.0", true},
		{"v0.32.0", "0.32.0", true},
		{"0.32.0", "0.32.0+cpu", true},
		{"0.32.0", "0.32.1", false},
		{"0.32.0+cu129", "0.32.0+cpu", false},
		{"0.30.1rc1.dev452+g73a583112", "0.30.1rc1.dev452+g73a583112", true},
		{"0.30.1rc1.dev452", "0.30.1rc1.dev453", false},
		{"something", "something", true},
		{"something", "0.32.0", false},
	} {
		if got := sameVersion(c.claimed, c.found); got != c.want {
			t.Errorf("%s and %s: %v", c.claimed, c.found, got)
		}
	}
}

func TestMeasuredFindings(t *testing.T) {
	kv := func(n int64) *int64 { return &n }
	p := &plan.Plan{}
	p.Identity.Engine.Version = "0.31.0"
	r := &record.Run{
		Tool:   record.Tool{Commit: strings.Repeat("a", 40), Dirty: true},
		Engine: record.Engine{Commit: "73a5831127a9"},
		Launches: []record.Launch{
			{Number: 1, Version: "0.32.0", KVCapacityTokens: kv(18432)},
			{Number: 2, Version: "0.32.1.dev4+ge2b31243c", KVCapacityTokens: kv(20000)},
		},
	}
	want := []record.Finding{
		{Kind: "tool", Text: "this program was built from commit aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa with changes that are in no commit"},
		{Kind: "engine_version", Text: "the experiment claims engine version 0.31.0, the engine says 0.32.0"},
		{Kind: "engine_version", Text: "the experiment claims engine version 0.31.0, the engine says 0.32.1.dev4+ge2b31243c"},
		{Kind: "engine_commit", Text: "the experiment claims commit 73a5831127a9, the engine says 0.32.1.dev4+ge2b31243c"},
		{Kind: "launches_differ", Text: "launch 1 was version 0.32.0, launch 2 is version 0.32.1.dev4+ge2b31243c: their cells are of unlike engines"},
		{Kind: "launches_differ", Text: "launch 1 had a KV cache of 18,432 tokens, launch 2 has 20,000"},
	}
	if diff := cmp.Diff(want, measuredFindings(r, p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p.Identity.Engine.Version = "0.32.0"
	r.Tool.Dirty = false
	r.Engine.Commit, r.Launches = "", r.Launches[:1]
	if got := measuredFindings(r, p); got != nil {
		t.Errorf("nothing to find, got %v", got)
	}
	r.Tool.Commit = ""
	if got := measuredFindings(r, p); len(got) != 1 || got[0].Kind != "tool" {
		t.Errorf("a tool without a commit: %v", got)
	}
}

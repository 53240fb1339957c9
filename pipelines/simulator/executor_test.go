package simulator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// kept is a sink in memory.
type kept struct {
	launches []record.Launch
	trials   []record.Trial
}

func (k *kept) Launched(l record.Launch) error { k.launches = append(k.launches, l); return nil }
func (k *kept) Trial(t record.Trial) error     { k.trials = append(k.trials, t); return nil }
func (k *kept) Progress(runner.Progress)       {}

// shortPlan is a prefill and two decode steps that take a second or so.
func shortPlan(t *testing.T) *plan.Plan {
	t.Helper()
	zero := 0.0
	p := &plan.Plan{Identity: plan.Identity{
		MethodVersion: runner.MethodVersion, Engine: plan.Engine{Source: "simulator"},
		Model: plan.Model{ID: "acme/made-up", Served: []string{"made-up"}}, Prompts: "shared",
		Sampling: plan.Sampling{Temperature: &zero, IgnoreEOS: true}, MaxOutput: 1024,
		WindowNs: int64(200 * time.Millisecond), SettleNs: int64(20 * time.Millisecond),
		Capacity: plan.Capacity{Rule: "worst_case"},
		Limits:   plan.Limits{StartNs: int64(20 * time.Second), StallNs: int64(10 * time.Second), IdleNs: int64(10 * time.Second)},
		Steps: []plan.Step{
			{ID: "prefill-256-r1", Phase: record.PhasePrefill, ContextTokens: 256, ContextLabel: "256", Concurrency: 1, Repeat: 1},
			{ID: "decode-256-c2-r1", Phase: record.PhaseDecode, ContextTokens: 256, ContextLabel: "256", Concurrency: 2, Repeat: 1},
			{ID: "decode-256-c9999-r1", Phase: record.PhaseDecode, ContextTokens: 256, ContextLabel: "256", Concurrency: 9999, Repeat: 1},
		},
	}}
	if err := p.Seal(); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExecutor(t *testing.T) {
	var k kept
	err := Executor{}.Execute(t.Context(), pipelines.Job{Plan: shortPlan(t), RunID: "test", Launch: 3}, &k)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.trials) != 3 || k.trials[2].Status != record.OverCapacity {
		t.Fatalf("%d trials, the last is %+v", len(k.trials), k.trials)
	}
	for _, tr := range k.trials[:2] {
		// A busy machine may be told that its client was the limit.
		if tr.Status != record.Valid && tr.Status != record.ClientLimited {
			t.Errorf("%s: %s, %s", tr.StepID, tr.Status, tr.Reason)
		}
		if tr.PromptTokens == nil || *tr.PromptTokens != 256 || tr.Launch != 3 {
			t.Errorf("%s: prompt tokens %v, launch %d", tr.StepID, tr.PromptTokens, tr.Launch)
		}
	}
	if len(k.launches) < 2 {
		t.Fatalf("%d launches told, want one at the start and one at the end", len(k.launches))
	}
	first, last := k.launches[0], k.launches[len(k.launches)-1]
	if first.Executor != "simulator" || first.Number != 3 || first.EndedAt != nil || first.KVCapacityTokens == nil || *first.KVCapacityTokens != 131072 {
		t.Errorf("first launch: %+v", first)
	}
	if last.EndedAt == nil {
		t.Errorf("last launch has no end: %+v", last)
	}
}

func TestExecutorTellsThatTheEngineDied(t *testing.T) {
	var k kept
	e := Executor{Options: Options{Faults: Faults{ExitAfterTokens: 30}}}
	err := e.Execute(t.Context(), pipelines.Job{Plan: shortPlan(t), RunID: "test", Launch: 1}, &k)
	var ended *runner.EngineError
	if !errors.As(err, &ended) || ended.Kind != record.FailEngineExit {
		t.Fatalf("error %v, want an engine exit", err)
	}
	if len(k.trials) != 3 || k.trials[1].FailureKind != record.FailEngineExit {
		t.Errorf("trials: %+v", k.trials)
	}
}

func TestExecutorRefusesABadProfile(t *testing.T) {
	err := Executor{}.Execute(t.Context(), pipelines.Job{Plan: shortPlan(t), Profile: []byte("slots: 0")}, &kept{})
	if err == nil || !strings.Contains(err.Error(), "slots: 0") {
		t.Errorf("%v", err)
	}
}

package runner_test

import (
	"flag"
	"slices"
	"testing"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

var (
	engineURL   = flag.String("engine-url", "", "measure a small matrix on the engine that runs there")
	engineModel = flag.String("engine-model", "", "its model; empty: the only one it serves")
	engineSlots = flag.Int("engine-slots", 4, "how many requests it runs at once")
)

// TestEngine measures a real engine:
//
//	go test ./runner -run TestEngine -v -engine-url http://HOST:PORT -engine-slots 4
//
// It holds what is true of every engine that can be measured: cells up to its slots
// are valid, and twice as many requests queue.
func TestEngine(t *testing.T) {
	if *engineURL == "" {
		t.Skip("no engine: give -engine-url")
	}
	slots := *engineSlots
	p := thePlan(prefill(1024), prefill(2048), decode(0, 1), decode(0, slots), decode(1024, 1), decode(1024, slots), decode(1024, 2*slots))
	id := &p.Identity
	id.Model.ID = *engineModel
	id.Sampling = plan.Sampling{Temperature: ptr(0.0), Seed: ptr(int64(1)), IgnoreEOS: true}
	id.MaxOutput, id.LoopGuard = 1024, false
	id.WindowNs, id.SettleNs = int64(4*time.Second), int64(2*time.Second)
	id.Limits = plan.Limits{StallNs: int64(time.Minute), IdleNs: int64(time.Minute), StartNs: int64(time.Minute)}
	e := &runner.Engine{BaseURL: *engineURL, Launch: record.Launch{Number: 1}}
	s := &sink{t: t, onTrial: func(tr record.Trial) error { t.Log(describe(&tr)); return nil }}
	if err := s.measure(t.Context(), e, p, runner.Options{RunID: time.Now().String()}); err != nil {
		t.Fatal(err)
	}
	for i := range s.trials {
		tr := &s.trials[i]
		want := []record.Status{record.Valid}
		if tr.Concurrency > slots {
			want = []record.Status{record.Queued, record.OverCapacity} // the latter where the cache is too small for so many
		}
		if !slices.Contains(want, tr.Status) {
			t.Errorf("%s, want %v", describe(tr), want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

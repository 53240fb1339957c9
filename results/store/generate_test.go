package store

import (
	"fmt"
	"math/rand/v2"
	"time"

	"speedmatrix/results/record"
)

func ptr[T any](v T) *T { return &v }

// testRun is the run of the generated trials.
func testRun(id string) record.Run {
	return record.Run{
		SchemaVersion: record.SchemaVersion, ID: id, Kind: record.Simulated, Name: "generated", Title: "A | <generated> run",
		StartedAt:  time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC),
		PlanDigest: "h1:AAAA", MethodVersion: "1",
		Tool:     record.Tool{Name: "speedmatrix", Version: "0.0.0-test"},
		Hardware: record.Hardware{GPU: "RTX 3060"}, Engine: record.Engine{Engine: "vllm", Version: "0.32.0"},
		Load: record.Load{Model: "m/x", ServedModel: "x"},
	}
}

// testTrials is a matrix as a server might give it: running usage, speculation,
// usage at the end only, no usage, queues, failures and steps that were not run.
func testTrials(rng *rand.Rand, perRequest int) []record.Trial {
	var out []record.Trial
	at := time.Date(2026, 11, 30, 20, 1, 2, 345678901, time.UTC)
	for _, ctx := range []int{0, 8192} {
		if ctx > 0 {
			out = append(out, prefillTrial(rng, ctx, at))
		}
		for i, conc := range []int{1, 2, 4, 16} {
			kind := (i + ctx/8192*2) % 4
			t := decodeTrial(rng, ctx, conc, kind, perRequest, at.Add(time.Duration(i)*time.Minute))
			out = append(out, t)
		}
		out = append(out, record.Trial{
			StepID: fmt.Sprintf("decode-%d-c64-r1", ctx), Point: record.Point{Phase: record.PhaseDecode, ContextTokens: ctx, ContextLabel: fmt.Sprint(ctx), Concurrency: 64},
			Repeat: 1, Status: record.OverCapacity, Reason: "predicted", WindowAskedNs: 5e9,
		})
	}
	return out
}

func prefillTrial(rng *rand.Rand, ctx int, at time.Time) record.Trial {
	t := record.Trial{
		StepID: fmt.Sprintf("prefill-%d-r1", ctx), Point: record.Point{Phase: record.PhasePrefill, ContextTokens: ctx, ContextLabel: "8K", Concurrency: 1},
		Repeat: 1, Launch: 1, Status: record.Valid, StartedAt: at, EndNs: 4e9,
		PromptTokens: ptr(int64(ctx)), PromptMode: "distinct", MaxOutput: 1, CacheDeclared: "cold", IdleBefore: ptr(true), IdleAfter: ptr(true),
		Client: record.ClientHealth{LagP99Ns: ptr(int64(81234)), CPURatio: ptr(rng.Float64()), PeakOpen: 1, ReadEventsMax: 2},
	}
	for i, role := range []string{record.RoleWarmup, record.RoleMeasured} {
		due := int64(i) * 2e9
		t.Requests = append(t.Requests, record.Request{Index: i, Role: role, DueNs: due, SentNs: ptr(due + 1000), FirstByteNs: ptr(due + 9e8), EndNs: ptr(due + 1e9),
			Outcome: record.OutcomeCompleted, HTTPStatus: 200, FinishReason: "length", PromptTokens: ptr(int64(ctx)), CachedTokens: ptr(int64(0)), CompletionTokens: ptr(int64(1)),
			Chunks: []record.Chunk{{AtNs: due + 95e7 + rng.Int64N(1e6), Tokens: 1, HasTokens: true, Output: true, Channel: record.ChannelReasoning, ReadEvents: 2}}})
	}
	for i := range int64(5) {
		t.Samples = append(t.Samples, record.Sample{AtNs: i * 9e8, Source: record.SourceMetrics, Name: record.SampleRunning, Value: float64(i % 2)},
			record.Sample{AtNs: i * 9e8, Source: record.SourceGPU, Name: "power_watts", Value: 170 + rng.Float64()})
	}
	return t
}

func decodeTrial(rng *rand.Rand, ctx, conc, kind, perRequest int, at time.Time) record.Trial {
	const from, to = int64(4e9), int64(9e9)
	t := record.Trial{
		StepID: fmt.Sprintf("decode-%d-c%d-r1", ctx, conc), Point: record.Point{Phase: record.PhaseDecode, ContextTokens: ctx, ContextLabel: fmt.Sprint(ctx), Concurrency: conc},
		Repeat: 1, Launch: 1, Status: record.Valid, StartedAt: at,
		ScoutStartNs: ptr(int64(1000)), ScoutEndNs: ptr(int64(9e8)), LaunchNs: ptr(int64(1e9)), WindowStartNs: ptr(from), WindowEndNs: ptr(to), EndNs: to + 3e8, WindowAskedNs: to - from,
		PromptTokens: ptr(int64(ctx) + 11), PromptOff: ctx == 0, PromptMode: "shared", MaxOutput: 4096, CacheDeclared: "warm", IdleBefore: ptr(true),
		Client:   record.ClientHealth{LagP99Ns: ptr(int64(91234)), LagMaxNs: ptr(int64(1912340)), SchedP99Ns: ptr(int64(4000)), CPURatio: ptr(rng.Float64() / 7), SendLagMaxNs: ptr(int64(7000)), PeakOpen: conc, ReadEventsMax: 3},
		Warnings: []string{"a sentence with \"quotes\"", "and a | pipe"},
	}
	switch conc {
	case 4:
		t.Status, t.Reason = record.Queued, "waiting in 30 % of the readings"
	case 16:
		t.Status, t.Reason, t.FailureKind = record.Failed, "1 of 16 streams broke", record.FailTruncated
	}
	index := 0
	for stream := range conc {
		due := int64(1e9)
		for gen := range 2 {
			r := record.Request{Index: index, Stream: stream, Generation: gen, Role: record.RoleMeasured, DueNs: due, SentNs: ptr(due + 500 + rng.Int64N(1000)),
				Outcome: record.OutcomeCompleted, HTTPStatus: 200, FinishReason: "length", PromptTokens: ptr(int64(ctx)), RunningUsage: kind < 2}
			index++
			now := due + 2e8 + rng.Int64N(1e8)
			r.FirstByteNs = ptr(now - 1000)
			var n int64
			for k := range perRequest {
				c := record.Chunk{AtNs: now, Output: true, Channel: record.ChannelContent, ReadEvents: 1 + rng.Int32N(3)}
				if k == 0 && stream%3 == 1 {
					c.Channel = record.ChannelTool
				}
				n++
				if kind == 1 {
					n += rng.Int64N(4)
				}
				if kind < 2 {
					c.Tokens, c.HasTokens = n, true
				}
				r.Chunks = append(r.Chunks, c)
				now += int64(4e9)/int64(perRequest) + rng.Int64N(1e6)
			}
			if kind == 2 {
				r.Chunks = append(r.Chunks, record.Chunk{AtNs: now, Tokens: 3*n + 1, HasTokens: true, ReadEvents: 1})
				n = 3*n + 1
			}
			if kind < 3 {
				r.CompletionTokens = ptr(n)
			}
			r.EndNs = ptr(now + 1000)
			if gen == 1 {
				r.Outcome, r.FinishReason = record.OutcomeCancelled, ""
			}
			if conc == 16 && stream == 7 && gen == 1 {
				r.Outcome, r.FailureKind, r.Message = record.OutcomeFailed, record.FailTruncated, "<b>cut | off</b>\n\x1b[31m"
			}
			t.Requests = append(t.Requests, r)
			due = now + 2000
		}
	}
	for i := range int64(12) {
		ns := i * 8e8
		for name, v := range map[string]float64{record.SampleRunning: float64(conc), record.SampleWaiting: float64(i % 3 * int64(conc/4)), record.SampleKVUsage: rng.Float64(),
			record.SamplePreemptions: float64(i / 6), record.SampleGeneration: float64(i) * 400.25, record.SamplePrefixQueries: float64(i * 100), record.SamplePrefixHits: float64(i * 93)} {
			t.Samples = append(t.Samples, record.Sample{AtNs: ns, Source: record.SourceMetrics, Name: name, Value: v})
		}
	}
	return t
}

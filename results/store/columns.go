package store

import (
	"fmt"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// cellRow is a row of cells.parquet: a cell, and what else is known of its trial.
type cellRow struct {
	run  *record.Run
	cell record.Cell
	t    record.Trial // without what cell, requests.parquet and samples.parquet have
}

type requestRow struct {
	run  *record.Run
	seq  int
	step string
	r    record.Request // without chunks
}

type chunkRow struct {
	run     *record.Run
	seq     int
	step    string
	request int
	event   int
	c       record.Chunk
	channel string
}

type sampleRow struct {
	run  *record.Run
	seq  int
	step string
	s    record.Sample
}

const (
	ns     = "nanoseconds"
	tokens = "tokens"
)

func cellsTable() table[cellRow] {
	type R = cellRow
	t := table[R]{
		file:  "cells.parquet",
		about: "one row a trial, or a row of a published page, in the order of the page",
		columns: []column[R]{
			labels(texts("run_id", "id of the run", func(r *R) *string { return &r.run.ID })),
			labels(texts("kind", "measured, simulated or published", func(r *R) *record.Kind { return &r.run.Kind })),
			labels(texts("run_name", "name of the experiment", func(r *R) *string { return &r.run.Name })),
			labels(textsOrNull("plan_digest", "digest of the plan", func(r *R) *string { return &r.run.PlanDigest })),
			labels(textsOrNull("method_version", "version of the way of measuring", func(r *R) *string { return &r.run.MethodVersion })),
			labels(textsOrNull("model", "model as given to the engine, as claimed", func(r *R) *string { return &r.run.Load.Model })),
			labels(textsOrNull("served_model", "name under which it was served, as claimed", func(r *R) *string { return &r.run.Load.ServedModel })),
			labels(textsOrNull("quantization", "as claimed", func(r *R) *string { return &r.run.Engine.Quantization })),
			labels(textsOrNull("engine", "as claimed", func(r *R) *string { return &r.run.Engine.Engine })),
			labels(textsOrNull("engine_version", "as claimed", func(r *R) *string { return &r.run.Engine.Version })),
			labels(textsOrNull("gpu", "as claimed", func(r *R) *string { return &r.run.Hardware.GPU })),

			integers("seq", "", "place on the page, from 0; the key of the other files", func(r *R) *int { return &r.cell.Seq }),
			texts("step_id", "step of the plan", func(r *R) *string { return &r.cell.StepID }),
			dictionary(texts("phase", "prefill or decode", func(r *R) *string { return &r.cell.Phase })),
			integers("context_tokens", tokens, "context as asked; the true length is prompt_tokens", func(r *R) *int { return &r.cell.ContextTokens }),
			dictionary(texts("context_label", "context as written by the person", func(r *R) *string { return &r.cell.ContextLabel })),
			integers("concurrency", "requests", "simultaneous requests", func(r *R) *int { return &r.cell.Concurrency }),
			integers("repeat", "", "number of the repetition, from 1", func(r *R) *int { return &r.cell.Repeat }),
			countsOrNull("launch", "", "number of the engine launch it ran in, from 1; null if none", func(r *R) *int { return &r.cell.Launch }),
			dictionary(texts("status", "how the trial ended; one of a closed set", func(r *R) *record.Status { return &r.cell.Status })),
			textsOrNull("reason", "a word or sentence that goes with the status", func(r *R) *string { return &r.cell.Reason }),
			dictionary(textsOrNull("failure_kind", "what failed; only with status failed", func(r *R) *record.FailureKind { return &r.cell.FailureKind })),
			timesOrNull("started_at", "UTC; origin of all times in nanoseconds; null for published rows and steps that were not run", startedAt),
			dictionary(textsOrNull("token_source", "running_usage, final_usage, retokenised, unknown or published; null if there was no output in the window", func(r *R) *string { return &r.cell.TokenSource })),
			jsonListsOrNull("warnings_json", "JSON list of sentences: the numbers stand, read them with care", func(r *R) *[]string { return &r.cell.Warnings }),

			integersOrNull("scout_start_ns", ns, "the scout was sent", func(r *R) **int64 { return &r.t.ScoutStartNs }),
			integersOrNull("scout_end_ns", ns, "the scout ended", func(r *R) **int64 { return &r.t.ScoutEndNs }),
			integersOrNull("launch_ns", ns, "the streams were launched", func(r *R) **int64 { return &r.t.LaunchNs }),
			integersOrNull("window_start_ns", ns, "start of the window", func(r *R) **int64 { return &r.t.WindowStartNs }),
			integersOrNull("window_end_ns", ns, "end of the window, outside it", func(r *R) **int64 { return &r.t.WindowEndNs }),
			countsOrNull("end_ns", ns, "all streams ended and the server idle; null if nothing was sent", func(r *R) *int64 { return &r.t.EndNs }),
			countsOrNull("window_asked_ns", ns, "length of the window as asked; null where the phase has none", func(r *R) *int64 { return &r.t.WindowAskedNs }),
			booleans("prompt_off", "prompt_tokens is more than 0.1 % off context_tokens", func(r *R) *bool { return &r.t.PromptOff }),
			dictionary(textsOrNull("prompt_mode", "shared or distinct", func(r *R) *string { return &r.t.PromptMode })),
			countsOrNull("max_output_tokens", tokens, "most output asked per request", func(r *R) *int { return &r.t.MaxOutput }),
			dictionary(textsOrNull("cache_declared", "warm or cold: what the prompt cache should be for this trial", func(r *R) *string { return &r.t.CacheDeclared })),
			booleansOrNull("idle_before", "the server was seen idle before; null if it does not tell", func(r *R) **bool { return &r.t.IdleBefore }),
			booleansOrNull("idle_after", "the server was seen idle after; null if it does not tell", func(r *R) **bool { return &r.t.IdleAfter }),
			integersOrNull("client_lag_p99_ns", ns, "as observed; see client_lag_p99_seconds", func(r *R) **int64 { return &r.t.Client.LagP99Ns }),
			integersOrNull("client_lag_max_ns", ns, "as observed; see client_lag_max_seconds", func(r *R) **int64 { return &r.t.Client.LagMaxNs }),
			integersOrNull("client_sched_p99_ns", ns, "as observed; see client_sched_p99_seconds", func(r *R) **int64 { return &r.t.Client.SchedP99Ns }),
			integersOrNull("send_lag_max_ns", ns, "as observed; see send_lag_max_seconds", func(r *R) **int64 { return &r.t.Client.SendLagMaxNs }),
		},
	}
	for _, m := range metric.All() {
		t.columns = append(t.columns, metricColumn(m))
	}
	// Facts that are stored once, in the column of their metric.
	alsoTrial(t, metric.PromptTokens, func(t *record.Trial, v float64) { n := int64(v); t.PromptTokens = &n })
	alsoTrial(t, metric.ClientCPU, func(t *record.Trial, v float64) { t.Client.CPURatio = &v })
	alsoTrial(t, metric.PeakOpen, func(t *record.Trial, v float64) { t.Client.PeakOpen = int(v) })
	alsoTrial(t, metric.ReadEventsMax, func(t *record.Trial, v float64) { t.Client.ReadEventsMax = int(v) })
	return t
}

func startedAt(r *cellRow) **time.Time { return &r.cell.StartedAt }

// metricColumn is the column of a metric: null where the cell has no value.
func metricColumn(m metric.Metric) column[cellRow] {
	set := func(r *cellRow, v float64) {
		if r.cell.Values == nil {
			r.cell.Values = make(map[string]float64)
		}
		r.cell.Values[m.Name] = v
	}
	c := column[cellRow]{name: m.Name, typ: arrow.PrimitiveTypes.Float64, unit: m.Unit, nullable: true, since: m.Since, def: m.Definition,
		put: func(b array.Builder, r *cellRow) error {
			if v, ok := r.cell.Values[m.Name]; ok {
				return putFloat(m.Name, b, v)
			}
			b.AppendNull()
			return nil
		},
		get: func(a arrow.Array, i int, r *cellRow) { set(r, a.(*array.Float64).Value(i)) },
	}
	if m.Integer {
		c.typ = arrow.PrimitiveTypes.Int64
		c.put = func(b array.Builder, r *cellRow) error {
			v, ok := r.cell.Values[m.Name]
			switch {
			case !ok:
				b.AppendNull()
			case v != math.Trunc(v) || math.Abs(v) > 1<<53: // NaN and infinities too
				return fmt.Errorf("column %s: %v is no whole number that can be stored", m.Name, v)
			default:
				b.(*array.Int64Builder).Append(int64(v))
			}
			return nil
		}
		c.get = func(a arrow.Array, i int, r *cellRow) { set(r, float64(a.(*array.Int64).Value(i))) }
	}
	return c
}

// alsoTrial makes reading a metric's column set a field of the trial too.
func alsoTrial(t table[cellRow], name string, set func(*record.Trial, float64)) {
	for i := range t.columns {
		if c := &t.columns[i]; c.name == name {
			get := c.get
			c.get = func(a arrow.Array, i int, r *cellRow) {
				get(a, i, r)
				set(&r.t, r.cell.Values[name])
			}
		}
	}
}

func requestsTable() table[requestRow] {
	type R = requestRow
	return table[R]{
		file:  "requests.parquet",
		about: "one row a request, scouts and warm-ups and failed ones included, in the order of the cells and of index",
		columns: []column[R]{
			labels(texts("run_id", "id of the run", func(r *R) *string { return &r.run.ID })),
			integers("seq", "", "the cell", func(r *R) *int { return &r.seq }),
			labels(texts("step_id", "step of the plan", func(r *R) *string { return &r.step })),
			integers("request_index", "", "number of the request in its trial", func(r *R) *int { return &r.r.Index }),
			integers("stream", "", "which of the simultaneous streams, from 0", func(r *R) *int { return &r.r.Stream }),
			integers("generation", "", "0: launched with the wave; n: n-th successor on its stream", func(r *R) *int { return &r.r.Generation }),
			dictionary(texts("role", "scout, warmup or measured", func(r *R) *string { return &r.r.Role })),
			integers("due_ns", ns, "when it should have been sent, after started_at of the cell", func(r *R) *int64 { return &r.r.DueNs }),
			integersOrNull("sent_ns", ns, "handed to the socket", func(r *R) **int64 { return &r.r.SentNs }),
			integersOrNull("first_byte_ns", ns, "first byte of the reply's body", func(r *R) **int64 { return &r.r.FirstByteNs }),
			integersOrNull("ended_ns", ns, "[DONE], end, failure or our closing", func(r *R) **int64 { return &r.r.EndNs }),
			dictionary(texts("outcome", "completed, cancelled (closed by us) or failed", func(r *R) *string { return &r.r.Outcome })),
			dictionary(textsOrNull("failure_kind", "what failed; only with outcome failed", func(r *R) *record.FailureKind { return &r.r.FailureKind })),
			countsOrNull("http_status", "", "status of the reply; null if there was none", func(r *R) *int { return &r.r.HTTPStatus }),
			countsOrNull("error_code", "", "code of the server's error object, else the HTTP status that was not 200; null if neither", func(r *R) *int { return &r.r.ErrorCode }),
			integersOrNull("retry_after_seconds", "seconds", "wait that the server asked for", func(r *R) **int64 { return &r.r.RetryAfterSeconds }),
			textsOrNull("message", "the server's words, at most 2 KiB, secrets removed", func(r *R) *string { return &r.r.Message }),
			dictionary(textsOrNull("finish_reason", "as sent", func(r *R) *string { return &r.r.FinishReason })),
			integersOrNull("prompt_tokens", tokens, "of the usage", func(r *R) **int64 { return &r.r.PromptTokens }),
			integersOrNull("cached_tokens", tokens, "of the usage: prompt tokens found in the cache", func(r *R) **int64 { return &r.r.CachedTokens }),
			integersOrNull("completion_tokens", tokens, "last usage seen; null if there was none", func(r *R) **int64 { return &r.r.CompletionTokens }),
			booleans("running_usage", "usage came while output was still coming", func(r *R) *bool { return &r.r.RunningUsage }),
			integersOrNull("retokenised_tokens", tokens, "the server's count of the text received, where it sent no usage", func(r *R) **int64 { return &r.r.RetokenisedTokens }),
			integers("bad_frames", "events", "events that could not be read", func(r *R) *int { return &r.r.BadFrames }),
		},
	}
}

func chunksTable() table[chunkRow] {
	type R = chunkRow
	return table[R]{
		file:  "chunks.parquet",
		about: "one row an event of a stream that carries output or changes the count of tokens, in the order of the requests and of arrival",
		columns: []column[R]{
			labels(texts("run_id", "id of the run", func(r *R) *string { return &r.run.ID })),
			integers("seq", "", "the cell", func(r *R) *int { return &r.seq }),
			labels(texts("step_id", "step of the plan", func(r *R) *string { return &r.step })),
			integers("request_index", "", "number of the request in its trial", func(r *R) *int { return &r.request }),
			integers("chunk_index", "", "number of the event among the stored ones of its request, from 0", func(r *R) *int { return &r.event }),
			integers("at_ns", ns, "stamp of the socket read that brought it, after started_at of the cell", func(r *R) *int64 { return &r.c.AtNs }),
			chunkTokens(),
			booleans("output", "an output event", func(r *R) *bool { return &r.c.Output }),
			dictionary(texts("channel", "content, reasoning, tool or none", func(r *R) *string { return &r.channel })),
			integers("read_events", "events", "how many events that socket read brought", func(r *R) *int32 { return &r.c.ReadEvents }),
		},
	}
}

// chunkTokens is null where the event had no usage, so has_tokens needs no column.
func chunkTokens() column[chunkRow] {
	c := integers("tokens_total", tokens, "completion tokens of the request so far by the server's count; null if the event had none", func(r *chunkRow) *int64 { return &r.c.Tokens })
	c.nullable = true
	put, get := c.put, c.get
	c.put = func(b array.Builder, r *chunkRow) error {
		if !r.c.HasTokens {
			b.AppendNull()
			return nil
		}
		return put(b, r)
	}
	c.get = func(a arrow.Array, i int, r *chunkRow) {
		get(a, i, r)
		r.c.HasTokens = true
	}
	return c
}

func channelOf(word string) record.Channel {
	for _, c := range []record.Channel{record.ChannelContent, record.ChannelReasoning, record.ChannelTool} {
		if c.String() == word {
			return c
		}
	}
	return record.ChannelNone
}

func samplesTable() table[sampleRow] {
	type R = sampleRow
	return table[R]{
		file:  "samples.parquet",
		about: "one row a reading of a gauge or counter, in the order of the cells and of time",
		columns: []column[R]{
			labels(texts("run_id", "id of the run", func(r *R) *string { return &r.run.ID })),
			integers("seq", "", "the cell", func(r *R) *int { return &r.seq }),
			labels(texts("step_id", "step of the plan", func(r *R) *string { return &r.step })),
			integers("at_ns", ns, "when it was read, after started_at of the cell", func(r *R) *int64 { return &r.s.AtNs }),
			dictionary(texts("source", "metrics (the server's), client, gpu or cpu", func(r *R) *string { return &r.s.Source })),
			dictionary(texts("name", "what was read, with its unit", func(r *R) *string { return &r.s.Name })),
			floats("value", "that of name", "the reading", func(r *R) *float64 { return &r.s.Value }),
		},
	}
}

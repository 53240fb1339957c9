package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/resolve"
	"speedmatrix/experiments/spec"
	"speedmatrix/results/record"
)

// header is what is known of a run before it starts: what was asked, claimed and
// planned.
func header(e *spec.Experiment, r *resolve.Resolved, path string, now time.Time) record.Run {
	id := &r.Plan.Identity
	run := record.Run{
		SchemaVersion: record.SchemaVersion,
		Kind:          record.Measured,
		Name:          e.Name,
		Title:         cmp.Or(e.Title, e.Name),
		Notes:         e.Notes,
		Author:        e.Author,
		StartedAt:     now.UTC(),
		PlanDigest:    r.Plan.Digest,
		MethodVersion: id.MethodVersion,
		Unpinned:      r.Plan.Unpinned,
		Overrides:     e.Overrides,
		Tool:          toolVersion(),
		Hardware:      record.Hardware(e.Hardware),
		Engine: record.Engine{
			Engine:       cmp.Or(e.Engine.Engine, "vllm"),
			Version:      e.Engine.Version,
			Quantization: cmp.Or(e.Engine.Quantization, e.Model.Quantization),
			Backend:      e.Engine.Backend,
			Repository:   e.Engine.Repository,
			Build:        e.Engine.Build,
			Commit:       e.Engine.Commit,
		},
		Load: record.Load{
			Model:          id.Model.ID,
			Revision:       id.Model.Revision,
			BenchmarkTool:  "speedmatrix " + toolVersion().Version,
			DecodeTest:     "Fixed duration",
			PrefillMode:    "Cold, one request at a time",
			TimePerMeasure: seconds(id.Window()),
			MaxOutput:      grouped(int64(id.MaxOutput)) + " tokens",
		},
		Command:       record.Command{Text: r.Plan.Text.Command, Argv: id.Engine.Argv, Comments: r.Plan.Text.Comments},
		Found:         found(),
		Plan:          planFields(id, r.Plan.Digest),
		Attach:        r.Source.Attach,
		ExperimentDir: filepath.Dir(e.File),
	}
	if id.Engine.Source == "simulator" {
		run.Engine = record.Engine{Engine: "speedmatrix simulator"}
	}
	if len(id.Model.Served) > 0 {
		run.Load.ServedModel = id.Model.Served[0]
	}
	run.Again = again(path, e, r)
	return run
}

// again is the command that makes the run again. What is found out anew, such as a
// key, is not part of it.
func again(path string, e *spec.Experiment, r *resolve.Resolved) string {
	command := "speedmatrix run " + shellWord(path)
	if path != e.File {
		return command // a locked plan has everything
	}
	for _, s := range e.Overrides {
		command += " --set " + shellQuote(s)
	}
	if r.Source.Attach != e.Engine.Source.Attach {
		command += " --attach " + shellWord(r.Source.Attach)
	}
	if c := r.Plan.Identity.Capacity; c.Source == "option" {
		command += fmt.Sprintf(" --kv-capacity %d", c.KVTokens)
	}
	return command
}

// shellWord quotes what a shell would not take as one plain word.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,@%+=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return shellQuote(s)
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// planFields are the plan and the method, for the page.
func planFields(id *plan.Identity, digest string) []record.Field {
	sampling := []string{}
	if t := id.Sampling.Temperature; t != nil {
		sampling = append(sampling, fmt.Sprintf("temperature %g", *t))
	}
	if p := id.Sampling.TopP; p != nil {
		sampling = append(sampling, fmt.Sprintf("top_p %g", *p))
	}
	if s := id.Sampling.Seed; s != nil {
		sampling = append(sampling, fmt.Sprintf("seed %d", *s))
	}
	if len(sampling) == 0 {
		sampling = append(sampling, "the server's defaults")
	}
	if id.Sampling.IgnoreEOS {
		sampling = append(sampling, "ignore_eos")
	}
	capacity := "asked from the engine"
	if id.Capacity.KVTokens > 0 {
		capacity = fmt.Sprintf("%s tokens, given by the %s", grouped(id.Capacity.KVTokens), id.Capacity.Source)
	}
	rule := "(context + max output) × requests must fit the KV cache"
	if id.Capacity.Rule == "try" {
		rule = "every cell is tried"
	}
	prompts := "one prompt per context, shared by all requests of a cell"
	if id.Prompts == "distinct" {
		prompts = "a prompt of its own for every stream"
	}
	loop := "exact repetition ends a trial"
	if !id.LoopGuard {
		loop = "off"
	}
	ready := func(ns int64) string {
		if ns == 0 {
			return "derived from the prefill rate"
		}
		return time.Duration(ns).String()
	}
	return append([]record.Field{
		{Label: "Plan", Value: digest},
		{Label: "Method version", Value: id.MethodVersion},
		{Label: "Engine source", Value: id.Engine.Source},
		{Label: "Steps", Value: fmt.Sprint(len(id.Steps))},
		{Label: "Prompts", Value: prompts + "; exact length by the server's own count"},
		{Label: "Sampling", Value: strings.Join(sampling, ", ")},
		{Label: "Window", Value: seconds(id.Window()) + ", opened when all requests streamed (or the server ran all it could) and that held for " + seconds(time.Duration(id.SettleNs))},
		{Label: "Capacity rule", Value: rule},
		{Label: "KV capacity", Value: capacity},
		{Label: "Repetition guard", Value: loop},
		{Label: "Start limit", Value: time.Duration(id.Limits.StartNs).String()},
		{Label: "Scout limit", Value: ready(id.Limits.ScoutNs)},
		{Label: "Readiness limit", Value: ready(id.Limits.ReadyNs)},
		{Label: "Stall limit", Value: time.Duration(id.Limits.StallNs).String()},
	}, pinnedFields(id)...)
}

// pinnedFields are what a locked plan holds: what has to be fetched to have the same
// engine and model again.
func pinnedFields(id *plan.Identity) []record.Field {
	var out []record.Field
	if image := id.Engine.Locked; image != nil {
		out = append(out, record.Field{Label: "Image", Value: id.Engine.Image + " for " + image.Platform})
		if image.Index != "" {
			out = append(out, record.Field{Label: "Image list", Value: image.Index})
		}
	}
	if id.Engine.Commit != "" {
		out = append(out, record.Field{Label: "Commit", Value: id.Engine.Commit + " of " + id.Engine.Repo})
	}
	for _, s := range id.Model.Snapshots {
		value := fmt.Sprintf("%s, %d files, %s bytes", s.ID, len(s.Files), grouped(s.Bytes))
		if s.Revision != "" {
			value = s.ID + " at " + s.Revision + value[len(s.ID):]
		}
		out = append(out, record.Field{Label: "Model files", Value: value})
	}
	return out
}

// seconds writes a duration as the pages do: "30 s", "2.5 s".
func seconds(d time.Duration) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.3f", d.Seconds()), "0"), ".") + " s"
}

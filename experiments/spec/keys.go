package spec

import (
	"path"
	"time"
)

// DefaultRepo is where source commit looks if no repo is given.
const DefaultRepo = "github.com/vllm-project/vllm"

// maxTrials bounds a matrix; far below it a run already takes days.
const maxTrials = 10000

const (
	maxContext     = 1 << 24
	maxConcurrency = 1 << 16
)

// sourceKinds are the keys of engine.source of which exactly one is given.
var sourceKinds = []string{"image", "commit", "wheel", "host", "attach", "simulator"}

// field is one key of the format. The tables below are its only description: the
// parser, the writer, the JSON Schema and the tables of FORMAT.md come from them.
type field struct {
	name     string
	doc      string // one sentence, without its full stop
	standard string // the default in words, where it is no fixed value
	required bool
	digest   bool // a change makes another plan
	value    value
	fixed    string // what value writes for the default
}

// New returns an experiment that holds the defaults and nothing else.
func New() *Experiment {
	yes := true
	return &Experiment{
		Engine: Engine{Engine: "vllm"},
		Matrix: Matrix{Duration: 30 * time.Second, Settle: 3 * time.Second, MaxOutput: 8192, Repeats: 1,
			Capacity: "worst_case", Order: "plan"},
		Prompts:  "shared",
		Sampling: Sampling{IgnoreEOS: &yes},
		Limits:   Limits{Start: 30 * time.Minute, Stall: time.Minute, Idle: time.Minute},
		Loop:     "guard",
	}
}

// NewBuild returns the defaults of engine.source.build.
func NewBuild() *Build {
	return &Build{Way: "auto", Image: "vllm/vllm-openai", Dockerfile: "docker/Dockerfile"}
}

// keys returns the format's keys, bound to e.
func keys(e *Experiment) []field {
	fields := topKeys(e)
	annotate(fields, topKeys(New()))
	return fields
}

// annotate notes in fields what the same keys of an experiment with nothing but
// defaults write.
func annotate(fields, standards []field) {
	for i := range fields {
		if o, ok := fields[i].value.(*object); ok {
			annotate(o.fields, standards[i].value.(*object).fields)
		} else {
			fields[i].fixed = standards[i].value.write(0)
		}
	}
}

func topKeys(e *Experiment) []field {
	const line = 1000
	return []field{
		{name: "name", doc: "Short name; part of run ids and file names", required: true, value: &text{p: &e.Name, most: 100, check: checkName}},
		{name: "title", doc: "Heading of the page", standard: "the name", value: &text{p: &e.Title, most: line}},
		{name: "author", doc: "Who publishes the page", value: &text{p: &e.Author, most: line}},
		{name: "notes", doc: "Markdown that goes on the page", value: &text{p: &e.Notes, most: 256 << 10, lines: true}},
		{name: "engine", doc: "The server under test", required: true, value: &object{fields: engineKeys(&e.Engine)}},
		{name: "model", doc: "The model under test", value: &object{fields: []field{
			{name: "id", doc: "Name or path that the engine loads", standard: "what the command says", digest: true, value: &text{p: &e.Model.ID, most: line, check: checkWord}},
			{name: "revision", doc: "Branch, tag or commit of the model", standard: "unpinned", digest: true, value: &text{p: &e.Model.Revision, most: line, check: checkWord}},
			{name: "quantization", doc: "How its weights are stored, in words", digest: true, value: &text{p: &e.Model.Quantization, most: line}},
		}}},
		{name: "hardware", doc: "The machine as claimed; what is found is recorded beside it", value: &object{fields: []field{
			{name: "type", doc: "Kind of machine", value: &text{p: &e.Hardware.Type, most: line}},
			{name: "gpu", doc: "Name and number of GPUs", value: &text{p: &e.Hardware.GPU, most: line}},
			{name: "vram", doc: "Memory of the GPUs, with unit", value: &text{p: &e.Hardware.VRAM, most: line}},
			{name: "cpu", doc: "Processor", value: &text{p: &e.Hardware.CPU, most: line}},
			{name: "ram", doc: "Main memory, with unit", value: &text{p: &e.Hardware.RAM, most: line}},
			{name: "os", doc: "Operating system and driver", value: &text{p: &e.Hardware.OS, most: line}},
		}}},
		{name: "matrix", doc: "What to measure", required: true, value: &object{fields: matrixKeys(&e.Matrix)}},
		{name: "prompts", doc: "shared: all requests of a cell have one prompt, which is in the cache; distinct: each has its own", digest: true,
			value: &choice{&e.Prompts, []string{"shared", "distinct"}}},
		{name: "sampling", doc: "Sent with every request; what is not given is not sent", value: &object{fields: []field{
			{name: "temperature", doc: "Sampling temperature", standard: "not sent", digest: true, value: &number{p: &e.Sampling.Temperature, low: 0, high: 10}},
			{name: "top_p", doc: "Nucleus sampling", standard: "not sent", digest: true, value: &number{p: &e.Sampling.TopP, low: 0, high: 1}},
			{name: "seed", doc: "Seed of the sampler", standard: "not sent", digest: true, value: &optionalInteger{&e.Sampling.Seed}},
			{name: "ignore_eos", doc: "Go on to the asked length when the model wants to stop", digest: true, value: &boolean{&e.Sampling.IgnoreEOS}},
		}}},
		{name: "limits", doc: "After which time a stage has failed", value: &object{fields: []field{
			{name: "start", doc: "From the launch of the engine to its first completion", digest: true, value: &duration{&e.Limits.Start, time.Second, 24 * time.Hour}},
			{name: "scout", doc: "Loading the prompt into the cache", standard: "from the measured prefill rate", digest: true, value: &duration{&e.Limits.Scout, time.Second, 24 * time.Hour}},
			{name: "ready", doc: "From the start of the streams to all of them giving tokens", standard: "from the measured prefill rate", digest: true, value: &duration{&e.Limits.Ready, time.Second, 24 * time.Hour}},
			{name: "stall", doc: "No token from any request", digest: true, value: &duration{&e.Limits.Stall, 100 * time.Millisecond, 24 * time.Hour}},
			{name: "idle", doc: "The server becoming idle between cells", digest: true, value: &duration{&e.Limits.Idle, 100 * time.Millisecond, 24 * time.Hour}},
		}}},
		{name: "loop", doc: "guard: a model that repeats itself exactly makes the trial a repetition loop; off: it is measured like any other", digest: true,
			value: &choice{&e.Loop, []string{"guard", "off"}}},
		{name: "expect", doc: "What verify and compare hold a rerun to", value: &object{fields: []field{
			{name: "rel_tol", doc: "Relative difference that is accepted: 5% or 0.05", standard: "none", value: &percent{&e.Expect.RelTol}},
		}}},
	}
}

func engineKeys(e *Engine) []field {
	const line = 1000
	wheel := e.Source.Wheel
	if wheel == nil {
		wheel = new(Wheel)
	}
	build := e.Source.Build
	if build == nil {
		build = NewBuild()
	}
	return []field{
		{name: "source", doc: "Where the engine comes from: exactly one of image, commit, wheel, host, attach, simulator", required: true, value: &object{fields: []field{
			{name: "image", doc: "Container image: repository:tag, repository@sha256:…, or oci-archive:PATH for a file, from the experiment's folder", digest: true, value: &text{p: &e.Source.Image, most: line, check: checkImage}},
			{name: "commit", doc: "Commit (40 hex digits), branch or tag that the image is built from", digest: true, value: &text{p: &e.Source.Commit, most: line, check: checkWord}},
			{name: "repo", doc: "Repository of the commit", standard: DefaultRepo, digest: true, value: &text{p: &e.Source.Repo, most: line, check: checkWord}},
			{name: "build", doc: "How the image of the commit is made", value: &object{
				begin: func() { e.Source.Build = build },
				fields: []field{
					{name: "way", doc: "nightly: the image that was published of the commit; wheel: the commit's own wheel in a base image; dockerfile: the repository's Dockerfile; auto: the first of these that there is", digest: true,
						value: &choice{&build.Way, []string{"auto", "nightly", "wheel", "dockerfile"}}},
					{name: "image", doc: "Repository in which the commit's image is looked for, as the tag nightly-COMMIT; or a whole name with {commit} in its tag", digest: true, value: &text{p: &build.Image, most: line, check: checkNightly}},
					{name: "base", doc: "Image with Python, pip and all that the wheel needs; for way wheel", digest: true, value: &text{p: &build.Base, most: line, check: checkBase}},
					{name: "wheels", doc: "Address of an index that has a folder of each commit, or a whole address with {commit} in it; for way wheel", digest: true, value: &text{p: &build.Wheels, most: line, check: checkURL}},
					{name: "dockerfile", doc: "Path of the Dockerfile in the repository", digest: true, value: &text{p: &build.Dockerfile, most: line, check: checkInside}},
					{name: "target", doc: "Stage of the Dockerfile", standard: "the last one", digest: true, value: &text{p: &build.Target, most: line, check: checkWord}},
					{name: "args", doc: "Build arguments, NAME=value", standard: "none", digest: true, value: &texts{p: &build.Args, what: "build arguments such as NAME=value", check: checkArg, key: argKey}},
					{name: "patches", doc: "Paths of patches from the experiment's folder, applied in order", standard: "none", digest: true, value: &texts{p: &build.Patches, what: "paths of patches", key: path.Clean}},
				}}},
			{name: "wheel", doc: "Virtual environment made of pinned wheels", value: &object{
				begin: func() { e.Source.Wheel = wheel },
				fields: []field{
					{name: "lock", doc: "Path of the lock with hashes, from the experiment's folder", required: true, digest: true, value: &text{p: &wheel.Lock, most: line}},
					{name: "python", doc: "Version of Python", standard: "any", digest: true, value: &text{p: &wheel.Python, most: line, check: checkWord}},
					{name: "model", doc: "Path of a script that makes the model, from the experiment's folder", digest: true, value: &text{p: &wheel.Model, most: line}},
					{name: "base", doc: "Image with that Python and pip, for running it in a container", digest: true, value: &text{p: &wheel.Base, most: line, check: checkBase}},
				}}},
			{name: "host", doc: "Path of a vllm program on this machine", digest: true, value: &text{p: &e.Source.Host, most: line}},
			{name: "attach", doc: "Address of a server that runs already", value: &text{p: &e.Source.Attach, most: line, check: checkURL}},
			{name: "simulator", doc: "default, or the path of a profile from the experiment's folder", digest: true, value: &text{p: &e.Source.Simulator, most: line}},
		}}},
		{name: "command", doc: "The serve command, verbatim as published, with environment and comments; required where the engine is started by us", digest: true,
			value: &text{p: &e.Command, most: 64 << 10, lines: true, command: true}},
		{name: "kv_capacity_tokens", doc: "Tokens that the KV cache holds", standard: "asked from the server", digest: true, value: &tokens[int64]{&e.KVCapacityTokens, 1, maxTokens}},
		{name: "version", doc: "Version as claimed; checked against the engine's own", digest: true, value: &text{p: &e.Version, most: line}},
		{name: "engine", doc: "Name of the engine", value: &text{p: &e.Engine, most: line}},
		{name: "quantization", doc: "Quantisation as the page names it", value: &text{p: &e.Quantization, most: line}},
		{name: "backend", doc: "Backend as claimed", value: &text{p: &e.Backend, most: line}},
		{name: "repository", doc: "Repository as claimed", value: &text{p: &e.Repository, most: line}},
		{name: "build", doc: "Build as claimed", value: &text{p: &e.Build, most: line}},
		{name: "commit", doc: "Commit as claimed", value: &text{p: &e.Commit, most: line}},
	}
}

func matrixKeys(m *Matrix) []field {
	return []field{
		{name: "contexts", doc: "Prompt lengths of the decode cells, in tokens", standard: "none", digest: true, value: &contexts{p: &m.Contexts, least: 0}},
		{name: "concurrency", doc: "Numbers of simultaneous requests of the decode cells", standard: "none", digest: true, value: &integers{&m.Concurrency, 1, maxConcurrency}},
		{name: "prefill", doc: "Prompt lengths of the prefill cells, in tokens", standard: "none", digest: true, value: &contexts{p: &m.Prefill, least: 1}},
		{name: "duration", doc: "Length of the window that is measured", digest: true, value: &duration{&m.Duration, 100 * time.Millisecond, 24 * time.Hour}},
		{name: "settle", doc: "How long all streams must give tokens before the window opens", digest: true, value: &duration{&m.Settle, 10 * time.Millisecond, time.Hour}},
		{name: "max_output", doc: "Tokens asked for by each decode request", digest: true, value: &tokens[int]{&m.MaxOutput, 1, maxContext}},
		{name: "repeats", doc: "How often each cell is measured; repeats are interleaved", digest: true, value: &integer{&m.Repeats, 1, 1000}},
		{name: "capacity", doc: "worst_case: a cell whose requests could not all fit the KV cache at full length is not run; try: it is run", digest: true,
			value: &choice{&m.Capacity, []string{"worst_case", "try"}}},
		{name: "order", doc: "plan: as written; seeded: shuffled with order_seed", digest: true, value: &choice{&m.Order, []string{"plan", "seeded"}}},
		{name: "order_seed", doc: "Seed of the order", standard: "0", digest: true, value: &integer64{&m.OrderSeed, 0, 1<<62 - 1}},
	}
}

// allNames returns the path of every key.
func allNames(path string, fields []field) []string {
	var out []string
	for _, f := range fields {
		full := join(path, f.name)
		out = append(out, full)
		if o, ok := f.value.(*object); ok {
			out = append(out, allNames(full, o.fields)...)
		}
	}
	return out
}

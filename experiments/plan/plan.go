// Package plan is the decision: what will be measured, with everything that can
// move a number spelled out, in order, under one digest.
//
// It does not know how an experiment is written (spec), how names become digests
// (resolve) or how a plan is carried out (pipelines), and imports nothing of this
// module.
//
// A [Plan] has two halves. [Identity] is everything that can move a number and
// nothing else; [Plan.Digest] is computed over it. [Text] is for people and is
// outside the digest. Putting a field into one of the two types is the decision
// whether a change of it makes another plan.
//
// A locked plan holds digests and commits where the experiment has names: [Image],
// a commit, [Snapshot]. Which name became what stands in [Plan.Pins], outside the
// digest: a plan made from a tag and one made from the digest that the tag meant are
// the same plan.
package plan

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Schema names the format of plan.json.
const Schema = "speedmatrix-plan/1"

// Plan is plan.json.
type Plan struct {
	Schema   string   `json:"schema"`
	Digest   string   `json:"digest"` // h1:…, over Identity
	Text     Text     `json:"text"`
	Identity Identity `json:"identity"`
	Unpinned []string `json:"unpinned,omitempty"` // sentences: what the plan leaves open
	// Pins are the names that were resolved when the plan was locked, in the order in
	// which they were asked for.
	Pins []Pin `json:"pins,omitempty"`
}

// Pin says what a name of the experiment meant when the plan was locked.
type Pin struct {
	Field string `json:"field"` // of the experiment: engine.source.image
	Asked string `json:"asked"` // vllm/vllm-openai:v0.32.0
	Found string `json:"found"` // sha256:…, or a commit, or a sum over files
}

// Text is for people: it can change without making another plan.
type Text struct {
	Name     string            `json:"name"`
	Title    string            `json:"title,omitempty"`
	Notes    string            `json:"notes,omitempty"`
	Comments []string          `json:"comments,omitempty"` // of the launch command
	Command  string            `json:"command,omitempty"`  // as published, redacted; argv decides
	Hardware map[string]string `json:"hardware,omitempty"` // as claimed
	Labels   map[string]string `json:"labels,omitempty"`
	// Experiment is the file that a locked plan was made from, relative to the plan's
	// own folder, and Overrides the --set values that were applied to it.
	Experiment string   `json:"experiment,omitempty"`
	Overrides  []string `json:"overrides,omitempty"`
}

// Identity is everything that can move a number.
type Identity struct {
	MethodVersion string   `json:"method_version"`
	Engine        Engine   `json:"engine"`
	Model         Model    `json:"model"`
	Prompts       string   `json:"prompts"` // shared or distinct
	Sampling      Sampling `json:"sampling"`
	MaxOutput     int      `json:"max_output"` // tokens asked per decode request
	WindowNs      int64    `json:"window_ns"`  // asked length of the window
	SettleNs      int64    `json:"settle_ns"`  // how long readiness must hold
	Capacity      Capacity `json:"capacity"`
	Limits        Limits   `json:"limits"`
	LoopGuard     bool     `json:"loop_guard"`
	Steps         []Step   `json:"steps"` // in the order they are run
}

// Engine is the server under test. Exactly one of the sources is set.
type Engine struct {
	Source  string            `json:"source"`            // image, commit, wheel, host, attach, simulator
	Image   string            `json:"image,omitempty"`   // repo@sha256:…, or a tag (then unpinned)
	Commit  string            `json:"commit,omitempty"`  // 40 hex, or a branch (then unpinned)
	Repo    string            `json:"repo,omitempty"`    // of Commit
	Lock    string            `json:"lock,omitempty"`    // sha256 of the wheel lock's bytes
	Python  string            `json:"python,omitempty"`  // "3.12"
	Program string            `json:"program,omitempty"` // host: path of the program that exists
	Profile string            `json:"profile,omitempty"` // simulator: sha256 of the profile's bytes
	Argv    []string          `json:"argv,omitempty"`    // word for word, secrets redacted
	Env     map[string]string `json:"env,omitempty"`     // secrets redacted
	Version string            `json:"version,omitempty"` // as claimed, checked against the engine
	// Locked is what Image means, or Build.Image, once the plan is locked; they then name
	// the manifest's digest.
	Locked *Image `json:"locked,omitempty"`
	// Build is how the image of Commit is made, once the plan is locked.
	Build *Build `json:"build,omitempty"`
	// Base is the image that the wheels of Lock are installed into where they run in a
	// container, and what it means.
	Base       string `json:"base,omitempty"`
	BaseLocked *Image `json:"base_locked,omitempty"`
}

// Build is the way from a commit to an image.
type Build struct {
	Way   string `json:"way"`             // nightly, wheel, dockerfile
	Image string `json:"image,omitempty"` // nightly: repo@sha256:…
	// Of way wheel: the image that the commit's wheel is installed into, and the wheel.
	Base        string `json:"base,omitempty"` // repo@sha256:…
	BaseLocked  *Image `json:"base_locked,omitempty"`
	WheelURL    string `json:"wheel_url,omitempty"`
	WheelSHA256 string `json:"wheel_sha256,omitempty"` // 64 hex
	// Of way dockerfile:
	Platform   string            `json:"platform,omitempty"`
	Dockerfile string            `json:"dockerfile,omitempty"`
	Target     string            `json:"target,omitempty"`
	Args       map[string]string `json:"args,omitempty"`
	Patches    []Patch           `json:"patches,omitempty"` // in order
}

// Patch is a change of the commit's tree.
type Patch struct {
	Name   string `json:"name"`   // of the file, without its folder
	SHA256 string `json:"sha256"` // sha256:…, of its bytes
}

// Image is a container image for one platform, by digests (sha256:…).
type Image struct {
	Platform string `json:"platform"`        // linux/amd64
	Index    string `json:"index,omitempty"` // the list that the manifest was chosen from; empty: there is none
	Manifest string `json:"manifest"`        // decides every byte of the image
	Config   string `json:"config"`          // what a container engine calls the image's id
}

// Model under test.
type Model struct {
	ID           string   `json:"id"`
	Revision     string   `json:"revision,omitempty"`
	Quantization string   `json:"quantization,omitempty"`
	Served       []string `json:"served,omitempty"` // names the command gives; the first is sent
	Files        string   `json:"files,omitempty"`  // sha256 over the files of a model made by us
	// Snapshots are the files of the model, then of the models that its flags name
	// (draft models), once the plan is locked.
	Snapshots []Snapshot `json:"snapshots,omitempty"`
}

// Snapshot is all files of a model at one revision.
type Snapshot struct {
	ID       string `json:"id"`                 // name, or path of a folder
	Revision string `json:"revision,omitempty"` // 40 hex; empty for a folder
	Files    []File `json:"files"`              // by path
	Bytes    int64  `json:"bytes"`              // of all files
}

// File of a model. One of the two hashes is known: a hub tells the SHA-256 of large
// files and git's own hash of small ones.
type File struct {
	Path   string `json:"path"` // with slashes, below the model's folder
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"` // 64 hex
	Git    string `json:"git,omitempty"`    // 40 hex: SHA-1 over "blob <bytes>\x00" and the content
}

// Sampling is sent with every request. Nil: the field is not sent and the
// server's default rules.
type Sampling struct {
	Temperature *float64 `json:"temperature,omitempty"`
	TopP        *float64 `json:"top_p,omitempty"`
	Seed        *int64   `json:"seed,omitempty"`
	IgnoreEOS   bool     `json:"ignore_eos"`
}

// Capacity says how cells that cannot fit the KV cache are found.
type Capacity struct {
	Rule     string `json:"rule"`                // worst_case or try
	KVTokens int64  `json:"kv_tokens,omitempty"` // 0: ask the engine
	// PerEngine is the largest single request that fits, where it is known and
	// smaller than KVTokens (data parallel); 0 otherwise.
	PerEngine   int64  `json:"per_engine,omitempty"`
	Source      string `json:"source,omitempty"`        // option, experiment, metrics
	MaxModelLen int64  `json:"max_model_len,omitempty"` // 0: ask the engine
}

// Told completes a capacity that the plan leaves open with what the engine says of
// its KV cache. A request lives on one engine, and it may be any of them, so the
// smallest one bounds it.
func (c Capacity) Told(tokens int64, perEngine []int64, source string) Capacity {
	if c.KVTokens > 0 {
		return c
	}
	c.KVTokens, c.Source = tokens, source
	if c.PerEngine == 0 && len(perEngine) > 1 {
		c.PerEngine = slices.Min(perEngine)
	}
	return c
}

// Limits after which a stage has failed. 0: derived, as documented in package
// runner.
type Limits struct {
	StartNs int64 `json:"start_ns"`
	ScoutNs int64 `json:"scout_ns,omitempty"`
	ReadyNs int64 `json:"ready_ns,omitempty"`
	StallNs int64 `json:"stall_ns"`
	IdleNs  int64 `json:"idle_ns"`
}

// Step is one trial to run.
type Step struct {
	ID            string `json:"id"` // "decode-8k-c16-r1"; unique in the plan
	Phase         string `json:"phase"`
	ContextTokens int    `json:"context_tokens"`
	ContextLabel  string `json:"context_label"`
	Concurrency   int    `json:"concurrency"`
	Repeat        int    `json:"repeat"` // 1-based
	// Skip, if not empty, is why the person or the plan leaves this step out.
	Skip string `json:"skip,omitempty"`
}

// Window returns the asked length of the window.
func (id *Identity) Window() time.Duration { return time.Duration(id.WindowNs) }

// Verdict of [Identity.Predict].
type Verdict struct {
	Fits   bool
	Status string // "over_capacity" or "skipped", where it does not fit
	Reason string // "predicted", "model_len"
	Why    string // the arithmetic, as a sentence
}

// Predict says whether a step fits the engine, given the capacity c (the plan's,
// or the plan's completed by what the engine told). Rule worst_case: (context +
// max output) × requests must not exceed the KV cache. An unknown capacity never
// makes a step over capacity.
func (id *Identity) Predict(c Capacity, s Step) Verdict {
	out := id.MaxOutput
	if s.Phase == "prefill" {
		out = 1
	}
	each := int64(s.ContextTokens) + int64(out)
	if c.MaxModelLen > 0 && each > c.MaxModelLen {
		return Verdict{Status: "skipped", Reason: "model_len",
			Why: fmt.Sprintf("%d + %d tokens exceed the model length %d", s.ContextTokens, out, c.MaxModelLen)}
	}
	if c.Rule == "try" {
		return Verdict{Fits: true}
	}
	if need := each * int64(s.Concurrency); c.KVTokens > 0 && need > c.KVTokens {
		return Verdict{Status: "over_capacity", Reason: "predicted",
			Why: fmt.Sprintf("(%d + %d) × %d = %d tokens exceed the KV cache of %d", s.ContextTokens, out, s.Concurrency, need, c.KVTokens)}
	}
	if c.PerEngine > 0 && each > c.PerEngine {
		return Verdict{Status: "over_capacity", Reason: "predicted",
			Why: fmt.Sprintf("%d + %d tokens exceed the KV cache of one engine, %d", s.ContextTokens, out, c.PerEngine)}
	}
	return Verdict{Fits: true}
}

// Seal computes the digest. It is the last thing done to a plan.
func (p *Plan) Seal() error {
	p.Schema = Schema
	d, err := Digest(&p.Identity)
	p.Digest = d
	return err
}

// Digest is "h1:" and the base64 of the SHA-256 of the identity's JSON with
// sorted map keys and fields in the order of the type. The prefix names the
// algorithm, so that it can change.
func Digest(id *Identity) (string, error) {
	b, err := json.Marshal(id)
	if err != nil {
		return "", fmt.Errorf("plan digest: %w", err)
	}
	sum := sha256.Sum256(b)
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:]), nil
}

// JSON is the content of plan.json.
func (p *Plan) JSON() ([]byte, error) {
	b, err := json.MarshalIndent(p, "", "  ")
	return append(b, '\n'), err
}

// Parse reads plan.json and checks its digest.
func Parse(b []byte) (*Plan, error) {
	var p Plan
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if p.Schema != Schema {
		return nil, fmt.Errorf("plan: schema is %q, this program reads %q", p.Schema, Schema)
	}
	d, err := Digest(&p.Identity)
	if err != nil {
		return nil, err
	}
	if d != p.Digest {
		return nil, fmt.Errorf("plan: digest is %s, its content gives %s: the file was changed by hand", p.Digest, d)
	}
	return &p, nil
}

// Package resolve turns what a person asked for into a plan: it spells out every
// cell in order, applies the defaults, works out what cannot fit, and says what
// stays unpinned.
//
// It does not read files or ask registries itself: files come through
// [Options.ReadFile], what names mean through [Options.Pinner]. Flow:
//
//  1. the serve command becomes argv, environment and notes (servecmd)
//  2. files named by the experiment become hashes
//  3. where a Pinner is given, images, commits and models become digests
//  4. the axes become steps, repeats interleaved, in the order the plan keeps
//  5. everything that is still a name, a tag or a default becomes a sentence in
//     Plan.Unpinned
//  6. the plan is sealed with its digest
package resolve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"time"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/experiments/spec"
)

// Options for [Resolve].
type Options struct {
	// MethodVersion of the runner that will measure.
	MethodVersion string
	// KVCapacity in tokens overrides the experiment's and the engine's own; 0: not
	// given.
	KVCapacity int64
	// Attach, if not empty, replaces the experiment's source.
	Attach string
	// ReadFile reads a file named by the experiment, relative to the experiment's
	// own folder.
	ReadFile func(name string) ([]byte, error)
	// Pinner, if not nil, locks the plan. Without one nothing is asked of anybody and
	// names stay names.
	Pinner Pinner
}

// Resolved is a plan with what belongs to it but may not stand in it.
type Resolved struct {
	Plan *plan.Plan
	// Command is the serve command read; nil if the experiment has none.
	Command *servecmd.Command
	// Source is the experiment's, or attach where that was asked for.
	Source spec.Source
	// Lock and Profile are the contents of the files whose hashes the plan holds, Patches
	// those of the commit's patches, in order.
	Lock, Profile []byte
	Patches       [][]byte
	// Archive is the path of an image that is a file, from the experiment's folder.
	Archive string
}

// Resolve makes the plan. Only a Pinner waits, and ctx is for it.
func Resolve(ctx context.Context, e *spec.Experiment, o Options) (*Resolved, error) {
	r := &Resolved{Source: e.Engine.Source}
	if o.Attach != "" {
		r.Source = spec.Source{Attach: o.Attach}
	}
	id := plan.Identity{
		MethodVersion: o.MethodVersion,
		Prompts:       e.Prompts,
		MaxOutput:     e.Matrix.MaxOutput,
		WindowNs:      int64(e.Matrix.Duration),
		SettleNs:      int64(e.Matrix.Settle),
		LoopGuard:     e.Loop != "off",
		Model: plan.Model{
			ID:           e.Model.ID,
			Revision:     e.Model.Revision,
			Quantization: cmp.Or(e.Model.Quantization, e.Engine.Quantization),
		},
		Sampling: plan.Sampling{
			Temperature: e.Sampling.Temperature,
			TopP:        e.Sampling.TopP,
			Seed:        e.Sampling.Seed,
			IgnoreEOS:   e.Sampling.IgnoreEOS == nil || *e.Sampling.IgnoreEOS,
		},
		Limits: plan.Limits{
			StartNs: int64(e.Limits.Start),
			ScoutNs: int64(e.Limits.Scout),
			ReadyNs: int64(e.Limits.Ready),
			StallNs: int64(e.Limits.Stall),
			IdleNs:  int64(e.Limits.Idle),
		},
		Capacity: plan.Capacity{Rule: e.Matrix.Capacity},
	}
	text := plan.Text{Name: e.Name, Title: e.Title, Notes: e.Notes, Hardware: hardware(e.Hardware)}

	if e.Engine.Command != "" {
		c, err := servecmd.Parse(e.Engine.Command)
		if err != nil {
			return nil, fmt.Errorf("%s: engine.command: %w", e.File, err)
		}
		r.Command = c
		text.Comments, text.Command = c.Comments, c.Shell()
		env, argv := c.Redacted()
		id.Engine.Argv = servecmd.Unbound(argv)
		if len(env) > 0 {
			id.Engine.Env = map[string]string{}
			for _, v := range env {
				id.Engine.Env[v.Name] = v.Value
			}
		}
		id.Model.ID = cmp.Or(id.Model.ID, c.Model)
		id.Model.Served = c.ServedModelNames
		id.Capacity.MaxModelLen = int64(c.MaxModelLen)
	}
	switch {
	case o.KVCapacity > 0:
		id.Capacity.KVTokens, id.Capacity.Source = o.KVCapacity, "option"
	case e.Engine.KVCapacityTokens > 0:
		id.Capacity.KVTokens, id.Capacity.Source = e.Engine.KVCapacityTokens, "experiment"
	}
	id.Engine.Source = r.Source.Kind()
	id.Engine.Version = e.Engine.Version
	if err := r.pin(e, o, &id); err != nil {
		return nil, err
	}
	var pins []plan.Pin
	if o.Pinner != nil {
		var err error
		if pins, err = r.lock(ctx, e, o.Pinner, &id); err != nil {
			return nil, err
		}
	}
	id.Steps = steps(e.Matrix)
	r.Plan = &plan.Plan{Text: text, Identity: id, Pins: pins, Unpinned: unpinned(&id, r.Source, r.Command)}
	return r, r.Plan.Seal()
}

func (r *Resolved) pin(e *spec.Experiment, o Options, id *plan.Identity) error {
	read := func(field, name string) ([]byte, error) {
		b, err := o.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", e.File, field, err)
		}
		return b, nil
	}
	var err error
	switch s := r.Source; id.Engine.Source {
	case "image":
		id.Engine.Image = s.Image
		r.Archive, _ = strings.CutPrefix(s.Image, spec.ArchivePrefix)
		if r.Archive == s.Image {
			r.Archive = ""
		}
	case "commit":
		id.Engine.Commit, id.Engine.Repo = s.Commit, s.Repo
		if s.Build == nil {
			break
		}
		for _, arg := range s.Build.Args {
			// A plan is published. A short value is a setting, whatever it is called.
			if name, value, _ := strings.Cut(arg, "="); servecmd.SecretName(name) && len(value) >= 8 {
				return fmt.Errorf("%s: engine.source.build.args: %s looks like a secret, and a plan is no place for one: build the image beforehand and name it in engine.source.image", e.File, name)
			}
		}
		for _, name := range s.Build.Patches {
			b, err := read("engine.source.build.patches", name)
			if err != nil {
				return err
			}
			r.Patches = append(r.Patches, b)
		}
	case "host":
		id.Engine.Program = s.Host
	case "wheel":
		if r.Lock, err = read("engine.source.wheel.lock", s.Wheel.Lock); err != nil {
			return err
		}
		id.Engine.Lock, id.Engine.Python, id.Engine.Base = hash(r.Lock), s.Wheel.Python, s.Wheel.Base
		if s.Wheel.Model != "" {
			script, err := read("engine.source.wheel.model", s.Wheel.Model)
			if err != nil {
				return err
			}
			id.Model.Files = hash(script)
		}
	case "simulator":
		if s.Simulator != "default" {
			if r.Profile, err = read("engine.source.simulator", s.Simulator); err != nil {
				return err
			}
			id.Engine.Profile = hash(r.Profile)
		}
	}
	return nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// steps spells out the matrix: prefill first, then row by row, as the pages list
// them. Repeats interleave: the whole matrix once, then again, so that a drift of
// the machine falls on all cells alike. Order seeded shuffles within each pass.
func steps(m spec.Matrix) []plan.Step {
	var out []plan.Step
	for rep := 1; rep <= max(1, m.Repeats); rep++ {
		first := len(out)
		for _, c := range m.Prefill {
			out = append(out, step("prefill", c, 1, rep))
		}
		for _, c := range m.Contexts {
			for _, n := range m.Concurrency {
				out = append(out, step("decode", c, n, rep))
			}
		}
		if m.Order == "seeded" {
			pass := out[first:]
			rng := rand.New(rand.NewPCG(uint64(m.OrderSeed), uint64(rep)))
			rng.Shuffle(len(pass), func(i, j int) { pass[i], pass[j] = pass[j], pass[i] })
		}
	}
	return out
}

func step(phase string, c spec.Context, concurrency, repeat int) plan.Step {
	return plan.Step{
		ID:            StepID(phase, c.Label, concurrency, repeat),
		Phase:         phase,
		ContextTokens: c.Tokens,
		ContextLabel:  c.Label,
		Concurrency:   concurrency,
		Repeat:        repeat,
	}
}

// StepID names a step: "decode-8k-c16-r1", "prefill-64k-r1".
func StepID(phase, label string, concurrency, repeat int) string {
	id := phase + "-" + strings.ToLower(label)
	if phase != "prefill" {
		id += fmt.Sprintf("-c%d", concurrency)
	}
	return fmt.Sprintf("%s-r%d", id, repeat)
}

func hardware(h spec.Hardware) map[string]string {
	m := map[string]string{}
	for k, v := range map[string]string{"type": h.Type, "gpu": h.GPU, "vram": h.VRAM, "cpu": h.CPU, "ram": h.RAM, "os": h.OS} {
		if v != "" {
			m[k] = v
		}
	}
	return m
}

var (
	hex40  = regexp.MustCompile(`^[0-9a-f]{40}$`)
	digest = regexp.MustCompile(`@sha256:[0-9a-f]{64}$`)
)

// unpinned says in sentences what a rerun could not fix.
func unpinned(id *plan.Identity, s spec.Source, c *servecmd.Command) []string {
	var out []string
	add := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }
	switch id.Engine.Source {
	case "image":
		switch {
		case digest.MatchString(id.Engine.Image):
		case strings.HasPrefix(s.Image, spec.ArchivePrefix):
			add("engine.source.image is the file %q: it can be replaced; plan --lock pins its digest", strings.TrimPrefix(s.Image, spec.ArchivePrefix))
		default:
			add("engine.source.image is the tag %q: a tag can be moved or removed; name a digest (repo@sha256:…)", s.Image)
		}
	case "commit":
		if !hex40.MatchString(id.Engine.Commit) {
			add("engine.source.commit is %q: only a full commit of 40 hexadecimal digits names one tree", s.Commit)
		}
		if id.Engine.Build == nil {
			add("engine.source.commit does not say how its image is made: plan --lock looks what there is of the commit")
		}
	case "host":
		add("engine.source.host is whatever is installed at %s", s.Host)
	case "attach":
		add("engine.source.attach measures a server that somebody else started: its program, model and machine are as found")
	case "wheel":
		if id.Engine.Base != "" && !digest.MatchString(id.Engine.Base) {
			add("engine.source.wheel.base is the tag %q: a tag can be moved or removed", s.Wheel.Base)
		}
		if s.Wheel.Python == "" {
			add("engine.source.wheel.python is not given: the interpreter is the one found")
		}
	}
	if id.Engine.Source == "simulator" || len(id.Model.Snapshots) > 0 {
		return out // no model, or all models file by file
	}
	switch {
	case id.Model.Files != "": // made by a script that is hashed
	case id.Model.ID == "":
		add("model.id is not given: the first model the server lists is measured")
	case isFolder(id.Model.ID):
		add("model %s is a folder: its files are not hashed", id.Model.ID)
	case !hex40.MatchString(id.Model.Revision):
		add("model.revision of %s is %q: only a full commit names one set of files", id.Model.ID, cmp.Or(id.Model.Revision, "not given"))
	}
	if c != nil {
		for _, o := range others(c) {
			flag := strings.TrimPrefix(o.field, "engine.command: ")
			switch {
			case isFolder(o.ID) && id.Model.Files != "": // the script may make it too
			case isFolder(o.ID):
				add("%s names the folder %s: its files are not hashed", flag, o.ID)
			case o.ID == id.Model.ID && o.Revision == "": // told above
			case !hex40.MatchString(o.Revision):
				add("%s names %q without a full commit as its revision", flag, o.ID)
			}
		}
	}
	return out
}

// Estimate is how long the plan takes at the least: windows, settling and the
// pauses between cells. Reading the prompts comes on top and depends on the
// engine, so it is not guessed.
func Estimate(id *plan.Identity, c plan.Capacity) time.Duration {
	var d time.Duration
	for _, s := range id.Steps {
		if s.Skip != "" || !id.Predict(c, s).Fits {
			continue
		}
		d += EstimateStep(id, s)
	}
	return d
}

// EstimateStep is the part of one step in [Estimate].
func EstimateStep(id *plan.Identity, s plan.Step) time.Duration {
	if s.Phase == "decode" {
		return time.Duration(id.WindowNs+id.SettleNs) + pause
	}
	return pause
}

// pause is what a cell costs beside its window: idle before and after, connections,
// draining. Seen between 0.2 and 0.6 s on the simulator and on a local vLLM.
const pause = 500 * time.Millisecond

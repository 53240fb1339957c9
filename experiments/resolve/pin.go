package resolve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/experiments/spec"
)

// Pinner says what a name means now.
//
// [Resolve] calls its methods one at a time, in an order that depends on the
// experiment alone: the image or commit first, then the models. What is returned goes
// into the plan as it is. An error ends the resolving: a name that cannot be resolved
// is never replaced by another. The error names the thing and the ways on; Resolve
// wraps it in a [PinError].
type Pinner interface {
	// Image resolves repository:tag or repository@digest to one platform's manifest.
	Image(ctx context.Context, name string) (plan.Image, error)
	// Archive reads an image that is a file.
	Archive(ctx context.Context, path string) (plan.Image, error)
	// Nightly looks for the image that was published of a commit under this name; false
	// if there is none.
	Nightly(ctx context.Context, name string) (plan.Image, bool, error)
	// Wheel looks for the wheel of a commit at the address of the commit's folder: the
	// wheel's own address and the hex SHA-256 of its bytes; false if there is none.
	Wheel(ctx context.Context, folder, commit string) (url, sum string, ok bool, err error)
	// Platform is what images are built for, where there is none to choose from.
	Platform() string
	// Commit resolves a branch, a tag or a commit of a repository to 40 hex digits.
	Commit(ctx context.Context, repo, name string) (string, error)
	// Model resolves a model's name and revision, or its folder, to its files. An
	// empty revision is the hub's default branch.
	Model(ctx context.Context, name, revision string) (plan.Snapshot, error)
}

// PinError says which name of an experiment could not be resolved.
type PinError struct {
	File, Field string
	Err         error
}

func (e *PinError) Error() string { return fmt.Sprintf("%s: %s: %v", e.File, e.Field, e.Err) }

func (e *PinError) Unwrap() error { return e.Err }

// ErrChanged says that an experiment is not the one that a plan was locked from.
var ErrChanged = errors.New("the experiment changed since the plan was locked; lock it again with plan --lock")

// Locked answers with what p was locked to, and asks nobody.
func Locked(p *plan.Plan) Pinner { return &locked{plan: p} }

type locked struct {
	plan *plan.Plan
	pins int // that were given out
}

// next checks that the experiment still asks what it asked when the plan was locked:
// the names are outside the digest, so the digest alone would not tell.
func (l *locked) next(asked string) error {
	if l.pins >= len(l.plan.Pins) {
		return fmt.Errorf("%s is not in the plan: %w", asked, ErrChanged)
	}
	pin := l.plan.Pins[l.pins]
	if pin.Asked != asked {
		return fmt.Errorf("it is %s now, and was %s: %w", asked, pin.Asked, ErrChanged)
	}
	l.pins++
	return nil
}

func (l *locked) Image(_ context.Context, name string) (plan.Image, error) {
	e := &l.plan.Identity.Engine
	image := e.Locked
	switch l.field() {
	case fieldWheelBase:
		image = e.BaseLocked
	case fieldBuildBase:
		image = nil
		if e.Build != nil {
			image = e.Build.BaseLocked
		}
	}
	if err := l.next(name); err != nil {
		return plan.Image{}, err
	}
	if image == nil {
		return plan.Image{}, ErrChanged
	}
	return *image, nil
}

// field is the one that the next pin is of.
func (l *locked) field() string {
	if l.pins < len(l.plan.Pins) {
		return l.plan.Pins[l.pins].Field
	}
	return ""
}

func (l *locked) Archive(ctx context.Context, path string) (plan.Image, error) {
	return l.Image(ctx, spec.ArchivePrefix+path)
}

// Nightly: a nightly image was found if the plan has a pin of it.
func (l *locked) Nightly(ctx context.Context, name string) (plan.Image, bool, error) {
	if l.field() != fieldNightly {
		return plan.Image{}, false, nil
	}
	image, err := l.Image(ctx, name)
	return image, err == nil, err
}

func (l *locked) Wheel(_ context.Context, folder, _ string) (url, sum string, ok bool, err error) {
	b := l.plan.Identity.Engine.Build
	if l.field() != fieldWheels || b == nil {
		return "", "", false, nil
	}
	return b.WheelURL, b.WheelSHA256, true, l.next(folder)
}

func (l *locked) Platform() string {
	if b := l.plan.Identity.Engine.Build; b != nil {
		return b.Platform
	}
	return ""
}

// Fields that a pin can be of, beside those of models.
const (
	fieldImage     = "engine.source.image"
	fieldCommit    = "engine.source.commit"
	fieldNightly   = "engine.source.build.image"
	fieldBuildBase = "engine.source.build.base"
	fieldWheels    = "engine.source.build.wheels"
	fieldWheelBase = "engine.source.wheel.base"
)

// nightly is the image that is published of each commit.
func (l *locked) Commit(_ context.Context, repo, name string) (string, error) {
	return l.plan.Identity.Engine.Commit, l.next(askedCommit(repo, name))
}

func (l *locked) Model(_ context.Context, name, revision string) (plan.Snapshot, error) {
	if err := l.next(askedModel(name, revision)); err != nil {
		return plan.Snapshot{}, err
	}
	if i := snapshotOf(&l.plan.Identity, name); i >= 0 {
		return l.plan.Identity.Model.Snapshots[i], nil
	}
	return plan.Snapshot{}, ErrChanged
}

// snapshotOf is the index of a model's snapshot; -1: there is none.
func snapshotOf(id *plan.Identity, name string) int {
	return slices.IndexFunc(id.Model.Snapshots, func(s plan.Snapshot) bool { return s.ID == name })
}

func askedCommit(repo, name string) string { return repo + "@" + name }

func askedModel(name, revision string) string {
	if revision == "" {
		return name
	}
	return name + "@" + revision
}

// lock replaces the names in a plan by what they mean.
func (r *Resolved) lock(ctx context.Context, e *spec.Experiment, p Pinner, id *plan.Identity) ([]plan.Pin, error) {
	var pins []plan.Pin
	failed := func(field string, err error) error { return &PinError{File: e.File, Field: field, Err: err} }

	switch id.Engine.Source {
	case "image":
		name := repository(r.Source.Image)
		ask, asked := p.Image, r.Source.Image
		if r.Archive != "" {
			// Where the file lies is outside the identity.
			name, ask, asked = strings.TrimSuffix(spec.ArchivePrefix, ":"), p.Archive, r.Archive
		}
		image, err := ask(ctx, asked)
		if err != nil {
			return nil, failed(fieldImage, err)
		}
		id.Engine.Image, id.Engine.Locked = name+"@"+image.Manifest, &image
		pins = append(pins, plan.Pin{Field: fieldImage, Asked: r.Source.Image, Found: image.Manifest})
	case "commit":
		commit, err := p.Commit(ctx, r.Source.Repo, r.Source.Commit)
		if err != nil {
			return nil, failed(fieldCommit, err)
		}
		id.Engine.Commit = commit
		pins = append(pins, plan.Pin{Field: fieldCommit, Asked: askedCommit(r.Source.Repo, r.Source.Commit), Found: commit})
		more, err := r.lockBuild(ctx, e, p, &id.Engine)
		if err != nil {
			return nil, err
		}
		pins = append(pins, more...)
	case "wheel":
		if id.Engine.Base == "" {
			break
		}
		base, image, err := lockBase(ctx, p, id.Engine.Base)
		if err != nil {
			return nil, failed(fieldWheelBase, err)
		}
		pins = append(pins, plan.Pin{Field: fieldWheelBase, Asked: id.Engine.Base, Found: image.Manifest})
		id.Engine.Base, id.Engine.BaseLocked = base, &image
	case "simulator", "attach":
		return nil, nil // no model is loaded by us
	}
	if id.Model.Files != "" || id.Model.ID == "" {
		return pins, nil // made by a script that is hashed already; or unknown
	}

	asked, err := models(e, r.Command, id)
	if err != nil {
		return nil, err
	}
	for i, m := range asked {
		s, err := p.Model(ctx, m.ID, m.Revision)
		if err != nil {
			return nil, failed(m.field, err)
		}
		if i == 0 {
			id.Model.Revision = s.Revision
		}
		pins = append(pins, plan.Pin{Field: m.field, Asked: askedModel(m.ID, m.Revision),
			Found: cmp.Or(s.Revision, fmt.Sprintf("%d files, %d bytes", len(s.Files), s.Bytes))})
		switch k := snapshotOf(id, m.ID); {
		case k < 0:
			id.Model.Snapshots = append(id.Model.Snapshots, s)
		case id.Model.Snapshots[k].Revision != s.Revision:
			return nil, failed(m.field, fmt.Errorf("%s is wanted at two revisions, %s and %s: a machine that holds the pinned files alone has one of them; name it in both places",
				m.ID, id.Model.Snapshots[k].Revision, s.Revision))
		}
	}
	return pins, nil
}

func lockBase(ctx context.Context, p Pinner, name string) (string, plan.Image, error) {
	image, err := p.Image(ctx, name)
	return repository(name) + "@" + image.Manifest, image, err
}

// lockBuild decides the way from the commit to an image. It is part of the identity: two
// ways give two programs.
func (r *Resolved) lockBuild(ctx context.Context, e *spec.Experiment, p Pinner, engine *plan.Engine) ([]plan.Pin, error) {
	failed := func(field string, err error) error { return &PinError{File: e.File, Field: field, Err: err} }
	want := r.Source.Build
	if want == nil {
		want = spec.NewBuild()
	}
	// What is built already cannot have these.
	changed := len(want.Patches) > 0 || len(want.Args) > 0 || want.Target != "" || want.Dockerfile != spec.NewBuild().Dockerfile
	if want.Way == "nightly" || want.Way == "auto" && !changed {
		name := want.ImageOf(engine.Commit)
		image, ok, err := p.Nightly(ctx, name)
		if err != nil {
			return nil, failed(fieldNightly, err)
		}
		if ok {
			engine.Build = &plan.Build{Way: "nightly", Image: repository(want.Image) + "@" + image.Manifest}
			engine.Locked = &image
			return []plan.Pin{{Field: fieldNightly, Asked: name, Found: image.Manifest}}, nil
		}
		if want.Way == "nightly" {
			return nil, failed(fieldNightly, fmt.Errorf("%s is not there, or no longer: such images are made of some commits only and removed after some days\nways on: the image by its digest (engine.source.image: repository@sha256:…; the record of an earlier run has it), or engine.source.build.way: wheel, or dockerfile", name))
		}
	}
	if want.Way == "wheel" || want.Way == "auto" && !changed && want.Wheels != "" && want.Base != "" {
		folder := want.WheelsOf(engine.Commit)
		url, sum, ok, err := p.Wheel(ctx, folder, engine.Commit)
		if err != nil {
			return nil, failed(fieldWheels, err)
		}
		if ok {
			pins := []plan.Pin{{Field: fieldWheels, Asked: folder, Found: "sha256:" + sum}}
			base, image, err := lockBase(ctx, p, want.Base)
			if err != nil {
				return nil, failed(fieldBuildBase, err)
			}
			engine.Build = &plan.Build{Way: "wheel", Base: base, BaseLocked: &image, WheelURL: url, WheelSHA256: sum}
			return append(pins, plan.Pin{Field: fieldBuildBase, Asked: want.Base, Found: image.Manifest}), nil
		}
		if want.Way == "wheel" {
			return nil, failed(fieldWheels, fmt.Errorf("%s has no wheel for %s, or no longer: there are some of the main branch's commits only\nways on: engine.source.build.way: dockerfile", folder, p.Platform()))
		}
	}
	b := &plan.Build{Way: "dockerfile", Platform: p.Platform(), Dockerfile: want.Dockerfile, Target: want.Target}
	for _, arg := range want.Args {
		if b.Args == nil {
			b.Args = map[string]string{}
		}
		name, value, _ := strings.Cut(arg, "=")
		b.Args[name] = value
	}
	for i, name := range want.Patches {
		b.Patches = append(b.Patches, plan.Patch{Name: path.Base(filepath.ToSlash(name)), SHA256: hash(r.Patches[i])})
	}
	engine.Build = b
	return nil, nil
}

// model is one that the engine loads.
type model struct {
	ID, Revision string
	field        string
}

// models lists the model and the others that its command names, each once.
func models(e *spec.Experiment, c *servecmd.Command, id *plan.Identity) ([]model, error) {
	m := model{ID: id.Model.ID, Revision: id.Model.Revision, field: "model.revision"}
	if c == nil {
		return []model{m}, nil
	}
	// What the command says is what the engine loads.
	if said, ok := servecmd.Flag(c.Argv, "--revision"); ok {
		if m.Revision != "" && m.Revision != said {
			return nil, fmt.Errorf("%s: model.revision: it is %q, and engine.command loads --revision %q: give one of them", e.File, m.Revision, said)
		}
		m.Revision, m.field = said, "engine.command: --revision"
	}
	out := []model{m}
	_, said := servecmd.Flag(c.Argv, "--revision")
	for _, o := range others(c) {
		// Where neither names a revision, the engine takes for both what it finds as the
		// default branch.
		if o.ID == m.ID && o.Revision == "" && !said {
			continue
		}
		if !slices.ContainsFunc(out, func(have model) bool { return have.ID == o.ID && have.Revision == o.Revision }) {
			out = append(out, o)
		}
	}
	return out, nil
}

// others are the models that flags name beside the one that is served: a tokenizer, a
// config, adapters, draft models.
func others(c *servecmd.Command) []model {
	var out []model
	add := func(flag, id, revision string) {
		if isFolder(id) {
			revision = ""
		}
		if id != "" {
			out = append(out, model{ID: id, Revision: revision, field: "engine.command: " + flag})
		}
	}
	value := func(flag string) string { v, _ := servecmd.Flag(c.Argv, flag); return v }

	// The engine takes the model's revision for these, whatever repository they are in.
	revision := value("--revision")
	tokenizer, ofTokenizer := value("--tokenizer"), value("--tokenizer-revision")
	if ofTokenizer != "" && tokenizer == "" {
		tokenizer = c.Model
	}
	add("--tokenizer", tokenizer, cmp.Or(ofTokenizer, revision))
	add("--hf-config-path", value("--hf-config-path"), revision)
	if v := value("--generation-config"); v != "auto" && v != "vllm" {
		add("--generation-config", v, revision)
	}
	for _, v := range servecmd.Values(c.Argv, "--lora-modules") {
		add("--lora-modules", adapter(v), "")
	}
	return append(out, drafts(c)...)
}

// adapter is the model in a value of --lora-modules: NAME=MODEL, or an object.
func adapter(v string) string {
	var object struct {
		Path string `json:"path"`
	}
	if json.Unmarshal([]byte(v), &object) == nil {
		return object.Path
	}
	_, path, _ := strings.Cut(v, "=")
	return path
}

// isFolder tells a folder from the name of a hub.
func isFolder(id string) bool { return strings.HasPrefix(id, "/") || strings.HasPrefix(id, ".") }

// drafts are the models that JSON flags name, such as the draft model of
// --speculative-config.
func drafts(c *servecmd.Command) []model {
	var out []model
	for _, flag := range slices.Sorted(maps.Keys(c.JSONValues)) {
		var v struct {
			Model    string `json:"model"`
			Revision string `json:"revision"`
		}
		// Other shapes (a list, a number, a model that is no text) name no model, nor
		// does the word for drafting from the prompt.
		if json.Unmarshal(c.JSONValues[flag], &v) == nil && v.Model != "" && v.Model != "[ngram]" {
			out = append(out, model{ID: v.Model, Revision: v.Revision, field: "engine.command: " + flag})
		}
	}
	return out
}

// repository is an image's name without tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	// A colon before the last slash is a port.
	if colon := strings.LastIndexByte(image, ':'); colon > strings.LastIndexByte(image, '/') {
		image = image[:colon]
	}
	return image
}

package resolve

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/spec"
)

// world answers as registries, repositories and hubs would, and keeps what it was
// asked.
type world struct {
	asked []string
	err   error
	// what there is of a commit
	nightlies, wheels bool
	// revisions of models that are not at the usual one, by name@asked
	revisions map[string]string
}

var (
	manifest = "sha256:" + strings.Repeat("a", 64)
	commit   = strings.Repeat("c", 40)
	revision = strings.Repeat("d", 40)
)

func (w *world) Image(_ context.Context, name string) (plan.Image, error) {
	w.asked = append(w.asked, "image "+name)
	return plan.Image{Platform: "linux/amd64", Index: "sha256:" + strings.Repeat("1", 64), Manifest: manifest, Config: "sha256:" + strings.Repeat("2", 64)}, w.err
}

func (w *world) Archive(_ context.Context, path string) (plan.Image, error) {
	w.asked = append(w.asked, "archive "+path)
	return plan.Image{Platform: "linux/amd64", Manifest: manifest, Config: "sha256:" + strings.Repeat("2", 64)}, w.err
}

func (w *world) Nightly(_ context.Context, name string) (plan.Image, bool, error) {
	w.asked = append(w.asked, "nightly "+name)
	return plan.Image{Platform: "linux/amd64", Manifest: manifest, Config: "sha256:" + strings.Repeat("2", 64)}, w.nightlies, w.err
}

func (w *world) Wheel(_ context.Context, folder, _ string) (string, string, bool, error) {
	w.asked = append(w.asked, "wheel "+folder)
	return folder + "/vllm.whl", strings.Repeat("f", 64), w.wheels, w.err
}

func (*world) Platform() string { return "linux/amd64" }

func (w *world) Commit(_ context.Context, repo, name string) (string, error) {
	w.asked = append(w.asked, "commit "+repo+" "+name)
	return commit, w.err
}

func (w *world) Model(_ context.Context, name, rev string) (plan.Snapshot, error) {
	w.asked = append(w.asked, "model "+name+" "+rev)
	s := plan.Snapshot{ID: name, Revision: revision, Bytes: 3, Files: []plan.File{{Path: "config.json", Bytes: 3, Git: strings.Repeat("e", 40)}}}
	if other, ok := w.revisions[name+"@"+rev]; ok {
		s.Revision = other
	}
	if isFolder(name) {
		s.Revision = ""
	}
	return s, w.err
}

func TestLock(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*spec.Experiment)
		asked    []string
		image    string
		commit   string
		revision string
		models   []string // of the snapshots
		unpinned int
		unfound  int // of what was asked for
	}{
		{name: "image by tag", change: func(*spec.Experiment) {},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m main"},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m"}},
		{name: "registry with a port, no tag", change: func(e *spec.Experiment) { e.Engine.Source.Image = "h.example:5000/vllm" },
			asked: []string{"image h.example:5000/vllm", "model org/m main"},
			image: "h.example:5000/vllm@" + manifest, revision: revision, models: []string{"org/m"}},
		{name: "B14 branch", change: func(e *spec.Experiment) {
			e.Engine.Source = spec.Source{Commit: "nightly", Repo: "h.example/vllm"}
		},
			asked:  []string{"commit h.example/vllm nightly", "nightly vllm/vllm-openai:nightly-" + commit, "model org/m main"},
			commit: commit, revision: revision, models: []string{"org/m"}, unfound: 1},
		{name: "the command's revision and a draft model", change: func(e *spec.Experiment) {
			e.Model.Revision = ""
			e.Engine.Command += ` --revision v2 --speculative-config '{"method":"dflash","model":"z/draft","revision":"v3"}'`
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m v2", "model z/draft v3"},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m", "z/draft"}},
		{name: "what belongs to the model, adapters", change: func(e *spec.Experiment) {
			e.Model.Revision = ""
			e.Engine.Command += ` --revision v2 --tokenizer o/tok --hf-config-path o/config --generation-config auto` +
				` --lora-modules sql=o/sql chat=./chat '{"name":"x","path":"o/x","base_model_name":"org/m"}' broken --max-num-seqs 4`
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m v2", "model o/tok v2", "model o/config v2", "model o/sql ", "model ./chat ", "model o/x "},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m", "o/tok", "o/config", "o/sql", "./chat", "o/x"}},
		{name: "the tokenizer's own revision, a config of the tokenizer's repository", change: func(e *spec.Experiment) {
			e.Engine.Command += ` --tokenizer o/tok --tokenizer-revision v9 --generation-config o/tok`
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m main", "model o/tok v9", "model o/tok "},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m", "o/tok"}},
		{name: "the model's own tokenizer, and the model as its draft", change: func(e *spec.Experiment) {
			e.Engine.Command += ` --tokenizer org/m --speculative-config '{"method":"mtp","model":"org/m"}'`
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m main"},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m"}},
		{name: "drafting without a model", change: func(e *spec.Experiment) {
			e.Engine.Command += ` --speculative-config '{"method":"mtp","num_speculative_tokens":2}'`
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model org/m main"},
			image: "vllm/vllm-openai@" + manifest, revision: revision, models: []string{"org/m"}},
		{name: "folder", change: func(e *spec.Experiment) {
			e.Model.ID, e.Model.Revision = "/models/m", ""
		},
			asked: []string{"image vllm/vllm-openai:v0.32.0-x86_64", "model /models/m "},
			image: "vllm/vllm-openai@" + manifest, models: []string{"/models/m"}},
		{name: "what is installed stays open", change: func(e *spec.Experiment) { e.Engine.Source = spec.Source{Host: "/bin/vllm"} },
			asked: []string{"model org/m main"}, revision: revision, models: []string{"org/m"}, unpinned: 1},
		{name: "simulator", change: func(e *spec.Experiment) { e.Engine.Source = spec.Source{Simulator: "default"} }, revision: "main"},
		{name: "attach", change: func(e *spec.Experiment) { e.Engine.Source = spec.Source{Attach: "http://x"} }, revision: "main", unpinned: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := experiment()
			c.change(e)
			w := &world{}
			p := mustResolve(t, e, Options{Pinner: w}).Plan
			if !slices.Equal(w.asked, c.asked) {
				t.Errorf("asked %q\nwant  %q", w.asked, c.asked)
			}
			id := p.Identity
			if id.Engine.Image != c.image || id.Engine.Commit != c.commit || id.Model.Revision != c.revision || (id.Engine.Locked != nil) != (c.image != "") {
				t.Errorf("engine %+v, revision %q", id.Engine, id.Model.Revision)
			}
			var models []string
			for _, s := range id.Model.Snapshots {
				models = append(models, s.ID)
			}
			if !slices.Equal(models, c.models) {
				t.Errorf("snapshots of %q, want %q", models, c.models)
			}
			if len(p.Unpinned) != c.unpinned || len(p.Pins) != len(c.asked)-c.unfound {
				t.Errorf("unpinned %q, pins %+v", p.Unpinned, p.Pins)
			}

			// The same experiment with the plan instead of the world.
			again := mustResolve(t, e, Options{Pinner: Locked(p)}).Plan
			if !reflect.DeepEqual(again, p) {
				t.Errorf("from the plan: got %+v\nwant %+v", again, p)
			}
		})
	}
}

// TestLockBuild: the way from a commit to an image is part of what is measured.
func TestLockBuild(t *testing.T) {
	patch := []byte("--- a\n+++ b\n")
	dockerfile := plan.Build{Way: "dockerfile", Platform: "linux/amd64", Dockerfile: "docker/Dockerfile"}
	for _, c := range []struct {
		name  string
		world world
		build *spec.Build
		asked string
		want  plan.Build
		err   string
	}{
		{name: "B14 there is a nightly", world: world{nightlies: true}, asked: "nightly vllm/vllm-openai:nightly-" + commit,
			want: plan.Build{Way: "nightly", Image: "vllm/vllm-openai@" + manifest}},
		{name: "a nightly of a variant", world: world{nightlies: true}, build: &spec.Build{Way: "nightly", Image: "h:5000/r:cu130-nightly-{commit}"}, asked: "nightly h:5000/r:cu130-nightly-" + commit,
			want: plan.Build{Way: "nightly", Image: "h:5000/r@" + manifest}},
		{name: "there is none", asked: "nightly vllm/vllm-openai:nightly-" + commit, want: dockerfile},
		{name: "a nightly is wanted and gone", build: &spec.Build{Way: "nightly", Image: "o/r"}, asked: "nightly o/r:nightly-" + commit, err: "o/r:nightly-" + commit + " is not there, or no longer"},
		{name: "a wheel in a base", world: world{wheels: true}, build: &spec.Build{Way: "auto", Image: "o/r", Base: "b/b:1", Wheels: "http://w", Dockerfile: "docker/Dockerfile"}, asked: "nightly o/r:nightly-" + commit + ", wheel http://w/" + commit + ", image b/b:1",
			want: plan.Build{Way: "wheel", Base: "b/b@" + manifest, BaseLocked: &plan.Image{Platform: "linux/amd64", Index: "sha256:" + strings.Repeat("1", 64), Manifest: manifest, Config: "sha256:" + strings.Repeat("2", 64)},
				WheelURL: "http://w/" + commit + "/vllm.whl", WheelSHA256: strings.Repeat("f", 64)}},
		{name: "a wheel is wanted and gone", build: &spec.Build{Way: "wheel", Base: "b/b:1", Wheels: "http://w/{commit}/cpu"}, asked: "wheel http://w/" + commit + "/cpu", err: "http://w/" + commit + "/cpu has no wheel for linux/amd64"},
		{name: "another Dockerfile is another program", world: world{nightlies: true, wheels: true},
			build: &spec.Build{Way: "auto", Image: "o/r", Base: "b/b:1", Wheels: "http://w", Dockerfile: "docker/Dockerfile.cpu"},
			want:  plan.Build{Way: "dockerfile", Platform: "linux/amd64", Dockerfile: "docker/Dockerfile.cpu"}},
		{name: "a secret among the arguments", build: &spec.Build{Way: "dockerfile", Args: []string{"SCCACHE_S3_NO_CREDENTIALS=1", "HF_TOKEN=hf_madeup"}}, err: "HF_TOKEN looks like a secret"},
		{name: "patched: nothing that is built already will do", world: world{nightlies: true, wheels: true},
			build: &spec.Build{Way: "auto", Image: "o/r", Base: "b/b:1", Wheels: "http://w", Dockerfile: "docker/Dockerfile", Target: "t", Args: []string{"A=1=2", "B="}, Patches: []string{"p/a.patch"}},
			want: plan.Build{Way: "dockerfile", Platform: "linux/amd64", Dockerfile: "docker/Dockerfile", Target: "t", Args: map[string]string{"A": "1=2", "B": ""},
				Patches: []plan.Patch{{Name: "a.patch", SHA256: hash(patch)}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := experiment()
			e.Engine.Source = spec.Source{Commit: commit, Repo: "h.example/vllm", Build: c.build}
			read := func(string) ([]byte, error) { return patch, nil }
			r, err := Resolve(t.Context(), e, Options{Pinner: &c.world, ReadFile: read})
			var asked []string
			for _, a := range c.world.asked {
				if !strings.HasPrefix(a, "commit ") && !strings.HasPrefix(a, "model ") {
					asked = append(asked, a)
				}
			}
			if got := strings.Join(asked, ", "); got != c.asked {
				t.Errorf("asked %q, want %q", got, c.asked)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Plan.Identity.Engine.Build; !reflect.DeepEqual(*got, c.want) {
				t.Errorf("got  %+v\nwant %+v", *got, c.want)
			}
			if len(r.Plan.Unpinned) > 0 {
				t.Errorf("unpinned: %q", r.Plan.Unpinned)
			}
			again, err := Resolve(t.Context(), e, Options{Pinner: Locked(r.Plan), ReadFile: read})
			if err != nil || !reflect.DeepEqual(again.Plan, r.Plan) {
				t.Errorf("from the plan: %v\ngot  %+v\nwant %+v", err, again, r.Plan)
			}
		})
	}
}

// TestTwoRevisions: what an engine finds of a repository is one revision.
func TestTwoRevisions(t *testing.T) {
	e := experiment()
	e.Engine.Command += ` --tokenizer-revision v9`
	w := &world{revisions: map[string]string{"org/m@v9": strings.Repeat("9", 40)}}
	_, err := Resolve(t.Context(), e, Options{Pinner: w})
	var failed *PinError
	if !errors.As(err, &failed) || failed.Field != "engine.command: --tokenizer" || !strings.Contains(err.Error(), "org/m is wanted at two revisions") {
		t.Errorf("got %v", err)
	}
}

// TestLockArchive: where the file of an image lies is outside the plan's identity.
func TestLockArchive(t *testing.T) {
	var digests []string
	for _, path := range []string{"a/vllm.tar", "/other/copy.tar"} {
		e := experiment()
		e.Engine.Source = spec.Source{Image: spec.ArchivePrefix + path}
		w := &world{}
		r := mustResolve(t, e, Options{Pinner: w})
		if r.Archive != path || r.Plan.Identity.Engine.Image != "oci-archive@"+manifest || w.asked[0] != "archive "+path {
			t.Errorf("%q, %+v, asked %q", r.Archive, r.Plan.Identity.Engine, w.asked)
		}
		digests = append(digests, r.Plan.Digest)
		if again := mustResolve(t, e, Options{Pinner: Locked(r.Plan)}).Plan; !reflect.DeepEqual(again, r.Plan) {
			t.Errorf("from the plan: got %+v", again)
		}
	}
	if digests[0] != digests[1] {
		t.Error("two places of one image give two plans")
	}
}

// TestLockedPlanIsOfItsMeaning: a tag and the digest that it meant give one plan, but
// the locked plan of one is not taken for the other.
func TestLockedPlanIsOfItsMeaning(t *testing.T) {
	tag, byDigest := experiment(), experiment()
	byDigest.Engine.Source.Image = "vllm/vllm-openai@" + manifest
	byDigest.Model.Revision = revision
	a, b := mustResolve(t, tag, Options{Pinner: &world{}}).Plan, mustResolve(t, byDigest, Options{Pinner: &world{}}).Plan
	if a.Digest != b.Digest {
		t.Errorf("%s and %s: two plans of the same things", a.Digest, b.Digest)
	}
	if open := mustResolve(t, tag, Options{}).Plan; open.Digest == a.Digest || len(open.Pins) > 0 {
		t.Error("without a Pinner the plan is locked")
	}
	for name, change := range map[string]func(*spec.Experiment){
		"image":    func(e *spec.Experiment) { e.Engine.Source.Image = "vllm/vllm-openai:v9" },
		"source":   func(e *spec.Experiment) { e.Engine.Source = spec.Source{Commit: "main", Repo: "h/r"} },
		"revision": func(e *spec.Experiment) { e.Model.Revision = "v2" },
		"model":    func(e *spec.Experiment) { e.Model.ID = "org/other" },
		"draft": func(e *spec.Experiment) {
			e.Engine.Command += ` --speculative-config '{"method":"dflash","model":"z/draft"}'`
		},
	} {
		e := experiment()
		change(e)
		o := Options{Pinner: Locked(a), ReadFile: func(string) ([]byte, error) { return nil, errors.New("no file") }}
		if _, err := Resolve(context.Background(), e, o); !errors.Is(err, ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLockFails(t *testing.T) {
	cause := errors.New("the tag vanished")
	var pin *PinError
	_, err := Resolve(context.Background(), experiment(), Options{Pinner: &world{err: cause}})
	if !errors.As(err, &pin) || !errors.Is(err, cause) || err.Error() != "e.yaml: engine.source.image: the tag vanished" {
		t.Errorf("got %v", err)
	}
	e := experiment()
	e.Engine.Command += " --revision v2"
	if _, err := Resolve(context.Background(), e, Options{Pinner: &world{}}); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("two revisions: %v", err)
	}
}

func TestRepository(t *testing.T) {
	for image, want := range map[string]string{
		"vllm":                         "vllm",
		"vllm:v1":                      "vllm",
		"o/vllm:v1@sha256:00":          "o/vllm",
		"127.0.0.1:5000/vllm":          "127.0.0.1:5000/vllm",
		"127.0.0.1:5000/vllm:v1":       "127.0.0.1:5000/vllm",
		"127.0.0.1:5000/vllm@sha256:0": "127.0.0.1:5000/vllm",
	} {
		if got := repository(image); got != want {
			t.Errorf("%s: got %s, want %s", image, got, want)
		}
	}
}

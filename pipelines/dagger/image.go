package dagger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/experiments/plan"
	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/vllm"
)

const defaultPlatform = "linux/amd64"

// image is what the engine runs in.
type image struct {
	container *sdk.Container
	env       []string // names of the image's own variables
	home      string
	workdir   string // the engine's, where the plan's model is a relative path; empty: the image's
	argv      []string
	facts     container.Facts
	// commit that the engine must say it was built from; empty: any.
	commit string
}

// platform of a plan's image.
func platform(p *plan.Plan) sdk.Platform {
	e := p.Identity.Engine
	for _, i := range []*plan.Image{e.Locked, e.BaseLocked} {
		if i != nil && i.Platform != "" {
			return sdk.Platform(i.Platform)
		}
	}
	if b := e.Build; b != nil {
		if b.BaseLocked != nil {
			return sdk.Platform(cmp.Or(b.BaseLocked.Platform, defaultPlatform))
		}
		return sdk.Platform(cmp.Or(b.Platform, defaultPlatform))
	}
	return defaultPlatform
}

// staticBinary refuses a build of this program that could not run in a container.
func staticBinary(path string, platform sdk.Platform) error {
	const again = "build it with: CGO_ENABLED=0 GOOS=linux GOARCH=%s go build -o speedmatrix-container . and give --container-binary speedmatrix-container"
	_, arch, _ := strings.Cut(string(platform), "/")
	arch, _, _ = strings.Cut(arch, "/") // linux/arm64/v8
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s is no Linux program, so it cannot run in a container of %s; "+again, path, platform, arch)
	}
	defer f.Close()
	if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
		return fmt.Errorf("%s is built for %v, the image is for %s; "+again, path, f.Machine, platform, arch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s needs the C library of the machine it was built on, so it cannot run in any container; "+again, path, arch)
		}
	}
	return nil
}

// Static says why a program could not run in a container of the default platform.
func Static(path string) error { return staticBinary(path, defaultPlatform) }

// ours is this program as a file of the engine's.
func (j *job) ours() *sdk.File {
	self, err := filepath.Abs(j.x.Self)
	if err != nil {
		self = j.x.Self
	}
	return j.session.hostFile(self)
}

// hostFile is a file of this machine. The engine takes its name for a pattern, and finds
// nothing where it is one.
func (s *session) hostFile(file string) *sdk.File {
	dir, name := filepath.Split(file)
	if !strings.ContainsAny(name, `*?[]!\#`) {
		return s.Host().File(file)
	}
	pattern := patternSign.ReplaceAllString(name, `\$0`)
	return s.Host().Directory(dir, sdk.HostDirectoryOpts{Include: []string{pattern}}).File(name)
}

var patternSign = regexp.MustCompile(`[*?\[\]!\\#]`)

// withUs adds this program to a container.
func (j *job) withUs(c *sdk.Container) *sdk.Container {
	return c.WithFile(container.Binary, j.ours(), sdk.ContainerWithFileOpts{Permissions: 0o755})
}

// scratch is a container that holds this program and nothing else.
func (j *job) scratch() *sdk.Container {
	return j.withUs(j.session.Container(sdk.ContainerOpts{Platform: platform(j.Plan)}))
}

// image gets the plan's image or builds it.
func (j *job) image(ctx context.Context) (*image, error) {
	e := j.Plan.Identity.Engine
	img := &image{}
	var err error
	switch e.Source {
	case "image":
		err = j.pulled(ctx, img)
	case "commit":
		img.commit = e.Commit
		err = j.built(ctx, img)
	case "wheel":
		err = j.wheels(ctx, img)
	case "simulator":
		err = j.simulated(img)
	default:
		err = fmt.Errorf("engine.source: the Dagger executor cannot start %q", e.Source)
	}
	if err != nil {
		return nil, err
	}
	return img, j.configure(ctx, img)
}

// from is an image of a registry, by digest and nothing else.
func (j *job) from(ctx context.Context, ref string, locked *plan.Image) (*sdk.Container, error) {
	repository, digest, ok := strings.Cut(ref, "@")
	if !ok || locked == nil || digest != locked.Manifest {
		return nil, fmt.Errorf("%s is not pinned: lock the plan with plan --lock", ref)
	}
	c := j.session.Container(sdk.ContainerOpts{Platform: sdk.Platform(locked.Platform)})
	host, _, _ := strings.Cut(repository, "/")
	if user, ok := j.logins[host]; ok {
		c = c.WithRegistryAuth(host, user, j.session.secret(loginSecret(host)))
	}
	return c.From(ref), nil
}

// login gets the credentials for the registries of the plan's images.
func (j *job) login(ctx context.Context, values map[string]string, push []string) error {
	if j.x.Login == nil {
		return nil
	}
	e := j.Plan.Identity.Engine
	refs := append([]string{e.Image, e.Base}, push...)
	if e.Build != nil {
		refs = append(refs, e.Build.Image, e.Build.Base)
	}
	j.logins = map[string]string{}
	for _, ref := range refs {
		host, _, ok := strings.Cut(ref, "/")
		if !ok || j.logins[host] != "" {
			continue
		}
		user, password, ok, err := j.x.Login(ctx, ref)
		if err != nil {
			return err
		}
		if ok {
			j.logins[host], values[loginSecret(host)] = user, password
		}
	}
	return nil
}

func loginSecret(host string) string {
	sum := sha256.Sum256([]byte(host))
	return "REGISTRY_" + hex.EncodeToString(sum[:4])
}

// pulled is source image: by digest from its registry, or from an archive.
func (j *job) pulled(ctx context.Context, img *image) (err error) {
	e := j.Plan.Identity.Engine
	if j.Archive != "" {
		j.progress("build", "importing %s", j.Archive)
		archive := j.Archive
		if !filepath.IsAbs(archive) {
			archive = filepath.Join(j.BaseDir, archive)
		}
		archive, err := filepath.Abs(archive)
		if err != nil {
			return err
		}
		img.container = j.session.Container(sdk.ContainerOpts{Platform: sdk.Platform(e.Locked.Platform)}).Import(j.session.hostFile(archive))
		j.note("Image", "%s, from an archive", e.Locked.Manifest)
		return nil
	}
	j.progress("build", "pulling %s", e.Image)
	if img.container, err = j.from(ctx, e.Image, e.Locked); err != nil {
		return err
	}
	j.note("Image", "%s (%s)", e.Image, e.Locked.Platform)
	return nil
}

// simulated is this program itself as the engine.
func (j *job) simulated(img *image) error {
	p, err := j.simulatorProfile()
	if err != nil {
		return err
	}
	const profile = "/speedmatrix/profile.yaml"
	img.container = j.scratch().WithNewFile(profile, string(p))
	img.argv = []string{container.Binary, "simulate", "--addr", fmt.Sprintf("0.0.0.0:%d", enginePort), "--profile", profile}
	return nil
}

// configure reads the image's configuration and makes the command of it.
func (j *job) configure(ctx context.Context, img *image) error {
	failed := func(err error) error { return j.engineFailed(ctx, "get the image", err) }
	got, err := img.container.Platform(ctx)
	if err != nil {
		return failed(err)
	}
	if want := platform(j.Plan); !samePlatform(got, want) {
		return fmt.Errorf("the image is for %s, the plan was locked for %s", got, want)
	}
	env, err := img.container.EnvVariables(ctx)
	if err != nil {
		return failed(err)
	}
	img.home = "/root"
	for _, v := range env {
		name, err := v.Name(ctx)
		if err != nil {
			return failed(err)
		}
		img.env = append(img.env, name)
		if name == "HOME" {
			if value, err := v.Value(ctx); err == nil && path.IsAbs(value) {
				img.home = value
			}
		}
	}
	if img.argv != nil {
		return nil
	}
	entrypoint, err := img.container.Entrypoint(ctx)
	if err != nil {
		return failed(err)
	}
	var note string
	if img.argv, note, err = pipelines.WithEntrypoint(entrypoint, j.serve.Args); err != nil {
		return err
	}
	if note != "" {
		j.note("Program", "%s", note)
	}
	return nil
}

func samePlatform(a, b sdk.Platform) bool {
	clean := func(p sdk.Platform) string { return strings.TrimSuffix(string(p), "/v8") }
	return clean(a) == clean(b)
}

// inspect looks into the image with our own program and holds what it finds against the
// plan.
func (j *job) inspect(ctx context.Context, img *image) (err error) {
	const facts = "/speedmatrix/facts.json"
	j.progress("build", "looking into the image")
	file := j.withUs(img.container).
		WithUser("0:0"). // the image's own user may not write there
		WithExec([]string{container.Binary, "inspect", "--out", facts}).
		File(facts)
	out := filepath.Join(j.tmp, "facts.json")
	if _, err := file.Export(ctx, out); err != nil {
		return j.engineFailed(ctx, "get the image", err)
	}
	if img.facts, err = container.ReadFacts(out); err != nil {
		return err
	}
	f := &img.facts
	if len(f.Disks) > 0 {
		if w := j.cacheLimits.warning(f.Disks[0].TotalBytes, f.Disks[0].FreeBytes); w != "" {
			j.progress("build", "warning: %s", w)
			j.note("Warning", "%s", w)
		}
	}
	if len(f.Packages) > 0 {
		j.note("Packages", "%d, their list is logs/%s", len(f.Packages), j.packagesLog())
		if err := j.writePackages(f.Packages); err != nil {
			return err
		}
	}
	if f.Python != "" {
		j.note("Python", "%s", f.Python)
	}
	if f.OS != "" {
		j.note("Container OS", "%s", f.OS)
	}
	if f.CPU != "" {
		// Where the engine runs; this machine may be another one.
		text := fmt.Sprintf("%s, %d cores", f.CPU, f.Cores)
		if n := f.Memory.TotalBytes; n != nil {
			text += fmt.Sprintf(", %.1f GiB of memory", float64(*n)/(1<<30))
		}
		j.note("Container CPU", "%s", text)
	}
	limits := fmt.Sprintf("/dev/shm %d GiB", shmBytes>>30)
	if n := f.Limits.OpenFiles; n != nil && n.Soft != nil {
		limits += fmt.Sprintf(", %s open files", n)
	}
	if n := f.Limits.LockedBytes; n != nil {
		limits += fmt.Sprintf(", %s bytes of locked memory", n)
	}
	j.note("Container limits", "%s", limits)
	if want := j.Plan.Identity.Engine.Python; want != "" && f.Python != want && !strings.HasPrefix(f.Python, want+".") {
		return fmt.Errorf("engine.source.wheel.base has Python %s, the experiment wants %s", cmp.Or(f.Python, "of an unknown version"), want)
	}
	return checkVersion(j.Plan, img)
}

// checkVersion refuses an image that was built from another commit than the plan says.
func checkVersion(p *plan.Plan, img *image) error {
	if img.commit == "" {
		return nil
	}
	if img.facts.VLLM == "" {
		return fmt.Errorf("the image of commit %s holds no vllm package", img.commit)
	}
	v, err := vllm.ParseVersion(img.facts.VLLM)
	if err != nil {
		return fmt.Errorf("the vllm package of the image: %w", err)
	}
	if v.Commit != "" && !vllm.SameCommit(v.Commit, img.commit) {
		return fmt.Errorf("the image was built from commit %s (its vllm says %s), the plan says %s", v.Commit, img.facts.VLLM, img.commit)
	}
	return nil
}

func (j *job) packagesLog() string { return fmt.Sprintf("packages-%d.txt", j.Launch) }

func (j *job) writePackages(packages []container.Package) error {
	var b strings.Builder
	for _, p := range packages {
		fmt.Fprintf(&b, "%s==%s", p.Name, p.Version)
		if p.Commit != "" {
			fmt.Fprintf(&b, "  # commit %s", p.Commit)
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(filepath.Join(j.LogsDir, j.packagesLog()), []byte(b.String()), 0o644)
}

// engineFailed words an error of the container engine: what failed, with the last lines
// that the failed step printed.
func (j *job) engineFailed(ctx context.Context, what string, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	var exec *sdk.ExecError
	if errors.As(err, &exec) {
		said := cmp.Or(strings.TrimSpace(exec.Stderr), strings.TrimSpace(exec.Stdout), traceparent.ReplaceAllString(exec.Message(), ""))
		return fmt.Errorf("%s: %s: exit status %d%s", what, j.redact.Redact(strings.Join(exec.Cmd, " ")), exec.ExitCode, quote(j.redact.Redact(said), 12))
	}
	text := j.words(err)
	for _, h := range hints {
		if strings.Contains(text, h.said) {
			return fmt.Errorf("%s: %s\n%s", what, text, h.wayOn)
		}
	}
	return fmt.Errorf("%s: %s", what, text)
}

// words is an error of the container engine, as far as it is for people.
func (j *job) words(err error) string {
	text := traceparent.ReplaceAllString(strings.TrimPrefix(err.Error(), "input: "), "")
	return j.redact.Redact(text)
}

// isLost says whether an error means that the session, or the engine, is not there any
// more.
func isLost(err error) bool {
	if err == nil {
		return false
	}
	var answered *sdk.ExecError
	if errors.As(err, &answered) {
		return false
	}
	for _, word := range []string{"connection refused", "connection reset", "broken pipe", "EOF", "error 502", "no such session", "session not found"} {
		if strings.Contains(err.Error(), word) {
			return true
		}
	}
	return false
}

// traceparent is what engines add to each error for their own traces.
var traceparent = regexp.MustCompile(` ?\[traceparent:[0-9a-f-]+\]`)

// hints are the ways on from what container engines say; the first that fits is given.
var hints = []struct{ said, wayOn string }{
	{gpuVariable, "the Dagger engine was started without GPU support: start it with " + gpuVariable + "=1 in its environment (docs/dagger.md), or run without a GPU with --gpus none"},
	{"no space left on device", "the disk of the Dagger engine is full: `dagger core engine local-cache prune` frees its cache"},
	{"unauthorized", "the registry wants a login: docker login, then --registry-login"},
	{"not found", "if the registry removed it, lock the plan again, or build from the commit (engine.source.commit)"},
}

// quote puts the last lines of a text below a message.
func quote(text string, n int) string {
	lines := slices.Collect(strings.Lines(text))
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n  | %s", strings.TrimRight(l, "\r\n"))
	}
	return b.String()
}

// sortedArgs are build arguments in the order of their names.
func sortedArgs(args map[string]string) []sdk.BuildArg {
	var out []sdk.BuildArg
	for _, name := range slices.Sorted(maps.Keys(args)) {
		out = append(out, sdk.BuildArg{Name: name, Value: args[name]})
	}
	return out
}

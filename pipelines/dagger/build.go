package dagger

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/wheels"
)

// built is source commit: the way that the plan says.
func (j *job) built(ctx context.Context, img *image) (err error) {
	e := j.Plan.Identity.Engine
	b := e.Build
	if b == nil {
		return errors.New("engine.source.commit: the plan does not say how the image is made: lock it with plan --lock")
	}
	switch b.Way {
	case "nightly":
		j.progress("build", "pulling the nightly image of commit %s", e.Commit)
		if img.container, err = j.from(ctx, b.Image, e.Locked); err != nil {
			return err
		}
		j.note("Image", "%s, the nightly of commit %s", b.Image, e.Commit)
	case "wheel":
		return j.overlaid(ctx, img)
	case "dockerfile":
		return j.dockerBuilt(img)
	default:
		return fmt.Errorf("engine.source.build.way: %q is none that this program knows", b.Way)
	}
	return nil
}

// overlaid is the commit's own wheel in an image that has what the wheel needs.
func (j *job) overlaid(ctx context.Context, img *image) error {
	b := j.Plan.Identity.Engine.Build
	base, err := j.from(ctx, b.Base, b.BaseLocked)
	if err != nil {
		return err
	}
	j.progress("build", "installing the wheel of commit %s", j.Plan.Identity.Engine.Commit)
	u, err := url.Parse(b.WheelURL)
	if err != nil {
		return fmt.Errorf("the wheel of the plan: %w", err)
	}
	file, wheel := path.Base(u.Path), "/speedmatrix/"+path.Base(u.Path) // without escapes: its name says what it is
	content := j.session.HTTP(b.WheelURL, sdk.HTTPOpts{Checksum: "sha256:" + b.WheelSHA256})
	img.container = base.
		WithMountedFile(wheel, content).
		WithExec([]string{"python3", "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", wheel}).
		WithoutMount(wheel)
	j.note("Image", "%s with the wheel %s (sha256:%s) of commit %s", b.Base, file, b.WheelSHA256, j.Plan.Identity.Engine.Commit)
	return nil
}

// dockerBuilt is the repository's own Dockerfile at the commit, with patches in order.
func (j *job) dockerBuilt(img *image) error {
	e := j.Plan.Identity.Engine
	b := e.Build
	if len(j.Patches) != len(b.Patches) {
		return fmt.Errorf("engine.source.build.patches: %d files were read, the plan has %d", len(j.Patches), len(b.Patches))
	}
	repo, err := j.repository(e.Repo)
	if err != nil {
		return err
	}
	j.progress("build", "building the image of commit %s", e.Commit)
	// The whole history with its tags: the build asks git for its version.
	tree := repo.Commit(e.Commit).Tree(sdk.GitRefTreeOpts{Depth: -1, IncludeTags: true})
	how := fmt.Sprintf("built from %s at commit %s with %s", e.Repo, e.Commit, b.Dockerfile)
	if b.Target != "" {
		how += ", target " + b.Target
	}
	for i, p := range b.Patches {
		tree = tree.WithPatch(string(j.Patches[i]))
		how += fmt.Sprintf(", patch %s (sha256:%s)", p.Name, p.SHA256)
	}
	img.container = tree.DockerBuild(sdk.DirectoryDockerBuildOpts{
		Dockerfile: b.Dockerfile,
		Target:     b.Target,
		Platform:   platform(j.Plan),
		BuildArgs:  sortedArgs(b.Args),
	})
	j.note("Image", "%s", how)
	return nil
}

// repository is that of source commit: an address, with or without its scheme, or a folder
// of this machine.
func (j *job) repository(repo string) (*sdk.GitRepository, error) {
	dir, isFile := strings.CutPrefix(repo, "file://")
	isFolder := isFile || strings.HasPrefix(repo, "/") || repo == "." || repo == ".." || strings.HasPrefix(repo, "./") || strings.HasPrefix(repo, "../")
	switch {
	case !isFolder && strings.Contains(repo, "://"):
		return j.session.Git(repo), nil
	case !isFolder:
		return j.session.Git("https://" + repo), nil
	}
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(j.BaseDir, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("engine.source.repo: %w", err)
	}
	return j.session.Host().Directory(dir).AsGit(), nil
}

// wheels is source wheel: the lock's packages in a base image, the same lock that the
// host executor uses.
func (j *job) wheels(ctx context.Context, img *image) error {
	e := j.Plan.Identity.Engine
	if e.Base == "" {
		return errors.New("engine.source.wheel.base: a container needs a base image with Python and pip (such as the python image of the same version), and the experiment names none")
	}
	if j.Wheel == nil {
		return errors.New("engine.source.wheel: its files were not read")
	}
	base, err := j.from(ctx, e.Base, e.BaseLocked)
	if err != nil {
		return err
	}
	j.progress("build", "installing the wheels of the lock")
	if _, err := wheels.Read(j.Wheel.Lock); err != nil {
		return fmt.Errorf("engine.source.wheel.lock: %w", err)
	}
	const lock = "/speedmatrix/lock.txt"
	c := j.withInstaller(base.WithNewFile(lock, string(j.Wheel.Lock))).
		WithUser("0:0").
		WithExec([]string{"python3", "-m", "venv", venv}).
		WithExec([]string{venv + "/bin/python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
			"--no-cache-dir", "--require-hashes", "--no-deps", "--requirement", lock})
	// What the lock says another distribution provides; nobody can install it.
	c = j.withUs(c).
		WithExec([]string{container.Binary, "provide", "--lock", lock, "--venv", venv}).
		WithoutFile(container.Binary).
		WithEnvVariable("PATH", venv+"/bin:${PATH}", sdk.ContainerWithEnvVariableOpts{Expand: true})
	if j.Wheel.ModelScript != "" {
		if c, err = j.withModelScript(c, img); err != nil {
			return err
		}
	}
	img.container = j.withoutInstaller(c)
	j.note("Image", "%s with the wheels of the lock %s", e.Base, e.Lock)
	return nil
}

// venv is where the wheels of a lock lie.
const venv = "/speedmatrix/venv"

// modelDir is where a script of the experiment makes the model: the engine is started in
// it, so the path on its command line leads there.
const modelDir = "/speedmatrix/model"

func (j *job) withModelScript(c *sdk.Container, img *image) (*sdk.Container, error) {
	name := pipelines.ModelArgument(j.Plan.Identity.Engine.Argv)
	if name == "" || !filepath.IsLocal(name) {
		return nil, fmt.Errorf("engine.command: the model is %q; with engine.source.wheel.model it must be a relative path, where the script's result will lie", name)
	}
	script, err := os.ReadFile(j.Wheel.ModelScript)
	if err != nil {
		return nil, fmt.Errorf("engine.source.wheel.model: %w", err)
	}
	const at = "/speedmatrix/make_model.py"
	img.workdir = modelDir
	return c.WithNewFile(at, string(script)).
		WithNewFile(path.Join(modelDir, path.Dir(name), ".made"), "").
		WithExec([]string{venv + "/bin/python", "-I", at, path.Join(modelDir, name)}), nil
}

const caFile = "/speedmatrix/ca.pem"

// caVariables say where programs of this machine find the certificates of the network
// that it is in; a build in a container is in the same network.
var caVariables = []string{"SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}

// isInstaller says whether a variable of ours is for whoever installs packages.
func isInstaller(name string) bool {
	return strings.HasPrefix(name, "PIP_") && name != "PIP_CERT" && name != "PIP_FIND_LINKS" || strings.HasPrefix(name, "UV_")
}

// withNetwork lets a step reach what this machine reaches.
func (j *job) withNetwork(c *sdk.Container) *sdk.Container {
	for _, name := range caVariables {
		if file := supervise.Getenv(j.x.Environ, name); file != "" {
			if _, err := os.Stat(file); err != nil {
				continue
			}
			c = c.WithMountedFile(caFile, j.session.hostFile(file))
			for _, name := range caVariables {
				c = c.WithEnvVariable(name, caFile)
			}
			return c
		}
	}
	return c
}

// holdsPassword says whether a value is an address with a password in it. Only those are
// secrets: the engine takes every secret's value out of all that a step prints, and a 1
// is in many lines.
func holdsPassword(value string) bool {
	for _, word := range strings.Fields(value) {
		if u, err := url.Parse(word); err == nil && u.User != nil {
			return true
		}
	}
	return false
}

// withInstaller adds what pip needs of our environment.
func (j *job) withInstaller(c *sdk.Container) *sdk.Container {
	c = j.withNetwork(c)
	for _, kv := range j.x.Environ {
		name, value, _ := strings.Cut(kv, "=")
		if !isInstaller(name) || value == "" {
			continue
		}
		if s := j.session.secret(envSecret(name)); s != nil {
			c = c.WithSecretVariable(name, s)
		} else {
			c = c.WithEnvVariable(name, value)
		}
	}
	return c
}

func (j *job) withoutInstaller(c *sdk.Container) *sdk.Container {
	for _, kv := range j.x.Environ {
		if name, _, _ := strings.Cut(kv, "="); isInstaller(name) {
			c = c.WithoutSecretVariable(name).WithoutEnvVariable(name)
		}
	}
	for _, name := range caVariables {
		c = c.WithoutEnvVariable(name)
	}
	return c.WithoutMount(caFile)
}

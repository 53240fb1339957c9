package dagger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	sdk "dagger.io/dagger"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/weights"
)

// modelVolume is a volume that holds a model, and where the engine finds it.
type modelVolume struct {
	volume *sdk.CacheVolume
	at     string
}

// models fills the volumes of the plan's models. They are kept by model and revision, so
// a second run finds them; a marker in each says that it is complete.
func (j *job) models(ctx context.Context, img *image) ([]modelVolume, error) {
	var out []modelVolume
	for i, s := range j.Plan.Identity.Model.Snapshots {
		v, err := j.model(ctx, img, s, i)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// model fills the volume of one model, from inside: a step of the engine's own network
// fetches it, so the files never pass through this program.
func (j *job) model(ctx context.Context, img *image, s plan.Snapshot, index int) (modelVolume, error) {
	snapshot, err := json.Marshal(s)
	if err != nil {
		return modelVolume{}, err
	}
	key := weights.Key(s)
	m := modelVolume{volume: j.volume("speedmatrix-model-" + key)}
	const file, folder, source = "/speedmatrix/snapshot.json", "/speedmatrix/fill", "source"
	args := []string{container.Binary, "weights", "--snapshot", file, "--dir", folder}
	step := j.withNetwork(j.withUs(img.container)).
		WithUser("0:0").
		WithNewFile(file, string(snapshot)).
		WithEnvVariable(container.RunVariable, j.launchID). // the volume may have been emptied since
		With(j.mount(folder, m.volume))

	if s.Revision == "" {
		// A folder of this machine: it is handed over file by file, and by nothing that
		// would copy the whole of it into the engine's cache first.
		dir := s.ID
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(j.BaseDir, dir)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return m, err
		}
		serving, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		go weights.Serve(serving, l, dir, s)
		port := l.Addr().(*net.TCPAddr).Port
		host := j.session.Host().Service([]sdk.PortForward{{Backend: port, Frontend: 80}}, sdk.HostServiceOpts{Host: "127.0.0.1"})
		step = step.WithServiceBinding(source, host)
		args = append(args, "--source", "http://"+source)
		// Where a relative path of the command leads, from the folder that the engine is
		// started in.
		m.at = s.ID
		if !path.IsAbs(m.at) {
			img.workdir = cmp.Or(img.workdir, modelDir)
			m.at = path.Join(img.workdir, filepath.ToSlash(s.ID))
		}
	} else {
		m.at = path.Join(container.HubDir, weights.HubFolder(s.ID))
		hub, err := j.hub(&step)
		if err != nil {
			return m, err
		}
		args = append(args, "--source", hub)
		for _, ref := range j.refs(s, index) {
			args = append(args, "--ref", ref)
		}
		if token := j.session.secret(secretToken); token != nil {
			step = step.WithSecretVariable(tokenVariable, token)
			args = append(args, "--token-env", tokenVariable)
		}
	}
	j.progress("build", "fetching %s", s.ID)
	if _, err := step.WithExec(args).Sync(ctx); err != nil {
		return m, j.engineFailed(ctx, "fetch the model "+s.ID, err)
	}
	j.note("Model", "%s %s, %d files, %d bytes", s.ID, cmp.Or(s.Revision, "from a folder"), len(s.Files), s.Bytes)
	return m, nil
}

// hub is the address of the hub for a step. One on this machine's loopback is not where
// the step runs, so it is brought there.
func (j *job) hub(step **sdk.Container) (string, error) {
	u, err := url.Parse(j.x.Hub)
	if err != nil || u.Hostname() == "" {
		return "", fmt.Errorf("the hub %q is no address", j.x.Hub)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return j.x.Hub, nil
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil || u.Scheme != "http" {
		return "", fmt.Errorf("the hub %s is on this machine: give it as http://127.0.0.1:PORT", j.x.Hub)
	}
	service := j.session.Host().Service([]sdk.PortForward{{Backend: port, Frontend: port}}, sdk.HostServiceOpts{Host: u.Hostname()})
	*step = (*step).WithServiceBinding("hub", service)
	u.Host = net.JoinHostPort("hub", u.Port())
	return u.String(), nil
}

// refs are the names by which the engine asks for a revision: what the experiment or the
// command calls it. The first snapshot is the model itself.
func (j *job) refs(s plan.Snapshot, index int) []string {
	refs := []string{"main"}
	if index == 0 {
		if said, ok := servecmd.Flag(j.Plan.Identity.Engine.Argv, "--revision"); ok {
			refs = append(refs, said)
		}
	}
	for _, pin := range j.Plan.Pins {
		if name, ref, ok := strings.Cut(pin.Asked, "@"); ok && name == s.ID && pin.Found == s.Revision {
			refs = append(refs, ref)
		}
	}
	slices.Sort(refs)
	return slices.Compact(slices.DeleteFunc(refs, func(r string) bool { return r == s.Revision }))
}

// volume is a cache volume by its key. One function makes them all: a volume that is
// named with other options is another volume.
func (j *job) volume(key string) *sdk.CacheVolume {
	return j.session.CacheVolume(key)
}

// mount puts a volume at a path; see volume.
func (j *job) mount(at string, v *sdk.CacheVolume) sdk.WithContainerFunc {
	return func(c *sdk.Container) *sdk.Container {
		return c.WithMountedCache(at, v, sdk.ContainerWithMountedCacheOpts{Sharing: sdk.CacheSharingModeShared})
	}
}

// runVolume is the volume of this run, which outlives its sessions.
func (j *job) runVolume() *sdk.CacheVolume { return j.volume("speedmatrix-run-" + j.RunID) }

// compileCaches are the folders in which vLLM and what it uses keep compiled code.
func (j *job) compileCaches(img *image) map[string]*sdk.CacheVolume {
	out := map[string]*sdk.CacheVolume{}
	if j.Plan.Identity.Engine.Source == "simulator" {
		return out
	}
	key := "speedmatrix-compiled-" + imageKey(j.Plan)
	if j.x.ColdCaches {
		key = "speedmatrix-compiled-" + j.launchID
	}
	for name, dir := range map[string]string{"vllm": ".cache/vllm", "flashinfer": ".cache/flashinfer", "triton": ".triton"} {
		out[path.Join(img.home, dir)] = j.volume(fmt.Sprintf("%s-%s", key, name))
	}
	return out
}

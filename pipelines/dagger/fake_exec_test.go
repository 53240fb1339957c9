package dagger

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// execCall is a command that an engine would run in a container.
type execCall struct {
	Args     []string
	Env      map[string]string // the image's, and what was added
	Secrets  map[string]string // variable to the secret's uri: no value is known here
	Mounts   map[string]mount  // by path
	Services map[string]*service
	GPUs     []string // nil: none; empty: all
	Platform string
	User     string
	Workdir  string
	Expect   string // ANY, FAILURE; empty: SUCCESS
	// Stdout and Stderr are kept, and go to the session's log as they come.
	Stdout, Stderr io.Writer

	root string
}

// mount is what is mounted at a path.
type mount struct {
	Cache  string // key of a volume
	Dir    string // its folder here
	Temp   bool
	Size   int64
	Secret string // uri
	Source *node  // of a file or folder
}

// execResult is how a command ended. An Err means that it did not: the engine says so.
type execResult struct {
	Code           int
	Stdout, Stderr string // more of it
	Err            error
}

// Path is where a path of the container is here: in a volume, or in the command's own
// file system, which is thrown away unless it is exported.
func (c *execCall) Path(p string) string {
	best := ""
	for at, m := range c.Mounts {
		if m.Dir != "" && (p == at || strings.HasPrefix(p, at+"/")) && len(at) > len(best) {
			best = at
		}
	}
	if best != "" {
		return filepath.Join(c.Mounts[best].Dir, strings.TrimPrefix(p, best))
	}
	return filepath.Join(c.root, p)
}

// Address is host:port of a bound service here. It waits until the service's hook says it.
func (c *execCall) Address(ctx context.Context, alias string) (string, error) {
	s := c.Services[alias]
	if s == nil {
		return "", fmt.Errorf("no service is bound as %s", alias)
	}
	if s.host != "" {
		return s.host, nil
	}
	select {
	case <-s.serving:
		return s.address, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// containerState is what a chain made of a container, but for its files.
type containerState struct {
	env, secrets map[string]string
	mounts       map[string]mount
	services     map[string]*node
	gpus         []string
	platform     string
	user         string
	workdir      string
	entrypoint   []string
	defaultArgs  []string
}

// state follows a container's chain. A step that the fake does not know is refused.
func (s *fakeSession) state(n *node) (*containerState, error) {
	c := &containerState{env: map[string]string{}, secrets: map[string]string{}, mounts: map[string]mount{}, services: map[string]*node{}}
	clean := func(n *node) string { return path.Clean(n.text("path")) }
	for _, n := range n.chain()[len(n.up("container", "dockerBuild").chain())-1:] {
		switch n.field {
		case "container":
			c.platform = n.text("platform")
		case "from", "import", "dockerBuild":
			if p := n.text("platform"); p != "" {
				c.platform = p
			}
			s.f.configured(n, c)
		case "withEnvVariable", "withVolatileVariable":
			value := n.text("value")
			if n.arg("expand") == true {
				value = os.Expand(value, func(name string) string { return c.env[name] })
			}
			c.env[n.text("name")] = value
		case "withoutEnvVariable":
			delete(c.env, n.text("name"))
		case "withSecretVariable":
			c.secrets[n.text("name")] = n.object("secret").text("uri")
		case "withoutSecretVariable":
			delete(c.secrets, n.text("name"))
		case "withMountedCache":
			dir, err := s.f.cacheDir(n.object("cache"))
			if err != nil {
				return nil, err
			}
			c.mounts[clean(n)] = mount{Cache: n.object("cache").text("key"), Dir: dir}
		case "withMountedTemp":
			size, _ := n.arg("size").(int64)
			c.mounts[clean(n)] = mount{Temp: true, Size: size}
		case "withMountedSecret":
			c.mounts[clean(n)] = mount{Secret: n.object("source").text("uri")}
		case "withMountedFile", "withMountedDirectory":
			c.mounts[clean(n)] = mount{Source: n.object("source")}
		case "withoutMount":
			delete(c.mounts, clean(n))
		case "withServiceBinding":
			c.services[n.text("alias")] = n.object("service")
		case "experimentalWithGPU":
			c.gpus = n.words("devices")
		case "experimentalWithAllGPUs":
			c.gpus = []string{}
		case "withUser":
			c.user = n.text("name")
		case "withoutUser":
			c.user = ""
		case "withWorkdir":
			c.workdir = path.Join(cmp.Or(c.workdir, "/"), n.text("path"))
		case "withEntrypoint":
			c.entrypoint = n.words("args")
		case "withoutEntrypoint":
			c.entrypoint = nil
		case "withDefaultArgs":
			c.defaultArgs = n.words("args")
		case "withoutDefaultArgs":
			c.defaultArgs = nil
		case "withExec", "withNewFile", "withFile", "withDirectory", "withoutFile", "withoutDirectory", // files: see rootfs
			"withRegistryAuth", "withExposedPort", "withoutExposedPort", "withoutDockerHealthcheck", "withLabel", "withAnnotation":
		default:
			return nil, s.f.unknown("it knows no step %s of a container", n.field)
		}
	}
	return c, nil
}

// configured takes over an image's configuration.
func (f *fake) configured(n *node, c *containerState) {
	image := imageConfig{
		Env:        map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Entrypoint: []string{"vllm", "serve"},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.answers {
		if m, ok := a.value.(imageConfig); ok && a.match(n) {
			image = m
		}
	}
	c.env, c.entrypoint, c.user, c.workdir = maps.Clone(image.Env), image.Entrypoint, image.User, image.Workdir
	if c.env == nil {
		c.env = map[string]string{}
	}
	c.platform = cmp.Or(image.Platform, c.platform)
}

// imageConfig describes an image: the answer to step("from", …), step("import") or
// step("dockerBuild").
type imageConfig struct {
	Env           map[string]string
	Entrypoint    []string
	User, Workdir string
	Platform      string
}

// volume is the folder of a cache volume that is named by its key and nothing else.
func (f *fake) volume(key string) string {
	f.mu.Lock()
	n := f.intern(nil, "cacheVolume", []argument{{"key", key}})
	f.mu.Unlock()
	dir, err := f.cacheDir(n)
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

func (f *fake) cacheDir(n *node) (string, error) {
	dir := filepath.Join(f.dir, "volume-"+n.short())
	return dir, os.MkdirAll(dir, 0o777)
}

// execRun is a command whose result is there, or will be.
type execRun struct {
	done           chan struct{}
	code           int
	stdout, stderr bytes.Buffer
	root           string
	err            error
	dropped        bool // it ended because who had asked went away
}

// onExec sets what runs commands; it must end when its context does. Without it each
// command ends well and does nothing.
func (f *fake) onExec(hook func(context.Context, *execCall) execResult) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.execHook = hook
}

// runs counts how often commands that match were run: one that is taken from the cache
// is not.
func (f *fake) runs(m matcher) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := 0
	for n, times := range f.ran {
		if m(n) {
			sum += times
		}
	}
	return sum
}

// exec runs the command of a withExec once, whoever asks for it. A failure is not kept.
func (s *fakeSession) exec(ctx context.Context, n *node) (*execRun, error) {
	for {
		s.f.mu.Lock()
		r := s.f.execs[n]
		if r == nil {
			break
		}
		s.f.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if !r.dropped {
			return r, r.err
		}
	}
	r := &execRun{done: make(chan struct{})}
	s.f.execs[n] = r
	s.f.ran[n]++
	s.f.mu.Unlock()
	r.err = s.run(ctx, n, r)
	r.dropped = ctx.Err() != nil
	if r.err != nil {
		s.f.mu.Lock()
		delete(s.f.execs, n)
		s.f.mu.Unlock()
	}
	close(r.done)
	return r, r.err
}

func (s *fakeSession) run(ctx context.Context, n *node, r *execRun) error {
	before, err := s.rootfs(ctx, n.parent)
	if err != nil {
		return err
	}
	st, err := s.state(n.parent)
	if err != nil {
		return err
	}
	if r.root, err = s.f.copyOf(before); err != nil {
		return err
	}
	call := &execCall{
		Args: n.words("args"), Env: st.env, Secrets: st.secrets, Mounts: st.mounts, Services: map[string]*service{},
		GPUs: st.gpus, Platform: st.platform, User: st.user, Workdir: st.workdir, Expect: n.text("expect"), root: r.root,
		Stdout: io.MultiWriter(&r.stdout, s.printed()), Stderr: io.MultiWriter(&r.stderr, s.printed()),
	}
	if n.arg("useEntrypoint") == true {
		call.Args = append(slices.Clone(st.entrypoint), call.Args...)
	}
	if len(call.Args) == 0 {
		call.Args = st.defaultArgs
	}
	// What is mounted from elsewhere can be read at its place; volumes are where Path says.
	for at, m := range st.mounts {
		if m.Source != nil {
			if err := s.place(ctx, m.Source, filepath.Join(r.root, at)); err != nil {
				return err
			}
		}
	}
	bound, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for alias, svc := range st.services {
		sv, err := s.start(ctx, svc)
		if err != nil {
			return err
		}
		call.Services[alias] = sv
		s.busy.Add(1)
		go func() { // a command ends with a service that it is bound to
			defer s.busy.Done()
			select {
			case <-sv.exited:
				cancel(&graphError{Message: fmt.Sprintf("bound service %q (%s) exited: exit code: %d", alias, svc.short(), sv.code)})
			case <-bound.Done():
			}
		}()
	}
	s.f.mu.Lock()
	hook := s.f.execHook
	s.f.mu.Unlock()
	var res execResult
	if hook != nil {
		res = hook(bound, call)
	}
	_, _ = io.WriteString(call.Stdout, res.Stdout)
	_, _ = io.WriteString(call.Stderr, res.Stderr)
	if bound.Err() != nil {
		return context.Cause(bound)
	}
	if res.Err != nil {
		return res.Err
	}
	r.code = res.Code
	if (res.Code != 0 && call.Expect == "") || (res.Code == 0 && call.Expect == "FAILURE") {
		return execError(call.Args, res.Code, r.stdout.String(), r.stderr.String())
	}
	return nil
}

// printed is where the lines of a command go: the session's log, each with a mark.
func (s *fakeSession) printed() io.Writer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines++
	return &logLines{s: s, mark: strconv.Itoa(s.lines)}
}

type logLines struct {
	s       *fakeSession
	mark    string
	pending []byte
}

func (w *logLines) Write(p []byte) (int, error) {
	// Not the session's own lock: whoever reads the log may lose the session.
	w.s.logging.Lock()
	defer w.s.logging.Unlock()
	w.pending = append(w.pending, p...)
	for {
		line, rest, ok := bytes.Cut(w.pending, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		if _, err := fmt.Fprintf(w.s.log, "%s : [0.1s] | %s\n", w.mark, line); err != nil {
			return 0, err
		}
		w.pending = bytes.Clone(rest)
	}
}

// rootfs is a folder with the files of a container or directory. Nobody writes into it.
func (s *fakeSession) rootfs(ctx context.Context, n *node) (string, error) {
	if n == nil {
		return s.f.copyOf("")
	}
	s.f.mu.Lock()
	root, ok := s.f.roots[n]
	s.f.mu.Unlock()
	if ok {
		return root, nil
	}
	root, err := s.makeRoot(ctx, n)
	if err != nil {
		return "", err
	}
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.roots[n] = root
	return root, nil
}

func (s *fakeSession) makeRoot(ctx context.Context, n *node) (string, error) {
	change := func(f func(root string) error) (string, error) {
		before, err := s.rootfs(ctx, n.parent)
		if err != nil {
			return "", err
		}
		root, err := s.f.copyOf(before)
		if err != nil {
			return "", err
		}
		return root, f(root)
	}
	switch n.field {
	case "withExec":
		r, err := s.exec(ctx, n)
		if err != nil {
			return "", err
		}
		return r.root, nil
	case "withNewFile":
		return change(func(root string) error {
			to := filepath.Join(root, n.text("path"))
			if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
				return err
			}
			return os.WriteFile(to, []byte(n.text("contents")), 0o666)
		})
	case "withFile", "withDirectory":
		return change(func(root string) error {
			source := n.object("source")
			if source == nil {
				source = n.object("directory")
			}
			return s.place(ctx, source, filepath.Join(root, n.text("path")))
		})
	case "withoutFile", "withoutDirectory":
		return change(func(root string) error { return os.RemoveAll(filepath.Join(root, n.text("path"))) })
	case "container", "from", "import", "dockerBuild", "tree":
		return s.f.copyOf("")
	case "directory":
		if n.parent == nil {
			return s.f.copyOf("")
		}
		return s.locate(ctx, n)
	case "rootfs":
		return s.rootfs(ctx, n.parent)
	}
	return s.rootfs(ctx, n.parent)
}

// locate is the path here of a file or directory.
func (s *fakeSession) locate(ctx context.Context, n *node) (string, error) {
	p := n.text("path")
	switch {
	case n.field == "http" || n.field == "asTarball":
		root, err := s.f.copyOf("")
		if err != nil {
			return "", err
		}
		file := filepath.Join(root, n.field)
		return file, os.WriteFile(file, []byte(n.String()+"\n"), 0o666)
	case n.field != "file" && n.field != "directory" || n.parent == nil:
		return s.rootfs(ctx, n)
	case n.parent.field == "host":
		return p, nil
	}
	if c := n.parent.up("container", "dockerBuild", "directory", "rootfs", "tree", "git"); c != nil && (c.field == "container" || c.field == "dockerBuild") {
		st, err := s.state(n.parent)
		if err != nil {
			return "", err
		}
		for at, m := range st.mounts {
			if m.Dir != "" && (p == at || strings.HasPrefix(p, at+"/")) {
				return "", &graphError{Message: fmt.Sprintf("%s: cannot retrieve path from cache", p)}
			}
		}
	}
	root, err := s.rootfs(ctx, n.parent)
	if err != nil {
		return "", err
	}
	here := filepath.Join(root, p)
	if _, err := os.Stat(here); err != nil {
		return "", &graphError{Message: fmt.Sprintf("lstat %s: no such file or directory", p)}
	}
	return here, nil
}

// place puts a file or directory at a path here. A file of the host becomes a link: ours
// is large.
func (s *fakeSession) place(ctx context.Context, n *node, to string) error {
	from, err := s.locate(ctx, n)
	if err != nil {
		return err
	}
	if n.field == "file" && n.parent.field == "host" {
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		_ = os.Remove(to)
		return os.Symlink(from, to)
	}
	return copyTree(from, to)
}

// copyOf is a new folder with a copy of another's content.
func (f *fake) copyOf(dir string) (string, error) {
	to, err := os.MkdirTemp(f.dir, "root-")
	if err != nil || dir == "" {
		return to, err
	}
	return to, copyTree(dir, to)
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(from, p)
		at := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(at, 0o777)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(link, at)
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
			return err
		}
		return os.WriteFile(at, b, 0o666)
	})
}

// serviceCall is a service that an engine would start.
type serviceCall struct {
	execCall
	// Term is closed when the service is told to stop. The context ends when it is killed,
	// or its session is over.
	Term <-chan struct{}

	svc *service
}

// Serves says where the service listens here.
func (c *serviceCall) Serves(address string) {
	c.svc.address = address
	close(c.svc.serving)
}

// Wait is the rest of a service that obeys: until it is told to stop, or killed.
func (c *serviceCall) Wait(ctx context.Context) int {
	select {
	case <-c.Term:
		return 0
	case <-ctx.Done():
		return 137
	}
}

// service is one start of a service. Its counts are read with stopped and killed.
type service struct {
	n               *node
	Args            []string
	Env             map[string]string
	host            string // of a service of the host: its address
	address         string
	serving         chan struct{}
	term            chan struct{}
	kill            context.CancelFunc
	exited          chan struct{}
	code            int
	stopped, killed int
}

// onService sets what runs services. It returns when the service ends, with its exit
// code; it must end when its context does. Without it a service is a [serviceCall.Wait].
func (f *fake) onService(hook func(context.Context, *serviceCall) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.srvHook = hook
}

// ignoresStop is a service that has to be killed.
func ignoresStop(ctx context.Context, _ *serviceCall) int {
	<-ctx.Done()
	return 137
}

// exits is a service that ends at once.
func exits(code int) func(context.Context, *serviceCall) int {
	return func(context.Context, *serviceCall) int { return code }
}

// started are the starts of services, in order.
func (f *fake) started() []*service {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.services)
}

// stops says how often the engine was told to stop and to kill what matches.
func (f *fake) stops(m matcher) (stopped, killed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.services {
		if m(s.n) {
			stopped, killed = stopped+s.stopped, killed+s.killed
		}
	}
	return stopped, killed
}

// start starts a service unless one of the same content runs in this session.
func (s *fakeSession) start(ctx context.Context, n *node) (*service, error) {
	if n.field == "service" && n.parent.field == "host" {
		ports, _ := n.arg("ports").([]any)
		if len(ports) != 1 {
			return nil, s.f.unknown("a service of the host has one port")
		}
		sv := &service{n: n, host: net.JoinHostPort(cmp.Or(n.text("host"), "localhost"), fmt.Sprint(ports[0].(map[string]any)["backend"])), exited: make(chan struct{})}
		return sv, nil
	}
	if n.field != "asService" {
		return nil, s.f.unknown("%s is no service", n.field)
	}
	st, err := s.state(n.parent)
	if err != nil {
		return nil, err
	}
	before, err := s.rootfs(ctx, n.parent)
	if err != nil {
		return nil, err
	}
	root, err := s.f.copyOf(before)
	if err != nil {
		return nil, err
	}
	for _, other := range slices.Collect(maps.Values(st.services)) {
		if _, err := s.start(ctx, other); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	if sv := s.services[n]; sv != nil {
		select {
		case <-sv.exited: // it is started again
		default:
			s.mu.Unlock()
			return sv, nil
		}
	}
	if s.ctx.Err() != nil {
		s.mu.Unlock()
		return nil, context.Cause(s.ctx)
	}
	living, kill := context.WithCancel(s.ctx)
	sv := &service{n: n, Args: n.words("args"), Env: st.env, serving: make(chan struct{}), term: make(chan struct{}), kill: kill, exited: make(chan struct{})}
	if n.arg("useEntrypoint") == true {
		sv.Args = append(slices.Clone(st.entrypoint), sv.Args...)
	}
	if len(sv.Args) == 0 {
		sv.Args = append(slices.Clone(st.entrypoint), st.defaultArgs...)
	}
	s.services[n] = sv
	s.busy.Add(1)
	s.f.running.Add(1)
	s.mu.Unlock()
	call := &serviceCall{execCall: execCall{
		Args: sv.Args, Env: st.env, Secrets: st.secrets, Mounts: st.mounts, GPUs: st.gpus, Platform: st.platform,
		User: st.user, Workdir: st.workdir, Stdout: s.printed(), Stderr: s.printed(), root: root,
	}, Term: sv.term, svc: sv}
	s.f.mu.Lock()
	hook := s.f.srvHook
	s.f.services = append(s.f.services, sv)
	s.f.mu.Unlock()
	go func() {
		defer s.leave()
		defer kill()
		if hook != nil {
			sv.code = hook(living, call)
		} else {
			sv.code = call.Wait(living)
		}
		close(sv.exited)
	}()
	return sv, nil
}

// stop waits for the end of a service, however long that takes.
func (s *fakeSession) stop(ctx context.Context, n *node, kill bool) error {
	s.mu.Lock()
	sv := s.services[n]
	s.mu.Unlock()
	if sv == nil {
		return nil
	}
	s.f.mu.Lock()
	if kill {
		sv.killed++
		sv.kill()
	} else {
		if sv.stopped++; sv.stopped == 1 {
			close(sv.term)
		}
	}
	s.f.mu.Unlock()
	select {
	case <-sv.exited:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answerItself answers what no table does.
func (s *fakeSession) answerItself(ctx context.Context, n *node) (any, error) {
	p := n.parent
	if p == nil {
		if n.field == "version" {
			return fakeVersion, nil
		}
		return nil, s.f.unknown("it does not know the question %s", n.field)
	}
	switch n.field {
	case "id":
		return p.id, nil
	case "start":
		_, err := s.start(ctx, p)
		return p.id, err
	case "stop":
		return p.id, s.stop(ctx, p, n.arg("kill") == true)
	case "hostname":
		return p.short(), nil
	case "endpoint":
		return fmt.Sprintf("%s:%v", p.short(), cmp.Or(n.arg("port"), any(int64(8000)))), nil
	case "export":
		return s.export(ctx, p, n.text("path"))
	case "sync":
		if _, err := s.locate(ctx, p); err != nil {
			return nil, err
		}
		return p.id, nil
	case "exitCode", "stdout", "stderr":
		e := p.up("withExec")
		if e == nil {
			return nil, &graphError{Message: "no command has been set"}
		}
		r, err := s.exec(ctx, e)
		if err != nil {
			return nil, err
		}
		return map[string]any{"exitCode": r.code, "stdout": r.stdout.String(), "stderr": r.stderr.String()}[n.field], nil
	case "contents", "size":
		file, err := s.locate(ctx, p)
		if err != nil {
			return nil, err
		}
		b, err := os.ReadFile(file)
		if n.field == "size" {
			return len(b), err
		}
		return string(b), err
	case "entries":
		dir, err := s.locate(ctx, p)
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(filepath.Join(dir, n.text("path")))
		names := []string{}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names, err
	case "digest":
		return "sha256:" + strings.TrimPrefix(p.id, "id-"), nil
	case "imageRef":
		if from := p.up("from"); from != nil {
			return from.text("address"), nil
		}
		return nil, &graphError{Message: "Image reference can only be retrieved immediately after the 'Container.From' call. Error in fetching imageRef as the container image is changed"}
	case "publish":
		repository := n.text("address")
		if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
			repository = repository[:i]
		}
		return repository + "@sha256:" + strings.TrimPrefix(p.id, "id-"), nil
	case "maxUsedSpace", "minFreeSpace", "reservedSpace", "targetSpace":
		return map[string]int64{"maxUsedSpace": 750 << 30, "minFreeSpace": 200 << 30, "reservedSpace": 10 << 30}[n.field], nil
	case "platform", "envVariables", "entrypoint", "user", "workdir", "defaultArgs", "labels":
		st, err := s.state(p)
		if err != nil {
			return nil, err
		}
		env := []map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(st.env)) {
			env = append(env, map[string]any{"name": name, "value": st.env[name]})
		}
		return map[string]any{
			"platform": cmp.Or(st.platform, defaultPlatform), "envVariables": env, "user": st.user, "workdir": st.workdir,
			"entrypoint": append([]string{}, st.entrypoint...), "defaultArgs": append([]string{}, st.defaultArgs...), "labels": []map[string]any{},
		}[n.field], nil
	}
	return nil, s.f.unknown("it does not know the question %s of\n%s", n.field, p)
}

// export copies to a path of the host.
func (s *fakeSession) export(ctx context.Context, n *node, to string) (string, error) {
	if !filepath.IsAbs(to) {
		return "", s.f.unknown("the export to %s depends on where the session was started", to)
	}
	from, err := s.locate(ctx, n)
	if err != nil {
		return "", err
	}
	return to, copyTree(from, to)
}

//go:build linux

package host

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/wheels"
)

// marker is the last file written into a virtual environment: one without it was
// never finished. The environment is not built beside and renamed, because the
// scripts in its bin folder name their interpreter by its full path.
const marker = "speedmatrix.json"

// venv is a virtual environment made of a lock; also the content of its marker.
type venv struct {
	Lock        string    `json:"lock"`        // sha256 of the lock's bytes
	Python      string    `json:"python"`      // "3.12.1"
	Interpreter string    `json:"interpreter"` // path it was made from
	Installer   string    `json:"installer"`   // "uv 0.9.2", "pip 23.2.1 …"
	Packages    int       `json:"packages"`
	MadeAt      time.Time `json:"made_at"`

	dir string
}

func (v *venv) bin(name string) string { return filepath.Join(v.dir, "bin", name) }

// pythonVersion is what an experiment may ask for: 3.12, or exactly 3.12.1.
var pythonVersion = regexp.MustCompile(`^3\.\d{1,2}(\.\d{1,3})?$`)

// ensureVenv returns the virtual environment of a lock: the one in the cache folder, or
// a new one. Two runs that need the same one do not build it twice.
func (j *job) ensureVenv(ctx context.Context) (*venv, error) {
	w := j.Wheel
	lock, err := wheels.Read(w.Lock)
	if err != nil {
		return nil, fmt.Errorf("engine.source.wheel.lock: %w", err)
	}
	if !pythonVersion.MatchString(w.Python) {
		return nil, fmt.Errorf("engine.source.wheel.python: %q is not a version such as 3.12", w.Python)
	}
	hash := sumOf(w.Lock)
	// Half of the hash names the folder, so that the first line of its scripts stays
	// within what the kernel reads; the marker has all of it.
	dir := filepath.Join(j.CacheDir, "venvs", hash[:32]+"-py"+w.Python)
	if v, ok := readVenv(dir, hash); ok {
		return v, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	unlock, err := j.lockFile(ctx, dir+".lock", "another run is making the same virtual environment")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v, ok := readVenv(dir, hash); ok {
		return v, nil
	}
	v := &venv{Lock: hash, Packages: lock.Packages, dir: dir}
	if err := j.build(ctx, v, lock); err != nil {
		return nil, fmt.Errorf("make the virtual environment %s: %w", dir, err)
	}
	return v, nil
}

// readVenv returns a finished virtual environment that still works: its
// interpreter has not been removed meanwhile.
func readVenv(dir, hash string) (*venv, bool) {
	b, err := os.ReadFile(filepath.Join(dir, marker))
	if err != nil {
		return nil, false
	}
	v := venv{dir: dir}
	if json.Unmarshal(b, &v) != nil || v.Lock != hash {
		return nil, false
	}
	if _, err := os.Stat(v.bin("python")); err != nil {
		return nil, false
	}
	return &v, true
}

func (j *job) build(ctx context.Context, v *venv, lock wheels.Lock) error {
	py, err := j.findPython(ctx, j.Wheel.Python)
	if err != nil {
		return err
	}
	v.Python, v.Interpreter = py.version, py.path
	uv, hasUV := supervise.LookPath("uv", j.environ)
	if !hasUV && !py.ensurepip {
		return fmt.Errorf("%s has no ensurepip, so it cannot make a virtual environment by itself; install uv, or the package that adds it (Debian, Ubuntu: python%s-venv)", py.path, minor(py.version))
	}
	if err := os.RemoveAll(v.dir); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(j.LogsDir, "venv.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// pip unpacks into its folder for temporary files; on the disk that has room for
	// the result there is room for that.
	tmp := v.dir + ".tmp"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	requirements := filepath.Join(tmp, "lock.txt")
	if err := os.WriteFile(requirements, j.Wheel.Lock, 0o644); err != nil {
		return err
	}

	step := func(program string, args ...string) error {
		w := supervise.NewLog(log, j.secrets, j.chatter("build"))
		err := supervise.Run(ctx, j.self, supervise.Command{
			Program: program,
			Args:    args,
			Env:     supervise.Setenv(buildEnv(j.environ), "TMPDIR", tmp),
			Dir:     tmp,
			Grace:   time.Second,
			Log:     w,
		})
		return errors.Join(err, w.Close())
	}
	j.progress("build", fmt.Sprintf("making a virtual environment of %d packages with Python %s", lock.Packages, py.version))
	if hasUV {
		v.Installer = version(ctx, uv, "--version")
		err = step(uv, "venv", "--no-project", "--python", py.path, v.dir)
		if err == nil {
			err = step(uv, "pip", "install", "--python", v.bin("python"), "--require-hashes", "--no-deps", "-r", requirements)
		}
	} else {
		err = step(py.path, "-m", "venv", v.dir)
		if err == nil {
			v.Installer = version(ctx, v.bin("python"), "-m", "pip", "--version")
			err = step(v.bin("python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off",
				"--require-hashes", "--no-deps", "-r", requirements)
		}
	}
	if err != nil {
		return fmt.Errorf("%w\nwhat was printed is in %s; if a package could not be fetched, look at the network and the package index that is set up; if the disk is full, the folder %s can be removed", err, log.Name(), filepath.Dir(v.dir))
	}
	site := filepath.Join(v.dir, "lib", "python"+minor(py.version), "site-packages")
	for _, d := range lock.Provides {
		if err := wheels.Provide(site, d); err != nil {
			return err
		}
	}
	v.MadeAt = time.Now().UTC()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(v.dir, marker), append(b, '\n'))
}

// writeFile writes beside, syncs and renames: the file is whole or not there.
func writeFile(path string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	if err = errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// lockFile takes a lock that ends with this process, however it ends.
func (j *job) lockFile(ctx context.Context, path, why string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for told := false; ; told = true {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if !told {
			j.progress("build", "waiting: "+why)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// python is an interpreter that was found.
type python struct {
	path, version string
	ensurepip     bool
}

// findPython returns an interpreter of the wanted version. It asks each candidate
// for its version: a name on the PATH may be a shim that stands for no interpreter
// at all.
func (j *job) findPython(ctx context.Context, want string) (python, error) {
	home := supervise.Getenv(j.environ, "HOME")
	var candidates []string
	for _, name := range []string{"python" + minor(want), "python3", "python"} {
		candidates = append(candidates, supervise.LookAll(name, j.environ)...)
	}
	for _, pattern := range []string{
		filepath.Join(cmp.Or(supervise.Getenv(j.environ, "PYENV_ROOT"), filepath.Join(home, ".pyenv")), "versions", want+"*"),
		filepath.Join(home, ".local", "share", "uv", "python", "cpython-"+want+"*"),
		filepath.Join("/opt", "python", "cp"+strings.ReplaceAll(minor(want), ".", "")+"*"),
	} {
		dirs, _ := filepath.Glob(pattern) // the pattern is well formed
		slices.Reverse(dirs)
		for _, dir := range dirs {
			candidates = append(candidates, filepath.Join(dir, "bin", "python"+minor(want)))
		}
	}
	var seen []string
	for _, path := range candidates {
		p, err := probe(ctx, path, j.environ)
		if err != nil {
			continue
		}
		if p.version == want || strings.HasPrefix(p.version, want+".") {
			return p, nil
		}
		if found := p.version + " at " + path; !slices.Contains(seen, found) {
			seen = append(seen, found)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return python{}, err
	}
	found := "none was found"
	if len(seen) > 0 {
		found = "found: " + strings.Join(seen, ", ")
	}
	return python{}, fmt.Errorf("no Python %s (%s); install one (uv python install %[1]s; Debian, Ubuntu: apt-get install python%[3]s python%[3]s-venv; pyenv install %[1]s), or set engine.source.wheel.python to a version that is there and that the lock is made for",
		want, found, minor(want))
}

// probeLimit is the time for a program to say what it is.
const probeLimit = 20 * time.Second

var errProbe = fmt.Errorf("it did not say within %v what it is", probeLimit)

// probe asks an interpreter what it is.
func probe(ctx context.Context, path string, environ []string) (python, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, errProbe)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "-I", "-c",
		"import sys, importlib.util as u; print('%d.%d.%d' % sys.version_info[:3], bool(u.find_spec('ensurepip')))")
	cmd.Env = buildEnv(environ)
	out, err := cmd.Output()
	if err != nil {
		return python{}, err
	}
	f := strings.Fields(string(out))
	if len(f) != 2 || !pythonVersion.MatchString(f[0]) {
		return python{}, fmt.Errorf("%s: not an interpreter", path)
	}
	return python{path: path, version: f[0], ensurepip: f[1] == "True"}, nil
}

// version returns the first line that a program prints about itself; it is for
// people only.
func version(ctx context.Context, program string, args ...string) string {
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, errProbe)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return filepath.Base(program)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	// pip adds where it lies, which is nobody's business.
	line, _, _ = strings.Cut(line, " from ")
	line, _, _ = strings.Cut(line, " (")
	return strings.TrimSpace(line)
}

// minor returns the first two numbers of a version.
func minor(version string) string {
	f := strings.SplitN(version, ".", 3)
	return strings.Join(f[:min(2, len(f))], ".")
}

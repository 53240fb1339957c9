package container

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Bounds of what is looked at and read back.
const (
	maxXML      = 8 << 20
	maxFacts    = 32 << 20
	maxPackages = 20000
	maxFact     = 8 << 10 // bytes of one text

	smiLimit = 20 * time.Second
)

// Facts is what an image holds and what a container offers. Nil and empty: not known.
type Facts struct {
	// Program is the vllm that PATH gives, Interpreter the Python that it runs by.
	Program     string `json:"program,omitempty"`
	Interpreter string `json:"interpreter,omitempty"`
	VLLM        string `json:"vllm,omitempty"`   // version of the package
	Python      string `json:"python,omitempty"` // "3.12.11"; "3.12" if no more can be told
	// Packages of the environment that vllm belongs to, by name.
	Packages []Package `json:"packages,omitempty"`
	// Environments are the folders of Python environments, where there is no vllm.
	Environments []string `json:"environments,omitempty"`

	OS     string `json:"os,omitempty"`
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	Cores  int    `json:"cores,omitempty"` // that this process may use
	Memory Memory `json:"memory"`
	// CPULimit is how many cores the control group gives, as 1.5.
	CPULimit *float64 `json:"cpu_limit,omitempty"`
	// ShmBytes is the size of /dev/shm; nil: it is no memory of its own.
	ShmBytes *int64 `json:"shm_bytes,omitempty"`
	Limits   Limits `json:"limits"`
	Disks    []Disk `json:"disks,omitempty"`

	Env map[string]string `json:"env,omitempty"` // of envFacts, those that are set
	GPU GPUFacts          `json:"gpu"`
}

// Package is one installed distribution.
type Package struct {
	Name    string `json:"name"` // normalised: "flashinfer-python"
	Version string `json:"version,omitempty"`
	Commit  string `json:"commit,omitempty"` // it was installed from
}

// Memory in bytes.
type Memory struct {
	TotalBytes *int64 `json:"total_bytes,omitempty"` // of the machine
	LimitBytes *int64 `json:"limit_bytes,omitempty"` // of the control group; nil: none
}

// Limits of a process.
type Limits struct {
	OpenFiles   *Limit `json:"open_files,omitempty"`
	LockedBytes *Limit `json:"locked_bytes,omitempty"`
	Processes   *Limit `json:"processes,omitempty"`
}

// Limit is a soft and a hard one; nil: not known.
type Limit struct {
	Soft *uint64 `json:"soft,omitempty"`
	Hard *uint64 `json:"hard,omitempty"`
}

// unlimited is a [Limit] that is none.
const unlimited = ^uint64(0)

// String is the soft limit, for people.
func (l *Limit) String() string {
	switch {
	case l == nil, l.Soft == nil:
		return "unknown"
	case *l.Soft == unlimited:
		return "unlimited"
	}
	return fmt.Sprint(*l.Soft)
}

// Disk is a file system.
type Disk struct {
	Path       string `json:"path"`
	TotalBytes int64  `json:"total_bytes"`
	FreeBytes  int64  `json:"free_bytes"` // for those who are not root
}

// GPUFacts is what nvidia-smi said: its report, or why there is none.
type GPUFacts struct {
	Program string `json:"program,omitempty"`
	XML     string `json:"xml,omitempty"`
	Error   string `json:"error,omitempty"`
}

// Place is where to look.
type Place struct {
	// Root is the folder that holds the root file system: "/", or a test's.
	Root    string
	Environ []string
}

// envFacts are the variables of an image that are facts of it; others may be secret.
func envFacts() []string {
	return []string{"CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "VLLM_ENABLE_CUDA_COMPATIBILITY"}
}

// Inspect looks at the container that it runs in and writes [Facts] to a file. Whatever
// cannot be found out is absent; only a file that cannot be written is an error.
func Inspect(ctx context.Context, place Place, out string) error {
	f := look(ctx, place)
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // the report of nvidia-smi is XML
	e.SetIndent("", "  ")
	if err := e.Encode(f); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	if err := os.WriteFile(out, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("inspect: the facts cannot be written: %w", err)
	}
	return nil
}

func look(ctx context.Context, place Place) Facts {
	fsys := rooted{place.Root}
	var f Facts
	fsys.python(&f, place.Environ)
	f.OS = fsys.osName()
	machine(fsys, &f)
	f.Limits = askLimits(ctx, fsys, place.Environ)
	for _, name := range envFacts() {
		if v, ok := lookup(place.Environ, name); ok {
			if f.Env == nil {
				f.Env = map[string]string{}
			}
			f.Env[name] = clean(v)
		}
	}
	f.GPU = askGPU(ctx, fsys, place.Environ)
	return f
}

// askLimits reads the limits that an engine would have. Ours are others: the Go runtime
// raises its own soft limit of open files, and gives the first one to programs that it
// starts, so that cat has to read it. Where there is none, that one limit stays unknown.
func askLimits(ctx context.Context, fsys rooted, environ []string) Limits {
	const own = "/proc/self/limits"
	if cat := fsys.onPath("cat", environ); cat != "" {
		ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errors.New("cat took more than 5 s"))
		defer cancel()
		out := &bounded{left: 64 << 10}
		cmd := exec.CommandContext(ctx, fsys.real(cat), own)
		cmd.Env, cmd.Stdout, cmd.WaitDelay = environ, out, time.Second
		if cmd.Run() == nil {
			return parseLimits(out.String())
		}
	}
	l := parseLimits(string(fsys.read(own, 64<<10)))
	if l.OpenFiles != nil {
		l.OpenFiles.Soft = nil
	}
	return l
}

// parseLimits reads /proc/<pid>/limits.
func parseLimits(text string) Limits {
	var l Limits
	for line := range strings.Lines(text) {
		for name, to := range map[string]**Limit{"Max open files ": &l.OpenFiles, "Max locked memory ": &l.LockedBytes, "Max processes ": &l.Processes} {
			rest, ok := strings.CutPrefix(line, name)
			f := strings.Fields(rest)
			if !ok || len(f) < 2 {
				continue
			}
			*to = &Limit{rlimit(f[0]), rlimit(f[1])}
		}
	}
	return l
}

func rlimit(s string) *uint64 {
	if s == "unlimited" {
		return new(unlimited)
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return nil
	}
	return &v
}

// askGPU keeps what nvidia-smi says word for word: it is parsed outside.
func askGPU(ctx context.Context, fsys rooted, environ []string) GPUFacts {
	program := fsys.onPath("nvidia-smi", environ)
	if program == "" {
		return GPUFacts{Error: "nvidia-smi is not on PATH: the container was given no GPU, or NVIDIA_DRIVER_CAPABILITIES lacks utility"}
	}
	g := GPUFacts{Program: program}
	ctx, cancel := context.WithTimeoutCause(ctx, smiLimit, fmt.Errorf("it took more than %v", smiLimit))
	defer cancel()
	ctx, full := context.WithCancelCause(ctx)
	defer full(nil)
	stdout := &bounded{left: maxXML, full: func() { full(fmt.Errorf("it said more than %d bytes", maxXML)) }}
	stderr := &bounded{left: maxFact}
	cmd := exec.CommandContext(ctx, fsys.real(program), "-q", "-x")
	cmd.Env = environ
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		// It tells what is wrong on standard output.
		said := clean(strings.TrimSpace(strings.TrimSpace(stderr.String()) + "\n" + head(stdout.String(), 1<<10)))
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		g.Error = strings.TrimSpace(fmt.Sprintf("%v: %s", err, said))
		return g
	}
	g.XML = strings.ToValidUTF8(stdout.String(), "\uFFFD")
	return g
}

// bounded keeps as much as it may, and says when that was not all. The buffer is not
// embedded: its ReadFrom would be found, and knows no bound.
type bounded struct {
	kept bytes.Buffer
	left int
	full func()
}

func (b *bounded) String() string { return b.kept.String() }

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.kept.Write(p[:n])
	if n < len(p) && b.full != nil {
		b.full()
	}
	return len(p), nil
}

// ReadFacts reads a file that Inspect wrote. The image may hold anything: what is read is
// bounded, and fit to be shown.
func ReadFacts(path string) (Facts, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Facts{}, fmt.Errorf("facts of the image: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Facts{}, fmt.Errorf("facts of the image: %s is no file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return Facts{}, fmt.Errorf("facts of the image: %w", err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxFacts+1))
	if err != nil {
		return Facts{}, fmt.Errorf("facts of the image: %w", err)
	}
	return parseFacts(b)
}

func parseFacts(b []byte) (Facts, error) {
	var f Facts
	if len(b) > maxFacts {
		return f, fmt.Errorf("facts of the image: more than %d bytes", maxFacts)
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return Facts{}, fmt.Errorf("facts of the image: %w", err)
	}
	switch {
	case len(f.Packages) > maxPackages:
		return Facts{}, fmt.Errorf("facts of the image: %d packages, more than %d", len(f.Packages), maxPackages)
	case len(f.GPU.XML) > 3*maxXML: // bytes that are no text have become three
		return Facts{}, fmt.Errorf("facts of the image: %d bytes of nvidia-smi, more than %d", len(f.GPU.XML), maxXML)
	case len(f.Environments) > maxEnvironments || len(f.Disks) > 1 || len(f.Env) > len(envFacts()):
		return Facts{}, errors.New("facts of the image: lists that Inspect did not write")
	}
	for _, s := range []*string{&f.Program, &f.Interpreter, &f.VLLM, &f.Python, &f.OS, &f.Kernel, &f.CPU, &f.GPU.Program, &f.GPU.Error} {
		*s = clean(*s)
	}
	for i := range f.Packages {
		p := &f.Packages[i]
		p.Name, p.Version, p.Commit = clean(p.Name), clean(p.Version), clean(p.Commit)
	}
	for i := range f.Environments {
		f.Environments[i] = clean(f.Environments[i])
	}
	for i := range f.Disks {
		f.Disks[i].Path = clean(f.Disks[i].Path)
	}
	env := make(map[string]string, len(f.Env))
	for k, v := range f.Env {
		env[clean(k)] = clean(v)
	}
	f.Env = env
	return f, nil
}

// clean makes a text one line of printable characters, of bounded length.
func clean(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, head(s, maxFact)))
}

func head(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

func lookup(environ []string, name string) (string, bool) {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}

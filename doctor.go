package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"speedmatrix/pipelines/dagger"
)

func doctorCmd(p process) *cobra.Command {
	var results string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks, and the command that mends it",
		Long: `Doctor looks at what the sources of an engine need. Source simulator and attach
need nothing but the results folder.

A line begins with one of three words:

  has    it is here
  no     it is not here, and is wanted only for what the line says
  lacks  it is not here, and every run wants it; the line names what mends it

The exit status is 1 if something is lacking.`,
		Example: `  speedmatrix doctor`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			lacks := 0
			for _, check := range checks(c.Context(), p, results) {
				lacks += check.print(p.stdout)
			}
			return verdict(p.stdout, lacks)
		},
	}
	c.Flags().StringVar(&results, "results", "results", "folder in which runs are stored")
	return c
}

// verdict ends what doctor says.
func verdict(w io.Writer, lacks int) error {
	switch lacks {
	case 0:
		fmt.Fprintln(w, "\nnothing is lacking; what a line with \"no\" names is wanted only for what that line says")
		return nil
	case 1:
		fmt.Fprintln(w, "\n1 thing is lacking; its line names what mends it")
	default:
		fmt.Fprintf(w, "\n%d things are lacking; their lines name what mends them\n", lacks)
	}
	return exitStatus(exitWrong) // it is told
}

// check is one thing a machine has or lacks.
type check struct {
	name string
	why  string // who needs it, or what for
	has  string // what was found; empty: lacking
	mend string // the command, or the sentence, that mends it
	soft bool   // nice to have: its absence is no failure
}

func (c check) print(w io.Writer) int {
	switch {
	case c.has != "":
		fmt.Fprintf(w, "has    %-22s %s\n", c.name, printable(c.has))
		return 0
	case c.soft:
		fmt.Fprintf(w, "no     %-22s %s; %s\n", c.name, c.why, c.mend)
		return 0
	}
	fmt.Fprintf(w, "lacks  %-22s %s; mend it with: %s\n", c.name, c.why, c.mend)
	return 1
}

func checks(ctx context.Context, p process, results string) []check {
	return append([]check{
		resultsFolder(results),
		diskSpace(cacheDir(p)),
		fileLimit(),
		loopback(),
		python(ctx),
		{name: "uv", why: "makes source wheel faster", has: look("uv"), mend: "python3 -m pip install uv", soft: true},
		{name: "nvidia-smi", why: "GPU facts of source host and wheel", has: look("nvidia-smi"), mend: "install the NVIDIA driver, if there is a GPU", soft: true},
	}, containers(ctx, p)...)
}

// containers are the checks of sources image and commit. An engine that is named is asked;
// none is started.
func containers(ctx context.Context, p process) []check {
	h := dagger.Look(ctx, p.self, p.environ())
	const why = "sources image and commit are measured in containers"
	cli := check{name: "dagger CLI", why: why, soft: true, mend: "install version " + dagger.SDKVersion + " of it (docs/dagger.md)"}
	switch {
	case h.CLIError != nil && h.CLI != "":
		cli.soft, cli.mend = false, h.CLIError.Error()
	case h.CLI != "":
		cli.has = fmt.Sprintf("version %s at %s", h.CLIVersion, h.CLI)
	}
	engine := check{name: "Dagger engine", why: why, soft: true, mend: "install Docker or Podman, which the CLI starts one with, or name one in " + dagger.RunnerVariable}
	switch {
	case h.EngineError != nil:
		engine.mend = h.EngineError.Error()
	case h.Warning != "":
		engine.soft, engine.mend = false, h.Warning
	case h.Engine != "":
		engine.has = "version " + h.Engine
		if !h.GPUs {
			engine.has += ", without GPUs unless it was started with them (docs/dagger.md)"
		}
	case h.Starts != "":
		engine.has = "the CLI starts one with " + h.Starts
	}
	binary := check{name: "static build", why: "the same program runs in the containers", soft: true, mend: "CGO_ENABLED=0 go build"}
	if dagger.Static(p.self) == nil {
		binary.has = p.self
	}
	return []check{cli, engine, binary}
}

func look(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func resultsFolder(dir string) check {
	c := check{name: "results folder", why: "runs are stored there", mend: "mkdir -p " + dir + " && chmod u+w " + dir}
	if parent := existing(dir); unix.Access(parent, unix.W_OK) == nil {
		c.has = parent + " can be written"
	}
	return c
}

// existing is the folder, or the nearest one above it that exists.
func existing(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// minFree is room for a venv of vLLM (5.6 GB seen) and some runs.
const minFree = 8 << 30

// diskSpace looks at the disk of the cache folder, which need not exist yet.
func diskSpace(dir string) check {
	c := check{name: "disk", why: "a vLLM environment takes 5.6 GB", mend: "free some space, or set XDG_CACHE_HOME to a larger disk", soft: true}
	var s unix.Statfs_t
	if unix.Statfs(existing(dir), &s) == nil {
		free := s.Bavail * uint64(s.Bsize)
		if free >= minFree {
			c.has = fmt.Sprintf("%.0f GiB free", float64(free)/(1<<30))
		}
	}
	return c
}

// A stream takes a file descriptor; the largest matrices have a thousand.
const minFiles = 2048

func fileLimit() check {
	c := check{name: "file descriptors", why: "a stream takes one", mend: fmt.Sprintf("ulimit -n %d", minFiles)}
	var r unix.Rlimit
	// The Go runtime raises the soft limit to the hard one at start.
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && r.Cur >= minFiles {
		c.has = fmt.Sprint(r.Cur)
	}
	return c
}

func loopback() check {
	c := check{name: "loopback", why: "the engine listens there", mend: "ip link set lo up"}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		c.has = l.Addr().String()
		l.Close()
	}
	return c
}

func python(ctx context.Context) check {
	return pythons(func(name string) (path string, minor int) {
		if path = look(name); path == "" {
			return "", 0
		}
		ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no version within 10 s"))
		defer cancel()
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if err != nil { // such as a shim of a version that is not chosen
			return "", 0
		}
		if _, err := fmt.Sscanf(string(out), "Python 3.%d", &minor); err != nil {
			return "", 0
		}
		return path, minor
	})
}

// pythons looks at every name that a Python which source wheel can use may have.
func pythons(find func(name string) (path string, minor int)) check {
	c := check{name: "python 3.11 or newer", why: "source wheel makes a venv with it", mend: "apt-get install python3-venv", soft: true}
	var found []string
	seen := map[int]bool{}
	for _, name := range []string{"python3.12", "python3.11", "python3.13", "python3"} {
		if path, minor := find(name); minor >= 11 && !seen[minor] {
			seen[minor] = true
			found = append(found, fmt.Sprintf("3.%d at %s", minor, path))
		}
	}
	if len(found) == 0 {
		return c
	}
	c.has = strings.Join(found, ", ")
	switch {
	case seen[12]:
	case seen[11]:
		c.has += "; experiments/vllm-cpu-tiny.yaml wants 3.12: give it --set engine.source.wheel.python=3.11"
	default:
		c.has += "; experiments/vllm-cpu-tiny.yaml wants 3.12, or 3.11 with --set engine.source.wheel.python=3.11"
	}
	return c
}

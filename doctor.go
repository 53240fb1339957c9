package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func doctorCmd(p process) *cobra.Command {
	var results string
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine lacks, and the command that mends it",
		Long: `Doctor looks at what the sources of an engine need. Source simulator and attach
need nothing. A line that begins with "lacks" names the command that mends it.`,
		Example: `  speedmatrix doctor`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			lacks := 0
			for _, check := range checks(p, results) {
				lacks += check.print(p.stdout)
			}
			if lacks > 0 {
				return fmt.Errorf("%d things are lacking; sources simulator and attach work all the same", lacks)
			}
			return nil
		},
	}
	c.Flags().StringVar(&results, "results", "results", "folder in which runs are stored")
	return c
}

// check is one thing a machine has or lacks.
type check struct {
	name string
	for_ string // who needs it
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
		fmt.Fprintf(w, "no     %-22s %s; %s\n", c.name, c.for_, c.mend)
		return 0
	}
	fmt.Fprintf(w, "lacks  %-22s %s; mend it with: %s\n", c.name, c.for_, c.mend)
	return 1
}

func checks(p process, results string) []check {
	return []check{
		resultsFolder(results),
		diskSpace(results),
		fileLimit(),
		loopback(),
		python(p),
		{name: "uv", for_: "makes source wheel faster", has: look("uv"), mend: "python3 -m pip install uv", soft: true},
		{name: "nvidia-smi", for_: "GPU facts of source host and wheel", has: look("nvidia-smi"), mend: "install the NVIDIA driver, if there is a GPU", soft: true},
		{name: "container engine", for_: "sources image and commit", has: firstOf(look("docker"), look("podman")), mend: "install Docker or Podman", soft: true},
	}
}

func look(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

func firstOf(s ...string) string {
	for _, v := range s {
		if v != "" {
			return v
		}
	}
	return ""
}

func resultsFolder(dir string) check {
	c := check{name: "results folder", for_: "runs are stored there", mend: "mkdir -p " + dir + " && chmod u+w " + dir}
	for parent := dir; ; parent = filepath.Dir(parent) {
		if _, err := os.Stat(parent); err != nil && parent != filepath.Dir(parent) {
			continue
		}
		if unix.Access(parent, unix.W_OK) == nil {
			c.has = parent + " can be written"
		}
		return c
	}
}

// minFree is room for a venv of vLLM (5.6 GB seen) and some runs.
const minFree = 8 << 30

func diskSpace(dir string) check {
	c := check{name: "disk", for_: "a vLLM environment takes 5.6 GB", mend: "free some space, or set XDG_CACHE_HOME to a larger disk", soft: true}
	var s unix.Statfs_t
	if unix.Statfs(".", &s) == nil {
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
	c := check{name: "file descriptors", for_: "a stream takes one", mend: fmt.Sprintf("ulimit -n %d", minFiles)}
	var r unix.Rlimit
	// The Go runtime raises the soft limit to the hard one at start.
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil && r.Cur >= minFiles {
		c.has = fmt.Sprint(r.Cur)
	}
	return c
}

func loopback() check {
	c := check{name: "loopback", for_: "the engine listens there", mend: "ip link set lo up"}
	if l, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
		c.has = l.Addr().String()
		l.Close()
	}
	return c
}

func python(p process) check {
	c := check{name: "python 3.11 or newer", for_: "source wheel makes a venv with it", mend: "apt-get install python3-venv", soft: true}
	for _, name := range []string{"python3.12", "python3.13", "python3.11", "python3"} {
		if path := look(name); path != "" {
			out, err := exec.Command(path, "--version").Output()
			if err == nil && !strings.HasPrefix(string(out), "Python 3.10") {
				c.has = strings.TrimSpace(string(out)) + " at " + path
				return c
			}
		}
	}
	return c
}

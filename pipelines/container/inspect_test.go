//go:build linux

package container

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// image makes a root file system. A text that begins with "-> " is a symbolic link, a
// path that begins with "+" a program.
func image(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		mode := os.FileMode(0o644)
		if rest, ok := strings.CutPrefix(name, "+"); ok {
			name, mode = rest, 0o755
		}
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(to, p)
		} else {
			err = os.WriteFile(p, []byte(text), mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func metadata(name, version string) string {
	return "Metadata-Version: 2.4\nName: " + name + "\nVersion: " + version + "\nSummary: x\nDescription-Content-Type: text/markdown\n\nName: not this\n"
}

func TestPython(t *testing.T) {
	const path = "PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
	vllm := Package{Name: "vllm", Version: "0.12.0+cu129"}
	torch := Package{Name: "torch", Version: "2.9.0"}
	tests := map[string]struct {
		files   map[string]string
		environ []string
		want    Facts
	}{
		"the published image: Debian's Python, packages by pip": {map[string]string{
			"+/usr/local/bin/vllm":                 "#!/usr/bin/python3\nimport sys\n",
			"/usr/bin/python3":                     "-> /etc/alternatives/python3",
			"/etc/alternatives/python3":            "-> /usr/bin/python3.12",
			"+/usr/bin/python3.12":                 "ELF",
			"/bin":                                 "-> usr/bin",
			"/usr/include/python3.12/patchlevel.h": "#define PY_VERSION_HEX 1\n#define PY_VERSION             \"3.12.11\"\n",
			"/usr/local/lib/python3.12/dist-packages/vllm-0.12.0+cu129.dist-info/METADATA": metadata("vllm", "0.12.0+cu129"),
			"/usr/local/lib/python3.12/dist-packages/torch-2.9.0.dist-info/METADATA":       metadata("torch", "2.9.0"),
			"/usr/lib/python3/dist-packages/torch-1.0.dist-info/METADATA":                  metadata("torch", "1.0"),
			"/usr/lib/python3/dist-packages/PyGObject-3.48.2.egg-info/PKG-INFO":            metadata("PyGObject", "3.48.2"),
			"/usr/lib/python3/dist-packages/distro-info-1.7.egg-info":                      metadata("distro.info", "1.7"),
			"/usr/local/lib/python3.10/dist-packages/other-1.dist-info/METADATA":           metadata("other", "1"),
		}, nil, Facts{Program: "/usr/local/bin/vllm", Interpreter: "/usr/bin/python3", VLLM: "0.12.0+cu129", Python: "3.12.11",
			Packages: []Package{{Name: "distro-info", Version: "1.7"}, {Name: "pygobject", Version: "3.48.2"}, torch, vllm}}},

		"Debian's version by dpkg": {map[string]string{
			"+/usr/local/bin/vllm": "#!/usr/bin/env -S python3 -u\n",
			"/usr/bin/python3":     "-> python3.12",
			"+/usr/bin/python3.12": "ELF",
			"/var/lib/dpkg/status": "Package: python3.12\nStatus: x\nVersion: 3.12.1-1\n\nPackage: python3.12-minimal\nDepends: a\nVersion: 3.12.3-1ubuntu0.9\nDescription: x\n\n",
			"/usr/local/lib/python3.12/dist-packages/vllm-0.12.0+cu129.dist-info/METADATA": metadata("vllm", "0.12.0+cu129"),
		}, nil, Facts{Program: "/usr/local/bin/vllm", Interpreter: "/usr/bin/python3", VLLM: "0.12.0+cu129", Python: "3.12.3", Packages: []Package{vllm}}},

		"venv by uv, its Python too, from a commit": {map[string]string{
			"+/opt/venv/bin/vllm":  "#!/bin/sh\n'''exec' \"/opt/venv/bin/python\" \"$0\" \"$@\"\n' '''\n",
			"/usr/local/bin/vllm":  "-> /opt/venv/bin/vllm",
			"/opt/venv/bin/python": "-> /root/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin/python3.12",
			"/opt/venv/pyvenv.cfg": "home = /root/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu/bin\nimplementation = CPython\nuv = 0.9.2\nversion_info = 3.12.11\ninclude-system-site-packages = false\n",
			"/root/.local/share/uv/python/cpython-3.12-linux-x86_64-gnu":                                                           "-> cpython-3.12.11-linux-x86_64-gnu",
			"+/root/.local/share/uv/python/cpython-3.12.11-linux-x86_64-gnu/bin/python3.12":                                        "ELF",
			"/root/.local/share/uv/python/cpython-3.12.11-linux-x86_64-gnu/lib/python3.12/site-packages/pip-25.dist-info/METADATA": metadata("pip", "25"),
			"/opt/venv/lib64": "-> lib",
			"/opt/venv/lib/python3.12/site-packages/vllm-0.12.0+cu129.dist-info/METADATA":        metadata("vllm", "0.12.0+cu129"),
			"/opt/venv/lib/python3.12/site-packages/vllm-0.12.0+cu129.dist-info/direct_url.json": `{"url":"https://github.com/vllm-project/vllm","vcs_info":{"vcs":"git","commit_id":"0123456789012345678901234567890123456789"}}`,
			"/opt/venv/lib/python3.12/site-packages/flashinfer_python-0.5.dist-info/RECORD":      "",
			"/opt/venv/lib/python3.12/site-packages/__pycache__/x.pyc":                           "",
		}, nil, Facts{Program: "/opt/venv/bin/vllm", Interpreter: "/opt/venv/bin/python", VLLM: "0.12.0+cu129", Python: "3.12.11",
			Packages: []Package{{Name: "flashinfer-python", Version: "0.5"}, {Name: "vllm", Version: "0.12.0+cu129", Commit: "0123456789012345678901234567890123456789"}}}},

		"venv over the system's packages": {map[string]string{
			"+/opt/venv/bin/vllm":   "#!/opt/venv/bin/python3\n",
			"/opt/venv/bin/python3": "-> /usr/bin/python3.12",
			"+/usr/bin/python3.12":  "ELF",
			"/opt/venv/pyvenv.cfg":  "home = /usr/bin\ninclude-system-site-packages = True\nversion = 3.12.3\n",
			"/opt/venv/lib/python3.12/site-packages/vllm-0.12.0+cu129.dist-info/METADATA": metadata("vllm", "0.12.0+cu129"),
			"/usr/local/lib/python3.12/dist-packages/torch-2.9.0.dist-info/METADATA":      metadata("torch", "2.9.0"),
			"/usr/local/lib/python3.12/dist-packages/vllm-0.1.dist-info/METADATA":         metadata("vllm", "0.1"),
		}, nil, Facts{Program: "/opt/venv/bin/vllm", Interpreter: "/opt/venv/bin/python3", VLLM: "0.12.0+cu129", Python: "3.12.3", Packages: []Package{torch, vllm}}},

		"conda": {map[string]string{
			"/usr/local/bin/vllm":                                 "-> /opt/conda/bin/vllm",
			"+/opt/conda/bin/vllm":                                "#!/opt/conda/bin/python3.11\n",
			"+/opt/conda/bin/python3.11":                          "ELF",
			"/opt/conda/conda-meta/python-3.11.9-h955ad1f_0.json": "{}",
			"/opt/conda/lib/python3.11/site-packages/vllm-0.12.0+cu129.dist-info/METADATA": metadata("vllm", "0.12.0+cu129"),
			"/usr/local/lib/python3.11/dist-packages/torch-2.9.0.dist-info/METADATA":       metadata("torch", "2.9.0"),
		}, nil, Facts{Program: "/usr/local/bin/vllm", Interpreter: "/opt/conda/bin/python3.11", VLLM: "0.12.0+cu129", Python: "3.11.9", Packages: []Package{vllm}}},

		"the package without the program": {map[string]string{
			"+/usr/local/bin/python3.12": "ELF",
			"/usr/local/bin/python3":     "-> python3.12",
			"/usr/local/lib/python3.12/site-packages/vllm-0.12.0+cu129.dist-info/METADATA": metadata("vllm", "0.12.0+cu129"),
		}, nil, Facts{Interpreter: "/usr/local/bin/python3", VLLM: "0.12.0+cu129", Python: "3.12", Packages: []Package{vllm}}},

		"PYTHONPATH comes first": {map[string]string{
			"+/usr/local/bin/vllm":                                              "#!/usr/local/bin/python3.12\n",
			"+/usr/local/bin/python3.12":                                        "ELF",
			"/src/vllm-0.12.0+cu129.dist-info/METADATA":                         metadata("vllm", "0.12.0+cu129"),
			"/usr/local/lib/python3.12/site-packages/vllm-1.dist-info/METADATA": metadata("vllm", "1"),
		}, []string{"PYTHONPATH=relative:/src"}, Facts{Program: "/usr/local/bin/vllm", Interpreter: "/usr/local/bin/python3.12", VLLM: "0.12.0+cu129", Python: "3.12", Packages: []Package{vllm}}},

		"no vllm": {map[string]string{
			"+/usr/bin/python3":                                     "ELF",
			"/srv/app/pyvenv.cfg":                                   "home = /usr/bin\n",
			"/srv/app/lib/pyvenv.cfg/file":                          "",
			"/usr/lib/python3/dist-packages/a-1.dist-info/METADATA": metadata("a", "1"),
		}, nil, Facts{Environments: []string{"/usr", "/srv/app"}}},

		"nothing": {map[string]string{"/etc/passwd": ""}, nil, Facts{}},

		"links in a circle, a program that is none": {map[string]string{
			"/opt/venv/bin/vllm":  "-> /opt/venv/bin/vllm",
			"/usr/local/bin/vllm": "no program",
			"+/usr/bin/vllm":      "#!/a/python3\n",
			"/a/python3":          "-> b",
			"/a/b":                "-> python3",
			"/a/pyvenv.cfg":       "version = ../../..\n",
		}, nil, Facts{Program: "/usr/bin/vllm", Interpreter: "/a/python3"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var f Facts
			rooted{image(t, tt.files)}.python(&f, append([]string{path, "HOME=/root"}, tt.environ...))
			if diff := cmp.Diff(tt.want, f); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	r := rooted{image(t, map[string]string{
		"/a/b/file": "x", "/abs": "-> /a/b", "/a/up": "-> ../a/b/file", "/out": "-> ../../../../../../etc/passwd", "/loop": "-> loop", "/deep": "-> abs/../b/file",
	})}
	for p, want := range map[string]string{
		"/a/b/file": "/a/b/file", "/abs/file": "/a/b/file", "/a/up": "/a/b/file", "/out": "", "/loop": "", "/../../a": "/a", "/": "/", "/deep": "/a/b/file", "/none": "",
	} {
		if got := r.resolve(p); got != want {
			t.Errorf("%s: got %q, want %q", p, got, want)
		}
	}
}

func TestGroupLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		files  map[string]string
		memory *int64
		cores  *float64
	}{
		"version 2, in a namespace": {map[string]string{"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1073741824\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, new(int64(1 << 30)), new(1.5)},
		"version 2, the parent is less": {map[string]string{"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max": "max\n", "/sys/fs/cgroup/a/memory.max": "4096\n",
			"/sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, new(int64(4096)), nil},
		"version 1": {map[string]string{"/proc/self/cgroup": "5:cpuset:/\n4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "2048\n",
			"/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "50000\n", "/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000\n", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n"}, new(int64(2048)), new(.5)},
		"version 1, no limit": {map[string]string{"/proc/self/cgroup": "3:memory:/\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, nil, nil},
		"nothing":             {map[string]string{"/x": ""}, nil, nil},
	} {
		memory, cores := rooted{image(t, tt.files)}.groupLimits()
		if diff := cmp.Diff(tt.memory, memory); diff != "" {
			t.Errorf("%s: memory (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(tt.cores, cores); diff != "" {
			t.Errorf("%s: cores (-want +got):\n%s", name, diff)
		}
	}
}

func TestParseLimits(t *testing.T) {
	got := parseLimits("Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max processes             unlimited            127235               processes \n" +
		"Max open files            1024                 524288               files     \n" +
		"Max locked memory         what                 8388608              bytes     \n")
	want := Limits{OpenFiles: &Limit{new(uint64(1024)), new(uint64(524288))}, LockedBytes: &Limit{nil, new(uint64(8388608))}, Processes: &Limit{new(unlimited), new(uint64(127235))}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for l, want := range map[*Limit]string{got.OpenFiles: "1024", got.LockedBytes: "unknown", got.Processes: "unlimited", nil: "unknown"} {
		if l.String() != want {
			t.Errorf("got %s, want %s", l, want)
		}
	}
}

func TestAskGPU(t *testing.T) {
	for name, tt := range map[string]struct{ script, xml, fails string }{
		"a report":  {`#!/bin/sh` + "\n" + `[ "$*" = "-q -x" ] && printf '<nvidia_smi_log>%s</nvidia_smi_log>' "$WHO"`, "<nvidia_smi_log>me</nvidia_smi_log>", ""},
		"no driver": {"#!/bin/sh\necho 'NVIDIA-SMI has failed because'\nexit 9", "", "exit status 9: NVIDIA-SMI has failed because"},
		"no end":    {"#!/bin/sh\nexec cat /dev/zero", "", "it said more than 8388608 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got := askGPU(t.Context(), rooted{image(t, map[string]string{"+/usr/bin/nvidia-smi": tt.script})}, []string{"PATH=/usr/bin:/bin", "WHO=me"})
			if got.Program != "/usr/bin/nvidia-smi" || got.XML != tt.xml || !strings.HasPrefix(got.Error, tt.fails) || (got.Error == "") != (tt.fails == "") {
				t.Errorf("got %.200q", got)
			}
		})
	}
	if got := askGPU(t.Context(), rooted{t.TempDir()}, nil); got.Program != "" || !strings.HasPrefix(got.Error, "nvidia-smi is not on PATH") {
		t.Errorf("without: %+v", got)
	}
}

// TestInspect looks at the machine of the test, and reads back what was found.
func TestInspect(t *testing.T) {
	out := filepath.Join(t.TempDir(), "made", "facts.json")
	environ := []string{"PATH=" + os.Getenv("PATH"), "HF_TOKEN=secret-value", "CUDA_VERSION=12.9.1"}
	if err := Inspect(t.Context(), Place{Root: "/", Environ: environ}, out); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(out); err != nil || strings.Contains(string(b), "secret-value") {
		t.Fatalf("%v, or a secret in %s", err, b)
	}
	f, err := ReadFacts(out)
	if err != nil {
		t.Fatal(err)
	}
	if f.Kernel == "" || f.Cores < 1 || f.Memory.TotalBytes == nil || len(f.Disks) != 1 || f.Disks[0].TotalBytes <= 0 || f.Limits.OpenFiles == nil {
		t.Errorf("got %+v", f)
	}
	if diff := cmp.Diff(map[string]string{"CUDA_VERSION": "12.9.1"}, f.Env); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadFacts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	f, err := ReadFacts(write("controls", `{"os":"U\u001b[31mbuntu\n24","packages":[{"name":"a\u202eb","version":"`+strings.Repeat("1", 2*maxFact)+`"}],"tomorrow":1}`))
	if err != nil || f.OS != "U[31mbuntu 24" || f.Packages[0].Name != "ab" || len(f.Packages[0].Version) != maxFact {
		t.Errorf("%v, %.100q", err, f.OS)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("controls", link); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file",
		link:                       "is no file",
		dir:                        "is no file",
		write("list", `[]`):        "facts of the image: ",
		write("env", `{"env":{"a":"","b":"","c":"","d":"","e":"","f":""}}`): "lists that Inspect did not write",
	} {
		if _, err := ReadFacts(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", p, err, want)
		}
	}
}

func FuzzFacts(f *testing.F) {
	f.Add([]byte(`{"packages":[{"name":"vllm","version":"1","commit":"x"}],"env":{"CUDA_VERSION":"12.9"},"gpu":{"xml":"<a/>"},"limits":{"open_files":{"soft":1}}}`))
	f.Add([]byte(`{"memory":{"total_bytes":-1},"os":"\ud800"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, err := parseFacts(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(facts)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseFacts(again); err != nil {
			t.Fatal(err)
		}
		_ = facts.Limits.OpenFiles.String()
	})
}

package container

import (
	"encoding/json"
	"net/mail"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	maxEnvironments = 64
	maxMetadata     = 256 << 10 // of a METADATA file; its description is not of interest
)

var (
	versionInName  = regexp.MustCompile(`python-?(3\.\d{1,3}(?:\.\d{1,3})?)(?:[^\d.]|$)`)
	versionNumbers = regexp.MustCompile(`^3\.\d{1,3}(\.\d{1,3}((a|b|rc)\d{1,2})?)?`)
	separators     = regexp.MustCompile(`[-_.]+`)
)

// environment is one Python environment, as the interpreter would find it.
type environment struct {
	program string   // the interpreter, links not followed
	version string   // as exact as can be told
	sites   []string // folders of packages, in the order of sys.path, without links
}

// python finds out what the program vllm belongs to. No Python is started: it may need a
// GPU's libraries, minutes, or both.
func (r rooted) python(f *Facts, environ []string) {
	f.Program = clean(r.onPath("vllm", environ))
	interpreter := ""
	if f.Program != "" {
		interpreter = r.interpreter(f.Program, environ)
	}
	if interpreter == "" {
		// Images of before the command have the package only.
		interpreter = r.onPath("python3", environ)
	}
	var e environment
	if interpreter != "" {
		e = r.environment(interpreter, environ)
		f.Packages = r.packages(e.sites)
	}
	at, found := slices.BinarySearchFunc(f.Packages, "vllm", func(p Package, name string) int { return strings.Compare(p.Name, name) })
	if f.Program == "" && !found {
		f.Packages = nil
		f.Environments = r.environments(interpreter, environ)
		return
	}
	f.Interpreter, f.Python = clean(e.program), clean(e.version)
	if found {
		f.VLLM = f.Packages[at].Version
	}
}

// interpreter reads the first lines of a script: "#!/opt/venv/bin/python3",
// "#!/usr/bin/env -S python3 -u", or the shell that installers use where a path is too
// long for that: "#!/bin/sh", then "”'exec' '/long/bin/python3' …".
func (r rooted) interpreter(program string, environ []string) string {
	lines := strings.SplitN(string(r.read(program, 4<<10)), "\n", 3)
	rest, ok := strings.CutPrefix(lines[0], "#!")
	words := strings.Fields(rest)
	if !ok || len(words) == 0 {
		return r.beside(program)
	}
	if path.Base(words[0]) == "sh" && len(lines) > 1 {
		if to, ok := strings.CutPrefix(lines[1], "'''exec' "); ok {
			if to = strings.TrimSpace(to); to != "" && (to[0] == '"' || to[0] == '\'') {
				quoted, _, _ := strings.Cut(to[1:], to[:1])
				return quoted
			}
			to, _, _ = strings.Cut(to, " ")
			return to
		}
	}
	if path.Base(words[0]) != "env" {
		if !strings.HasPrefix(path.Base(words[0]), "python") {
			return r.beside(program)
		}
		return words[0]
	}
	for _, w := range words[1:] {
		if !strings.HasPrefix(w, "-") && !strings.Contains(w, "=") {
			if path.IsAbs(w) {
				return w
			}
			return r.onPath(w, environ)
		}
	}
	return ""
}

// beside is the interpreter in the folder of a program that is no script of its own.
func (r rooted) beside(program string) string {
	for _, p := range []string{program, r.resolve(program)} {
		if python := path.Join(path.Dir(p), "python3"); p != "" && r.resolve(python) != "" {
			return python
		}
	}
	return ""
}

// environment follows the rules by which Python finds its packages (getpath, site).
func (r rooted) environment(program string, environ []string) environment {
	e := environment{program: program}
	var dirs []string
	if list, ok := lookup(environ, "PYTHONPATH"); ok {
		for dir := range strings.SplitSeq(list, ":") {
			if path.IsAbs(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	base, system := program, true
	if cfg := r.venv(program); cfg != nil {
		e.version = exact(cfg.get("version"), cfg.get("version_info"))
		dirs = append(dirs, r.libs(cfg.dir, e.version)...)
		system = strings.EqualFold(cfg.get("include-system-site-packages"), "true")
		base = r.base(program, cfg.get("home"))
	}
	prefix, version := r.prefix(base)
	if !longer(e.version, version) {
		e.version = version
	}
	if system {
		if home, ok := lookup(environ, "HOME"); ok && path.IsAbs(home) {
			dirs = append(dirs, r.libs(path.Join(home, ".local"), e.version)...)
		}
		if prefix == "/usr" {
			dirs = append(dirs, r.libs("/usr/local", e.version)...) // where pip installs for Debian's Python
		}
		dirs = append(dirs, r.libs(prefix, e.version)...)
	}
	for _, d := range dirs {
		if d = r.resolve(d); d != "" && !slices.Contains(e.sites, d) {
			e.sites = append(e.sites, d)
		}
	}
	return e
}

// libs are the folders of packages below a prefix. Without a version: of any.
func (r rooted) libs(prefix, version string) []string {
	var out []string
	add := func(p string) {
		if r.isDir(p) {
			out = append(out, p)
		}
	}
	minor := minorOf(version)
	for _, lib := range []string{"lib", "lib64"} {
		names := []string{"python" + minor}
		if minor == "" {
			names = nil
			for _, n := range r.list(path.Join(prefix, lib), 1000) {
				if strings.HasPrefix(n, "python3.") {
					names = append(names, n)
				}
			}
			slices.Sort(names)
		}
		for _, n := range names {
			add(path.Join(prefix, lib, n, "site-packages"))
			add(path.Join(prefix, lib, n, "dist-packages"))
		}
		add(path.Join(prefix, lib, "python3", "dist-packages")) // Debian's own packages
	}
	return out
}

// config is a pyvenv.cfg.
type config struct {
	dir    string
	values map[string]string
}

func (c *config) get(key string) string { return c.values[key] }

// venv reads the pyvenv.cfg of an interpreter: beside it or one folder up, before links
// are followed. Nil: it is in no virtual environment.
func (r rooted) venv(program string) *config {
	for _, dir := range []string{path.Dir(program), path.Dir(path.Dir(program))} {
		b := r.read(path.Join(dir, "pyvenv.cfg"), 64<<10)
		if b == nil {
			continue
		}
		c := &config{dir, map[string]string{}}
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, "="); ok {
				c.values[strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(v)
			}
		}
		return c
	}
	return nil
}

// base is the interpreter that a virtual environment was made of.
func (r rooted) base(program, home string) string {
	if path.IsAbs(home) {
		for _, name := range []string{path.Base(r.resolve(program)), "python3", "python"} {
			if p := path.Join(home, name); r.resolve(p) != "" {
				return p
			}
		}
	}
	return program
}

// prefix is the installation that an interpreter belongs to, and its version.
func (r rooted) prefix(program string) (prefix, version string) {
	// Every name on the way may tell the version, the last one most.
	for range maxLinks {
		if v := inName(program); longer(v, version) {
			version = v
		}
		to := r.readlink(program)
		if to == "" {
			break
		}
		program = to
	}
	if program = r.resolve(program); program == "" {
		return "", version
	}
	if v := inName(program); longer(v, version) {
		version = v
	}
	prefix = path.Dir(path.Dir(program))
	if prefix == "/" {
		prefix = "/usr" // /bin is /usr/bin
	}
	minor := minorOf(version)
	if minor == "" {
		for _, n := range r.list(path.Join(prefix, "lib"), 1000) {
			if v := inName(n); r.resolve(path.Join(prefix, "lib", n, "os.py")) != "" && v != "" {
				minor = minorOf(v)
			}
		}
	}
	if minor == "" || strings.Count(version, ".") > 1 {
		return prefix, version
	}
	return prefix, exact(minor, r.patch(prefix, minor))
}

// patch finds the whole version of an installation: in its headers, or in what conda or
// dpkg say that they installed.
func (r rooted) patch(prefix, minor string) string {
	for line := range strings.Lines(string(r.read(path.Join(prefix, "include", "python"+minor, "patchlevel.h"), 64<<10))) {
		if v, ok := strings.CutPrefix(line, "#define PY_VERSION"); ok && strings.ContainsAny(v[:min(1, len(v))], " \t") {
			return strings.Trim(strings.TrimSpace(v), `"+`)
		}
	}
	for _, n := range r.list(path.Join(prefix, "conda-meta"), 10000) {
		if v, ok := strings.CutPrefix(n, "python-"+minor+"."); ok {
			v, _, _ = strings.Cut(v, "-")
			return minor + "." + v
		}
	}
	if prefix == "/usr" {
		status := string(r.read("/var/lib/dpkg/status", 32<<20))
		for _, name := range []string{"python" + minor + "-minimal", "python" + minor} {
			_, rest, ok := strings.Cut(status, "Package: "+name+"\n")
			if !ok {
				continue
			}
			rest, _, _ = strings.Cut(rest, "\n\n")
			if _, v, ok := strings.Cut(rest, "\nVersion: "); ok {
				v, _, _ = strings.Cut(v, "\n")
				return v // exact keeps the numbers of 3.12.3-1ubuntu0.9
			}
		}
	}
	return ""
}

// inName reads "python3.12" and ".../cpython-3.12.11-linux-x86_64-gnu/bin/python3.12".
func inName(p string) string {
	best := ""
	for _, m := range versionInName.FindAllStringSubmatch(p, -1) {
		if longer(m[1], best) {
			best = m[1]
		}
	}
	return best
}

// exact gives the numbers of the version that has most of them.
func exact(versions ...string) string {
	best := ""
	for _, v := range versions {
		if m := versionNumbers.FindString(v); longer(m, best) {
			best = m
		}
	}
	return best
}

func longer(a, b string) bool { return a != "" && strings.Count(a, ".") > strings.Count(b, ".") }

// minorOf is 3.12 of 3.12.11.
func minorOf(version string) string {
	f := strings.SplitN(version, ".", 3)
	if len(f) < 2 {
		return ""
	}
	return f[0] + "." + f[1]
}

// packages reads what is installed in folders; the first one of a name counts, as for
// Python.
func (r rooted) packages(sites []string) []Package {
	var out []Package
	seen := map[string]bool{}
	for _, site := range sites {
		names := r.list(site, 4*maxPackages)
		slices.Sort(names)
		for _, n := range names {
			var p Package
			switch dir := path.Join(site, n); {
			case strings.HasSuffix(n, ".dist-info"):
				p = r.metadata(dir, "METADATA", strings.TrimSuffix(n, ".dist-info"))
				p.Commit = r.commit(dir)
			case strings.HasSuffix(n, ".egg-info") && r.isDir(dir):
				p = r.metadata(dir, "PKG-INFO", strings.TrimSuffix(n, ".egg-info"))
			case strings.HasSuffix(n, ".egg-info"): // by distutils: the file itself
				p = r.metadata(site, n, strings.TrimSuffix(n, ".egg-info"))
			default:
				continue
			}
			if p.Name == "" || seen[p.Name] || len(out) == maxPackages {
				continue
			}
			seen[p.Name] = true
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// metadata reads the name and the version, or takes them from the folder's name.
func (r rooted) metadata(dir, file, folder string) Package {
	b := r.read(path.Join(dir, file), maxMetadata)
	head, _, _ := strings.Cut(strings.ReplaceAll(string(b), "\r\n", "\n"), "\n\n")
	var name, version string
	if m, err := mail.ReadMessage(strings.NewReader(head + "\n\n")); err == nil {
		name, version = m.Header.Get("Name"), m.Header.Get("Version")
	} else {
		// Not all that is installed keeps to the form of a mail.
		for line := range strings.Lines(head) {
			if v, ok := strings.CutPrefix(line, "Name:"); ok && name == "" {
				name = v
			} else if v, ok := strings.CutPrefix(line, "Version:"); ok && version == "" {
				version = v
			}
		}
	}
	if strings.TrimSpace(name) == "" {
		// name-version, or name-version-py3.12
		f := strings.Split(folder, "-")
		if name = f[0]; len(f) > 1 {
			version = f[1]
		}
	}
	return Package{Name: normalised(name), Version: clean(version)}
}

// commit is the one that a package was installed from, by its direct_url.json.
func (r rooted) commit(dir string) string {
	var from struct {
		VCS struct {
			Commit string `json:"commit_id"`
		} `json:"vcs_info"`
	}
	b := r.read(path.Join(dir, "direct_url.json"), 64<<10)
	if b == nil || json.Unmarshal(b, &from) != nil {
		return ""
	}
	return clean(from.VCS.Commit)
}

// normalised is the name by PEP 503.
func normalised(name string) string {
	return strings.ToLower(separators.ReplaceAllString(clean(name), "-"))
}

// environments lists the Python environments that can be found without searching long:
// the one on PATH, and virtual environments up to two folders down.
func (r rooted) environments(interpreter string, environ []string) []string {
	var out []string
	add := func(dir string) {
		if dir != "" && !slices.Contains(out, dir) && len(out) < maxEnvironments {
			out = append(out, dir)
		}
	}
	if interpreter != "" {
		if c := r.venv(interpreter); c != nil {
			add(clean(c.dir))
		} else {
			prefix, _ := r.prefix(interpreter)
			add(clean(prefix))
		}
	}
	if dir, ok := lookup(environ, "VIRTUAL_ENV"); ok && r.resolve(path.Join(dir, "pyvenv.cfg")) != "" {
		add(clean(dir))
	}
	// Large, and nobody's place for them.
	elsewhere := []string{"proc", "sys", "dev", "usr", "lib", "lib64", "var", "etc", "boot", "run"}
	looked := 0
	var search func(dir string, depth int)
	search = func(dir string, depth int) {
		names := r.list(dir, 1000)
		slices.Sort(names)
		for _, n := range names {
			p := path.Join(dir, n)
			if looked++; looked > 5000 || depth == 3 && slices.Contains(elsewhere, n) {
				continue
			}
			switch {
			case n == "pyvenv.cfg" && r.read(p, 1) != nil:
				add(clean(dir))
			case depth > 0 && r.isDir(p) && r.resolve(p) == p: // no links: no circles
				search(p, depth-1)
			}
		}
	}
	search("/", 3)
	return out
}

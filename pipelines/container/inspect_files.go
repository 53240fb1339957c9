package container

import (
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

const maxLinks = 40

// rooted reads a root file system. All paths are those that its own programs see:
// absolute, with slashes; symbolic links are followed within it.
type rooted struct{ root string }

// resolve follows every symbolic link of a path. Empty: it leads nowhere.
func (r rooted) resolve(p string) string {
	done := "/"
	todo := strings.Split(path.Clean("/"+p), "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, name)
		info, err := os.Lstat(r.host(next))
		if err != nil {
			return ""
		}
		if info.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		target, err := os.Readlink(r.host(next))
		if links++; err != nil || links > maxLinks {
			return ""
		}
		if path.IsAbs(target) {
			done = "/"
		}
		// Not cleaned: ".." behind a link is the parent of what the link leads to.
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done
}

// readlink gives where a link at p itself leads, or empty.
func (r rooted) readlink(p string) string {
	dir := r.resolve(path.Dir(p))
	if dir == "" {
		return ""
	}
	target, err := os.Readlink(r.host(path.Join(dir, path.Base(p))))
	switch {
	case err != nil:
		return ""
	case path.IsAbs(target):
		return target
	}
	return path.Join(dir, target)
}

// host is the place of a path whose links are resolved.
func (r rooted) host(p string) string { return filepath.Join(r.root, filepath.FromSlash(p)) }

// real is the place of a path, or empty.
func (r rooted) real(p string) string {
	if p = r.resolve(p); p == "" {
		return ""
	}
	return r.host(p)
}

// read gives at most limit bytes of a regular file, nil if there is none.
func (r rooted) read(p string, limit int64) []byte {
	name := r.real(p)
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil
	}
	return b
}

// list gives at most limit names of a folder, in no order.
func (r rooted) list(p string, limit int) []string {
	f, err := os.Open(r.real(p))
	if err != nil {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(limit)
	return names
}

func (r rooted) isDir(p string) bool {
	info, err := os.Stat(r.real(p))
	return err == nil && info.IsDir()
}

// onPath finds a program as an engine would.
func (r rooted) onPath(name string, environ []string) string {
	list, ok := lookup(environ, "PATH")
	if !ok {
		list = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for dir := range strings.SplitSeq(list, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		p := path.Join(dir, name)
		if info, err := os.Stat(r.real(p)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p
		}
	}
	return ""
}

func (r rooted) osName() string {
	for _, p := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		for line := range strings.Lines(string(r.read(p, 64<<10))) {
			if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return clean(strings.Trim(strings.TrimSpace(v), `"'`))
			}
		}
	}
	return ""
}

func (r rooted) cpuModel() string {
	for line := range strings.Lines(string(r.read("/proc/cpuinfo", 64<<10))) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return clean(v)
		}
	}
	return ""
}

// groupLimits reads the memory and the cores that the control groups give: the smallest
// of ours and of those above it. Nil: no limit, or none that can be seen.
func (r rooted) groupLimits() (memory *int64, cores *float64) {
	type mount struct{ dir, group string }
	var unified, memories, cpus mount
	for line := range strings.Lines(string(r.read("/proc/self/cgroup", 64<<10))) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" {
			unified = mount{"/sys/fs/cgroup", f[2]}
		}
		for controller := range strings.SplitSeq(f[1], ",") {
			switch controller {
			case "memory":
				memories = mount{"/sys/fs/cgroup/memory", f[2]}
			case "cpu":
				cpus = mount{"/sys/fs/cgroup/cpu", f[2]}
			}
		}
	}
	// each calls with a file's fields, from our group up to the mount's root. In a
	// container, the group may be named as the host sees it: then only the root is there.
	each := func(m mount, name string, see func(dir string, fields []string)) {
		if m.dir == "" {
			return
		}
		for g := path.Clean("/" + m.group); ; g = path.Dir(g) {
			dir := path.Join(m.dir, g)
			if b := r.read(path.Join(dir, name), 256); b != nil {
				see(dir, strings.Fields(string(b)))
			}
			if g == "/" {
				return
			}
		}
	}
	lessMemory := func(_ string, f []string) {
		if len(f) != 1 {
			return
		}
		// Version 1 writes a huge number for no limit.
		if v, err := strconv.ParseInt(f[0], 10, 64); err == nil && v > 0 && v < 1<<60 && (memory == nil || v < *memory) {
			memory = &v
		}
	}
	lessCores := func(quota, period string) {
		q, err := strconv.ParseInt(quota, 10, 64)
		p, err2 := strconv.ParseInt(period, 10, 64)
		if err != nil || err2 != nil || q <= 0 || p <= 0 {
			return
		}
		if v := float64(q) / float64(p); cores == nil || v < *cores {
			cores = &v
		}
	}
	each(unified, "memory.max", lessMemory)
	each(memories, "memory.limit_in_bytes", lessMemory)
	each(unified, "cpu.max", func(_ string, f []string) {
		if len(f) == 2 {
			lessCores(f[0], f[1])
		}
	})
	each(cpus, "cpu.cfs_quota_us", func(dir string, f []string) {
		period := strings.TrimSpace(string(r.read(path.Join(dir, "cpu.cfs_period_us"), 256)))
		if len(f) == 1 {
			lessCores(f[0], period)
		}
	})
	return memory, cores
}

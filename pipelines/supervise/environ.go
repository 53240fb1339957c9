package supervise

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Getenv is the last value of a variable; empty if there is none.
func Getenv(environ []string, name string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// Setenv returns the environment with one variable set.
func Setenv(environ []string, name, value string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(out, name+"="+value)
}

// LookAll lists the executable files of a name on the PATH.
func LookAll(name string, environ []string) []string {
	var out []string
	for _, dir := range filepath.SplitList(Getenv(environ, "PATH")) {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			out = append(out, path)
		}
	}
	return out
}

// LookPath is the first of LookAll.
func LookPath(name string, environ []string) (string, bool) {
	if all := LookAll(name, environ); len(all) > 0 {
		return all[0], true
	}
	return "", false
}

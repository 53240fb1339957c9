// Package wheels reads the lock of a Python environment and adds to one what a lock only
// says is there.
//
// It does not know who installs the packages, or where.
package wheels

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Lock is what we read in a lock ourselves; the installer reads the rest.
type Lock struct {
	Packages int
	Provides []Distribution
}

// Distribution is a name and a version.
type Distribution struct{ Name, Version string }

var (
	requirement = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*==[^\s;\\]+`)
	provided    = regexp.MustCompile(`^([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9])==([A-Za-z0-9][A-Za-z0-9.+!_-]*)$`)
)

// Read checks the promise of a lock: every package is pinned to one version
// and to hashes, and nothing in it fetches from elsewhere. A comment line
//
//	# provides: NAME==VERSION
//
// asks for an empty distribution of that name beside the real ones.
func Read(b []byte) (Lock, error) {
	var l Lock
	var errs []error
	mistake := func(line int, format string, a ...any) {
		if len(errs) < 20 {
			errs = append(errs, fmt.Errorf("lock:%d: %s", line, fmt.Sprintf(format, a...)))
		}
	}
	joined, begin, n := "", 0, 0
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		n++
		text := strings.TrimSpace(lines.Text())
		if rest, ok := strings.CutPrefix(text, "# provides:"); ok {
			m := provided.FindStringSubmatch(strings.TrimSpace(rest))
			if m == nil {
				mistake(n, "provides: %q is not NAME==VERSION", strings.TrimSpace(rest))
				continue
			}
			l.Provides = append(l.Provides, Distribution{m[1], m[2]})
			continue
		}
		if strings.HasPrefix(text, "#") {
			continue
		}
		if joined == "" {
			begin = n
		}
		if more, ok := strings.CutSuffix(text, "\\"); ok {
			joined += more + " "
			continue
		}
		whole := strings.TrimSpace(joined + text)
		joined = ""
		switch {
		case whole == "", whole == "--only-binary :all:", whole == "--only-binary=:all:":
		case strings.HasPrefix(whole, "-"):
			mistake(begin, "option %q: a lock holds pinned packages and --only-binary :all:, no other option", strings.Fields(whole)[0])
		case !requirement.MatchString(whole):
			mistake(begin, "%.60q is not NAME==VERSION", whole)
		case !strings.Contains(whole, "--hash=sha256:"):
			mistake(begin, "%s has no --hash=sha256:…", requirement.FindString(whole))
		default:
			l.Packages++
		}
	}
	if err := lines.Err(); err != nil {
		errs = append(errs, fmt.Errorf("lock: %w", err))
	}
	if l.Packages == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("lock: it names no package"))
	}
	return l, errors.Join(errs...)
}

// Provide writes an empty distribution into a site-packages folder: metadata that
// importlib.metadata finds, and the record that an installer needs to remove it.
func Provide(site string, d Distribution) error {
	dir := strings.ReplaceAll(d.Name, "-", "_") + "-" + d.Version + ".dist-info"
	files := []struct{ name, text string }{
		{"METADATA", fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: Empty: says that another distribution provides %[1]s.\n", d.Name, d.Version)},
		{"INSTALLER", "speedmatrix\n"},
	}
	if err := os.Mkdir(filepath.Join(site, dir), 0o755); err != nil {
		if errors.Is(err, os.ErrExist) {
			return fmt.Errorf("lock: provides %s==%s, but a package of the lock already is that", d.Name, d.Version)
		}
		return err
	}
	list := ""
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(site, dir, f.name), []byte(f.text), 0o644); err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(f.text))
		list += fmt.Sprintf("%s/%s,sha256=%s,%d\n", dir, f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.text))
	}
	list += dir + "/RECORD,,\n"
	return os.WriteFile(filepath.Join(site, dir, "RECORD"), []byte(list), 0o644)
}

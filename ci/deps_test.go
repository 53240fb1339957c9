// Package ci holds what runs without a person. This test is the import policy of
// the module.
package ci

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rules are a statement of policy: who may import what. DO NOT CHANGE THIS DATA TO
// FIX BUILDS. Loosening it is a commit of its own, with the reason.
//
// A rule applies to the folder and everything below it. "ours" are all packages of
// this module but those allowed.
var rules = []struct {
	folder string
	allow  []string // of ours; "*": all but deny
	deny   []string // of ours or of others, by prefix
}{
	{folder: "results/record", allow: nil},
	{folder: "experiments/plan", allow: nil},
	{folder: "experiments/spec", allow: nil},
	{folder: "experiments/servecmd", allow: []string{"results/record"}},
	{folder: "experiments/resolve", allow: []string{"experiments/spec", "experiments/plan", "experiments/servecmd"}},
	{folder: "results/metric", allow: []string{"results/record"}},
	{folder: "results/published", allow: []string{"results/record", "results/metric"}},
	{folder: "results/store", allow: []string{"results/record", "results/metric"}},
	{folder: "report", allow: []string{"report", "results/record", "results/metric"}},
	{folder: "pipelines/registry", allow: []string{"experiments/plan", "pipelines/vllm"}},
	{folder: "pipelines/vllm", allow: []string{"results/record", "experiments/plan"}},
	{folder: "runner", allow: []string{"runner", "results/record", "experiments/plan", "pipelines/vllm"}},
	{folder: "pipelines", allow: []string{"*"}, deny: []string{"report", "results/store", "results/published", "experiments/spec"}},
}

// exclusive are packages of others that only one folder may import.
var exclusive = map[string]string{
	"github.com/apache/arrow-go":             "results/store",
	"dagger.io/dagger":                       "pipelines/dagger",
	"github.com/google/go-containerregistry": "pipelines/registry",
	"github.com/wcharczuk/go-chart":          "report",
	"github.com/yuin/goldmark":               "report",
	"github.com/spf13/cobra":                 ".",
	"github.com/charmbracelet":               ".",
}

// noYAML are folders that never see YAML.
var noYAML = []string{"runner", "report", "results"}

// forbidden are names that say nothing.
var forbidden = []string{"util", "utils", "common", "models", "helpers", "shared", "misc"}

func TestImports(t *testing.T) {
	const module = "speedmatrix"
	seen := 0
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if file != ".." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
				return fs.SkipDir
			}
			if slices.Contains(forbidden, name) {
				t.Errorf("%s: a package needs a noun of its own", file)
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel := filepath.ToSlash(strings.TrimPrefix(file, ".."+string(filepath.Separator)))
		folder := path.Dir(rel)
		test := strings.HasSuffix(name, "_test.go")
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			for prefix, owner := range exclusive {
				if within(imp, prefix) && !within(folder, owner) && !test {
					t.Errorf("%s imports %s: only %s may", rel, imp, owner)
				}
			}
			if strings.Contains(imp, "yaml") {
				for _, no := range noYAML {
					if within(folder, no) {
						t.Errorf("%s imports %s: %s never sees YAML", rel, imp, no)
					}
				}
			}
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok || test {
				continue
			}
			if rule := ruleFor(folder); rule >= 0 && !allowed(rule, folder, ours) {
				t.Errorf("%s imports %s: against the policy for %s", rel, ours, rules[rule].folder)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 20 {
		t.Fatalf("only %d Go files were read: the policy was not tested", seen)
	}
}

// ruleFor returns the most specific rule for a folder, or -1.
func ruleFor(folder string) int {
	best := -1
	for i, r := range rules {
		if within(folder, r.folder) && (best < 0 || len(r.folder) > len(rules[best].folder)) {
			best = i
		}
	}
	return best
}

func allowed(rule int, folder, imp string) bool {
	r := rules[rule]
	if within(imp, r.folder) {
		return true
	}
	for _, d := range r.deny {
		if within(imp, d) {
			return false
		}
	}
	for _, a := range r.allow {
		if a == "*" || within(imp, a) {
			return true
		}
	}
	return false
}

func within(p, folder string) bool {
	if folder == "." {
		return p == "."
	}
	return p == folder || strings.HasPrefix(p, folder+"/")
}

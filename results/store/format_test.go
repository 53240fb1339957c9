package store

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
)

var update = flag.Bool("update", false, "write FORMAT.md's tables and the golden run anew")

const formatFile = "../FORMAT.md"

// columnsTable is a table of FORMAT.md.
func columnsTable[R any](t table[R]) (file, text string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n| column | type | unit | null | since | is |\n|---|---|---|---|---|---|\n", strings.ToUpper(t.about[:1])+t.about[1:])
	for _, c := range t.columns {
		typ, null, unit := c.typ.Name(), "", c.unit
		switch {
		case arrow.TypeEqual(c.typ, timestampUTC):
			typ = "timestamp µs UTC"
		case arrow.TypeEqual(c.typ, arrow.BinaryTypes.String):
			typ = "string"
		case arrow.TypeEqual(c.typ, arrow.PrimitiveTypes.Float64):
			typ = "double"
		}
		if c.nullable {
			null = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %d | %s |\n", c.name, typ, unit, null, c.since, strings.ReplaceAll(c.def, "|", `\|`))
	}
	return t.file, b.String()
}

// FORMAT.md has the columns of the code, and a line for each version.
func TestFormatDocument(t *testing.T) {
	data, err := os.ReadFile(formatFile)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	for _, tab := range [][2]string{pair(columnsTable(cellsTable())), pair(columnsTable(requestsTable())), pair(columnsTable(chunksTable())), pair(columnsTable(samplesTable()))} {
		begin, end := "<!-- columns of "+tab[0]+" -->\n", "<!-- end of "+tab[0]+" -->"
		_, rest, ok1 := strings.Cut(doc, begin)
		got, _, ok2 := strings.Cut(rest, end)
		if !ok1 || !ok2 {
			t.Errorf("FORMAT.md has no place for %s", tab[0])
			continue
		}
		if *update {
			doc = strings.Replace(doc, begin+got+end, begin+tab[1]+end, 1)
		} else if d := cmp.Diff(tab[1], got); d != "" {
			t.Errorf("FORMAT.md differs from the columns of %s; go test ./results/store -run FormatDocument -update\n%s", tab[0], d)
		}
	}
	if *update {
		if err := os.WriteFile(formatFile, []byte(doc), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	// Read as text: the store does not depend on the runner.
	src, err := os.ReadFile("../../runner/runner.go")
	if err != nil {
		t.Fatal(err)
	}
	method := regexp.MustCompile(`(?m)^const MethodVersion = "(.*)"$`).FindSubmatch(src)
	if method == nil {
		t.Fatal("runner.go has no MethodVersion")
	}
	for _, want := range []string{fmt.Sprintf("### Schema %d\n", record.SchemaVersion), fmt.Sprintf("### Method %s\n", method[1])} {
		if !strings.Contains(doc, want) {
			t.Errorf("FORMAT.md has no section %q", strings.TrimSpace(want))
		}
	}
}

func pair(a, b string) [2]string { return [2]string{a, b} }

// Every schema version that was ever written is read for ever. A golden run is
// made once, when its version is new, and never again.
func TestGoldenRuns(t *testing.T) {
	const newest = "../testdata/v1"
	if *update {
		if _, err := os.Stat(newest); err == nil {
			t.Logf("%s exists: a stored version is not made anew; remove it by hand if the version was never released", newest)
		} else {
			path := writeRun(t, t.TempDir(), testTrials(seeded(), 8))
			if err := os.CopyFS(newest, os.DirFS(path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	dirs, err := filepath.Glob("../testdata/v*")
	if err != nil || len(dirs) < record.SchemaVersion {
		t.Fatalf("%d golden runs for %d schema versions: %v", len(dirs), record.SchemaVersion, err)
	}
	for _, dir := range dirs {
		s, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if errs := s.Verify(); len(errs) > 0 {
			t.Error(errs)
		}
		cells, trials := collect(t, s.Cells()), collect(t, s.Trials())
		if len(cells) != 11 || len(trials) != 11 || s.Record().Title != "A | <generated> run" {
			t.Errorf("%s: %d cells, %d trials, title %q", dir, len(cells), len(trials), s.Record().Title)
		}
		chunks := 0
		for _, tr := range trials {
			chunks += countOf(&tr).chunks
		}
		c := cells[2] // a decode cell with speculation
		v, ok := c.Value("output_tokens_per_second")
		got := fmt.Sprintf("%s %s %s %.3f %v %d", c.StepID, c.Status, c.TokenSource, v, ok, chunks)
		if want := goldenLine[filepath.Base(dir)]; got != want {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
}

// goldenLine is what a golden run must say for ever.
var goldenLine = map[string]string{
	"v1": "decode-0-c2-r1 valid running_usage 8.400 true 748",
}

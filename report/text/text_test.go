package text

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/report"
	"speedmatrix/report/internal/pagetest"
)

var update = flag.Bool("update", false, "write the golden files")

func render(t *testing.T, src report.Source) string {
	t.Helper()
	p, err := report.Build(src)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Render(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	published, err := pagetest.Published("qwen-fp8-rtx-3060")
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range map[string]report.Source{"published": published, "simulated": pagetest.Simulated()} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".txt")
			got := render(t, src)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNothingCommandsTheTerminal(t *testing.T) {
	for _, r := range render(t, pagetest.HostileRun()) {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			t.Fatalf("%U in the output", r)
		}
	}
	// A page that did not come from Build is no safer.
	var b bytes.Buffer
	hostile := &report.Page{Title: pagetest.Hostile, Marks: []report.Mark{{Text: pagetest.Hostile}},
		Headlines: []report.Headline{{Label: pagetest.Hostile, Condition: pagetest.Hostile}},
		Findings:  []report.Finding{{Where: pagetest.Hostile, Text: pagetest.Hostile}}}
	if err := Render(&b, hostile); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsRune(b.String(), 0x1b) {
		t.Error("an escape came through")
	}
}

func TestSimulatedIsSaid(t *testing.T) {
	if n := strings.Count(render(t, pagetest.Simulated()), "SIMULATED"); n < 3 {
		t.Errorf("said %d times, want with title, headline numbers and each table", n)
	}
}

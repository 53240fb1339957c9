package published

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

var update = flag.Bool("update", false, "write the golden files of findings")

func read(t *testing.T, name string) *Page {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	p, err := Read(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// golden reads the rows of a page as a person sees them.
func golden(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".rows.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")[1:]
}

// words writes a cell as the pages do, from its stored values alone: so the test
// holds that nothing of a row is lost on the way.
func words(c record.Cell) string {
	num := func(name string, digits int, scale float64, unit string) string {
		v, ok := c.Value(name)
		if !ok {
			return dash
		}
		s := strconv.FormatFloat(v*scale, 'f', digits, 64)
		whole, frac, dot := strings.Cut(s, ".")
		f, _ := strconv.ParseFloat(whole, 64)
		s = grouped(f)
		if dot {
			s += "." + frac
		}
		return s + unit
	}
	total := num(metric.RefOutputTokensPerSecond, 1, 1, "")
	if c.Phase == record.PhasePrefill {
		total = num(metric.RefPrefillTokensPerSecond, 1, 1, "")
		if v, _ := c.Value(metric.RefPrefillTokensPerSecond); v >= 10_000 {
			total = num(metric.RefPrefillTokensPerSecond, 1, 1e-3, "K")
		}
	}
	return strings.Join([]string{
		record.PhaseWords(c.Phase), c.ContextLabel, strconv.Itoa(c.Concurrency), c.Status.Words(), total,
		num(metric.RefRequestTokensPerSecond, 1, 1, ""),
		num(metric.RefTTFT, 0, 1e3, " ms"),
		num(metric.RefTPOT, 1, 1e3, " ms"),
		num(metric.RefActiveRequests, 1, 1, ""),
		num(metric.RefCompletedRequests, 0, 1, ""),
		num(metric.RefOutputTokens, 0, 1, ""),
		num(metric.RefWindowSeconds, 1, 1, " s"),
	}, "\t")
}

func checkRows(t *testing.T, p *Page, want []string) {
	t.Helper()
	var got []string
	for i, c := range p.Cells {
		if c.Seq != i {
			t.Errorf("row %d has Seq %d", i, c.Seq)
		}
		got = append(got, words(c))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-page +read):\n%s", diff)
	}
}

func TestSeedRows(t *testing.T) {
	for name, n := range map[string]int{"rtx-pro-6000": 55, "rtx-3060": 53} {
		t.Run(name, func(t *testing.T) {
			want := golden(t, name)
			if len(want) != n {
				t.Fatalf("the golden file has %d rows, the page has %d", len(want), n)
			}
			checkRows(t, read(t, name+".txt"), want)
		})
	}
}

func findingLines(p *Page, served ServedNames) string {
	var b strings.Builder
	for _, f := range Findings(p, served) {
		where := f.Where
		if where == "" {
			where = "page"
		}
		b.WriteString(f.Kind + " · " + where + "\n\t" + f.Text + "\n")
	}
	return b.String()
}

// served stands for package servecmd.
func served(command string) ([]string, bool) {
	f := strings.Fields(command)
	for i, w := range f {
		if w == "--served-model-name" && i+1 < len(f) {
			return []string{f[i+1]}, true
		}
	}
	for i, w := range f {
		if w == "serve" && i+1 < len(f) {
			return []string{f[i+1]}, false
		}
	}
	return nil, false
}

func TestFindings(t *testing.T) {
	for _, name := range []string{"rtx-pro-6000.txt", "rtx-3060.txt", "v0.4.18-vllm-0.32.0-cpu.json"} {
		t.Run(name, func(t *testing.T) {
			got := findingLines(read(t, name), served)
			file := filepath.Join("testdata", strings.TrimSuffix(name, filepath.Ext(name))+".findings.txt")
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
				t.Errorf("findings (-want +got), -update writes them:\n%s", diff)
			}
		})
	}
}

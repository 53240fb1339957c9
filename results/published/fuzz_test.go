package published

import (
	"math"
	"os"
	"strings"
	"testing"

	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// FuzzRead holds that no file can make the reader panic or hang, and that what it
// reads is fit to be stored.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"rtx-pro-6000.txt", "rtx-3060.txt", "v0.4.18-vllm-0.32.0-cpu.json"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	rows := []string{"Prefill\t8K\t1\tValid\t32.7K\t—\t250 ms\t—\t—\t1\t—\t—", "Sustained decode\t0\t1\tRequests queued\t8.3\t14.9\t13,783 ms\t67.1 ms\t0.8\t0\t248\t29.9 s"}
	f.Add([]byte(pageHTML(rows)))
	f.Add([]byte(pageMarkdown(rows)))
	for _, s := range []string{
		"<table><tr><td><table><td></table></tr><pre><dl><dt><dd>", "<h2>All measurements<table><th>Phase",
		"{\"metadata\":{},\"results\":[]}", "## All measurements\n| Phase |\n|---|\n", "Hardware\nGPU", "Launch command\nx'Prefill\nprompt tok/s by context length8K",
		"Sustained decode\nContext12\n01.1\nAll measurements\n" + strings.Join(columnNames(), "") + "\nSustained decode01Valid",
		"Sustained decode\nContext" + strings.Repeat("1", 64) + "\n0" + strings.Repeat("1", 900) + "\nAll measurements\n" +
			strings.Join(columnNames(), "") + "\nSustained decode01Valid" + strings.Repeat("1,111", 150),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read("p", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "p:") {
				t.Fatalf("the message does not name the file: %v", err)
			}
			return
		}
		if len(p.Cells) == 0 || p.Run.Kind != record.Published || p.Run.Name == "" {
			t.Fatalf("read, but there is nothing to store: %+v", p.Run)
		}
		for i, c := range p.Cells {
			if c.Seq != i || c.ContextTokens < 0 || c.Concurrency < 1 || c.Status == "" || c.StepID == "" {
				t.Fatalf("cell %d is %+v", i, c)
			}
			for name, v := range c.Values {
				if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
					t.Fatalf("cell %d has %s = %v", i, name, v)
				}
				if _, ok := metric.ByName(name); !ok {
					t.Fatalf("cell %d has a metric %q that nothing declares", i, name)
				}
			}
		}
		for _, fd := range Findings(p, served) {
			if fd.Kind == "" || fd.Text == "" || strings.Contains(fd.Text, "NaN") || strings.Contains(fd.Text, "Inf") {
				t.Fatalf("finding %+v", fd)
			}
		}
	})
}

// FuzzSplit holds that every reading of glued numbers, joined again, is the text.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{"63.565.096ms15.4ms1.001,90330.0s", "————1.00030.0s", "2.37.922,260ms224.0ms1.507030.0s", "2,186.0—3,727ms——1——"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > maxGlued {
			return
		}
		work := pageBudget
		all, _ := splitNumbers(s, &work)
		for _, n := range all {
			joined := ""
			for _, v := range n {
				if v == nil {
					joined += dash
				} else {
					joined += v.text
				}
			}
			if joined != s {
				t.Fatalf("%q is read as %q", s, joined)
			}
		}
	})
}

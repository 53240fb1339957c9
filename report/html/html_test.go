package html_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"speedmatrix/report"
	"speedmatrix/report/html"
	"speedmatrix/report/internal/pagetest"
)

// pagesDir keeps the rendered pages for a look, and for ci/browser.
var pagesDir = flag.String("pages", "", "folder to write the rendered test pages to")

func sources(t *testing.T) map[string]report.Source {
	t.Helper()
	out := map[string]report.Source{
		"measured": pagetest.Measured(), "simulated": pagetest.Simulated(), "hostile": pagetest.HostileRun(), "empty": &pagetest.Run{},
	}
	for _, name := range []string{"qwen-rtx-pro-6000", "qwen-fp8-rtx-3060"} {
		r, err := pagetest.Published(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = r
	}
	return out
}

func render(t *testing.T, src report.Source) []byte {
	t.Helper()
	p, err := report.Build(src)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := html.Render(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSize(t *testing.T) {
	for name, src := range sources(t) {
		page := render(t, src)
		t.Logf("%s: %d bytes", name, len(page))
		if len(page) > 300_000 {
			t.Errorf("%s has %d bytes, more than 300,000", name, len(page))
		}
		if *pagesDir == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(*pagesDir, name+".html"), page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

package html

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/html"

	"speedmatrix/report"
	"speedmatrix/report/internal/pagetest"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
)

// pagesDir keeps the rendered pages, for a look and for the checks in a browser:
//
//	go test ./report/html -run TestSize -pages /tmp/pages && ci/browser /tmp/pages/*.html
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
	if err := Render(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func parse(t *testing.T, page []byte) *html.Node {
	t.Helper()
	doc, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func byID(t *testing.T, doc *html.Node, id string) *html.Node {
	t.Helper()
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && attr(n, "id") == id {
			return n
		}
	}
	t.Fatalf("no element with the id %q", id)
	return nil
}

func TestSize(t *testing.T) {
	for name, src := range sources(t) {
		page := render(t, src)
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

func TestPublishedPages(t *testing.T) {
	for _, name := range []string{"qwen-rtx-pro-6000", "qwen-fp8-rtx-3060"} {
		t.Run(name, func(t *testing.T) {
			src, err := pagetest.Published(name)
			if err != nil {
				t.Fatal(err)
			}
			want, err := pagetest.Rows(name)
			if err != nil {
				t.Fatal(err)
			}
			doc := parse(t, render(t, src))
			if diff := cmp.Diff(want, pagetest.Table(byID(t, doc, "measurements"))); diff != "" {
				t.Errorf("the list differs (-published +page):\n%s", diff)
			}
			if got := pagetest.Text(byID(t, doc, "launch-command-text")); got != src.Run.Command.Text {
				t.Errorf("launch command %q", got)
			}
			var order []string
			for _, h := range pagetest.All(doc, "h1", "h2") {
				order = append(order, pagetest.Text(h))
			}
			wantOrder := []string{src.Run.Title, "Hardware", "Engine", "Run", "Launch command", "Prefill", "Sustained decode"}
			if diff := cmp.Diff(wantOrder, order[:len(wantOrder)]); diff != "" {
				t.Errorf("order of sections (-published +page):\n%s", diff)
			}
			for _, id := range []string{"decode-16k-c2", "prefill-64k"} {
				if tr := byID(t, doc, id); tr.Data != "tr" {
					t.Errorf("#%s is a <%s>", id, tr.Data)
				}
			}
		})
	}
}

// The exact value stands with each number of the list.
func TestExactValues(t *testing.T) {
	r := pagetest.Measured()
	r.Trial = r.Trial[9:10]
	r.Trial[0].Values["output_tokens_per_second"] = 12345.678
	doc := parse(t, render(t, r))
	td := pagetest.All(byID(t, doc, "decode-512-c1"), "td")[4]
	if got := []string{pagetest.Text(td), attr(td, "data-value"), attr(td, "title")}; !slices.Equal(got, []string{"12.3K", "12345.678", "12345.678"}) {
		t.Errorf("text, value and title are %q", got)
	}
}

func TestSimulatedIsSaid(t *testing.T) {
	doc := parse(t, render(t, pagetest.Simulated()))
	for _, n := range pagetest.All(doc, "title", "caption") {
		// The machine is real, and so are its facts.
		if text := pagetest.Text(n); !strings.Contains(text, "SIMULATED") && !strings.HasPrefix(text, "Claimed beside found") {
			t.Errorf("<%s> does not say it: %q", n.Data, text)
		}
	}
	for _, card := range pagetest.All(doc, "p") {
		if attr(card, "class") == "condition" && !strings.Contains(pagetest.Text(card), "SIMULATED") {
			t.Errorf("a headline number does not say it: %q", pagetest.Text(card))
		}
	}
}

// What a page may contain: nothing that runs but our own script, nothing that is
// fetched, no style of its own on an element, no link but to itself, its files,
// and where the notes may go.
func TestNothingForeign(t *testing.T) {
	for name, src := range sources(t) {
		t.Run(name, func(t *testing.T) {
			page := render(t, src)
			doc := parse(t, page)
			if n := len(pagetest.All(doc, "script")); n != 1 {
				t.Errorf("%d scripts, want ours", n)
			}
			if n := len(pagetest.All(doc, "style")); n != 1 {
				t.Errorf("%d styles, want ours", n)
			}
			if bad := pagetest.All(doc, "img", "iframe", "object", "embed", "form", "base", "test", "video", "image", "use", "foreignobject"); len(bad) > 0 {
				t.Errorf("<%s> on the page", bad[0].Data)
			}
			for n := range doc.Descendants() {
				for _, a := range n.Attr {
					switch {
					case strings.HasPrefix(a.Key, "on"), a.Key == "style", a.Key == "src", a.Key == "srcset", a.Key == "action":
						t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
					case a.Key == "href":
						if !strings.HasPrefix(a.Val, "#") && !strings.HasPrefix(a.Val, "../") && a.Val != "data:," && !strings.HasPrefix(a.Val, "https://example.org/") {
							t.Errorf("link to %q", a.Val)
						}
					}
				}
			}
			if bytes.ContainsAny(page, "\x1b\x07\x00") {
				t.Error("a control character is on the page")
			}
			if i := bytes.Index(page, []byte("ZgotmplZ")); i >= 0 {
				t.Errorf("the template refused a value: %s", page[max(0, i-80):i+20])
			}
		})
	}
}

// Each field by itself, so that one does not hide another.
func TestHostileFieldByField(t *testing.T) {
	count := func(doc *html.Node) int {
		return len(pagetest.All(doc, "script", "img", "b", "test", "h1", "table", "pre"))
	}
	fields := map[string]func(*record.Run){
		"title":      func(r *record.Run) { r.Title = pagetest.Hostile },
		"id":         func(r *record.Run) { r.ID = pagetest.Hostile },
		"author":     func(r *record.Run) { r.Author = pagetest.Hostile },
		"gpu":        func(r *record.Run) { r.Hardware.GPU = pagetest.Hostile },
		"version":    func(r *record.Run) { r.Engine.Version = pagetest.Hostile },
		"command":    func(r *record.Run) { r.Command.Text = pagetest.Hostile },
		"finding":    func(r *record.Run) { r.Findings[0] = record.Finding{Where: pagetest.Hostile, Text: pagetest.Hostile} },
		"found":      func(r *record.Run) { r.Found[0] = record.Field{Label: pagetest.Hostile, Value: pagetest.Hostile} },
		"plan":       func(r *record.Run) { r.Plan[0] = record.Field{Label: pagetest.Hostile, Value: pagetest.Hostile} },
		"unpinned":   func(r *record.Run) { r.Unpinned = []string{pagetest.Hostile} },
		"log":        func(r *record.Run) { r.Launches[0].LogTail = strings.Split(pagetest.Hostile, "\n") },
		"models":     func(r *record.Run) { r.Launches[1].Models = []string{pagetest.Hostile} },
		"again":      func(r *record.Run) { r.Again = pagetest.Hostile },
		"kind":       func(r *record.Run) { r.Kind = record.Kind(pagetest.Hostile) },
		"downloaded": func(r *record.Run) { r.Files = []record.File{{Path: `logs/"><script>alert(1)</script>.log`}} },
	}
	clean := count(parse(t, render(t, pagetest.Measured())))
	for name, set := range fields {
		t.Run(name, func(t *testing.T) {
			r := pagetest.Measured()
			set(&r.Run)
			if got := count(parse(t, render(t, r))); got != clean {
				t.Errorf("%d elements, want %d as without it", got, clean)
			}
		})
	}
}

func TestPolicyAllowsWhatIsThere(t *testing.T) {
	doc := parse(t, render(t, pagetest.Measured()))
	var policy string
	for _, m := range pagetest.All(doc, "meta") {
		if attr(m, "http-equiv") == "Content-Security-Policy" {
			policy = attr(m, "content")
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
	for _, kind := range []string{"style", "script"} {
		sum := sha256.Sum256([]byte(pagetest.Text(pagetest.All(doc, kind)[0])))
		if want := kind + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %s: %q", want, policy)
		}
	}
}

func TestSameBytes(t *testing.T) {
	for range 3 {
		if !bytes.Equal(render(t, pagetest.Measured()), render(t, pagetest.Measured())) {
			t.Fatal("equal pages give other bytes")
		}
	}
}

// From the badge to the findings, and from a cell to the one that names it; and a
// TTFT of some requests says of how many.
func TestFindingsAreLinked(t *testing.T) {
	r := pagetest.Measured()
	for i := range r.Trial {
		if c := &r.Trial[i]; c.ContextLabel == "2K" && c.Concurrency == 8 {
			c.Values[metric.TTFTN], c.Values[metric.NoFirstTokenRequests] = 8, 8
		}
	}
	doc := parse(t, render(t, r))
	links := make(map[string]string)
	for _, a := range pagetest.All(doc, "a") {
		if title := attr(a, "title"); attr(a, "class") == "flag" {
			links[attr(a, "href")] += title
		}
		if pagetest.Text(a) == "1 FINDING" {
			links["badge"] = attr(a, "href")
		}
	}
	want := map[string]string{"badge": "#findings", "#finding-1": "This program used 92 % of its processors."}
	if diff := cmp.Diff(want, links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	td := pagetest.All(byID(t, doc, "matrix"), "td")[7]
	if got := pagetest.Text(td); !strings.Contains(got, "98 ms TTFT (24 of 48)") {
		t.Errorf("cell %q", got)
	}
	if got := strings.Split(attr(td, "data-texts"), "|")[2]; got != "98 ms (24 of 48)" {
		t.Errorf("text of the switch %q", got)
	}
}

// Whoever does not see the page, or comes by keyboard, finds their way.
func TestStructure(t *testing.T) {
	for name, src := range sources(t) {
		t.Run(name, func(t *testing.T) {
			doc := parse(t, render(t, src))
			for _, want := range []string{"header", "main", "footer", "h1"} {
				if n := len(pagetest.All(doc, want)); n != 1 {
					t.Errorf("%d <%s>", n, want)
				}
			}
			if attr(pagetest.All(doc, "html")[0], "lang") != "en" {
				t.Error("no language")
			}
			ids := make(map[string]bool)
			for n := range doc.Descendants() {
				if id := attr(n, "id"); id != "" {
					if ids[id] {
						t.Errorf("id %q twice", id)
					}
					ids[id] = true
				}
			}
			for _, a := range pagetest.All(doc, "a") {
				if h := attr(a, "href"); strings.HasPrefix(h, "#") && !ids[h[1:]] {
					t.Errorf("%s is nowhere", h)
				}
			}
			for _, table := range pagetest.All(doc, "table") {
				if len(pagetest.All(table, "caption")) != 1 {
					t.Errorf("table %q without a caption", attr(table, "id"))
				}
				for _, th := range pagetest.All(table, "th") {
					if attr(th, "scope") == "" {
						t.Errorf("head %q without a scope", pagetest.Text(th))
					}
				}
			}
		})
	}
}

func TestNotes(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"nothing", " \n", ""},
		{"markup", "a **b** `c`", "<p>a <strong>b</strong> <code>c</code></p>\n"},
		{"a link", "[x](https://example.org/)", `<p><a href="https://example.org/" rel="nofollow noopener noreferrer">x</a></p>` + "\n"},
		{"a link that runs", "[x](javascript:alert(1))", "<p>x</p>\n"},
		{"a link that runs, by entity", "[x](java&#115;cript:alert(1))", "<p>x</p>\n"},
		{"a link that runs, by entity twice", "[x](java&amp;#115;cript:alert(1))", "<p>x</p>\n"},
		{"a link that runs, by reference", "[x]\n\n[x]: <java&#x73;cript:alert(1)>", "<p>x</p>\n"},
		{"an autolink that runs", "<javascript:alert(1)>", "<p>javascript:alert(1)</p>\n"},
		{"data", "[x](data:text/html,x)", "<p>x</p>\n"},
		{"a picture is a link", "![alt](https://example.org/p.png)", `<p><a href="https://example.org/p.png" rel="nofollow noopener noreferrer">alt</a></p>` + "\n"},
		{"a picture within a link", "[![alt](javascript:x)](https://example.org/)", `<p><a href="https://example.org/" rel="nofollow noopener noreferrer">alt</a></p>` + "\n"},
		{"raw HTML", "<script>alert(1)</script>", "<!-- raw HTML omitted -->\n"},
		{"raw HTML in a line", "a<b>c", "<p>a<!-- raw HTML omitted -->c</p>\n"},
		{"headings are below the page's", "# a\n\n##### b", "<h3>a</h3>\n<h6>b</h6>\n"},
		{"a table with a pipe", "|a|\n|-|\n|`x\\|y`|", "<table>\n<thead>\n<tr>\n<th>a</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n<td><code>x|y</code></td>\n</tr>\n</tbody>\n</table>\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := notes(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func FuzzNotes(f *testing.F) {
	for _, s := range []string{pagetest.Hostile, "[a](b)", "![a](javascript:b)", "<x:y>", "[a]: javascript:b\n[a]", "[![a](b)](javascript:c)", "|a|\n|-|\n|![b](c)|"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out, err := notes(s)
		if err != nil {
			t.Fatal(err)
		}
		doc := parse(t, []byte(out))
		if bad := pagetest.All(doc, "script", "img", "style", "iframe", "svg", "h1", "h2"); len(bad) > 0 {
			t.Errorf("<%s> from %q", bad[0].Data, s)
		}
		for _, a := range pagetest.All(doc, "a") {
			h := strings.ToLower(attr(a, "href"))
			if !strings.HasPrefix(h, "http://") && !strings.HasPrefix(h, "https://") && !strings.HasPrefix(h, "mailto:") {
				t.Errorf("link to %q from %q", h, s)
			}
		}
	})
}

func TestWordsAreTheCommand(t *testing.T) {
	for _, s := range []string{"", "a", " a  --b\n\t-c ", "-x"} {
		var b strings.Builder
		for _, w := range words(s) {
			b.WriteString(w.Text)
		}
		if b.String() != s {
			t.Errorf("the pieces of %q are %q", s, b.String())
		}
	}
}

func BenchmarkRender(b *testing.B) {
	src, err := pagetest.Published("qwen-rtx-pro-6000")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		p, err := report.Build(src)
		if err != nil {
			b.Fatal(err)
		}
		if err := Render(&bytes.Buffer{}, p); err != nil {
			b.Fatal(err)
		}
	}
}

package markdown

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	ghtml "github.com/yuin/goldmark/renderer/html"
	"golang.org/x/net/html"

	"speedmatrix/report"
	"speedmatrix/report/internal/pagetest"
	"speedmatrix/results/record"
)

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

// show renders Markdown as GitHub would, but lets raw HTML through: whatever of
// it is in the Markdown becomes an element here, and the tests see it.
func show(t *testing.T, markdown string) *html.Node {
	t.Helper()
	var b bytes.Buffer
	md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(ghtml.WithUnsafe()))
	if err := md.Convert([]byte(markdown), &b); err != nil {
		t.Fatal(err)
	}
	doc, err := html.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// tableWith returns the table whose head begins with these columns.
func tableWith(t *testing.T, doc *html.Node, head ...string) [][]string {
	t.Helper()
	for _, table := range pagetest.All(doc, "table") {
		if r := pagetest.Table(table); len(r) > 0 && len(r[0]) >= len(head) && slices.Equal(r[0][:len(head)], head) {
			return r
		}
	}
	t.Fatalf("no table with the columns %v", head)
	return nil
}

func TestPublishedRows(t *testing.T) {
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
			doc := show(t, render(t, src))
			if diff := cmp.Diff(want, tableWith(t, doc, "Phase", "Context")); diff != "" {
				t.Errorf("the list differs (-published +shown):\n%s", diff)
			}
			if code := pagetest.All(doc, "pre"); len(code) == 0 || strings.TrimRight(pagetest.Text(code[0]), "\n") != src.Run.Command.Text {
				t.Error("the launch command is not shown as it was")
			}
			matrix := tableWith(t, doc, "Context", "1", "2", "4", "8", "16", "32", "64", "128")
			if len(matrix) != 7 {
				t.Errorf("the matrix has %d rows, want 7", len(matrix))
			}
		})
	}
}

func TestSizes(t *testing.T) {
	srcs := map[string]report.Source{"measured": pagetest.Measured(), "simulated": pagetest.Simulated(), "hostile": pagetest.HostileRun(), "empty": &pagetest.Run{}}
	for name, src := range srcs {
		if n := len(render(t, src)); n >= MaxBytes {
			t.Errorf("%s has %d bytes, not below %d", name, n, MaxBytes)
		}
	}
	long := pagetest.Measured()
	for want, says := range []string{"", "", "", "This list is shortened", "This list is shortened", "The first 200 of "} {
		text := render(t, long)
		if len(text) >= MaxBytes {
			t.Errorf("%d trials give %d bytes", len(long.Trial), len(text))
		}
		if !strings.Contains(text, says) {
			t.Errorf("%d: a shortened list of %d trials does not say so", want, len(long.Trial))
		}
		long.Trial = append(long.Trial, long.Trial...)
	}
}

// Hostile text in every field of a run stays text: no element that the renderer
// does not write, no table that loses its columns, no link but to our files.
func TestHostile(t *testing.T) {
	markdown := render(t, pagetest.HostileRun())
	if strings.ContainsAny(markdown, "\x1b\x07") {
		t.Error("a terminal control came through")
	}
	doc := show(t, markdown)
	if bad := pagetest.All(doc, "script", "img", "test", "b", "iframe", "style"); len(bad) > 0 {
		t.Errorf("<%s> came through", bad[0].Data)
	}
	for _, a := range pagetest.All(doc, "a") {
		for _, at := range a.Attr {
			if at.Key == "href" && !strings.HasPrefix(at.Val, "../") {
				t.Errorf("link to %q", at.Val)
			}
		}
	}
	for _, table := range pagetest.All(doc, "table") {
		r := pagetest.Table(table)
		for i, row := range r {
			if len(row) != len(r[0]) {
				t.Errorf("row %d has %d cells, its head %d", i, len(row), len(r[0]))
			}
		}
	}
	if n := len(tableWith(t, doc, "Phase", "Context")); n != 46 {
		t.Errorf("%d rows, want 46", n)
	}
	for _, h := range pagetest.All(doc, "h1") {
		if !strings.Contains(pagetest.Text(h), "R&D <test>") {
			t.Errorf("heading %q", pagetest.Text(h))
		}
	}
	if n := len(pagetest.All(doc, "h1")); n != 1 {
		t.Errorf("%d headings of level 1", n)
	}
}

// Each field by itself, so that one does not hide another.
func TestHostileFieldByField(t *testing.T) {
	fields := map[string]func(*record.Run){
		"title":    func(r *record.Run) { r.Title = pagetest.Hostile },
		"author":   func(r *record.Run) { r.Author = pagetest.Hostile },
		"gpu":      func(r *record.Run) { r.Hardware.GPU = pagetest.Hostile },
		"version":  func(r *record.Run) { r.Engine.Version = pagetest.Hostile },
		"command":  func(r *record.Run) { r.Command.Text = pagetest.Hostile },
		"comment":  func(r *record.Run) { r.Command.Comments = []string{pagetest.Hostile} },
		"notes":    func(r *record.Run) { r.Notes = pagetest.Hostile },
		"finding":  func(r *record.Run) { r.Findings = []record.Finding{{Where: pagetest.Hostile, Text: pagetest.Hostile}} },
		"plan":     func(r *record.Run) { r.Plan = []record.Field{{Label: pagetest.Hostile, Value: pagetest.Hostile}} },
		"unpinned": func(r *record.Run) { r.Unpinned = []string{pagetest.Hostile} },
		"log":      func(r *record.Run) { r.Launches[0].LogTail = strings.Split(pagetest.Hostile, "\n") },
		"again":    func(r *record.Run) { r.Again = pagetest.Hostile },
		"file":     func(r *record.Run) { r.Files = []record.File{{Path: "logs/a](x) <b>|`*.log"}} },
	}
	plainRun := show(t, render(t, pagetest.Measured()))
	headings := len(pagetest.All(plainRun, "h2"))
	for name, set := range fields {
		t.Run(name, func(t *testing.T) {
			r := pagetest.Measured()
			set(&r.Run)
			doc := show(t, render(t, r))
			if bad := pagetest.All(doc, "script", "img", "test", "b"); len(bad) > 0 {
				t.Errorf("<%s> came through", bad[0].Data)
			}
			want := headings
			switch name {
			case "notes":
				want++
			}
			if got := len(pagetest.All(doc, "h2")); got != want {
				t.Errorf("%d sections, want %d", got, want)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"nothing", " \n", ""},
		{"markup stays", "a **b** [c](https://example.org)", "> a **b** [c](https://example.org)"},
		{"a heading stays inside", "# a\nb", "> # a\n> b"},
		{"an open fence ends with the quotation", "```\na", "> ```\n> a"},
		{"raw HTML becomes text", "a <b onclick=x>c</b>", "> a &lt;b onclick=x>c&lt;/b>"},
		{"an HTML block becomes text", "<script>\nalert(1)\n</script>", "> &lt;script>\n> alert(1)\n> &lt;/script>"},
		{"HTML in code is code", "`<b>`", "> `<b>`"},
		{"a link with an entity", "[x](java&#115;cript:alert(1))", "> \\[x\\](java\\&\\#115;cript:alert(1))"},
		{"a picture", "![x](https://example.org/x.png)", "> !\\[x\\](https://example.org/x.png)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := notes(tt.in); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestInline(t *testing.T) {
	for in, want := range map[string]string{
		"PCIe Gen3 x16 | Intel": `PCIe Gen3 x16 \| Intel`,
		"203.9":                 "203.9",
		"1. a":                  `1\. a`,
		"- a":                   `\- a`,
		"a\nb":                  "a b",
		"int4_per_token":        `int4\_per\_token`,
		"# h":                   `\# h`,
		"$x$ ~~y~~":             `\$x\$ \~\~y\~\~`,
	} {
		if got := inline(in); got != want {
			t.Errorf("inline(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFence(t *testing.T) {
	for n := range 6 {
		text := "a " + strings.Repeat("`", n) + " b"
		doc := show(t, fmt.Sprintf("%ssh\n%s\n%s\n\nafter", fence(text), text, fence(text)))
		if pre := pagetest.All(doc, "pre"); len(pre) != 1 || pagetest.Text(pre[0]) != text+"\n" {
			t.Errorf("%d backticks break the fence", n)
		}
	}
}

// Whatever a value holds, it shows as itself, in one paragraph or cell.
func FuzzInline(f *testing.F) {
	for _, s := range []string{pagetest.Hostile, "a|b", "\\", "*_*", "1) x", "=", "    code", "<!-- -->", "&amp;", "!", "[a]: b", "www.example.org"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := strings.Join(strings.Fields(inlineText(s)), " ")
		doc := show(t, "| h |\n|---|\n| "+cell(s)+" |\n\n- **L:** "+inline(s)+"\n")
		r := pagetest.Table(pagetest.All(doc, "table")[0])
		if len(r) != 2 || len(r[1]) != 1 || strings.Join(strings.Fields(r[1][0]), " ") != want {
			t.Errorf("cell of %q shows %q, want %q", s, r, want)
		}
		if li := pagetest.All(doc, "li"); len(li) != 1 || strings.Join(strings.Fields(pagetest.Text(li[0])), " ") != strings.TrimSpace("L: "+want) {
			t.Errorf("list item of %q shows %q", s, pagetest.Text(doc))
		}
	})
}

package markdown

import (
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"

	"speedmatrix/report/internal/link"
)

// notes quotes untrusted Markdown, so that its headings and lists stay within the
// quotation and nothing in it can end a section. Raw HTML becomes text. Notes with
// a link to anywhere but the web or a mailbox are not worth the risk of mending:
// all of their markup becomes text.
func notes(source string) string {
	if strings.TrimSpace(source) == "" {
		return ""
	}
	// Making HTML text can bring other HTML to light; what still has some after a
	// few turns is shown as it was written.
	for range 4 {
		rawHTML, safe := inspect(source)
		if !safe {
			return quote(plainText(source))
		}
		if len(rawHTML) == 0 {
			return quote(source)
		}
		source = neutralise(source, rawHTML)
	}
	return quote(plainText(source))
}

// inspect returns the places of "<" in raw HTML, and whether all links are safe.
func inspect(source string) (rawHTML []int, safeLinks bool) {
	src := []byte(source)
	doc := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(src))
	safeLinks = true
	segment := func(s text.Segment) {
		for i := s.Start; i < s.Stop && i < len(src); i++ {
			if src[i] == '<' {
				rawHTML = append(rawHTML, i)
			}
		}
	}
	// The function never fails, so neither does the walk.
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.HTMLBlock:
			for i := range n.Lines().Len() {
				segment(n.Lines().At(i))
			}
			if n.HasClosure() {
				segment(n.ClosureLine)
			}
		case *ast.RawHTML:
			for i := range n.Segments.Len() {
				segment(n.Segments.At(i))
			}
		case *ast.Link:
			safeLinks = safeLinks && link.Safe(string(n.Destination))
		case *ast.Image:
			// A picture in the twin would be fetched by whoever shows it.
			safeLinks = false
		case *ast.AutoLink:
			safeLinks = safeLinks && (n.AutoLinkType == ast.AutoLinkEmail || link.Safe(string(n.URL(src))))
		}
		return ast.WalkContinue, nil
	})
	slices.Sort(rawHTML)
	return slices.Compact(rawHTML), safeLinks
}

// neutralise writes an entity for each of the places.
func neutralise(source string, at []int) string {
	var b strings.Builder
	last := 0
	for _, i := range at {
		b.WriteString(source[last:i])
		b.WriteString("&lt;")
		last = i + 1
	}
	b.WriteString(source[last:])
	return b.String()
}

// plainText escapes each line of the source.
func plainText(source string) string {
	lines := strings.Split(source, "\n")
	for i, l := range lines {
		lines[i] = inline(l)
	}
	return strings.Join(lines, "\n")
}

func quote(source string) string {
	lines := strings.Split(strings.TrimRight(source, "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight("> "+l, " ")
	}
	return strings.Join(lines, "\n")
}

package html

import (
	"bytes"
	"fmt"
	"html/template"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

	"speedmatrix/report/internal/link"
)

// notes renders untrusted Markdown. Raw HTML is left out, pictures become links,
// because a page fetches nothing, links go where package link lets them, and
// headings start below those of the page.
func notes(markdown string) (template.HTML, error) {
	if strings.TrimSpace(markdown) == "" {
		return "", nil
	}
	md := goldmark.New(
		goldmark.WithExtensions(extension.Table, extension.Strikethrough),
		goldmark.WithParserOptions(parser.WithASTTransformers(util.Prioritized(tame{}, 1000))),
	)
	var b bytes.Buffer
	if err := md.Convert([]byte(markdown), &b); err != nil {
		return "", fmt.Errorf("render notes: %w", err)
	}
	return template.HTML(b.String()), nil
}

// tame is the part of notes that works on the parsed document.
type tame struct{}

func (tame) Transform(doc *ast.Document, r text.Reader, _ parser.Context) {
	var images []*ast.Image
	var links []ast.Node
	// The walker only reads, so that it does not lose its way.
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			n.Level = min(n.Level+2, 6)
		case *ast.Image:
			images = append(images, n)
		case *ast.Link, *ast.AutoLink:
			links = append(links, n)
		}
		return ast.WalkContinue, nil
	})
	for _, img := range images {
		l := ast.NewLink()
		l.Destination = img.Destination
		for c := img.FirstChild(); c != nil; c = img.FirstChild() {
			l.AppendChild(l, c)
		}
		if l.FirstChild() == nil {
			l.AppendChild(l, ast.NewString([]byte("picture")))
		}
		img.Parent().ReplaceChild(img.Parent(), img, l)
		links = append(links, l)
	}
	for _, n := range links {
		switch n := n.(type) {
		case *ast.Link:
			if link.Safe(string(n.Destination)) {
				n.SetAttributeString("rel", []byte("nofollow noopener noreferrer"))
				continue
			}
			// The text stays, the link goes.
			for c := n.FirstChild(); c != nil; c = n.FirstChild() {
				n.Parent().InsertBefore(n.Parent(), n, c)
			}
			n.Parent().RemoveChild(n.Parent(), n)
		case *ast.AutoLink:
			if !link.Safe(string(n.URL(r.Source()))) && n.AutoLinkType != ast.AutoLinkEmail {
				n.Parent().ReplaceChild(n.Parent(), n, ast.NewString(n.Label(r.Source())))
			}
		}
	}
}

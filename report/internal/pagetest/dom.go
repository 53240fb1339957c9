package pagetest

import (
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// All returns the elements below n that have one of the names, in document order.
func All(n *html.Node, names ...string) (found []*html.Node) {
	for c := range n.Descendants() {
		if c.Type == html.ElementNode && slices.Contains(names, c.Data) {
			found = append(found, c)
		}
	}
	return found
}

// Text returns the text below n.
func Text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

// Table returns the texts of a table's cells, row by row.
func Table(table *html.Node) (out [][]string) {
	for _, tr := range All(table, "tr") {
		var row []string
		for _, c := range All(tr, "th", "td") {
			row = append(row, Text(c))
		}
		out = append(out, row)
	}
	return out
}

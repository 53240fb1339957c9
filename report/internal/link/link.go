// Package link decides where a link that came from outside may go.
package link

import (
	"html"
	"strings"
)

// Safe reports whether dest is on the web (http, https) or a mailbox (mailto).
// Everything else, relative links too, is refused. Entities are resolved first,
// and more than once, because a browser resolves what a Markdown parser left
// (java&#115;cript:); blanks and controls, which browsers skip, are skipped.
func Safe(dest string) bool {
	for range 4 {
		next := html.UnescapeString(dest)
		if next == dest {
			break
		}
		dest = next
	}
	dest = strings.ToLower(strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f {
			return -1
		}
		return r
	}, dest))
	for _, scheme := range []string{"https://", "http://", "mailto:"} {
		if strings.HasPrefix(dest, scheme) {
			return true
		}
	}
	return false
}

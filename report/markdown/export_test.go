package markdown

import "speedmatrix/report/plain"

// inlineText is what a reader sees of a value.
func inlineText(s string) string { return plain.Line(s) }

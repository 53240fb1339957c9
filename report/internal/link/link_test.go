package link

import "testing"

func TestSafe(t *testing.T) {
	for dest, want := range map[string]bool{
		"https://example.org/a?b=c#d":      true,
		"HTTP://example.org":               true,
		"mailto:a@example.org":             true,
		"javascript:alert(1)":              false,
		"java&#115;cript:alert(1)":         false,
		"java&amp;#115;cript:alert(1)":     false,
		"&#x6a;avascript:alert(1)":         false,
		" \tjava\nscript:alert(1)":         false,
		"data:text/html,<script>":          false,
		"vbscript:x":                       false,
		"file:///etc/passwd":               false,
		"//example.org":                    false,
		"../run.json":                      false,
		"#main":                            false,
		"":                                 false,
		"https&colon;//example.org":        true,
		"javascript://https://example.org": false,
	} {
		if got := Safe(dest); got != want {
			t.Errorf("Safe(%q) = %v, want %v", dest, got, want)
		}
	}
}

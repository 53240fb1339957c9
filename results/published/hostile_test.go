package published

import (
	"strings"
	"testing"
)

// TestHostile holds that large files made to cost time are read or refused in
// time that grows with their size only. A quadratic reader would take minutes
// here.
func TestHostile(t *testing.T) {
	fill := func(head, unit string) []byte {
		const size = 512 << 10
		return []byte(head + strings.Repeat(unit, (size-len(head))/len(unit)))
	}
	list := "All measurements\n" + strings.Join(columnNames(), "") + "\n"
	matrix := "Sustained decode\nContext1248\n"
	for name, data := range map[string][]byte{
		"nested tables":      fill("<h2>All measurements</h2>", "<table><tr><td>"),
		"nested lists":       fill("<h2>Hardware</h2>", "<dl><dt>GPU<dd>"),
		"nested pre":         fill("<h2>Launch command</h2>", "<pre>"),
		"nested divisions":   fill("<", "<div>"),
		"open tags":          fill("<p>", "<"),
		"headings":           fill("<p>", "<h2>All measurements</h2>"),
		"attributes":         fill("<p ", `a="b" `),
		"comments":           fill("<p>", "<!--"),
		"open script":        fill("<p>", "<script>"),
		"markdown tags":      fill("## All measurements\n| ", "<a "),
		"markdown entities":  fill("## All measurements\n", "&amp"),
		"markdown fences":    fill("## Launch command\n", "```\n"),
		"markdown headings":  fill("## Launch command\n", "# "),
		"pipes":              fill("## All measurements\n", "|"),
		"separators":         fill("All measurements\n", "|-|\n"),
		"command lines":      fill("Launch command\n", "x Prefill\n"),
		"glued rows":         fill(matrix+"01\n"+list, "Sustained decode11Valid1.11.1\n"),
		"one glued row":      fill(matrix+"01\n"+list, "Sustained decode11Valid1"),
		"glued matrix":       fill(matrix, "11.111.111.1\n"),
		"json brackets":      fill("{", "["),
		"json objects":       fill("", `{"metadata":`),
		"json cells":         fill(`{"metadata":{},"results":[`, "{},"),
		"fields":             fill("Hardware\n", "GPU\nx\n"),
		"digits":             fill("Prefill\n8K context", "1"),
		"contexts and bars":  fill("Prefill\n", "8K context1,1111 ms TTFT\n"),
		"titles":             fill("Speed test matrix\n", "by x\n"),
		"title without end":  fill("Speed test matrix\n", "x"),
		"headlines":          fill("Speed test matrix\n", "6 contexts (1–2) × 8 concurrency levels (1–2)\n"),
		"markdown emphasis":  fill("## Run\n- **", "**"),
		"markdown backticks": fill("## Run\n- **Model:** ", "`"),
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := Read("p", data); err == nil {
				t.Errorf("it was read as a page of %d rows", len(p.Cells))
			} else if len(err.Error()) > 64<<10 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
	if _, err := Read("p", make([]byte, maxBytes+1)); err == nil || !strings.Contains(err.Error(), "more than a page can have") {
		t.Errorf("a file that is too large: %v", err)
	}
}

// TestBudget holds that reading gives up, rather than going on, when a page has
// used up its work.
func TestBudget(t *testing.T) {
	const text = "63.565.096ms15.4ms1.001,90330.0s"
	for work := budget(0); work < 5; work++ {
		left := work
		if _, more := splitNumbers(text, &left); !more {
			t.Errorf("with a budget of %d the row is read as if nothing were left out", work)
		}
	}
	left := pageBudget
	all, more := splitNumbers(text, &left)
	if len(all) != 1 || more {
		t.Fatalf("the row has %d readings", len(all))
	}
	r := &row{status: "valid", n: all[0]}
	cells := [][]*row{{r}}
	none := budget(1)
	if fitMatrixRow("63.596msTTFT", cells, &none) != nil {
		t.Error("the matrix is read without work")
	}
	if fit := fitMatrixRow("63.596msTTFT", cells, &left); len(fit) != 1 || len(fit[0]) != 1 {
		t.Errorf("the matrix is read as %v", fit)
	}
}

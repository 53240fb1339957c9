package chart

import (
	"fmt"
	"math"

	gochart "github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
)

// Shade is a background of the heat scale and the text colour that can be read
// on it, as #rrggbb.
type Shade struct {
	Background string
	Text       string
	Contrast   float64 // between the two, by WCAG
}

// Shades returns n steps of viridis, a scale that is even to the eye and to
// people who do not tell red from green. Step 0 is darkest.
func Shades(n int) []Shade {
	// Black or white: one of them has at least 4.58 on any colour.
	const light, dark = "#ffffff", "#000000"
	out := make([]Shade, n)
	for i := range out {
		c := gochart.Viridis(float64(i), 0, float64(max(n-1, 1)))
		l := luminance(c.R, c.G, c.B)
		out[i] = Shade{Background: hex(c), Text: light, Contrast: contrast(l, 1)}
		if k := contrast(l, 0); k > out[i].Contrast {
			out[i].Text, out[i].Contrast = dark, k
		}
	}
	return out
}

func hex(c drawing.Color) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// luminance is WCAG's relative luminance of an sRGB colour.
func luminance(r, g, b uint8) float64 {
	channel := func(v uint8) float64 {
		c := float64(v) / 255
		if c <= 0.04045 {
			return c / 12.92
		}
		return math.Pow((c+0.055)/1.055, 2.4)
	}
	return 0.2126*channel(r) + 0.7152*channel(g) + 0.0722*channel(b)
}

func contrast(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	return (a + 0.05) / (b + 0.05)
}

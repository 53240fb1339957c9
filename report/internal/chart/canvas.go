package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/golang/freetype/truetype"
	gochart "github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
	"golang.org/x/image/font"
)

// hidden is the class of what go-chart insists on drawing and a page does not
// want: its opaque background.
const hidden = "hidden"

// canvas is a go-chart renderer that writes SVG for a page: text escaped,
// classes in place of colours.
type canvas struct {
	texts         Texts
	width, height int
	body          strings.Builder

	dpi      float64
	class    string
	stroke   float64
	dash     []float64
	path     strings.Builder
	font     *truetype.Font
	fontSize float64
	rotation *float64 // radians
}

var _ gochart.Renderer = (*canvas)(nil)

// provider returns what go-chart calls to get a renderer.
func provider(t Texts) gochart.RendererProvider {
	return func(width, height int) (gochart.Renderer, error) {
		return &canvas{texts: t, width: width, height: height, dpi: dpi}, nil
	}
}

func (c *canvas) ResetStyle() {
	c.class, c.stroke, c.dash, c.fontSize = "", 0, nil, 0
}

func (c *canvas) GetDPI() float64                { return c.dpi }
func (c *canvas) SetDPI(v float64)               { c.dpi = v }
func (c *canvas) SetClassName(name string)       { c.class = name }
func (c *canvas) SetStrokeColor(drawing.Color)   {}
func (c *canvas) SetFillColor(drawing.Color)     {}
func (c *canvas) SetFontColor(drawing.Color)     {}
func (c *canvas) SetStrokeWidth(v float64)       { c.stroke = v }
func (c *canvas) SetStrokeDashArray(d []float64) { c.dash = d }
func (c *canvas) SetFont(f *truetype.Font)       { c.font = f }
func (c *canvas) SetFontSize(v float64)          { c.fontSize = v }
func (c *canvas) SetTextRotation(radians float64) {
	c.rotation = &radians
}
func (c *canvas) ClearTextRotation() { c.rotation = nil }

func (c *canvas) MoveTo(x, y int) { fmt.Fprintf(&c.path, "M%d %d", x, y) }
func (c *canvas) LineTo(x, y int) { fmt.Fprintf(&c.path, "L%d %d", x, y) }
func (c *canvas) Close()          { c.path.WriteByte('Z') }
func (c *canvas) QuadCurveTo(cx, cy, x, y int) {
	fmt.Fprintf(&c.path, "Q%d %d %d %d", cx, cy, x, y)
}

// ArcTo is part of the interface; no chart here has an arc, so the chord will do.
func (c *canvas) ArcTo(cx, cy int, rx, ry, startAngle, delta float64) {
	end := startAngle + delta
	c.LineTo(cx+int(rx*math.Cos(end)), cy+int(ry*math.Sin(end)))
}

func (c *canvas) Stroke()     { c.draw(false, true) }
func (c *canvas) Fill()       { c.draw(true, false) }
func (c *canvas) FillStroke() { c.draw(true, true) }

func (c *canvas) draw(fill, stroke bool) {
	d := c.path.String()
	c.path.Reset()
	stroke = stroke && c.stroke > 0
	if d == "" || c.class == hidden || (!fill && !stroke) {
		return
	}
	fmt.Fprintf(&c.body, `<path class="%s" d="%s"`, attr(c.class), d)
	if fill {
		c.body.WriteString(` fill="currentColor"`)
	} else {
		c.body.WriteString(` fill="none"`)
	}
	if stroke {
		fmt.Fprintf(&c.body, ` stroke="currentColor" stroke-width="%s"`, decimal(c.stroke))
		if len(c.dash) > 0 {
			c.body.WriteString(` stroke-dasharray="`)
			for i, v := range c.dash {
				if i > 0 {
					c.body.WriteByte(' ')
				}
				c.body.WriteString(decimal(v))
			}
			c.body.WriteByte('"')
		}
	}
	c.body.WriteString("/>")
}

func (c *canvas) Circle(radius float64, x, y int) {
	if c.class != hidden {
		fmt.Fprintf(&c.body, `<circle class="%s" cx="%d" cy="%d" r="%s" fill="currentColor"/>`,
			attr(c.class), x, y, decimal(radius))
	}
}

// dot draws a point that tells its value when it is pointed at.
func (c *canvas) dot(class string, x, y int, title string) {
	fmt.Fprintf(&c.body, `<circle class="%s" cx="%d" cy="%d" r="3.5" fill="currentColor"><title>%s</title></circle>`,
		attr(class), x, y, escape(title))
}

func (c *canvas) Text(body string, x, y int) {
	if body == "" || c.class == hidden {
		return
	}
	fmt.Fprintf(&c.body, `<text class="%s" x="%d" y="%d" font-size="%s" fill="currentColor"`,
		attr(c.class), x, y, decimal(c.fontSize))
	if c.rotation != nil {
		fmt.Fprintf(&c.body, ` transform="rotate(%s %d %d)"`, decimal(gochart.RadiansToDegrees(*c.rotation)), x, y)
	}
	fmt.Fprintf(&c.body, ">%s</text>", escape(body))
}

// label draws a value and a note after it as one text, so that they stay apart
// in whatever font a reader has.
func (c *canvas) label(x, y int, size float64, value, note string) {
	fmt.Fprintf(&c.body, `<text x="%d" y="%d" font-size="%s"><tspan class="c-strong" fill="currentColor">%s</tspan>`,
		x, y, decimal(size), escape(value))
	if note != "" {
		fmt.Fprintf(&c.body, `<tspan class="c-text" fill="currentColor" dx="8">%s</tspan>`, escape(note))
	}
	c.body.WriteString("</text>")
}

func (c *canvas) MeasureText(body string) (box gochart.Box) {
	if c.font == nil {
		return box
	}
	box.Right = textWidth(c.font, c.dpi, c.fontSize, body)
	box.Bottom = int(drawing.PointsToPixels(c.dpi, c.fontSize))
	if c.rotation != nil {
		box = box.Corners().Rotate(gochart.RadiansToDegrees(*c.rotation)).Box()
	}
	return box
}

func (c *canvas) Save(w io.Writer) error {
	id := attr(c.texts.ID)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" viewBox="0 0 %d %d" width="%d" height="%d" aria-labelledby="%s-title %s-desc"><title id="%s-title">%s</title><desc id="%s-desc">%s</desc>%s</svg>`,
		c.width, c.height, c.width, c.height, id, id, id, escape(c.texts.Title), id, escape(c.texts.Desc), c.body.String())
	return err
}

// textWidth measures with the font that go-chart brings. The page's own font
// differs a little; the layout leaves room for that.
func textWidth(f *truetype.Font, dpi, size float64, body string) int {
	d := font.Drawer{Face: truetype.NewFace(f, &truetype.Options{DPI: dpi, Size: size})}
	return d.MeasureString(body).Ceil()
}

// escape makes s the text of an XML element. Characters that XML has not become
// U+FFFD.
func escape(s string) string {
	var b strings.Builder
	// A strings.Builder does not fail.
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// attr keeps of an identifier what may stand in an attribute unquoted.
func attr(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == ' ' {
			return r
		}
		return -1
	}, s)
}

func decimal(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

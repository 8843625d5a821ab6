package replay

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// plot draws lines and bars into an SVG of fixed size. Axes run from x0 to x1
// and from y0 to y1.
type plot struct {
	b              strings.Builder
	x0, x1, y0, y1 float64
	legend         int
}

const (
	plotWidth, plotHeight = 460, 320
	plotLeft, plotRight   = 52, 12
	plotTop, plotBottom   = 28, 40
)

// colours of Okabe and Ito, which the colour-blind can tell apart.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"}

func newPlot(title, xLabel, yLabel string, x0, x1, y0, y1 float64) *plot {
	p := &plot{x0: x0, x1: x1, y0: y0, y1: y1}
	if !(p.x1 > p.x0) {
		p.x1 = p.x0 + 1
	}
	if !(p.y1 > p.y0) {
		p.y1 = p.y0 + 1
	}
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s" font-family="sans-serif" font-size="11">`,
		plotWidth, plotHeight, escape(title))
	fmt.Fprintf(&p.b, `<text x="%d" y="16" font-size="13" font-weight="bold">%s</text>`, plotLeft, escape(title))
	for i := range 6 {
		f := float64(i) / 5
		x, y := p.x0+f*(p.x1-p.x0), p.y0+f*(p.y1-p.y0)
		fmt.Fprintf(&p.b, `<path d="M%.1f %d V%d" stroke="#ddd"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`,
			p.px(x), plotTop, plotHeight-plotBottom, p.px(x), plotHeight-plotBottom+14, tick(x))
		fmt.Fprintf(&p.b, `<path d="M%d %.1f H%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			plotLeft, p.py(y), plotWidth-plotRight, plotLeft-5, p.py(y)+4, tick(y))
	}
	fmt.Fprintf(&p.b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`, (plotLeft+plotWidth-plotRight)/2, plotHeight-8, escape(xLabel))
	fmt.Fprintf(&p.b, `<text transform="translate(12 %d) rotate(-90)" text-anchor="middle">%s</text>`, (plotTop+plotHeight-plotBottom)/2, escape(yLabel))
	return p
}

func tick(v float64) string {
	if math.Abs(v) >= 10 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func (p *plot) px(x float64) float64 {
	return plotLeft + (x-p.x0)/(p.x1-p.x0)*(plotWidth-plotLeft-plotRight)
}

func (p *plot) py(y float64) float64 {
	return plotHeight - plotBottom - (y-p.y0)/(p.y1-p.y0)*(plotHeight-plotTop-plotBottom)
}

// line adds a line through the points that are numbers; a name enters the
// legend, dashed lines are references.
func (p *plot) line(name, colour string, dashed bool, x, y []float64) {
	var path strings.Builder
	command := "M"
	for i := range x {
		if math.IsNaN(x[i]) || math.IsNaN(y[i]) {
			continue
		}
		fmt.Fprintf(&path, "%s%.1f %.1f ", command, p.px(x[i]), p.py(y[i]))
		command = "L"
	}
	dash := ""
	if dashed {
		dash = ` stroke-dasharray="4 3"`
	}
	fmt.Fprintf(&p.b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.6"%s/>`, path.String(), colour, dash)
	if name != "" {
		y := plotHeight - plotBottom - 10 - 14*p.legend
		fmt.Fprintf(&p.b, `<path d="M%d %d h16" stroke="%s" stroke-width="2"%s/><text x="%d" y="%d">%s</text>`,
			plotWidth-130, y, colour, dash, plotWidth-110, y+4, escape(name))
		p.legend++
	}
}

// dot adds a mark whose area says how much it weighs (share 0..1).
func (p *plot) dot(colour string, x, y, share float64) {
	fmt.Fprintf(&p.b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" fill-opacity=".55"/>`, p.px(x), p.py(y), 2+12*math.Sqrt(share), colour)
}

func (p *plot) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, p.b.String()+"</svg>\n")
	return err
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;")

func escape(s string) string { return escaper.Replace(s) }

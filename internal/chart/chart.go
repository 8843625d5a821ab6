// Package chart draws small charts as SVG, for the figures in docs that
// commands make again.
package chart

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
)

// Point is one value, with an interval around Y where High is above Low.
type Point struct {
	X, Y, Low, High float64
	Label           string // beside the point, "" for none
}

// Series is a line through points.
type Series struct {
	Name   string
	Points []Point
}

// Mark is a vertical line with a word.
type Mark struct {
	X    float64
	Name string
}

// Chart is a set of series over common axes.
type Chart struct {
	Title, X, Y string // X and Y name the axes
	Series      []Series
	Marks       []Mark
}

const (
	width, height            = 640, 320
	left, right, top, bottom = 64, 16, 40, 48
)

// colours are told apart by those who see few of them (Okabe and Ito 2008).
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7"}

// axis maps values to pixels.
type axis struct {
	lo, hi   float64
	from, to float64
	step     float64
}

// newAxis covers the values with round numbers.
func newAxis(values []float64, from, to float64) axis {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, v := range values {
		lo, hi = min(lo, v), max(hi, v)
	}
	if !(lo <= hi) {
		lo, hi = 0, 1
	}
	if lo == hi {
		lo, hi = lo-1, hi+1
	}
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/4)))
	for _, f := range []float64{5, 2} {
		if (hi-lo)/(step*f) >= 4 {
			step *= f
			break
		}
	}
	return axis{math.Floor(lo/step) * step, math.Ceil(hi/step) * step, from, to, step}
}

func (a axis) at(v float64) float64 { return a.from + (v-a.lo)/(a.hi-a.lo)*(a.to-a.from) }

func (a axis) ticks() []float64 {
	var out []float64
	for i := 0.0; ; i++ {
		v := a.lo + i*a.step
		if v > a.hi+a.step/2 {
			return out
		}
		out = append(out, v)
	}
}

// SVG is the picture.
func (c Chart) SVG() []byte {
	var xs, ys []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
			if p.High > p.Low {
				ys = append(ys, p.Low, p.High)
			}
		}
	}
	x, y := newAxis(xs, left, width-right), newAxis(ys, height-bottom, top)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#222">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/><text x="%d" y="18" font-size="14">%s</text>`+"\n", width, height, left, html.EscapeString(c.Title))
	c.axes(&b, x, y)
	for _, m := range c.Marks {
		fmt.Fprintf(&b, `<path d="M%.1f %d V%d" stroke="#888" stroke-dasharray="4 3"/><text x="%.1f" y="%d" fill="#555">%s</text>`+"\n",
			x.at(m.X), top, height-bottom, x.at(m.X)+4, top+12, html.EscapeString(m.Name))
	}
	for i, s := range c.Series {
		s.draw(&b, x, y, colours[i%len(colours)], i)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (c Chart) axes(b *bytes.Buffer, x, y axis) {
	for _, v := range y.ticks() {
		fmt.Fprintf(b, `<path d="M%d %.1f H%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%.4g</text>`+"\n", left, y.at(v), width-right, left-6, y.at(v)+4, v)
	}
	for _, v := range x.ticks() {
		fmt.Fprintf(b, `<path d="M%.1f %d v4" stroke="#888"/><text x="%.1f" y="%d" text-anchor="middle">%.4g</text>`+"\n", x.at(v), height-bottom, x.at(v), height-bottom+18, v)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-10, html.EscapeString(c.X))
	fmt.Fprintf(b, `<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-bottom)/2, html.EscapeString(c.Y))
}

func (s Series) draw(b *bytes.Buffer, x, y axis, colour string, i int) {
	fmt.Fprintf(b, `<g fill="%s" stroke="%s">`, colour, colour)
	for j, p := range s.Points {
		if j == 0 {
			fmt.Fprintf(b, `<path fill="none" stroke-width="2" d="M%.1f %.1f`, x.at(p.X), y.at(p.Y))
			continue
		}
		fmt.Fprintf(b, " L%.1f %.1f", x.at(p.X), y.at(p.Y))
	}
	if len(s.Points) > 0 {
		b.WriteString(`"/>` + "\n")
	}
	for _, p := range s.Points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3"/>`, x.at(p.X), y.at(p.Y))
		if p.High > p.Low {
			fmt.Fprintf(b, `<path d="M%.1f %.1f V%.1f"/>`, x.at(p.X), y.at(p.Low), y.at(p.High))
		}
		if p.Label != "" {
			at, anchor := x.at(p.X)+6, "start"
			if at > width-right-96 { // a word may not fit on that side
				at, anchor = at-12, "end"
			}
			fmt.Fprintf(b, `<text stroke="none" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`, at, y.at(p.Y)-6, anchor, html.EscapeString(p.Label))
		}
	}
	if s.Name != "" {
		fmt.Fprintf(b, `<text stroke="none" x="%d" y="%d" text-anchor="end">%s</text>`, width-right, top+14*(i+1)-2, html.EscapeString(s.Name))
	}
	b.WriteString("</g>\n")
}

// WriteFile writes the picture.
func (c Chart) WriteFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	if err := os.WriteFile(path, c.SVG(), 0o644); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	return nil
}

package replay

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirhq/weir/cascade/measure"
)

// WriteHTML writes one page without outside parts: for each set the table, the
// deferral curves, the reliability of each policy that states a probability,
// and the rate over time.
func (r *Result) WriteHTML(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString(`<!doctype html><html lang="en"><meta charset="utf-8"><title>Weir cascade evaluation</title>
<style>body{font:14px/1.5 sans-serif;margin:2em auto;max-width:1000px;padding:0 1em}svg{width:460px;max-width:100%}
pre{overflow-x:auto;background:#f6f6f6;padding:1em}</style><h1>Cascade evaluation</h1>
`)
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		return err
	}
	fmt.Fprintf(&b, "<pre>%s</pre>\n", escape(text.String()))
	for i := range r.Sets {
		s := &r.Sets[i]
		fmt.Fprintf(&b, "<h2>%s</h2>\n", escape(s.Name))
		for _, p := range []*plot{s.deferralPlot(r.Options), s.reliabilityPlot(r.Options)} {
			if p == nil {
				continue
			}
			if err := p.writeTo(&b); err != nil {
				return err
			}
		}
	}
	if p := r.ratePlot(); p != nil {
		b.WriteString("<h2>Rate over time</h2>\n")
		if err := p.writeTo(&b); err != nil {
			return err
		}
	}
	b.WriteString("</html>\n")
	_, err := w.Write(b.Bytes())
	return err
}

func (s *SetResult) deferralPlot(o Options) *plot {
	low, high := math.Min(s.Edge, s.Cloud), math.Max(s.Edge, s.Cloud)
	for _, c := range s.Curves {
		best, _ := c.Best()
		high = math.Max(high, best)
	}
	pad := .05 * (high - low)
	p := newPlot("Accuracy by escalated share", "escalated share", "accuracy", 0, 1, low-pad, high+pad)
	p.line("random", "#888888", true, []float64{0, 1}, []float64{s.Edge, s.Cloud})
	for i, name := range o.Policies {
		c, ok := s.Curves[name]
		if !ok {
			continue
		}
		x, y := c.Points(200)
		p.line(name, colours[i%len(colours)], false, x, y)
	}
	return p
}

func (s *SetResult) reliabilityPlot(o Options) *plot {
	if len(s.Reliability) == 0 {
		return nil
	}
	p := newPlot("Reliability: how often an answer is right", "stated probability", "share right", 0, 1, 0, 1)
	p.line("ideal", "#888888", true, []float64{0, 1}, []float64{0, 1})
	for i, name := range o.Policies {
		bins, ok := s.Reliability[name]
		if !ok {
			continue
		}
		x, y, total := points(bins)
		p.line(name, colours[i%len(colours)], false, x, y)
		for _, b := range bins {
			if b.Weight > 0 {
				p.dot(colours[i%len(colours)], b.P, b.Y, b.Weight/total)
			}
		}
	}
	return p
}

func points(bins []measure.Bin) (x, y []float64, total float64) {
	for _, b := range bins {
		total += b.Weight
		if b.Weight > 0 {
			x, y = append(x, b.P), append(y, b.Y)
		}
	}
	return x, y, total
}

func (r *Result) ratePlot() *plot {
	longest, high := 0, r.Options.Rate
	for _, st := range r.Streams {
		longest = max(longest, len(st.Rates))
		for _, v := range st.Rates {
			high = math.Max(high, v)
		}
	}
	if longest < 2 {
		return nil
	}
	p := newPlot("Escalated share per 1,000 requests", "thousand requests", "share", 0, float64(longest), 0, math.Min(1, high*1.1))
	p.line("target", "#888888", true, []float64{0, float64(longest)}, []float64{r.Options.Rate, r.Options.Rate})
	for i, name := range r.Options.Policies {
		st, ok := r.Streams[name]
		if !ok {
			continue
		}
		x := make([]float64, len(st.Rates))
		for k := range x {
			x[k] = float64(k) + .5
		}
		p.line(name, colours[i%len(colours)], false, x, st.Rates)
	}
	return p
}

// maxFileName is how much of a set's name, bytes, stands in a file's.
const maxFileName = 120

// WriteSVG writes the plots as files SET-curve.svg, SET-reliability.svg and
// rate.svg into a folder, which it makes, for documents.
func (r *Result) WriteSVG(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range r.Sets {
		s := &r.Sets[i]
		name := strings.Map(func(c rune) rune {
			if c < '!' || strings.ContainsRune(`/\\:*?"<>|`, c) {
				return '-'
			}
			return c
		}, s.Name)
		name = name[:min(len(name), maxFileName)]
		if err := writeFile(filepath.Join(dir, name+"-curve.svg"), s.deferralPlot(r.Options).writeTo); err != nil {
			return err
		}
		if p := s.reliabilityPlot(r.Options); p != nil {
			if err := writeFile(filepath.Join(dir, name+"-reliability.svg"), p.writeTo); err != nil {
				return err
			}
		}
	}
	if p := r.ratePlot(); p != nil {
		return writeFile(filepath.Join(dir, "rate.svg"), p.writeTo)
	}
	return nil
}

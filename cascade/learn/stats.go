package learn

import (
	"math"

	"github.com/weirhq/weir/cascade"
)

// Stats are the sufficient statistics of one cell for a shared prior: counts,
// and gradient and Hessian of the log-likelihood at the node's prior. No prompt
// or answer is in them.
type Stats struct {
	Cell string  `json:"cell"`
	N    int     `json:"n"`
	Sum  float64 `json:"sum"` // of weights
	// Gradient has d values, bias first; Hessian d*d, row-major, of the
	// negative log-likelihood.
	Gradient []float64 `json:"gradient"`
	Hessian  []float64 `json:"hessian"`
	// Cloud is what the cell knows of the cloud's quality, Helps the share of
	// answers on which escalation helps.
	Cloud Quality `json:"cloud"`
	Helps Quality `json:"helps"`
}

// cellWeight caps a cell's weight, so that one busy cell does not become the
// prior of all.
const cellWeight = 500

// Stats returns the cell's statistics at its prior.
func (c *Cell) Stats(name string) Stats {
	x, y, w := c.data()
	d := len(c.prior.W) + 1
	s := Stats{Cell: name, N: len(y), Gradient: make([]float64, d), Hessian: make([]float64, d*d)}
	row := make([]float64, d)
	row[0] = 1
	for i := range y {
		copy(row[1:], x[i*(d-1):(i+1)*(d-1)])
		p := c.prior.P(row[1:])
		h := w[i] * math.Max(p*(1-p), 1e-9)
		for j := range d {
			s.Gradient[j] += w[i] * (y[i] - p) * row[j]
			for k := range d {
				s.Hessian[j*d+k] += h * row[j] * row[k]
			}
		}
		s.Sum += w[i]
	}
	if s.Sum > cellWeight {
		s.scale(cellWeight / s.Sum)
	}
	return s
}

func (s *Stats) scale(f float64) {
	s.Sum *= f
	for i := range s.Gradient {
		s.Gradient[i] *= f
	}
	for i := range s.Hessian {
		s.Hessian[i] *= f
	}
}

// Report is what a node tells of one edge model. At is the prior at which the
// statistics were taken, Base the one that it started from; both have the bias
// first and then one value for each feature.
type Report struct {
	Fingerprint string            `json:"fingerprint"`
	Features    []cascade.Feature `json:"features"`
	Base        []float64         `json:"base"`
	At          []float64         `json:"at"`
	Cells       []Stats           `json:"cells"`
}

// Report returns the statistics of all cells, for the control plane.
func (t *Table) Report() Report {
	r := Report{Fingerprint: t.Fingerprint, Features: t.Features, Base: t.base.Values(), At: t.prior.Values(), Cells: []Stats{}}
	for name, e := range t.cells {
		s := e.Cell.Stats(name)
		s.Cloud, s.Helps = e.cloud, e.helps
		r.Cells = append(r.Cells, s)
	}
	return r
}

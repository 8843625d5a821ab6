package learn

import (
	"errors"
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade"
)

// Stats are the sufficient statistics of one cell for one Newton step of a
// shared prior: counts, and gradient and Hessian of the log-likelihood at the
// prior. Nodes send them; no prompt or answer is in them.
type Stats struct {
	Cell string  `json:"cell"`
	N    int     `json:"n"`
	Sum  float64 `json:"sum"` // of weights
	// Gradient has d values, bias first; Hessian d*d, row-major, of the
	// negative log-likelihood.
	Gradient []float64 `json:"gradient"`
	Hessian  []float64 `json:"hessian"`
	// Cloud is what the cell knows of the cloud's quality.
	Cloud Quality `json:"cloud"`
}

// Stats returns the cell's statistics at its prior. A cell's weight is capped
// so that one busy cell does not become the prior of all.
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
	const most = 500
	if s.Sum > most {
		scale(s.Gradient, most/s.Sum)
		scale(s.Hessian, most/s.Sum)
	}
	return s
}

func scale(v []float64, f float64) {
	for i := range v {
		v[i] *= f
	}
}

// ErrStats says that statistics have another shape than the prior, or numbers
// that cannot be.
var ErrStats = errors.New("statistics do not fit")

// MergePrior moves a prior by one Newton step towards what all cells' statistics
// say, held by tau pseudo-labels to where it was. Each coordinate moves by at
// most 1, so that a broken node cannot throw the prior out; repeated rounds
// converge.
func MergePrior(prior cascade.Logistic, tau float64, stats []Stats) (cascade.Logistic, error) {
	d := len(prior.W) + 1
	grad, hess := make([]float64, d), make([]float64, d*d)
	for j := range d {
		hess[j*d+j] = math.Max(tau, 1e-3)
	}
	for _, s := range stats {
		if len(s.Gradient) != d || len(s.Hessian) != d*d {
			return prior, fmt.Errorf("%w: cell %q has %d values, the prior %d", ErrStats, s.Cell, len(s.Gradient), d)
		}
		for j, v := range s.Gradient {
			grad[j] += v
		}
		for j, v := range s.Hessian {
			hess[j] += v
		}
	}
	step := cascade.SolveSymmetric(hess, grad)
	if step == nil {
		return prior, fmt.Errorf("%w: the Hessian is not positive", ErrStats)
	}
	out := clone(prior)
	out.Bias += bounded(step[0])
	for i := range out.W {
		out.W[i] += bounded(step[i+1])
	}
	return out, nil
}

func bounded(v float64) float64 { return math.Max(-1, math.Min(1, v)) }

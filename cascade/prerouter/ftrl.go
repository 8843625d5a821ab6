package prerouter

import (
	"math"

	"github.com/weirhq/weir/cascade"
)

// FTRL is an online logistic regression over sparse features, follow the
// regularised leader with per-coordinate rates. Source: McMahan et al. 2013.
type FTRL struct {
	alpha, beta, l1, l2 float64

	z, n []float64
}

// NewFTRL returns a model for vectors with the indices of Features. The rate is
// high and the L1 term small, because vectors have length about one and labels
// come by the hundreds.
func NewFTRL() *FTRL {
	return &FTRL{alpha: .5, beta: 1, l1: .001, l2: 5, z: make([]float64, dimension), n: make([]float64, dimension)}
}

func (m *FTRL) weight(i uint32) float64 {
	z := m.z[i]
	if math.Abs(z) <= m.l1 {
		return 0
	}
	return -(z - math.Copysign(m.l1, z)) / ((m.beta+math.Sqrt(m.n[i]))/m.alpha + m.l2)
}

// P is the probability of label 1 for the vector x.
func (m *FTRL) P(x []Feature) float64 {
	s := 0.0
	for _, f := range x {
		s += m.weight(f.Index) * f.Value
	}
	return cascade.Sigmoid(s)
}

// Observe learns from a label y in [0, 1] of weight w.
func (m *FTRL) Observe(x []Feature, y, w float64) {
	d := w * (m.P(x) - y)
	for _, f := range x {
		g := d * f.Value
		sigma := (math.Sqrt(m.n[f.Index]+g*g) - math.Sqrt(m.n[f.Index])) / m.alpha
		m.z[f.Index] += g - sigma*m.weight(f.Index)
		m.n[f.Index] += g * g
	}
}

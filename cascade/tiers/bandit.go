package tiers

import (
	"math"
	"math/rand/v2"
)

// Arm is one cloud model in one cell: what it earned, fading.
type Arm struct{ Right, Wrong float64 }

// decay per label of the arm's cell; the memory is some 1,000 labels.
const decay = .999

// Observe notes a label y in [0, 1] of weight w.
func (a *Arm) Observe(y, w float64) {
	a.Right = decay*a.Right + w*y
	a.Wrong = decay*a.Wrong + w*(1-y)
}

// Choose draws each arm's quality from its Beta posterior with a uniform prior
// and returns the index of the best draw less its price (in units of quality);
// -1 without arms. Thompson sampling: what is uncertain is tried. It must not
// be used where exploration is excluded; see learn.Shadow.
func Choose(arms []Arm, price []float64, rng *rand.Rand) int {
	best, at := math.Inf(-1), -1
	for i, a := range arms {
		x := gamma(rng, 1+a.Right)
		q := x / (x + gamma(rng, 1+a.Wrong))
		if i < len(price) {
			q -= price[i]
		}
		if q > best {
			best, at = q, i
		}
	}
	return at
}

// gamma draws from a Gamma distribution of shape k >= 1. Source: Marsaglia and
// Tsang 2000.
func gamma(rng *rand.Rand, k float64) float64 {
	d := k - 1./3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < .5*x*x+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

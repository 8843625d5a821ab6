package tiers

import (
	"math"
	"math/rand/v2"
)

// Arm is one cloud model in one cell: what it earned, fading.
type Arm struct{ Right, Wrong float64 }

// Decay is the share of its weight that a label keeps with each newer one of its
// arm; the memory is some 1,000 labels.
const Decay = .999

// Observe notes a label y in [0, 1] of weight w.
func (a *Arm) Observe(y, w float64) {
	a.Right = Decay*a.Right + w*y
	a.Wrong = Decay*a.Wrong + w*(1-y)
}

// Mean is the expected quality under the arm's Beta posterior, which has a
// uniform prior.
func (a Arm) Mean() float64 { return (1 + a.Right) / (2 + a.Right + a.Wrong) }

// Interval is the range of the quality that leaves out (1-mass)/2 of the
// posterior on either side, within 1/1024.
func (a Arm) Interval(mass float64) (low, high float64) {
	b := newBeta(a)
	return b.quantile((1 - mass) / 2), b.quantile((1 + mass) / 2)
}

// Choose draws each arm's quality from its Beta posterior with a uniform prior
// and returns the index of the best draw less its price (in units of quality);
// -1 without arms. Thompson sampling: what is uncertain is tried. It must not
// be used where exploration is excluded: see Best.
func Choose(arms []Arm, price []float64, rng *rand.Rand) int {
	return best(arms, price, func(a Arm) float64 {
		x := gamma(rng, 1+a.Right)
		return x / (x + gamma(rng, 1+a.Wrong))
	})
}

// Best is the index of the arm with the best posterior mean less its price; -1
// without arms. It explores nothing.
func Best(arms []Arm, price []float64) int { return best(arms, price, Arm.Mean) }

func best(arms []Arm, price []float64, quality func(Arm) float64) int {
	most, at := math.Inf(-1), -1
	for i, a := range arms {
		if q := quality(a) - cost(price, i); q > most {
			most, at = q, i
		}
	}
	return at
}

func cost(price []float64, i int) float64 {
	if i < len(price) {
		return price[i]
	}
	return 0
}

// Propensities are the probabilities with which Choose picks each arm. They sum
// to 1; each is exact within .002, by numeric integration, as long as an arm's
// labels weigh no more than Decay lets them.
func Propensities(arms []Arm, price []float64) []float64 {
	posts := make([]beta, len(arms))
	for i, a := range arms {
		posts[i] = newBeta(a)
	}
	out, sum := make([]float64, len(arms)), 0.0
	for i := range posts {
		for k, mass := range posts[i].mass {
			x := (float64(k) + .5) / steps
			for j := range posts {
				if j != i && mass > 0 {
					mass *= posts[j].below(x - cost(price, i) + cost(price, j))
				}
			}
			out[i] += mass
		}
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// steps are those in which a posterior is integrated over the qualities.
const steps = 1024

// beta is a posterior on the grid: the mass of each step, and the share below
// each step's lower end.
type beta struct {
	mass  [steps]float64
	share [steps + 1]float64
}

func newBeta(a Arm) (b beta) {
	most := math.Inf(-1)
	for k := range b.mass {
		b.mass[k] = a.Right*logs[k] + a.Wrong*logs[steps-1-k]
		most = max(most, b.mass[k])
	}
	sum := 0.0
	for k := range b.mass {
		b.mass[k] = math.Exp(b.mass[k] - most)
		sum += b.mass[k]
	}
	for k := range b.mass {
		b.mass[k] /= sum
		b.share[k+1] = b.share[k] + b.mass[k]
	}
	return b
}

// logs are the logarithms of the steps' middles.
var logs = func() (l [steps]float64) {
	for k := range l {
		l[k] = math.Log((float64(k) + .5) / steps)
	}
	return l
}()

// below is the probability of a quality less than x.
func (b *beta) below(x float64) float64 {
	switch at := x * steps; {
	case !(at > 0):
		return 0
	case at >= steps:
		return 1
	default:
		k := int(at)
		return b.share[k] + (at-float64(k))*b.mass[k]
	}
}

// quantile is the quality below which the share p lies.
func (b *beta) quantile(p float64) float64 {
	for k, m := range b.mass {
		if m > 0 && b.share[k+1] >= p {
			return (float64(k) + max(0, p-b.share[k])/m) / steps
		}
	}
	return 1
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

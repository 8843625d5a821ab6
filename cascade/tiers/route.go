// Package tiers holds the optional policies beyond one edge and one cloud:
// cascade routing over several models, a verifier read as a noisy sensor, and
// the choice among equal cloud models by what they earned. It is pure.
package tiers

import (
	"errors"
	"math"
)

// Most is the largest number of tiers; subsets are enumerated.
const Most = 4

// ErrTiers says that the tiers cannot be searched: none, too many, or numbers
// that are not finite.
var ErrTiers = errors.New("tiers cannot be searched")

// Tier is what is expected of a model on a request: its quality is Gaussian.
type Tier struct {
	Mean, SD float64 // quality, 0 to 1
	Cost     float64 // in the unit that lambda prices
	Ran      bool    // its quality is then what was seen: SD may be small
	Blocked  bool    // must not be asked (capability, deadline, privacy)
}

// Next returns the tier to run now, or -1 to stop with the best that ran.
// It maximises, over every set of tiers still to run, the expected best quality
// less lambda times the cost, and starts with the set's cheapest member; the
// caller re-estimates after each answer and asks again. Source: cascade
// routing, Dekoninck et al. 2025; the expected maximum by Clark 1961.
func Next(tiers []Tier, lambda float64) (int, error) {
	if len(tiers) == 0 || len(tiers) > Most {
		return -1, ErrTiers
	}
	open := 0
	ran := false
	for i, t := range tiers {
		if !finite(t.Mean) || !(t.SD >= 0) || !finite(t.SD) || !finite(t.Cost) {
			return -1, ErrTiers
		}
		ran = ran || t.Ran
		if !t.Ran && !t.Blocked {
			open |= 1 << i
		}
	}
	best, bestSet := math.Inf(-1), 0
	if ran {
		best = value(tiers, 0, lambda)
	}
	for set := open; set > 0; set = (set - 1) & open {
		if v := value(tiers, set, lambda); v > best+1e-12 {
			best, bestSet = v, set
		}
	}
	next := -1
	for i, t := range tiers {
		if bestSet&(1<<i) != 0 && (next < 0 || t.Cost < tiers[next].Cost) {
			next = i
		}
	}
	return next, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// value is the expected best quality of what ran and of the set, less its cost.
func value(tiers []Tier, set int, lambda float64) float64 {
	mean, variance, cost, first := 0.0, 0.0, 0.0, true
	for i, t := range tiers {
		in := set&(1<<i) != 0
		if !t.Ran && !in {
			continue
		}
		if in {
			cost += t.Cost
		}
		if first {
			mean, variance, first = t.Mean, t.SD*t.SD, false
			continue
		}
		mean, variance = clark(mean, variance, t.Mean, t.SD*t.SD)
	}
	return mean - lambda*cost
}

// clark returns mean and variance of the maximum of two independent Gaussians,
// matched to a Gaussian again.
func clark(m1, v1, m2, v2 float64) (mean, variance float64) {
	a := math.Sqrt(v1 + v2)
	if a < 1e-12 {
		return math.Max(m1, m2), math.Min(v1, v2)
	}
	x := (m1 - m2) / a
	density := math.Exp(-x*x/2) / math.Sqrt(2*math.Pi)
	share := math.Erfc(-x/math.Sqrt2) / 2
	mean = m1*share + m2*(1-share) + a*density
	second := (m1*m1+v1)*share + (m2*m2+v2)*(1-share) + (m1+m2)*a*density
	return mean, math.Max(0, second-mean*mean)
}

// Package tiers holds the optional policies beyond one edge and one cloud:
// cascade routing over several models, and the choice among equal cloud models
// by what they earned. It is pure.
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

// Tier is what is expected of a model on a request: its quality is Gaussian, cut
// at 0 and 1.
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
// routing, Dekoninck et al. 2025. The expected maximum is an integral, because
// with a Gaussian that may exceed 1 there is always something left to gain.
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
	qualities := distributions(tiers)
	best, bestSet := math.Inf(-1), 0
	if ran {
		best = value(tiers, &qualities, 0, lambda)
	}
	for set := open; set > 0; set = (set - 1) & open {
		if v := value(tiers, &qualities, set, lambda); v > best+1e-12 {
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

// cells are the steps in which the qualities from 0 to 1 are integrated over.
const cells = 64

// distributions are the shares of each tier's quality below the middles of the
// cells.
func distributions(tiers []Tier) (q [Most][cells]float64) {
	for i, t := range tiers {
		for j := range q[i] {
			if !t.certain() {
				x := (float64(j) + .5) / cells
				q[i][j] = math.Erfc((t.Mean-x)/t.SD/math.Sqrt2) / 2
			}
		}
	}
	return q
}

func (t *Tier) certain() bool { return t.SD < 1e-6 }

// value is the expected best quality of what ran and of the set, less its cost:
// the best of the certain ones, and what the others may bring above that.
func value(tiers []Tier, q *[Most][cells]float64, set int, lambda float64) float64 {
	cost, sure := 0.0, 0.0
	var open [Most]int
	n := 0
	for i := range tiers {
		t := &tiers[i]
		in := set&(1<<i) != 0
		if !t.Ran && !in {
			continue
		}
		if in {
			cost += t.Cost
		}
		if t.certain() {
			sure = math.Max(sure, math.Min(1, t.Mean))
		} else {
			open[n], n = i, n+1
		}
	}
	above := 0.0
	for j := cells - 1; j >= 0 && n > 0; j-- {
		below := 1.0
		for _, i := range open[:n] {
			below *= q[i][j]
		}
		from, to := float64(j)/cells, float64(j+1)/cells
		if to <= sure {
			break
		}
		above += (to - math.Max(from, sure)) * (1 - below)
	}
	return sure + above - lambda*cost
}

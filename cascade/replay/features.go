package replay

import (
	"math"
	"slices"

	"github.com/weirhq/weir/cascade"
)

// mainSignal returns the first signal that the rows have, and false when none
// of them has any.
func mainSignal(d *Data, rows []int) (Signal, bool) {
	for s := range signalCount {
		for _, i := range rows {
			if !math.IsNaN(d.Records[i].Signals[s]) {
				return s, true
			}
		}
	}
	return 0, false
}

// scaleKind says how a signal becomes log-odds.
type scaleKind uint8

const (
	scaleProbability scaleKind = iota // in [0, 1]
	scaleLogProb                      // at most 0
	scaleScore                        // anything: standardised
)

// scale maps a signal's values to the log-odds-like feature of a calibrator.
type scale struct {
	kind     scaleKind
	mean, sd float64
}

// slack is how far probabilities that were rounded, or computed in half
// precision, may lie outside of [0, 1].
const slack = 1e-3

// fitScale looks at the values of a signal; labels are not needed. A few strays
// do not change the kind, nor the middle and spread of scores, which are those of
// the quartiles.
func fitScale(values []float64) scale {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	switch {
	case len(v) == 0:
		return scale{kind: scaleScore, sd: 1}
	case within(v, -slack, 1+slack):
		return scale{kind: scaleProbability}
	case within(v, math.Inf(-1), slack):
		return scale{kind: scaleLogProb}
	}
	slices.Sort(v)
	at := func(q float64) float64 { return v[int(q*float64(len(v)-1))] }
	const quartiles = 1.349 // of a normal distribution, in standard deviations
	s := scale{kind: scaleScore, mean: median(v), sd: (at(.75) - at(.25)) / quartiles}
	if !(s.sd > 0) { // most values are the same
		s.sd = deviation(v, s.mean)
	}
	return s
}

// deviation is the root mean square distance from the middle; 1 for none.
func deviation(v []float64, middle float64) float64 {
	square := 0.0
	for _, x := range v {
		square += (x - middle) * (x - middle)
	}
	if sd := math.Sqrt(square / float64(len(v))); sd > 0 && !math.IsInf(sd, 0) {
		return sd
	}
	return 1
}

// feature is clipped to +-12, so that a single impossible confidence cannot
// turn a fit.
func (s scale) feature(v float64) float64 {
	var x float64
	switch s.kind {
	case scaleProbability:
		x = cascade.Phi(math.Log(math.Max(v, 1e-9)))
	case scaleLogProb:
		x = cascade.Phi(v)
	default:
		x = 2 * (v - s.mean) / s.sd
	}
	return math.Max(-12, math.Min(12, x))
}

// probability reads the raw signal as a probability, NaN where it is missing;
// false for a mere score.
func (s scale) probability(v float64) (float64, bool) {
	switch s.kind {
	case scaleProbability:
		return max(0, min(1, v)), true
	case scaleLogProb:
		return min(1, math.Exp(v)), true
	}
	return 0, false
}

func column(d *Data, rows []int, f func(*Record) float64) []float64 {
	out := make([]float64, len(rows))
	for k, i := range rows {
		out[k] = f(&d.Records[i])
	}
	return out
}

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

// fitScale looks at the values of a signal; labels are not needed.
func fitScale(values []float64) scale {
	v := slices.DeleteFunc(slices.Clone(values), func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
	if len(v) == 0 {
		return scale{kind: scaleScore, sd: 1}
	}
	const slack = 1e-3 // probabilities that were rounded or computed in half precision
	low, high := slices.Min(v), slices.Max(v)
	switch {
	case low >= -slack && high <= 1+slack:
		return scale{kind: scaleProbability}
	case high <= slack:
		return scale{kind: scaleLogProb}
	}
	sum, square := 0.0, 0.0
	for _, x := range v {
		sum += x
	}
	mean := sum / float64(len(v))
	for _, x := range v {
		square += (x - mean) * (x - mean)
	}
	sd := math.Sqrt(square / float64(len(v)))
	if !(sd > 0) {
		sd = 1
	}
	return scale{kind: scaleScore, mean: mean, sd: sd}
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

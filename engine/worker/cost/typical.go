package cost

import (
	"math"
	"math/bits"
	"slices"
)

// shape is what steps have in common that are measured more than once: contexts
// grow by a token from one to the next.
type shape struct{ decodes, prefill, context, pairs int }

func (s Step) shape() shape {
	return shape{s.Decodes, s.Prefill, bits.Len(uint(s.Context / max(s.Decodes, 1))), s.Pairs}
}

// Typical gives each sample the median time of those of its shape: what else
// runs on a machine makes single steps several times as long. Noise is the mean
// distance of the single times from it, relative to their mean.
func Typical(samples []Sample) (typical []Sample, noise float64) {
	times := map[shape][]float64{}
	for _, s := range samples {
		times[s.shape()] = append(times[s.shape()], s.MS)
	}
	for _, ms := range times {
		slices.Sort(ms)
	}
	typical = slices.Clone(samples)
	var off, sum float64
	for i, s := range samples {
		ms := times[s.shape()]
		typical[i].MS = ms[len(ms)/2]
		off += math.Abs(s.MS - typical[i].MS)
		sum += s.MS
	}
	if sum > 0 {
		noise = off / sum
	}
	return typical, noise
}

// folds is how many times HeldOut fits.
const folds = 5

// HeldOut is the error of models on steps of shapes that they were not fitted to,
// relative to the mean: each fifth of the shapes is left out in turn.
func HeldOut(samples []Sample) (residual float64, err error) {
	fold, next := map[shape]int{}, 0
	for _, s := range samples {
		if _, ok := fold[s.shape()]; !ok {
			fold[s.shape()] = next % folds
			next++
		}
	}
	var off, sum float64
	for f := range folds {
		var fit []Sample
		for _, s := range samples {
			if fold[s.shape()] != f {
				fit = append(fit, s)
			}
		}
		pieces, err := Fit(fit)
		if err != nil {
			return 0, err
		}
		m := Model{Pieces: pieces}
		for _, s := range samples {
			if fold[s.shape()] == f {
				off += math.Abs(m.Milliseconds(s.Step) - s.MS)
				sum += s.MS
			}
		}
	}
	return off / sum, nil
}

package cost

import (
	"errors"
	"math"
	"slices"
)

// Sample is one measured step.
type Sample struct {
	Step
	MS float64 `json:"ms"`
}

// ErrSamples says that there are too few samples to fit a model to.
var ErrSamples = errors.New("too few measured steps for a cost model")

// features are what a piece is linear in.
const features = 5

func (s Step) vector() [features]float64 {
	return [features]float64{1, float64(s.Decodes), float64(s.Prefill), float64(s.Context), float64(s.Pairs)}
}

// leastSamples is how many samples a piece is fitted to at least.
const leastSamples = 3 * features

// Fit returns the pieces that predict the samples best: one, or two with the
// bound between them that leaves the least error.
func Fit(samples []Sample) ([]Piece, error) {
	sorted := slices.Clone(samples)
	slices.SortStableFunc(sorted, func(a, b Sample) int { return a.Tokens() - b.Tokens() })
	if len(sorted) < leastSamples {
		return nil, ErrSamples
	}
	whole, least := fitPiece(sorted)
	best := []Piece{whole}
	for bound := 2; bound < sorted[len(sorted)-1].Tokens(); bound *= 2 {
		at, _ := slices.BinarySearchFunc(sorted, bound+1, func(s Sample, t int) int { return s.Tokens() - t })
		if at < leastSamples || len(sorted)-at < leastSamples {
			continue
		}
		small, e1 := fitPiece(sorted[:at])
		large, e2 := fitPiece(sorted[at:])
		if e1+e2 < least {
			small.UpTo, least = bound, e1+e2
			best = []Piece{small, large}
		}
	}
	return best, nil
}

// fitPiece is weighted least squares with coefficients that are not negative:
// more work never takes less time. Each sample weighs by the inverse of its time
// squared, so that the error is relative. It returns the weighted error too.
func fitPiece(samples []Sample) (Piece, float64) {
	active := [features]bool{true, true, true, true, true}
	for {
		c := solve(samples, active)
		worst := -1
		for i, x := range c {
			if active[i] && x < 0 && (worst < 0 || x < c[worst]) {
				worst = i
			}
		}
		if worst < 0 {
			return piece(c, samples)
		}
		active[worst] = false
	}
}

func piece(c [features]float64, samples []Sample) (Piece, float64) {
	p := Piece{Fixed: c[0], PerDecode: c[1], PerPrefill: c[2], PerContext: c[3], PerPair: c[4], Samples: len(samples)}
	one := Model{Pieces: []Piece{p}}
	var abs, sum, weighted float64
	for _, s := range samples {
		d := one.Milliseconds(s.Step) - s.MS
		abs += math.Abs(d)
		sum += s.MS
		weighted += d * d / (s.MS * s.MS)
	}
	p.Residual = abs / sum
	return p, weighted
}

// solve solves the normal equations over the active features by Gaussian
// elimination. A feature that the samples do not tell from others gets 0.
func solve(samples []Sample, active [features]bool) (c [features]float64) {
	var a [features][features + 1]float64
	for _, s := range samples {
		v, w := s.vector(), 1/(s.MS*s.MS)
		for i := range features {
			for j := range features {
				a[i][j] += w * v[i] * v[j]
			}
			a[i][features] += w * v[i] * s.MS
		}
	}
	for i := range features {
		if !active[i] {
			a[i] = [features + 1]float64{}
			for j := range features {
				a[j][i] = 0
			}
		}
	}
	for i := range features {
		eliminate(&a, i)
	}
	for i := range features {
		if a[i][i] != 0 {
			c[i] = a[i][features] / a[i][i]
		}
	}
	return c
}

// eliminate makes column i zero in all rows but i, or drops row and column where
// there is nothing left in the diagonal.
func eliminate(a *[features][features + 1]float64, i int) {
	scale := 0.0
	for j := range features {
		scale = max(scale, math.Abs(a[j][i]))
	}
	if math.Abs(a[i][i]) <= 1e-12*scale || a[i][i] == 0 {
		a[i] = [features + 1]float64{}
		for j := range features {
			a[j][i] = 0
		}
		return
	}
	for j := range features {
		if j == i || a[j][i] == 0 {
			continue
		}
		f := a[j][i] / a[i][i]
		for k := range a[j] {
			a[j][k] -= f * a[i][k]
		}
	}
}

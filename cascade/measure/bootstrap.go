package measure

import (
	"math"
	"slices"
)

// BootstrapAPGR draws n resamples of the items and returns, for each order,
// its APGR in every resample. Resamples are shared by the orders, so that
// differences are paired. A resample with a gap below MinGap gives NaN for all.
func BootstrapAPGR(orders []Order, edge, cloud []float64, n int, seed uint64) [][]float64 {
	out := make([][]float64, len(orders))
	gains := make([][]float64, len(orders))
	for j, o := range orders {
		for _, i := range o.idx {
			gains[j] = append(gains[j], cloud[i]-edge[i])
		}
	}
	resample(len(edge), n, seed, func(counts []uint16) {
		e, c := 0.0, 0.0
		for i, k := range counts {
			e += float64(k) * edge[i]
			c += float64(k) * cloud[i]
		}
		for j := range orders {
			out[j] = append(out[j], resampledAPGR(&orders[j], counts, gains[j], e, c))
		}
	})
	return out
}

// resampledAPGR is Curve.APGR over items counted k times; gains are cloud less
// edge in the order's sequence, e and c the sums of both in the resample.
func resampledAPGR(o *Order, counts []uint16, gains []float64, e, c float64) float64 {
	n := float64(len(counts))
	if c-e < MinGap*n {
		return math.NaN()
	}
	area, acc, start := 0.0, e, int32(0)
	for _, end := range o.ends {
		group, gain := 0, 0.0
		for at := start; at < end; at++ {
			k := counts[o.idx[at]]
			group += int(k)
			gain += float64(k) * gains[at]
		}
		area += float64(group) * (acc + gain/2)
		acc += gain
		start = end
	}
	return (area/n - e) / (c - e)
}

// Difference subtracts b from a, value by value.
func Difference(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return d
}

// Interval returns the central interval that holds the share level of the
// values that are numbers; NaN, NaN when there is none.
func Interval(values []float64, level float64) (low, high float64) {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	if len(v) == 0 {
		return math.NaN(), math.NaN()
	}
	slices.Sort(v)
	at := func(q float64) float64 { return v[int(math.Round(q*float64(len(v)-1)))] }
	return at((1 - level) / 2), at((1 + level) / 2)
}

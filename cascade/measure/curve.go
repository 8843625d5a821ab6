// Package measure holds the numbers by which cascades are compared: deferral
// curves, ranking quality, calibration error and paired bootstrap intervals.
// It is pure.
package measure

import (
	"cmp"
	"math"
	"slices"
)

// MinGap is the smallest difference of cloud and edge accuracy for which
// ratios to it (APGR, CPT) are defined.
const MinGap = .01

// Order is a ranking of items from the first to escalate to the last. Items
// with equal priority form one group, within which the order is chance.
type Order struct {
	idx  []int32
	ends []int32 // end of each group in idx
}

// Rank orders items by falling priority. NaN ranks last.
func Rank(priority []float64) Order {
	idx := make([]int32, len(priority))
	for i := range idx {
		idx[i] = int32(i)
	}
	slices.SortFunc(idx, func(a, b int32) int { return cmp.Compare(priority[b], priority[a]) })
	o := Order{idx: idx}
	for i := range idx {
		if i+1 == len(idx) || priority[idx[i]] != priority[idx[i+1]] {
			o.ends = append(o.ends, int32(i+1))
		}
	}
	return o
}

// Curve is accuracy as a function of the escalated share: acc(0) is the edge
// alone, acc(1) the cloud alone. Inside a group of equal priority it is the
// straight line of the expected value.
type Curve struct {
	n         float64
	rate, acc []float64
}

// NewCurve builds the curve of an order over per-item scores in [0, 1].
func NewCurve(o Order, edge, cloud []float64) Curve {
	n := float64(len(o.idx))
	c := Curve{n: n, rate: make([]float64, 1, len(o.ends)+1), acc: make([]float64, 1, len(o.ends)+1)}
	a := 0.0
	for _, e := range edge {
		a += e
	}
	c.acc[0] = a / n
	start := int32(0)
	for _, end := range o.ends {
		for _, i := range o.idx[start:end] {
			a += cloud[i] - edge[i]
		}
		c.rate = append(c.rate, float64(end)/n)
		c.acc = append(c.acc, a/n)
		start = end
	}
	return c
}

// Edge and Cloud are the accuracies of the two ends.
func (c Curve) Edge() float64  { return c.acc[0] }
func (c Curve) Cloud() float64 { return c.acc[len(c.acc)-1] }

// Area is the mean accuracy over all rates (AUDC, trapezoid).
func (c Curve) Area() float64 {
	a := 0.0
	for i := 1; i < len(c.rate); i++ {
		a += (c.rate[i] - c.rate[i-1]) * (c.acc[i] + c.acc[i-1]) / 2
	}
	return a
}

// APGR is the average share of the gap recovered, (Area-Edge)/(Cloud-Edge):
// 0.5 for a random order. NaN when the gap is below MinGap. Source: RouteLLM.
func (c Curve) APGR() float64 {
	gap := c.Cloud() - c.Edge()
	if gap < MinGap {
		return math.NaN()
	}
	return (c.Area() - c.Edge()) / gap
}

// At is the expected accuracy when the share r is escalated.
func (c Curve) At(r float64) float64 {
	i, found := slices.BinarySearch(c.rate, r)
	switch {
	case found:
		return c.acc[i]
	case i == 0:
		return c.acc[0]
	case i == len(c.rate):
		return c.acc[i-1]
	}
	f := (r - c.rate[i-1]) / (c.rate[i] - c.rate[i-1])
	return c.acc[i-1] + f*(c.acc[i]-c.acc[i-1])
}

// CPT is the least share k/n, k whole, that recovers the share x of the gap.
// NaN when the gap is below MinGap. (RouteLLM interpolates; this does not.)
func (c Curve) CPT(x float64) float64 {
	gap := c.Cloud() - c.Edge()
	if gap < MinGap {
		return math.NaN()
	}
	want := c.Edge() + x*gap - 1e-12
	if c.acc[0] >= want {
		return 0
	}
	for i := 1; i < len(c.acc); i++ {
		if c.acc[i] < want {
			continue
		}
		f := (want - c.acc[i-1]) / (c.acc[i] - c.acc[i-1])
		r := c.rate[i-1] + f*(c.rate[i]-c.rate[i-1])
		return math.Ceil(r*c.n-1e-9) / c.n
	}
	return 1
}

// Best is the highest accuracy of the curve and the least rate that gives it.
func (c Curve) Best() (acc, rate float64) {
	acc = math.Inf(-1)
	for i, a := range c.acc {
		if a > acc+1e-12 {
			acc, rate = a, c.rate[i]
		}
	}
	return acc, rate
}

// Points returns at most n points (rate, accuracy) for drawing.
func (c Curve) Points(n int) (rate, acc []float64) {
	if n < 2 || len(c.rate) <= n {
		return c.rate, c.acc
	}
	for i := range n {
		r := float64(i) / float64(n-1)
		rate, acc = append(rate, r), append(acc, c.At(r))
	}
	return rate, acc
}

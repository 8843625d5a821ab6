package replay

import (
	"fmt"
	"math"
	"slices"
)

// strayShare is the share of values outside a range that are taken for errors,
// not for another range.
const strayShare = .01

// intoRange brings scores to 0..1, and numbers that are outside of what they
// mean to the nearest that is not; what no amount can be is unknown. It notes of
// how many rows. grade is a known best score.
func (d *Data) intoRange(grade float64) {
	d.finite("swap-edge", func(r *Record) *float64 { return &r.SwapEdge })
	d.scaleScores(grade)
	d.amount("edge-cost", func(r *Record) *float64 { return &r.EdgeCost })
	d.amount("cloud-cost", func(r *Record) *float64 { return &r.CloudCost })
	d.amount("edge-ms", func(r *Record) *float64 { return &r.EdgeMS })
	d.amount("cloud-ms", func(r *Record) *float64 { return &r.CloudMS })
	d.amount("cloud-ttft-ms", func(r *Record) *float64 { return &r.CloudTTFT })
	d.amount("prompt-chars", func(r *Record) *float64 { return &r.Chars })
	for s, name := range signalNames {
		at := func(r *Record) *float64 { return &r.Signals[s] }
		switch fitScale(d.values(at)).kind {
		case scaleProbability:
			d.clip(name, -slack, 1+slack, at)
		case scaleLogProb:
			d.clip(name, math.Inf(-1), slack, at)
		}
	}
}

// values are those of all records, NaN left out.
func (d *Data) values(at func(*Record) *float64) []float64 {
	var out []float64
	for i := range d.Records {
		if v := *at(&d.Records[i]); !math.IsNaN(v) {
			out = append(out, v)
		}
	}
	return out
}

// amount is of what is 0 or more.
func (d *Data) amount(name string, at func(*Record) *float64) {
	d.finite(name, at)
	d.clip(name, 0, math.MaxFloat64, at)
}

// finite takes infinite values, as of a call that timed out, for unknown: no mean
// has them.
func (d *Data) finite(name string, at func(*Record) *float64) {
	n := 0
	for i := range d.Records {
		if v := at(&d.Records[i]); math.IsInf(*v, 0) {
			*v = math.NaN()
			n++
		}
	}
	if n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: %d row(s) are infinite: they count as unknown", name, n))
	}
}

// clip brings the values outside a range to its nearest end.
func (d *Data) clip(name string, low, high float64, at func(*Record) *float64) {
	n := 0
	for i := range d.Records {
		v := at(&d.Records[i])
		if *v < low || *v > high {
			*v = min(high, max(low, *v))
			n++
		}
	}
	if n > 0 {
		d.Notes = append(d.Notes, fmt.Sprintf("%s: %d row(s) out of range are clipped", name, n))
	}
}

// scaleScores divides scores by the best of their scale: 1, 10 or 100 where
// nearly all are within it, else the largest. What is above is clipped.
func (d *Data) scaleScores(grade float64) {
	edge, cloud := func(r *Record) *float64 { return &r.Edge }, func(r *Record) *float64 { return &r.Cloud }
	scores := append(d.values(edge), d.values(cloud)...)
	largest := slices.Max(scores)
	best := largest
	for _, scale := range []float64{100, 10, 1} {
		if within(scores, -1, scale) {
			best = scale
		}
	}
	switch {
	case largest <= 1:
		return
	case largest < best: // grades of a scale that nobody reached the end of
		best = largest
	}
	best = max(best, grade)
	d.clip("edge", -1, best, edge)
	d.clip("cloud", -1, best, cloud)
	d.clip("swap-edge", -1, best, func(r *Record) *float64 { return &r.SwapEdge })
	if best == 1 {
		return
	}
	d.Notes = append(d.Notes, fmt.Sprintf("scores go up to %v: all are divided by it", best))
	for i := range d.Records {
		d.Records[i].Edge /= best
		d.Records[i].Cloud /= best
		d.Records[i].SwapEdge /= best
	}
}

// within reports whether all values but a few strays, which fewer than a hundred
// values have none of, lie in a range.
func within(values []float64, low, high float64) bool {
	strays := 0
	for _, v := range values {
		if v < low || v > high {
			strays++
		}
	}
	return float64(strays) <= strayShare*float64(len(values))
}

package measure

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Blocks are the means of consecutive blocks of size values; fewer values than
// that are one block, and an unfinished last block is left out.
func Blocks(values []float64, size int) []float64 {
	size = min(size, len(values))
	var out []float64
	for at := 0; size > 0 && at+size <= len(values); at += size {
		sum := 0.0
		for _, v := range values[at : at+size] {
			sum += v
		}
		out = append(out, sum/float64(size))
	}
	return out
}

// Farthest is the largest distance of a value from the target; NaN without one.
func Farthest(values []float64, target float64) float64 {
	worst := math.NaN()
	for _, v := range values {
		if d := math.Abs(v - target); !(d <= worst) {
			worst = d
		}
	}
	return worst
}

// Exceeding is the share of values above the limit; NaN without values.
func Exceeding(values []float64, limit float64) float64 {
	n := 0.0
	for _, v := range values {
		if v > limit {
			n++
		}
	}
	return n / float64(len(values))
}

// Quantiles returns for each q the least value that at least the share q of
// the values does not exceed; NaN without values.
func Quantiles(values []float64, qs ...float64) []float64 {
	v := slices.Sorted(slices.Values(values))
	out := make([]float64, len(qs))
	for i, q := range qs {
		out[i] = math.NaN()
		if len(v) > 0 {
			out[i] = v[max(0, min(len(v)-1, int(math.Ceil(q*float64(len(v))-1e-9))-1))]
		}
	}
	return out
}

// Choice is which of some items were escalated, and for each of them the
// cloud's score less the edge's.
type Choice struct {
	Escalated []bool
	Gain      []float64
}

// OverRandom is how much more accurate the choice is than escalating as many
// of the items at random.
func (c Choice) OverRandom() float64 {
	return c.overRandom(slices.Repeat([]uint16{1}, len(c.Gain)))
}

// overRandom counts each item as often as it was drawn.
func (c Choice) overRandom(counts []uint16) float64 {
	n, escalated, gain, both := 0.0, 0.0, 0.0, 0.0
	for i, g := range c.Gain {
		k := float64(counts[i])
		n += k
		gain += k * g
		if c.Escalated[i] {
			escalated += k
			both += k * g
		}
	}
	return both/n - escalated/n*gain/n
}

// BootstrapOverRandom is OverRandom in n resamples of the items, for each
// choice. The choices are of equally many items and share the resamples.
func BootstrapOverRandom(choices []Choice, n int, seed uint64) [][]float64 {
	out := make([][]float64, len(choices))
	if len(choices) == 0 {
		return out
	}
	resample(len(choices[0].Gain), n, seed, func(counts []uint16) {
		for j, c := range choices {
			out[j] = append(out[j], c.overRandom(counts))
		}
	})
	return out
}

// resample calls visit for n resamples of the items, with how often each item
// is drawn.
func resample(items, n int, seed uint64, visit func(counts []uint16)) {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	counts := make([]uint16, items)
	for range n {
		clear(counts)
		for range items {
			counts[rng.IntN(items)]++
		}
		visit(counts)
	}
}

package learn

import (
	"cmp"
	"slices"
	"sort"
)

// Isotonic is a rising step function fitted by pooling adjacent violators and
// read with linear interpolation between the centres of its blocks.
type Isotonic struct{ x, y []float64 }

// FitIsotonic fits y on x with weights w (nil for equal). Values are kept off 0
// and 1 by 1/(n+2). It needs at least one point.
func FitIsotonic(x, y, w []float64) *Isotonic {
	idx := make([]int, len(x))
	for i := range idx {
		idx[i] = i
	}
	slices.SortFunc(idx, func(a, b int) int { return cmp.Compare(x[a], x[b]) })
	type block struct{ x, y, w float64 }
	var blocks []block
	for _, i := range idx {
		wi := 1.0
		if w != nil {
			wi = w[i]
		}
		if wi <= 0 {
			continue
		}
		blocks = append(blocks, block{x[i], y[i], wi})
		for n := len(blocks); n > 1 && (blocks[n-2].y >= blocks[n-1].y || blocks[n-2].x == blocks[n-1].x); n-- {
			a, b := blocks[n-2], blocks[n-1]
			s := a.w + b.w
			blocks[n-2] = block{(a.x*a.w + b.x*b.w) / s, (a.y*a.w + b.y*b.w) / s, s}
			blocks = blocks[:n-1]
		}
	}
	low := 1 / (float64(len(x)) + 2)
	iso := &Isotonic{}
	for _, b := range blocks {
		iso.x = append(iso.x, b.x)
		iso.y = append(iso.y, max(low, min(1-low, b.y)))
	}
	return iso
}

// P reads the function at x, constant outside the outer centres.
func (f *Isotonic) P(x float64) float64 {
	i := sort.SearchFloat64s(f.x, x)
	switch {
	case len(f.x) == 0:
		return x
	case i == 0:
		return f.y[0]
	case i == len(f.x):
		return f.y[i-1]
	}
	t := (x - f.x[i-1]) / (f.x[i] - f.x[i-1])
	return f.y[i-1] + t*(f.y[i]-f.y[i-1])
}

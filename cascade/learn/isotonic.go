package learn

import (
	"cmp"
	"slices"

	"github.com/weirhq/weir/cascade"
)

// FitIsotonic fits y on x, a probability, with weights w (nil for equal), by
// pooling adjacent violators: the points are the centres of the blocks. Values
// are kept off 0 and 1 by 1/(n+2).
func FitIsotonic(x, y, w []float64) cascade.Curve {
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
	var curve cascade.Curve
	for _, b := range blocks {
		curve = append(curve, cascade.Point{X: b.x, Y: max(low, min(1-low, b.y))})
	}
	return curve
}

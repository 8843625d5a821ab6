package learn

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// reliability is a reliability diagram of predictions made before their label
// was seen. Old labels fade as in Quality.
type reliability struct{ bins [10]measure.Bin } // sums, not means

func (r *reliability) observe(p, y, w float64) {
	const fade = 1 - 1./4000
	for i := range r.bins {
		b := &r.bins[i]
		b.Weight, b.P, b.Y = fade*b.Weight, fade*b.P, fade*b.Y
	}
	b := &r.bins[max(0, min(9, int(10*p)))]
	b.Weight += w
	b.P += w * p
	b.Y += w * y
}

// ece is the expected calibration error; NaN before the first label.
func (r *reliability) ece() float64 {
	sum, total := 0.0, 0.0
	for _, b := range r.bins {
		sum += math.Abs(b.P - b.Y)
		total += b.Weight
	}
	return sum / total
}

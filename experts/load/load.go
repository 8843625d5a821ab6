// Package load says what each expert was asked for and what it served: counts
// in windows, per phase, with the metrics that judge them. Shapes and terms:
// L MoE layers, E logical experts, G devices; an imbalance ratio (IR) is
// max/mean >= 1, its inverse is the balancedness.
package load

import (
	"errors"
	"fmt"
	"math"
)

// Errors of Validate. Callers test them with errors.Is.
var (
	ErrEmpty    = errors.New("load has no layers or no experts")
	ErrRagged   = errors.New("load rows differ in length")
	ErrValue    = errors.New("load has a value that is not between 0 and 2^53")
	ErrTooLarge = errors.New("load is too large")
	ErrShape    = errors.New("loads differ in shape")
)

// Limits of a load. They are far above any known model (61 layers of 256
// experts) and keep planning memory bounded.
const (
	MaxLayers  = 4096
	MaxExperts = 65536
	MaxCells   = 16 << 20
	// MaxCount keeps sums over experts exact enough: 2^53 is where float64
	// stops counting.
	MaxCount = 1 << 53
)

// Counts is tokens routed to each logical expert, [layer][expert]. A dense
// layer is a row of zeros.
type Counts [][]float64

// NewCounts makes zero counts of the given shape over one array.
func NewCounts(layers, experts int) Counts {
	flat := make([]float64, layers*experts)
	c := make(Counts, layers)
	for i := range c {
		c[i], flat = flat[:experts:experts], flat[experts:]
	}
	return c
}

// Experts is the row length, 0 without rows.
func (c Counts) Experts() int {
	if len(c) == 0 {
		return 0
	}
	return len(c[0])
}

// Validate checks shape and values. The error names layer and expert and wraps
// ErrEmpty, ErrRagged, ErrValue or ErrTooLarge.
func (c Counts) Validate() error {
	if len(c) == 0 || len(c[0]) == 0 {
		return ErrEmpty
	}
	if len(c) > MaxLayers || len(c[0]) > MaxExperts || len(c)*len(c[0]) > MaxCells {
		return fmt.Errorf("%w: %d layers of %d experts", ErrTooLarge, len(c), len(c[0]))
	}
	for l, row := range c {
		if len(row) != len(c[0]) {
			return fmt.Errorf("%w: layer %d has %d experts, layer 0 has %d", ErrRagged, l, len(row), len(c[0]))
		}
		for e, x := range row {
			if math.IsNaN(x) || x < 0 || x > MaxCount {
				return fmt.Errorf("%w: layer %d expert %d is %v", ErrValue, l, e, x)
			}
		}
	}
	return nil
}

// Clone copies c.
func (c Counts) Clone() Counts {
	out := NewCounts(len(c), c.Experts())
	for l, row := range c {
		copy(out[l], row)
	}
	return out
}

// AddScaled adds f times other to c. The shapes must be equal (ErrShape).
func (c Counts) AddScaled(other Counts, f float64) error {
	if len(c) != len(other) || c.Experts() != other.Experts() {
		return fmt.Errorf("%w: %dx%d and %dx%d", ErrShape, len(c), c.Experts(), len(other), other.Experts())
	}
	for l, row := range other {
		for e, x := range row {
			c[l][e] += f * x
		}
	}
	return nil
}

// Scale multiplies every count by f.
func (c Counts) Scale(f float64) {
	for _, row := range c {
		for e := range row {
			row[e] *= f
		}
	}
}

// MoE lists the layers with any load, that is all but the dense ones.
func (c Counts) MoE() []int {
	var out []int
	for l, row := range c {
		if Sum(row) > 0 {
			out = append(out, l)
		}
	}
	return out
}

// Sum adds x.
func Sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

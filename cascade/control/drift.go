package control

import "math"

// PageHinkley detects a lasting change of the mean of a stream, both ways. The
// first Warmup values set the reference mean and spread; later values are
// standardised by them. Source: Page 1954, Hinkley 1971.
type PageHinkley struct {
	// Delta is the change, in standard deviations, that is tolerated; Lambda is
	// the accumulated excess that raises the alarm; Clip bounds a single
	// standardised value, so that one outlier is not a change. Warmup is the
	// number of reference values.
	Delta, Lambda, Clip float64
	Warmup              int

	n        int
	mean, m2 float64
	up, down float64
}

// NewPageHinkley returns the detector with the defaults. They find a shift of .3
// standard deviations in about 120 values, at one false alarm in about 4,500. The
// clip is wide because the signals of real tasks have tails of many standard
// deviations, and a change there is a change: a clip of 4 misses it for hundreds
// of values.
func NewPageHinkley() *PageHinkley {
	return &PageHinkley{Delta: .15, Lambda: 20, Clip: 8, Warmup: 1000}
}

// Observe adds a value and reports whether it raises the alarm. After an alarm
// the detector starts over with a new reference. NaN is ignored.
func (d *PageHinkley) Observe(x float64) bool {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return false
	}
	d.n++
	if d.n <= d.Warmup {
		delta := x - d.mean
		d.mean += delta / float64(d.n)
		d.m2 += delta * (x - d.mean)
		return false
	}
	sd := math.Sqrt(d.m2 / float64(max(1, d.Warmup-1)))
	z := 0.0
	switch {
	case sd > 0:
		z = math.Max(-d.Clip, math.Min(d.Clip, (x-d.mean)/sd))
	case x != d.mean:
		z = math.Copysign(d.Clip, x-d.mean)
	}
	d.up = math.Max(0, d.up+z-d.Delta)
	d.down = math.Max(0, d.down-z-d.Delta)
	if d.up > d.Lambda || d.down > d.Lambda {
		d.Reset()
		return true
	}
	return false
}

// Ready reports whether the reference is complete.
func (d *PageHinkley) Ready() bool { return d.n >= d.Warmup }

// Reset forgets the reference and what was accumulated.
func (d *PageHinkley) Reset() {
	d.n, d.mean, d.m2, d.up, d.down = 0, 0, 0, 0, 0
}

// PageHinkleyState is what a detector remembers over a restart.
type PageHinkleyState struct {
	N    int     `json:"n"` // values seen
	Mean float64 `json:"mean"`
	M2   float64 `json:"m2"` // sum of squared deviations of the reference
	Up   float64 `json:"up"`
	Down float64 `json:"down"`
}

// State returns what the detector remembers.
func (d *PageHinkley) State() PageHinkleyState {
	return PageHinkleyState{N: d.n, Mean: d.mean, M2: d.m2, Up: d.up, Down: d.down}
}

// Resume goes on from a state; one that no detector can have is a new start.
func (d *PageHinkley) Resume(s PageHinkleyState) {
	if s.N < 0 || s.M2 < 0 || s.Up < 0 || s.Down < 0 {
		s = PageHinkleyState{}
	}
	d.n, d.mean, d.m2, d.up, d.down = s.N, s.Mean, s.M2, s.Up, s.Down
}

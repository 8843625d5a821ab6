package state

import "math"

// Pulls are sums over recent pulls, from which a line can be fitted: how long one
// takes by its size. What is old weighs less, until it is forgotten.
type Pulls struct {
	N            float64 `json:"n"` // how many
	Bytes        float64 `json:"bytes"`
	Seconds      float64 `json:"seconds"` // from the open stream to the end
	BytesSquared float64 `json:"bytes_squared"`
	BytesSeconds float64 `json:"bytes_seconds"` // of the products
	TimeSquared  float64 `json:"seconds_squared"`
}

// Note adds one pull.
func (p *Pulls) Note(bytes, seconds float64) {
	p.Add(Pulls{1, bytes, seconds, bytes * bytes, bytes * seconds, seconds * seconds})
}

// Add adds the pulls of q.
func (p *Pulls) Add(q Pulls) {
	p.N += q.N
	p.Bytes += q.Bytes
	p.Seconds += q.Seconds
	p.BytesSquared += q.BytesSquared
	p.BytesSeconds += q.BytesSeconds
	p.TimeSquared += q.TimeSquared
}

// Fade makes all of it weigh f times as much.
func (p *Pulls) Fade(f float64) {
	*p = Pulls{p.N * f, p.Bytes * f, p.Seconds * f, p.BytesSquared * f, p.BytesSeconds * f, p.TimeSquared * f}
}

// Slope bounds how many seconds a byte more takes, by least squares: two standard
// errors either way, but not less than nothing and not more than as if all of the
// time were the bytes'. Pulls of one size, or too few of them, tell no more than
// that.
func (p *Pulls) Slope() (least, most float64) {
	if p.N <= 0 || p.Bytes <= 0 {
		return 0, 0
	}
	most = p.Seconds / p.Bytes
	xx := p.BytesSquared - p.Bytes*p.Bytes/p.N
	if p.N <= 2 || xx <= 1e-9*p.BytesSquared {
		return 0, most
	}
	xy := p.BytesSeconds - p.Bytes*p.Seconds/p.N
	yy := p.TimeSquared - p.Seconds*p.Seconds/p.N
	slope := xy / xx
	off := 2 * math.Sqrt(max(yy-slope*xy, 0)/(p.N-2)/xx)
	return min(max(slope-off, 0), most), min(max(slope+off, 0), most)
}

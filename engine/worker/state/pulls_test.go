package state

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestPullsSlope: pulls on a line tell its slope, also in parts that are added and
// after fading; of one size they tell the bounds only.
func TestPullsSlope(t *testing.T) {
	near := func(a, b, within float64) bool { return math.Abs(a-b) <= within }
	rapid.Check(t, func(t *rapid.T) {
		fixed, per := rapid.Float64Range(0, 1).Draw(t, "fixed"), rapid.Float64Range(1e-9, 1e-6).Draw(t, "per")
		var p, q Pulls
		for i := range rapid.IntRange(2, 20).Draw(t, "pulls") {
			n := float64(int(1e5) << (i % 8))
			p.Note(n, fixed+per*n)
			q.Note(2*n, fixed+2*per*n)
		}
		p.Add(q)
		p.Fade(.9)
		// What rounding of the sums leaves of a line without noise looks like noise.
		within := 1e-4*per + 4*math.Sqrt(0x1p-50*p.TimeSquared/(p.BytesSquared-p.Bytes*p.Bytes/p.N))
		if least, most := p.Slope(); p.N > 2 && (least > most || !near(least, per, within) || !near(most, per, within)) {
			t.Fatalf("%v to %v, want %v: %+v", least, most, per, p)
		}
		p.Fade(1 / p.N)
		if least, most := p.Slope(); least != 0 || !near(most, p.Seconds/p.Bytes, 1e-9*most) {
			t.Fatalf("of one pull's weight: %v to %v", least, most)
		}
	})
	var none, same Pulls
	for range 9 {
		same.Note(100, 3)
		same.Note(100, 5)
	}
	if least, most := none.Slope(); least != 0 || most != 0 {
		t.Errorf("of nothing: %v to %v", least, most)
	}
	if least, most := same.Slope(); least != 0 || most != .04 {
		t.Errorf("of one size: %v to %v", least, most)
	}
}

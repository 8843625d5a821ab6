package load

// ShapeBins is the number of equal bins over [0, 1] in a Shape.
const ShapeBins = 20

// Shape is a histogram of gate-score shapes of one layer. Mass counts tokens
// by the score mass of their top-k, Next by the ratio of the (k+1)-th to the
// k-th score. High Mass means that the gate leaves no choice; high Next means
// that the best expert not taken is nearly as good as the last one taken.
type Shape struct {
	Mass [ShapeBins]uint64 `json:"mass"`
	Next [ShapeBins]uint64 `json:"next"`
}

// Observe counts one token. mass and next are clamped to [0, 1].
func (s *Shape) Observe(mass, next float32) {
	s.Mass[shapeBin(mass)]++
	s.Next[shapeBin(next)]++
}

// Add adds the counts of other.
func (s *Shape) Add(other Shape) {
	for i := range s.Mass {
		s.Mass[i] += other.Mass[i]
		s.Next[i] += other.Next[i]
	}
}

// Tokens is the number of tokens observed.
func (s *Shape) Tokens() uint64 {
	n := uint64(0)
	for _, c := range s.Mass {
		n += c
	}
	return n
}

// FlatShare is the share of tokens whose top-k mass is below epsHigh, rounded
// down to a bin border: those that a LASER-style router may re-route.
func (s *Shape) FlatShare(epsHigh float32) float64 {
	all := s.Tokens()
	if all == 0 {
		return 0
	}
	n := uint64(0)
	for i := range int(epsHigh * ShapeBins) {
		n += s.Mass[min(i, ShapeBins-1)]
	}
	return min(1, float64(n)/float64(all))
}

// shapeBin is false for NaN in both comparisons, which puts NaN into bin 0.
func shapeBin(x float32) int {
	if x >= 1 {
		return ShapeBins - 1
	}
	if x > 0 {
		return int(x * ShapeBins)
	}
	return 0
}

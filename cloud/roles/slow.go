package roles

import (
	"math/bits"
	"slices"
	"time"
)

// Bounds of Slowness.
const (
	slowFactor = 3   // beyond its model, and beyond its peers
	wellFactor = 1.5 // below it, it is as fast as it should be
	looks      = 10  // that count
	mostLooks  = 8   // of them, which make an instance slow, or well again
	firstRest  = 10 * time.Second
	mostRest   = 2 * time.Minute
	// relapse is how soon after its return an instance has to be slow again for a
	// longer rest.
	relapse = 5 * time.Minute
)

// Slowness follows one instance that may degrade while it still answers: a gray
// failure (Huang et al., HotOS'17). It is slow when most of the last looks found
// its steps three times as long as its own cost model says and as its peers'
// steps are against theirs. So a model that is off, a machine that all share, and
// a pool that has too much to do are no failure. It is well when most looks say
// so, or after a rest without work, which gives no evidence; who relapses rests
// twice as long. The zero value knows nothing.
type Slowness struct {
	slow     bool
	bad, ok  uint16        // a bit for each of the last looks, the newest lowest
	rest     time.Duration // how long it is left alone without evidence
	until    time.Duration // end of the rest
	returned time.Duration // 0 is never
}

// Look takes how long recent steps took over what the instance's cost model says
// of them, 0 where it made none, and the same of its peers in the middle, 0 where
// none is known. It reports whether the instance is slow.
func (s *Slowness) Look(now time.Duration, own, peers float64) bool {
	seen := own > 0 && peers > 0
	bad := seen && own > slowFactor && own > slowFactor*peers
	if seen {
		const mask = 1<<looks - 1
		s.bad = (s.bad<<1 | bit(bad)) & mask
		s.ok = (s.ok<<1 | bit(own < wellFactor || own < wellFactor*peers)) & mask
	}
	switch {
	case s.slow && (bits.OnesCount16(s.ok) >= mostLooks || now >= s.until && !bad):
		*s = Slowness{rest: s.rest, returned: now}
	case !s.slow && bits.OnesCount16(s.bad) >= mostLooks:
		if s.slow = true; s.returned > 0 && now-s.returned < relapse {
			s.rest = min(2*s.rest, mostRest)
		} else {
			s.rest = firstRest
		}
	}
	if bad {
		s.until = now + s.rest
	}
	return s.slow
}

func bit(b bool) uint16 {
	if b {
		return 1
	}
	return 0
}

// Middle is the median, 0 of none.
func Middle(of []float64) float64 {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Package pace holds a token bucket: so many things per second, and some more at a
// time where there were fewer before.
package pace

import (
	"sync"
	"time"
)

// Allowance is a token bucket. It is safe for concurrent use.
type Allowance struct {
	perSecond, most float64

	mu   sync.Mutex
	left float64
	at   time.Time // of the last change
}

// New returns a full Allowance.
func New(perSecond, most float64) *Allowance {
	return &Allowance{perSecond: perSecond, most: most, left: most}
}

// Add puts n in.
func (a *Allowance) Add(n float64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fill(now)
	a.left = min(a.left+n, a.most)
}

// Spend takes one out, if there is one.
func (a *Allowance) Spend(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fill(now)
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}

// fill brings the bucket to now. A clock that goes back takes nothing out.
func (a *Allowance) fill(now time.Time) {
	if elapsed := now.Sub(a.at); !a.at.IsZero() && elapsed > 0 {
		a.left = min(a.left+a.perSecond*elapsed.Seconds(), a.most)
	}
	a.at = now
}

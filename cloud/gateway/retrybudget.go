package gateway

import (
	"sync"
	"time"
)

// Retries of a pool are bounded together, so that a pool in trouble does not
// get three times its load. Each request brings a fifth of a retry, each second
// ten, and what is saved covers the streams of an instance that dies under load.
// The form is Finagle's.
const (
	retriesPerRequest = .2
	retriesPerSecond  = 10
	mostRetries       = 512
)

// allowance is a token bucket. It is safe for concurrent use.
type allowance struct {
	perSecond, most float64

	mu   sync.Mutex
	left float64
	at   time.Time // of the last change
}

func newAllowance(perSecond, most float64) *allowance {
	return &allowance{perSecond: perSecond, most: most, left: most}
}

// add puts n in.
func (b *allowance) add(n float64, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left = min(b.left+n, b.most)
}

// spend takes one out, if there is one.
func (b *allowance) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (b *allowance) fill(now time.Time) {
	if !b.at.IsZero() {
		b.left = min(b.left+b.perSecond*now.Sub(b.at).Seconds(), b.most)
	}
	b.at = now
}

// budget is that of a pool.
func (g *Gateway) budget(pool string) *allowance {
	return allowanceOf(&g.budgets, pool, retriesPerSecond, mostRetries)
}

// allowanceOf is the allowance of a name, full at first.
func allowanceOf(all *sync.Map, name string, perSecond, most float64) *allowance {
	b, ok := all.Load(name)
	if !ok {
		b, _ = all.LoadOrStore(name, newAllowance(perSecond, most))
	}
	return b.(*allowance)
}

// mayRetry reports whether another attempt may follow a failure, and takes it
// off the budgets of attempts, of time and of the pool. Time counts from the
// newest token that the client has seen, else from the first attempt.
func (a *admitted) mayRetry() bool {
	now, since := time.Now(), a.tries.began
	if a.stream.begun() {
		since = a.stream.shown.last
	}
	if a.tries.drafts+a.tries.retries+1 >= a.g.opts.MaxAttempts || now.Sub(since) > a.g.opts.Timeouts.Retry ||
		!a.g.budget(a.ask.model.Pool).spend(now) {
		return false
	}
	a.tries.retries++
	return true
}

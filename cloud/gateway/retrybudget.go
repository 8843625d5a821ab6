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

// retryBudget is safe for concurrent use.
type retryBudget struct {
	mu   sync.Mutex
	left float64
	at   time.Time // of the last change
}

func (b *retryBudget) arrived(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left = min(b.left+retriesPerRequest, mostRetries)
}

// spend takes a retry, if there is one.
func (b *retryBudget) spend(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

func (b *retryBudget) fill(now time.Time) {
	if b.at.IsZero() {
		b.left = mostRetries
	} else {
		b.left = min(b.left+retriesPerSecond*now.Sub(b.at).Seconds(), mostRetries)
	}
	b.at = now
}

// budget is that of a pool.
func (g *Gateway) budget(pool string) *retryBudget {
	b, ok := g.budgets.Load(pool)
	if !ok {
		b, _ = g.budgets.LoadOrStore(pool, &retryBudget{})
	}
	return b.(*retryBudget)
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

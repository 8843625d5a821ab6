package gateway

import (
	"sync"
	"time"

	"github.com/weirhq/weir/internal/pace"
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

// budget is that of a pool.
func (g *Gateway) budget(pool string) *pace.Allowance {
	return allowanceOf(&g.budgets, pool, retriesPerSecond, mostRetries)
}

// allowanceOf is the allowance of a name, full at first.
func allowanceOf(all *sync.Map, name string, perSecond, most float64) *pace.Allowance {
	b, ok := all.Load(name)
	if !ok {
		b, _ = all.LoadOrStore(name, pace.New(perSecond, most))
	}
	return b.(*pace.Allowance)
}

// mayRetry reports whether another attempt may follow a failure, and takes it
// off the budgets of attempts, of time and of the pool. Time counts from the
// newest token that the client has seen, else from the first attempt.
func (a *admitted) mayRetry() bool {
	now, since := time.Now(), a.tries.began
	if a.stream.begun() {
		since = a.stream.shown.last
	}
	if a.tries.judged()+a.tries.retries+1 >= a.g.opts.MaxAttempts || now.Sub(since) > a.g.opts.Timeouts.Retry ||
		!a.g.budget(a.ask.model.Pool).Spend(now) {
		return false
	}
	a.tries.retries++
	return true
}

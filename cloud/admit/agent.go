package admit

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/quota"
)

const (
	renewEvery  = 200 * time.Millisecond
	shareEvery  = time.Second
	callTimeout = 2 * time.Second // of one contact with the store
	houseEvery  = time.Minute
	noteEvery   = 5 * time.Second
	// abandonAfter is how long the budget blocks of a gateway that died wait
	// for it to come back with its rows.
	abandonAfter = 10 * time.Minute
	// newsAtOnce bounds one transaction.
	newsAtOnce = 256
)

// errNoStore says that budgets need no store or that it has not answered.
var errNoStore = errors.New("no lease store answered")

// agent talks to the lease store, from one goroutine.
type agent struct {
	a    *Admitter
	kick chan struct{}

	mu   sync.Mutex
	next chan struct{} // closed when the round that starts next has ended
	err  error         // of the last round

	away     bool
	demand   map[demandKey]float64 // smoothed
	divided  bool                  // shares are in force
	peers    atomic.Int64
	shareAt  time.Time
	houseAt  time.Time
	noteAt   time.Time
	restored bool
}

type demandKey struct{ tenant, limit, key string }

func newAgent(a *Admitter) *agent {
	return &agent{a: a, kick: make(chan struct{}, 1), next: make(chan struct{}), demand: map[demandKey]float64{}}
}

// round asks for a round of news and waits until one that starts from now has
// ended. Its error is the store's, or ctx's.
func (g *agent) round(ctx context.Context, until time.Time) error {
	if g.a.o.Leases == nil {
		return errNoStore
	}
	g.mu.Lock()
	next := g.next
	g.mu.Unlock()
	select {
	case g.kick <- struct{}{}:
	default:
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-next:
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errNoStore
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// run makes rounds until ctx ends, and gives back what is unspent then.
func (g *agent) run(ctx context.Context) {
	if g.a.o.Leases == nil {
		return
	}
	ticks := time.NewTicker(renewEvery)
	defer ticks.Stop()
	for ctx.Err() == nil {
		g.renew(ctx, time.Now())
		g.housekeep(ctx)
		select {
		case <-ticks.C:
		case <-g.kick:
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	// Seen from a little later, every unspent block has been idle.
	g.renew(last, time.Now().Add(5*time.Second))
	g.a.countShadow()
	err := errors.Join(g.a.tellShadow(last), g.a.o.Leases.Leave(last, g.a.o.Gateway))
	if err != nil && !g.away {
		g.a.o.Log.Warn("leases not given up, they run out", "error", err)
	}
}

// renew tells the store of all budgets and takes in its replies.
func (g *agent) renew(ctx context.Context, now time.Time) {
	g.mu.Lock()
	done := g.next
	g.next = make(chan struct{})
	g.mu.Unlock()
	err := g.exchange(ctx, now)
	if ctx.Err() == nil {
		g.note(err)
	}
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	close(done)
}

// note logs the beginning and the end of an outage.
func (g *agent) note(err error) {
	switch {
	case err != nil && !g.away:
		g.a.o.Log.Warn("budget store is away: leases run on, strict tenants are refused after them", "error", err)
	case err == nil && g.away:
		g.a.o.Log.Info("budget store answers again")
	}
	g.away = err != nil
	if g.away {
		g.a.book.All(func(_ string, a *quota.Account) { a.StoreAway() })
	}
}

func (g *agent) exchange(ctx context.Context, now time.Time) error {
	r := g.a.current(now)
	if r == nil {
		return nil
	}
	var news []lease.News
	g.a.book.All(func(tenant string, a *quota.Account) {
		limits := r.limits[tenant].Limits
		if !budgeted(limits) {
			return
		}
		for _, n := range a.LeaseNews(nil, now) {
			if l := limitOf(limits, n.Budget.LimitID); l != nil {
				news = append(news, lease.News{TenantID: tenant, Limit: *l, LeaseNews: n})
			}
		}
	})
	for len(news) > 0 {
		n := min(len(news), newsAtOnce)
		if err := g.send(ctx, news[:n]); err != nil {
			return err
		}
		news = news[n:]
	}
	if g.away { // nothing to tell is no answer
		return g.ping(ctx)
	}
	return nil
}

func budgeted(limits []quota.Limit) bool {
	for i := range limits {
		if w := limits[i].Window; w == quota.Day || w == quota.Month {
			return true
		}
	}
	return false
}

func limitOf(limits []quota.Limit, id string) *quota.Limit {
	for i := range limits {
		if limits[i].ID == id {
			return &limits[i]
		}
	}
	return nil
}

func (g *agent) send(ctx context.Context, news []lease.News) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sent := time.Now()
	replies, err := g.a.o.Leases.Renew(ctx, g.a.o.Gateway, news)
	if err != nil {
		return err
	}
	now := time.Now()
	for i := range replies {
		a := g.a.book.Account(news[i].TenantID)
		switch {
		case a == nil: // the tenant is gone
		case replies[i].Closed != nil:
			a.LeaseClosed(news[i].Budget, news[i].Generation, replies[i].Closed.Used)
		default:
			a.ApplyLease(news[i].Budget, replies[i].LeaseReply, sent, now)
		}
	}
	return nil
}

func (g *agent) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := g.a.o.Leases.Peers(ctx, g.a.o.Gateway)
	return err
}

// housekeep does what is due now and then, unless the store is away.
func (g *agent) housekeep(ctx context.Context) {
	now := time.Now()
	// Before there is a snapshot a new database may have no tables yet.
	if g.away || ctx.Err() != nil || g.a.o.Directory.Index() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	if now.Sub(g.shareAt) >= shareEvery {
		g.shareAt = now
		if err := g.share(ctx, now); err != nil {
			g.a.o.Log.Warn("rates are not divided, shares stay", "error", err)
		}
		if err := g.a.tellShadow(ctx); err != nil {
			g.a.o.Log.Warn("what shadow limits would have refused is told later", "error", err)
		}
	}
	if now.Sub(g.noteAt) >= noteEvery {
		g.noteAt = now
		if err := g.a.noteRemainders(now); err != nil {
			g.a.o.Log.Warn("what budgets have left is not noted on disk", "error", err)
		}
	}
	if !g.restored && g.closedNow() {
		n, err := g.a.o.Leases.Recover(ctx, g.a.o.Gateway)
		if err != nil {
			g.a.o.Log.Warn("leases of earlier processes not closed, will try again", "error", err)
		} else if g.restored = true; n > 0 {
			g.a.o.Log.Info("leases of earlier processes closed by the ledger", "leases", n)
		}
	}
	if now.Sub(g.houseAt) >= houseEvery {
		g.houseAt = now
		_, err := g.a.o.Leases.CloseExpired(ctx, abandonAfter)
		if err = errors.Join(err, g.a.o.Leases.Sweep(ctx, now)); err != nil {
			g.a.o.Log.Warn("old leases not closed, will try again", "error", err)
		}
	}
}

func (g *agent) closedNow() bool {
	select {
	case <-g.a.o.Recovered:
		return true
	default:
		return false
	}
}

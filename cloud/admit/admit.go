// Package admit decides whether and when a request may use a model: it asks
// the tenant's limits (tenants/quota), stands in line while the pool is
// saturated (tenants/fair), and keeps what a request holds until it settles.
// Its agent leases budgets from the database and divides rates with the other
// gateways; no request waits for the database but the one that needs a block.
package admit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/lease"
	"github.com/weirhq/weir/tenants/price"
	"github.com/weirhq/weir/tenants/quota"
)

// Pool is what admission must know of the instances behind it.
type Pool interface {
	// Slots is how many requests of a model its ready instances work on at a
	// time; 0 where that is not known.
	Slots(model string) int
	// Serves returns the model's context in tokens, 0 where it is not known.
	Serves(model string) (known bool, contextTokens int)
}

// Leases is the store behind budgets and shared rates.
type Leases interface {
	Renew(context.Context, lease.Gateway, []lease.News) ([]lease.Reply, error)
	Peers(context.Context, lease.Gateway) (int, error)
	Divide(context.Context, lease.Gateway, []lease.Demand) ([]lease.Share, error)
	Recover(context.Context, lease.Gateway) (int, error)
	CloseExpired(context.Context, time.Duration) (int, error)
	CountShadow(ctx context.Context, refused map[string]int64) error
	Leave(context.Context, lease.Gateway) error
	Sweep(context.Context, time.Time) error
}

// Options are what an Admitter needs.
type Options struct {
	Directory gateway.Directory
	Pool      Pool
	Leases    Leases // nil: this gateway is alone and owns every budget whole
	Gateway   lease.Gateway
	// Recovered is closed when the ledger holds all rows of this node's earlier
	// processes; nil never.
	Recovered <-chan struct{}
	// Remainders is a file that keeps what budgets had left, for a start without
	// the store; "" keeps none.
	Remainders string
	Queue      fair.Options          // the zero value is fair.DefaultOptions
	Registry   prometheus.Registerer // nil: no metrics
	Log        *slog.Logger
}

// Admitter is a gateway.Admission. It is safe for concurrent use.
type Admitter struct {
	o     Options
	book  *quota.Book
	agent *agent
	meter *meter

	rules    atomic.Pointer[rules]
	loading  sync.Mutex
	mu       sync.Mutex // guards the maps
	lines    map[string]*line
	learners map[string]*learner
	shadowed map[string]int64 // refusals of limits in shadow that the store has not been told
}

// rules are what one snapshot says.
type rules struct {
	index  *tenants.Index
	limits map[string]quota.TenantLimits
	prices *price.Book
}

// New returns an Admitter; Run keeps its leases and its queue going.
func New(o Options) (*Admitter, error) {
	if o.Directory == nil || o.Pool == nil || o.Log == nil {
		return nil, errors.New("admit: Directory, Pool and Log are needed")
	}
	if o.Queue == (fair.Options{}) {
		o.Queue = fair.DefaultOptions()
	}
	if err := o.Queue.Validate(); err != nil {
		return nil, err
	}
	a := &Admitter{o: o, book: quota.NewBook(), lines: map[string]*line{}, learners: map[string]*learner{}, shadowed: map[string]int64{}}
	a.agent = newAgent(a)
	var err error
	a.meter, err = newMeter(a, o.Registry)
	return a, err
}

// Run keeps leases, shares and queues going until ctx ends, then gives unspent
// leases back.
func (a *Admitter) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { a.agent.run(ctx) })
	wg.Go(func() { a.tick(ctx) })
	wg.Wait()
}

// tickEvery is how often queues look for requests that have waited too long
// and for room that nobody announced.
const tickEvery = 50 * time.Millisecond

func (a *Admitter) tick(ctx context.Context) {
	ticks := time.NewTicker(tickEvery)
	defer ticks.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			for _, l := range a.allLines() {
				l.tend(now, n%1200 == 0)
			}
			if n%20 == 0 {
				a.book.Expire(now)
				a.countShadow()
			}
		}
	}
}

// current returns the rules of the newest snapshot, nil before the first.
func (a *Admitter) current(now time.Time) *rules {
	index := a.o.Directory.Index()
	if r := a.rules.Load(); index == nil || r != nil && r.index == index {
		return r
	}
	a.loading.Lock()
	defer a.loading.Unlock()
	if r := a.rules.Load(); r != nil && r.index == index {
		return r
	}
	r, err := a.load(index, now)
	if err != nil {
		a.o.Log.Error("limits of the snapshot refused in part, former ones stay", "error", err)
	}
	a.rules.Store(r)
	return r
}

func (a *Admitter) load(index *tenants.Index, now time.Time) (*rules, error) {
	limits, err := quota.FromSnapshot(index.Snapshot(), a.o.Leases != nil)
	if err == nil {
		err = a.book.Update(limits, now)
	} else if r := a.rules.Load(); r != nil {
		limits = r.limits
	}
	prices, perr := price.NewBook(index.Snapshot().Prices)
	if perr != nil {
		prices, _ = price.NewBook(nil) // an empty book has nothing to refuse
	}
	if a.rules.Load() == nil {
		err = errors.Join(err, a.recallRemainders(now))
	}
	return &rules{index, limits, prices}, errors.Join(err, perr)
}

// Admit implements gateway.Admission.
func (a *Admitter) Admit(ctx context.Context, w gateway.Work) (gateway.Grant, error) {
	now := time.Now()
	r := a.current(now)
	if r == nil {
		return nil, notReady()
	}
	g := a.newGrant(r, &w, now)
	if g.account != nil {
		if err := g.reserve(ctx, now); err != nil {
			return nil, err
		}
	}
	if err := g.queue(ctx, &w, r.index.Class(w.Class)); err != nil {
		g.reservation.Release(time.Now())
		return nil, err
	}
	a.meter.results.WithLabelValues(quota.Admitted.String()).Inc()
	return g, nil
}

// Room implements gateway.Admission.
func (a *Admitter) Room(w gateway.Work) bool {
	now := time.Now()
	r := a.current(now)
	if r == nil {
		return true // Admit says what is wrong
	}
	g := a.newGrant(r, &w, now)
	if g.account == nil {
		return true
	}
	_, room := g.account.Named(&g.request, now)
	return room
}

// Limits returns where an identity's limits stand on this gateway.
func (a *Admitter) Limits(id tenants.Identity, model, class string) []quota.Status {
	now := time.Now()
	if a.current(now) == nil {
		return nil
	}
	account := a.book.Account(id.TenantID)
	if account == nil {
		return nil
	}
	return account.Status(&quota.Request{Key: id.KeyID, Model: model, Tier: string(tenants.Cloud), Class: class}, now, nil)
}

// GiveBack takes a settled row of this gateway out of its tenant's budgets,
// because another gateway's answer to the same attempt is the one that counts.
// Rows of earlier processes are none of its business: their leases are closed by
// the ledger's sums.
func (a *Admitter) GiveBack(r tenants.UsageRecord) {
	account := a.book.Account(r.TenantID)
	if account == nil || a.o.Gateway.Epoch != "" && r.NodeEpoch != a.o.Gateway.Epoch {
		return
	}
	amount := quota.Amount{Input: r.InputTokens, Output: r.OutputTokens, Cost: r.CostNanoUSD}
	if r.Attempt <= 1 {
		amount.Requests = 1
		if r.DeviceID != "" {
			amount.Escalations = 1
		}
	}
	account.GiveBack(&quota.Request{Key: r.KeyID, Model: r.Model, Tier: string(r.Tier), Class: r.Class, Amount: amount}, r.StartedAt, time.Now())
}

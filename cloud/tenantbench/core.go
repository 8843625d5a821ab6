package tenantbench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/weirhq/weir/cloud/benchrig"
	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/spool"
)

// core measures what needs no database.
func core(env bench.Env) ([]bench.Bar, error) {
	admit, err := admitSettle()
	if err != nil {
		return nil, err
	}
	decide, err := fairDecision()
	if err != nil {
		return nil, err
	}
	record, err := recordRow(filepath.Join(env.Dir, "spool"))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(env.Out, "admit and settle %.0f ns, fair decision %.0f ns, row on disk %.0f ns\n", admit.ns, decide.ns, record.ns)
	return []bench.Bar{
		{Name: "tenants.admit_settle.time", Measured: admit.ns, Unit: "ns", Want: bench.AtMost, Bound: boundAdmitNs},
		{Name: "tenants.admit_settle.allocs", Measured: admit.allocs, Want: bench.AtMost, Bound: 0},
		{Name: "tenants.fair.decision", Measured: decide.ns, Unit: "ns", Want: bench.AtMost, Bound: boundFairNs},
		{Name: "tenants.spool.row", Measured: record.ns, Unit: "ns"},
	}, nil
}

// sixLimits are the common case: three rates and slots of the tenant, its
// budget of money, and a rate for each key.
func sixLimits() []quota.Limit {
	return []quota.Limit{
		{ID: "rpm", Kind: quota.Requests, Window: quota.Minute, Max: quota.MaxRate},
		{ID: "in", Kind: quota.Input, Window: quota.Minute, Max: quota.MaxRate},
		{ID: "out", Kind: quota.Output, Window: quota.Minute, Max: quota.MaxRate},
		{ID: "slots", Kind: quota.Concurrent, Window: quota.AtOnce, Max: 1 << 20},
		{ID: "money", Kind: quota.Cost, Window: quota.Month, Max: 1 << 60},
		{ID: "key", Key: quota.EachKey, Kind: quota.Requests, Window: quota.Minute, Max: quota.MaxRate},
	}
}

func admitSettle() (cost, error) {
	now := time.Now()
	a, err := quota.NewAccount(sixLimits(), quota.Options{}, now)
	if err != nil {
		return cost{}, err
	}
	ask := quota.Request{Key: "k1", Model: "m", Tier: "cloud", Class: "standard", Amount: quota.Amount{Requests: 1, Input: 500, Output: 200, Cost: 700}}
	refused := false
	var res quota.Reservation
	c := perCall(20_000, func() {
		now = now.Add(time.Microsecond)
		refused = refused || !a.Admit(&ask, now, &res).OK()
		res.Settle(quota.Amount{Input: 480, Output: 100, Cost: 580}, now)
	})
	if refused {
		return cost{}, errors.New("bench: a request within its limits was refused")
	}
	return c, nil
}

const (
	crowdTenants = 1000
	crowdQueued  = 100_000
)

// fairDecision is one choice of the next among 100,000 requests of 1,000
// tenants, in the best of many rounds. Each one chosen is queued again, outside
// the clock.
func fairDecision() (cost, error) {
	o := fair.DefaultOptions()
	o.Holdback, o.MaxQueued = 0, 2*crowdQueued
	now := time.Now()
	q, err := fair.New(o, now)
	if err != nil {
		return cost{}, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pool := &fair.Pool{PrefillRate: 20_000}
	push := func(it *fair.Item) {
		it.Tenant, it.Band, it.Input = fmt.Sprintf("tenant-%04d", rng.IntN(crowdTenants)), 1, rng.Int64N(2000)
		it.Deadline = now.Add(time.Duration(rng.IntN(60_000)) * time.Millisecond)
		it.Sheddable = rng.IntN(3) == 0
		_, _ = q.Push(it, pool, now)
	}
	for range crowdQueued {
		push(new(fair.Item))
	}
	const batch, batches = 2_000, 100
	gone := make([]*fair.Item, 0, batch)
	spent := time.Duration(1 << 62)
	for range batches {
		began := time.Now()
		for range batch {
			now = now.Add(10 * time.Microsecond)
			it := q.Next(pool, now)
			if it == nil {
				return cost{}, errors.New("bench: the fair queue ran dry")
			}
			q.Served(it, 100, now)
			q.Done(it)
			gone = append(gone, it)
		}
		spent = min(spent, time.Since(began))
		for _, it := range gone {
			push(it)
		}
		gone = gone[:0]
	}
	return cost{ns: float64(spent.Nanoseconds()) / batch}, nil
}

// recordRow writes an attempt's admission and settlement to disk.
func recordRow(dir string) (cost, error) {
	s, err := spool.Open(spool.Options{Dir: dir})
	if err != nil {
		return cost{}, err
	}
	defer s.Close()
	r := aRow(time.Now())
	var failed error
	c := perCall(2_000, func() {
		var t spool.Ticket
		if err := s.Admit(&r, &t); err != nil {
			failed = err
		} else if err := s.Settle(&t, &r); err != nil {
			failed = err
		}
	})
	return c, failed
}

func aRow(at time.Time) tenants.UsageRecord {
	return tenants.UsageRecord{
		AttemptID: contract.NewID(), OperationID: contract.NewID(), TenantID: benchrig.Tenant, KeyID: "benchkey", Tier: tenants.Cloud,
		Model: "fake", Class: "standard", Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, Attempt: 1,
		InputTokens: 480, OutputTokens: 100, PriceVersion: 1, CostNanoUSD: 58_000, StartedAt: at.UTC(), TTFTMicros: 20_000, TotalMicros: 900_000,
		Reason: "client_mode", Node: "bench", NodeEpoch: "bench",
	}
}

// Package tenantbench measures what tenants cost: admission and settlement, the
// fair queue, the ledger beside a bare COPY, and a gateway with all of it
// beside one that admits everybody. Both sides of a comparison run in turns.
package tenantbench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weirhq/weir/internal/bench"
)

// Suite is the tenants' part of "weir bench".
func Suite() bench.Suite {
	return bench.Suite{Name: "tenants", Short: "admission, fair queue, ledger and what they add to a gateway", Run: run}
}

// The bounds of the figures.
const (
	boundAdmitNs    = 2000
	boundFairNs     = 1000
	boundRows       = 50_000 // per second
	boundCopyRatio  = 0.3
	boundServed     = 290 // requests per second, of the 300 that are sent
	boundGatewayP50 = 150 // microseconds
)

func run(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	bars, err := core(env)
	if err != nil {
		return nil, err
	}
	fair, err := fairness(env)
	if err != nil {
		return nil, err
	}
	bars = append(bars, fair...)
	db, err := openDatabase(ctx, env)
	if err != nil {
		return nil, err
	}
	defer db.close()
	r, err := newRig(ctx, db, env)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	added, err := r.added(ctx, 1500)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(env.Out, "gateway: tenants add %v at the median of 1500 requests each\n", added)
	bars = append(bars, bench.Bar{Name: "tenants.gateway.added.p50", Measured: float64(added.Nanoseconds()) / 1e3, Unit: "us", Want: bench.AtMost, Bound: boundGatewayP50})
	ledger, err := measureLedger(ctx, env, db, r, ledgerRows)
	if err != nil {
		return nil, err
	}
	return append(bars,
		bench.Bar{Name: "tenants.ledger.rows", Measured: ledger.rate, Unit: "rows/s", Want: bench.AtLeast, Bound: boundRows},
		bench.Bar{Name: "tenants.ledger.of_bare_copy", Measured: ledger.ratio, Unit: "ratio", Want: bench.AtLeast, Bound: boundCopyRatio},
		bench.Bar{Name: "tenants.ledger.served", Measured: ledger.served, Unit: "req/s", Want: bench.AtLeast, Bound: boundServed}), nil
}

// cost is what one call takes.
type cost struct {
	ns     float64
	allocs float64
}

// perCall calls f n times in each of 20 rounds and returns the best round's
// time, because whatever else the machine does only adds to it, and the mean
// number of allocations.
func perCall(n int, f func()) cost {
	const rounds = 20
	var before, after runtime.MemStats
	times := make([]float64, rounds)
	f() // what is made once
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range times {
		began := time.Now()
		for range n {
			f()
		}
		times[i] = float64(time.Since(began).Nanoseconds()) / float64(n)
	}
	runtime.ReadMemStats(&after)
	// Whole allocations: the runtime's own few do not count as one per call.
	return cost{slices.Min(times), float64((after.Mallocs - before.Mallocs) / uint64(rounds*n))}
}

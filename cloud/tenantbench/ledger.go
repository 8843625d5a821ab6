package tenantbench

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/internal/bench"
	"github.com/weirhq/weir/internal/pgcluster"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
)

// database is a private PostgreSQL with its default durability.
type database struct {
	pool *pgxpool.Pool
	stop func()
}

func (d *database) close() { d.stop() }

func openDatabase(ctx context.Context, env bench.Env) (*database, error) {
	dir := filepath.Join(env.Dir, "pg")
	cluster, err := pgcluster.Open(ctx, pgcluster.Options{Dir: dir, Output: io.Discard})
	if err != nil {
		return nil, err
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cluster.Serve(serving) }() // WaitReady tells why it ended
	stop := func() { cancel(); <-ended; _ = pgcluster.Remove(dir) }
	if err := cluster.WaitReady(ctx, ended); err != nil {
		stop()
		return nil, err
	}
	if err := migrations.Up(ctx, cluster.URL()); err != nil {
		stop()
		return nil, err
	}
	pool, err := pgxpool.New(ctx, cluster.URL())
	if err != nil {
		stop()
		return nil, err
	}
	return &database{pool, func() { pool.Close(); stop() }}, nil
}

const (
	ledgerBatch  = 5000
	ledgerRounds = 8
	background   = 300 // requests per second that the gateway serves meanwhile
)

// measureLedger writes batches by turns into the ledger, with its sums, and by
// bare COPY into a table of the same shape, while the gateway serves. It
// returns the ledger's rows per second and their ratio to COPY's.
func measureLedger(ctx context.Context, env bench.Env, db *database, r *rig) (rate, ratio float64, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `create table bare (like weir.usage_ledger including all)`); err != nil {
		return 0, 0, err
	}
	store := ledger.NewStore(db.pool)
	served, stop := r.load(ctx)
	defer stop()
	var writing, copying time.Duration
	for i := range ledgerRounds + 1 {
		batch := someRows(ledgerBatch)
		began := time.Now()
		if _, err := store.Insert(ctx, batch); err != nil {
			return 0, 0, err
		}
		between := time.Now()
		if err := ledger.BareCopy(ctx, conn.Conn(), "bare", batch); err != nil {
			return 0, 0, err
		}
		if i > 0 { // the first makes partitions and plans
			writing, copying = writing+between.Sub(began), copying+time.Since(between)
		}
	}
	rate = float64(ledgerRounds*ledgerBatch) / writing.Seconds()
	bare := float64(ledgerRounds*ledgerBatch) / copying.Seconds()
	fmt.Fprintf(env.Out, "ledger: %.0f rows/s with sums, bare COPY %.0f rows/s, while %d requests were served\n", rate, bare, served.Load())
	return rate, rate / bare, nil
}

// someRows are rows of this minute, as a gateway's batches are.
func someRows(n int) []tenants.UsageRecord {
	out := make([]tenants.UsageRecord, n)
	now := time.Now()
	for i := range out {
		out[i] = aRow(now)
		out[i].KeyID = fmt.Sprintf("key%02d", i%20)
		out[i].NodeEpoch = "other"
	}
	return out
}

// load sends requests at a steady rate to the gateway with tenants.
func (r *rig) load(ctx context.Context) (served *atomic.Int64, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	served = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second / background)
		defer tick.Stop()
		slots := make(chan struct{}, 16)
		for {
			select {
			case <-ctx.Done():
				for range cap(slots) {
					slots <- struct{}{}
				}
				return
			case <-tick.C:
			}
			select {
			case slots <- struct{}{}:
				go func() {
					defer func() { <-slots }()
					if _, err := r.one(ctx, r.with); err == nil {
						served.Add(1)
					}
				}()
			default: // too slow for the rate: the count tells
			}
		}
	}()
	return served, func() { cancel(); <-done }
}

package tenantbench

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/cloud/benchrig"
	"github.com/weirhq/weir/cloud/rows"
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
	ledgerBatch  = 5000 // rows of a bare COPY, as many as a gateway writes at a time
	ledgerRounds = 12
	roundRows    = 4 * ledgerBatch
	background   = 300 // requests per second that the gateway serves meanwhile
)

// measureLedger moves rows by turns from a gateway's files into the ledger,
// with its sums, and by bare COPY from memory into a table of the same shape,
// while the gateway serves. It returns the ledger's rows per second and their
// ratio to COPY's.
func measureLedger(ctx context.Context, env bench.Env, db *database, r *rig, rounds int) (rate, ratio float64, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `create table bare (like weir.usage_ledger including all)`); err != nil {
		return 0, 0, err
	}
	recorder, err := rows.Open(rows.Options{Dir: filepath.Join(env.Dir, "drain"), Sink: ledger.NewStore(db.pool), Batch: ledgerBatch, Log: benchrig.Log})
	if err != nil {
		return 0, 0, err
	}
	defer closeRecorder(recorder)
	served, stop := r.load(ctx)
	defer stop()
	var draining, copying time.Duration
	var answered int64
	for i := range rounds + 1 {
		batch := someRows(roundRows)
		if err := record(recorder, batch); err != nil {
			return 0, 0, err
		}
		before, began := served.Load(), time.Now()
		if err := recorder.Flush(ctx); err != nil {
			return 0, 0, err
		}
		between := time.Now()
		for part := range slices.Chunk(batch, ledgerBatch) {
			if err := ledger.BareCopy(ctx, conn.Conn(), "bare", part); err != nil {
				return 0, 0, err
			}
		}
		if i > 0 { // the first makes partitions and plans
			draining, copying = draining+between.Sub(began), copying+time.Since(between)
			answered += served.Load() - before
		}
	}
	if st := recorder.Stats(); st.Inserted != uint64((rounds+1)*roundRows) || st.Duplicates != 0 {
		return 0, 0, fmt.Errorf("bench: the ledger took %+v of %d rows", st, (rounds+1)*roundRows)
	}
	perSecond := func(d time.Duration) float64 { return float64(rounds*roundRows) / d.Seconds() }
	fmt.Fprintf(env.Out, "ledger: %d rows from files with sums at %.0f rows/s; bare COPY from memory %.0f rows/s; meanwhile %.0f requests/s were served\n",
		rounds*roundRows, perSecond(draining), perSecond(copying), float64(answered)/(draining+copying).Seconds())
	return perSecond(draining), copying.Seconds() / draining.Seconds(), nil
}

// record puts rows into a gateway's files.
func record(r *rows.Recorder, batch []tenants.UsageRecord) error {
	for i := range batch {
		e, err := r.Begin(&batch[i])
		if err == nil {
			err = e.Settle(&batch[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closeRecorder gives its directory up.
func closeRecorder(r *rows.Recorder) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.Run(ctx)
}

// someRows are rows of this minute, as a gateway's batches are.
func someRows(n int) []tenants.UsageRecord {
	out := make([]tenants.UsageRecord, n)
	now := time.Now()
	for i := range out {
		out[i] = aRow(now.Add(time.Duration(i) * 10 * time.Microsecond))
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
		slots := make(chan struct{}, 16)
		defer func() {
			for range cap(slots) {
				slots <- struct{}{}
			}
		}()
		for due := time.Now(); ; due = due.Add(time.Second / background) { // what was late is made up for
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(due)):
			}
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			go func() {
				defer func() { <-slots }()
				if _, err := r.Ask(ctx, r.with, false); err == nil {
					served.Add(1)
				}
			}()
		}
	}()
	return served, func() { cancel(); <-done }
}

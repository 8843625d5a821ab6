package tenantbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
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
	ledgerBatch = 5000 // rows of a bare COPY, as many as a gateway writes at a time
	ledgerRows  = 240_000
	background  = 300 // requests per second that the gateway serves meanwhile
)

// ledgerFigures are what measureLedger finds.
type ledgerFigures struct {
	rate   float64 // rows per second in the ledger, with their sums
	ratio  float64 // of a bare COPY's
	served float64 // requests per second of the gateway meanwhile
}

// measureLedger moves n rows from a gateway's files into the ledger, with its
// sums, in one run while the gateway serves. Half of a bare COPY of the same
// rows, from memory into a table of the same shape, comes before it and half
// after, as the machine changes.
func measureLedger(ctx context.Context, env bench.Env, db *database, r *rig, n int) (f ledgerFigures, err error) {
	conn, err := db.pool.Acquire(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, `create table bare (like weir.usage_ledger including all)`); err != nil {
		return f, err
	}
	recorder, err := rows.Open(rows.Options{Dir: filepath.Join(env.Dir, "drain"), Sink: ledger.NewStore(db.pool), Batch: ledgerBatch, Log: benchrig.Log})
	if err != nil {
		return f, err
	}
	defer closeRecorder(recorder)
	served, stop := r.load(ctx)
	defer stop()
	// What is made once: partitions and plans.
	if _, err := drain(ctx, recorder, someRows(ledgerBatch)); err != nil {
		return f, err
	}
	if _, err := bareCopy(ctx, conn.Conn(), someRows(ledgerBatch)); err != nil {
		return f, err
	}
	all := someRows(n)
	before, err := bareCopy(ctx, conn.Conn(), all[:n/2])
	if err != nil {
		return f, err
	}
	from := served.Load()
	draining, err := drain(ctx, recorder, all)
	if err != nil {
		return f, err
	}
	f.served = float64(served.Load()-from) / draining.Seconds()
	after, err := bareCopy(ctx, conn.Conn(), all[n/2:])
	if err != nil {
		return f, err
	}
	f.rate = float64(n) / draining.Seconds()
	f.ratio = (before + after).Seconds() / draining.Seconds()
	fmt.Fprintf(env.Out, "ledger: %d rows from files with sums at %.0f rows/s, in one run of %.1f s; bare COPY from memory %.0f rows/s; meanwhile %.0f requests/s were served\n",
		n, f.rate, draining.Seconds(), f.rate/f.ratio, f.served)
	return f, nil
}

// drain puts rows into a gateway's files and returns how long it takes until
// the ledger has the last, while they are still being put there.
func drain(ctx context.Context, r *rows.Recorder, batch []tenants.UsageRecord) (time.Duration, error) {
	want := r.Stats().Inserted + uint64(len(batch))
	began, recorded := time.Now(), make(chan error, 1)
	go func() { recorded <- record(r, batch) }()
	for r.Stats().Inserted < want {
		if err := r.Flush(ctx); err != nil {
			return 0, errors.Join(err, <-recorded)
		}
		select {
		case err := <-recorded:
			if err != nil {
				return 0, err
			}
			recorded <- nil
		default:
		}
	}
	took := time.Since(began)
	if st := r.Stats(); st.Inserted != want || st.Duplicates != 0 {
		return 0, fmt.Errorf("bench: the ledger took %+v of %d rows", st, want)
	}
	return took, <-recorded
}

func bareCopy(ctx context.Context, conn *pgx.Conn, all []tenants.UsageRecord) (time.Duration, error) {
	began := time.Now()
	for part := range slices.Chunk(all, ledgerBatch) {
		if err := ledger.BareCopy(ctx, conn, "bare", part); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
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

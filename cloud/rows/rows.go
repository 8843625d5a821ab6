// Package rows keeps a gateway's ledger rows on disk from before an attempt
// runs until the database has its row. See tenants/spool for what survives.
package rows

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/pki"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
	"github.com/weirhq/weir/tenants/spool"
)

// Options configure a Recorder. Zero values take the defaults named.
type Options struct {
	Dir      string // of this gateway alone
	Sink     ledger.Sink
	MaxBytes int64         // of all files; 1 GiB
	Batch    int           // rows per write; 5,000
	Every    time.Duration // between looks for rows; 200 ms
	Timeout  time.Duration // of one write, as a database may hang; 10 s
	Final    time.Duration // for the last writes at the end; 3 s
	Log      *slog.Logger
}

// Recorder is a gateway.Recorder. It is safe for concurrent use.
type Recorder struct {
	o     Options
	node  string
	spool *spool.Spool

	twice                     func(tenants.UsageRecord) // set before Run
	inserted, duplicates, bad atomic.Uint64
	batches, failures         atomic.Uint64
	failing                   atomic.Bool
	behind                    atomic.Int64 // since when rows may have waited, in ns since 1970

	old       int64 // rows of earlier processes that wait; for Run alone
	recovered chan struct{}
}

// Open takes the directory. Attempts that an earlier process left open have
// become gateway_lost rows, which are delivered first.
func Open(o Options) (*Recorder, error) {
	if o.Batch <= 0 {
		o.Batch = 5000
	}
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&o.Every, 200 * time.Millisecond}, {&o.Timeout, 10 * time.Second}, {&o.Final, 3 * time.Second}} {
		if *d.v <= 0 {
			*d.v = d.def
		}
	}
	s, err := spool.Open(spool.Options{Dir: o.Dir, MaxBytes: o.MaxBytes, Log: o.Log})
	if err != nil {
		return nil, fmt.Errorf("usage rows: %w", err)
	}
	node, err := nodeID(filepath.Join(o.Dir, "node"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("usage rows: %w", err), s.Close())
	}
	st := s.Stats()
	if st.Recovered > 0 {
		o.Log.Warn("attempts of a process that died are recorded as lost", "attempts", st.Recovered)
	}
	r := &Recorder{o: o, node: node, spool: s, old: st.Pending, recovered: make(chan struct{})}
	r.behind.Store(time.Now().UnixNano())
	if r.old == 0 {
		close(r.recovered)
	}
	return r, nil
}

// nodeID reads the directory's name of itself, or gives it one: leases outlive
// the process, and its successor on the same files settles them.
func nodeID(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		id, err := uuid.Parse(strings.TrimSpace(string(b)))
		return id.String(), err
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := uuid.NewString()
	return id, pki.WriteSecret(path, []byte(id+"\n"))
}

// Node is the name of the directory, the same after a restart.
func (r *Recorder) Node() string { return r.node }

// OnTwice has f called with each row for which nobody pays, because another
// answer to its attempt is in the ledger. It is called before Run.
func (r *Recorder) OnTwice(f func(tenants.UsageRecord)) { r.twice = f }

// Recovered is closed when the ledger holds all rows of earlier processes.
func (r *Recorder) Recovered() <-chan struct{} { return r.recovered }

// entries are reused: an entry is its caller's alone between Begin and Settle.
var entries = sync.Pool{New: func() any { return new(entry) }}

// errSettled says that an attempt has its row already.
var errSettled = errors.New("usage row: settled twice")

type entry struct {
	r      *Recorder // nil once it is settled
	ticket spool.Ticket
}

// Begin implements gateway.Recorder.
func (r *Recorder) Begin(rec *tenants.UsageRecord) (gateway.Entry, error) {
	e := entries.Get().(*entry)
	if err := r.spool.Admit(rec, &e.ticket); err != nil {
		entries.Put(e)
		return nil, err
	}
	e.r = r
	return e, nil
}

// Settle implements gateway.Entry. A second call writes nothing and fails.
func (e *entry) Settle(rec *tenants.UsageRecord) error {
	r := e.r
	if r == nil {
		return errSettled
	}
	e.r = nil
	err := r.spool.Settle(&e.ticket, rec)
	entries.Put(e)
	return err
}

const (
	maxRetry = 5 * time.Second
	// writers write batches at the same time: while one waits for its commit
	// the other copies.
	writers = 2
)

// Run delivers rows until ctx ends, then what is left for at most
// Options.Final, and gives the directory up. What it could not deliver is
// delivered by the next process.
func (r *Recorder) Run(ctx context.Context) {
	wait := r.o.Every
	for ctx.Err() == nil {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			continue
		}
		if r.Flush(ctx) != nil {
			wait = min(2*wait, maxRetry)
		} else {
			wait = r.o.Every
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Final)
	defer cancel()
	if err := r.Flush(last); err != nil {
		r.o.Log.Warn("usage rows wait on disk for the next start: the database is away", "rows", r.spool.Stats().Pending, "error", err)
	}
	if err := r.spool.Close(); err != nil {
		r.o.Log.Error("usage files not closed", "error", err)
	}
}

// Flush delivers all rows that wait, batch by batch, until one write fails.
func (r *Recorder) Flush(ctx context.Context) error {
	for {
		asked := time.Now()
		n, err := r.spool.Drain(ctx, r.o.Batch, writers, r.deliver)
		if n > 0 || err == nil {
			r.delivered(int64(n))
		}
		r.report(err != nil, err)
		if err != nil {
			return err
		}
		if n == 0 {
			r.behind.Store(asked.UnixNano())
			return nil
		}
	}
}

func (r *Recorder) delivered(n int64) {
	if r.old <= 0 {
		return
	}
	if r.old -= n; r.old <= 0 || n == 0 {
		r.old = 0
		close(r.recovered)
	}
}

// deliver writes rows. One bad row must not hold up the others for ever: a
// batch with one is halved until it is found.
func (r *Recorder) deliver(ctx context.Context, rows []tenants.UsageRecord) error {
	err := r.insert(ctx, rows)
	if !errors.Is(err, ledger.ErrBadRow) {
		return err
	}
	if len(rows) == 1 {
		r.o.Log.Error("usage row dropped", "attempt", rows[0].AttemptID, "error", err)
		r.bad.Add(1)
		return nil
	}
	half := len(rows) / 2
	if err := r.deliver(ctx, rows[:half]); err != nil {
		return err
	}
	return r.deliver(ctx, rows[half:])
}

func (r *Recorder) insert(ctx context.Context, rows []tenants.UsageRecord) error {
	ctx, cancel := context.WithTimeout(ctx, r.o.Timeout)
	defer cancel()
	res, err := r.o.Sink.Insert(ctx, rows)
	if err != nil {
		r.failures.Add(1)
		return err
	}
	r.batches.Add(1)
	r.inserted.Add(uint64(res.Inserted))
	r.duplicates.Add(uint64(res.Duplicates))
	for i := range res.Twice {
		r.o.Log.Info("an attempt was answered twice and is billed once", "operation", res.Twice[i].OperationID, "attempt", res.Twice[i].AttemptID)
		if r.twice != nil {
			r.twice(res.Twice[i])
		}
	}
	return nil
}

// report logs the beginning and the end of an outage, not every try.
func (r *Recorder) report(failing bool, err error) {
	was := r.failing.Swap(failing)
	switch {
	case failing && !was && !errors.Is(err, context.Canceled):
		r.o.Log.Warn("usage ledger cannot be written, rows wait on disk", "rows", r.spool.Stats().Pending, "error", err)
	case !failing && was:
		r.o.Log.Info("usage ledger is written again")
	}
}

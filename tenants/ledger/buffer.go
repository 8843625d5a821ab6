package ledger

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weirhq/weir/tenants"
)

// Sink writes a batch of rows, all or none. Store is one.
type Sink interface {
	Insert(context.Context, []tenants.UsageRecord) (Result, error)
}

// BufferOptions configure a Buffer. Zero values take the defaults named.
type BufferOptions struct {
	Sink     Sink
	Capacity int           // rows held while the database is away; 100,000
	Batch    int           // rows per write; 1,000
	Every    time.Duration // between writes; 200 ms
	Timeout  time.Duration // of one write, as a database may hang; 10 s
	Final    time.Duration // for the last write at the end; 3 s
	Log      *slog.Logger
}

// Buffer takes ledger rows from requests and writes them behind their backs.
// While the database is away it holds up to Capacity rows in memory and tries
// again; beyond that the oldest are lost, and counted. It is safe for
// concurrent use.
type Buffer struct {
	o    BufferOptions
	wake chan struct{}

	mu    sync.Mutex
	rows  []tenants.UsageRecord
	stats Stats
}

// Stats are a Buffer's counts since its start.
type Stats struct {
	Queued     int
	Inserted   uint64
	Duplicates uint64
	Lost       uint64 // over Capacity, or refused by the database for good
	Failing    bool   // the last write failed
}

// NewBuffer returns a Buffer; Run makes it write.
func NewBuffer(o BufferOptions) *Buffer {
	if o.Capacity <= 0 {
		o.Capacity = 100_000
	}
	if o.Batch <= 0 {
		o.Batch = 1000
	}
	if o.Every <= 0 {
		o.Every = 200 * time.Millisecond
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Final <= 0 {
		o.Final = 3 * time.Second
	}
	return &Buffer{o: o, wake: make(chan struct{}, 1)}
}

// Record queues a row. It never blocks.
func (b *Buffer) Record(r tenants.UsageRecord) {
	b.mu.Lock()
	if len(b.rows) >= b.o.Capacity {
		b.rows = b.rows[1:]
		b.stats.Lost++
	}
	b.rows = append(b.rows, r)
	full := len(b.rows) >= b.o.Batch
	b.mu.Unlock()
	if full {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// Stats returns the counts so far.
func (b *Buffer) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Queued = len(b.rows)
	return s
}

const maxRetry = 5 * time.Second

// Run writes rows until ctx ends, and then what is left for at most
// Options.Final.
func (b *Buffer) Run(ctx context.Context) {
	wait := b.o.Every
	for ctx.Err() == nil {
		timer := time.NewTimer(wait)
		wake := b.wake
		if wait > b.o.Every {
			wake = nil // the database is away: a full queue is no reason to hurry
		}
		select {
		case <-timer.C:
		case <-wake:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			continue
		}
		if b.Flush(ctx) != nil {
			wait = min(2*wait, maxRetry)
		} else {
			wait = b.o.Every
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.o.Final)
	defer cancel()
	if err := b.Flush(last); err != nil {
		b.o.Log.Error("usage rows were lost: the database was away at the end", "rows", b.Stats().Queued, "error", err)
	}
}

// Flush writes all queued rows, batch by batch, until one write fails.
func (b *Buffer) Flush(ctx context.Context) error {
	for {
		batch := b.take()
		if len(batch) == 0 {
			return nil
		}
		res, err := b.insert(ctx, batch)
		if errors.Is(err, ErrBadRow) {
			res, err = b.singly(ctx, batch)
		}
		if err != nil {
			b.putBack(batch)
			b.report(true, err)
			return err
		}
		b.settle(res)
		b.report(false, nil)
	}
}

func (b *Buffer) insert(ctx context.Context, rows []tenants.UsageRecord) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, b.o.Timeout)
	defer cancel()
	return b.o.Sink.Insert(ctx, rows)
}

// singly writes the rows of a batch one by one, dropping those that can never
// be written: one bad row must not hold up the others for ever. An error ends
// it; rows that are in by then are duplicates at the next try.
func (b *Buffer) singly(ctx context.Context, batch []tenants.UsageRecord) (sum Result, err error) {
	for i := range batch {
		res, err := b.insert(ctx, batch[i:i+1])
		if errors.Is(err, ErrBadRow) {
			b.o.Log.Error("usage row dropped", "attempt", batch[i].AttemptID, "error", err)
			b.mu.Lock()
			b.stats.Lost++
			b.mu.Unlock()
			continue
		}
		if err != nil {
			return sum, err
		}
		sum.Inserted += res.Inserted
		sum.Duplicates += res.Duplicates
	}
	return sum, nil
}

func (b *Buffer) take() []tenants.UsageRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.rows), b.o.Batch)
	batch := b.rows[:n:n]
	b.rows = b.rows[n:]
	if len(b.rows) == 0 {
		b.rows = nil // let the batch's array go with it
	}
	return batch
}

// putBack returns a batch to the front, where its oldest rows give way if the
// queue has filled up meanwhile.
func (b *Buffer) putBack(batch []tenants.UsageRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if over := len(batch) + len(b.rows) - b.o.Capacity; over > 0 {
		over = min(over, len(batch))
		batch = batch[over:]
		b.stats.Lost += uint64(over)
	}
	b.rows = append(batch[:len(batch):len(batch)], b.rows...)
}

func (b *Buffer) settle(r Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Inserted += uint64(r.Inserted)
	b.stats.Duplicates += uint64(r.Duplicates)
}

// report logs the beginning and the end of an outage, not every try.
func (b *Buffer) report(failing bool, err error) {
	b.mu.Lock()
	was, queued := b.stats.Failing, len(b.rows)
	b.stats.Failing = failing
	b.mu.Unlock()
	switch {
	case failing && !was:
		b.o.Log.Warn("usage ledger cannot be written, rows are kept in memory", "rows", queued, "error", err)
	case !failing && was:
		b.o.Log.Info("usage ledger is written again", "rows", queued)
	}
}

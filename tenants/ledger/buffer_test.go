package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/migrations"
	"github.com/weirhq/weir/tenants"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// fakeSink keeps attempts, refuses some, and may be away.
type fakeSink struct {
	mu   sync.Mutex
	away error
	bad  map[string]bool
	got  map[string]int
	big  int // largest batch
}

func (f *fakeSink) Insert(_ context.Context, rows []tenants.UsageRecord) (Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.big = max(f.big, len(rows))
	if f.away != nil {
		return Result{}, f.away
	}
	for _, r := range rows {
		if f.bad[r.AttemptID] {
			return Result{}, fmt.Errorf("%w: test", ErrBadRow)
		}
	}
	var res Result
	for _, r := range rows {
		if f.got[r.AttemptID]++; f.got[r.AttemptID] == 1 {
			res.Inserted++
		} else {
			res.Duplicates++
		}
	}
	return res, nil
}

func TestBadRowsDoNotHoldUpOthers(t *testing.T) {
	f := &fakeSink{bad: map[string]bool{"3": true}, got: map[string]int{}}
	b := NewBuffer(BufferOptions{Sink: f, Log: quiet})
	for i := range 10 {
		b.Record(tenants.UsageRecord{AttemptID: fmt.Sprint(i)})
	}
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := b.Stats(); s.Inserted != 9 || s.Lost != 1 || s.Queued != 0 || s.Failing {
		t.Errorf("stats %+v", s)
	}
}

func TestOverflowLosesTheOldestAndCounts(t *testing.T) {
	f := &fakeSink{away: errors.New("away"), got: map[string]int{}}
	b := NewBuffer(BufferOptions{Sink: f, Log: quiet, Capacity: 5, Batch: 2})
	for i := range 8 {
		b.Record(tenants.UsageRecord{AttemptID: fmt.Sprint(i)})
		if err := b.Flush(t.Context()); err == nil {
			t.Fatal("no error from a database that is away")
		}
	}
	if s := b.Stats(); s.Queued != 5 || s.Lost != 3 || !s.Failing {
		t.Fatalf("stats %+v", s)
	}
	f.away = nil
	if err := b.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if want := i >= 3; (f.got[fmt.Sprint(i)] == 1) != want {
			t.Errorf("row %d: written %d times", i, f.got[fmt.Sprint(i)])
		}
	}
	if f.big > 2 {
		t.Errorf("a batch of %d rows", f.big)
	}
}

func TestConcurrentRecordsAreWrittenOnce(t *testing.T) {
	f := &fakeSink{got: map[string]int{}}
	b := NewBuffer(BufferOptions{Sink: f, Log: quiet, Every: time.Millisecond, Batch: 7})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				b.Record(tenants.UsageRecord{AttemptID: fmt.Sprint(w, "-", i)})
			}
		})
	}
	wg.Wait()
	cancel()
	<-done
	if s := b.Stats(); s.Inserted != 4000 || s.Duplicates != 0 || s.Lost != 0 || len(f.got) != 4000 {
		t.Errorf("stats %+v, %d attempts", s, len(f.got))
	}
}

func TestOutageLosesNothing(t *testing.T) {
	server := testpg.NewServer(t)
	if err := migrations.Up(t.Context(), server.URL()); err != nil {
		t.Fatal(err)
	}
	s := newStore(t, server.URL())
	b := NewBuffer(BufferOptions{Sink: s, Log: quiet, Every: 20 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { b.Run(ctx); close(done) }()

	wait := func(what string, ok func(Stats) bool) {
		t.Helper()
		deadline := time.Now().Add(30 * time.Second)
		for !ok(b.Stats()) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", what, b.Stats())
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	record := func(n int) {
		for range n {
			b.Record(row(time.Now()))
		}
	}
	record(100)
	wait("before the outage", func(s Stats) bool { return s.Inserted == 100 })
	server.Stop()
	record(200)
	wait("during the outage", func(s Stats) bool { return s.Failing && s.Queued == 200 })
	server.Start(t)
	record(50)
	wait("after the outage", func(s Stats) bool { return s.Inserted == 350 && !s.Failing })
	cancel()
	<-done
	if r := usage(t, s, Query{TenantID: tenantA}); r.Totals.Attempts != 350 || b.Stats().Lost != 0 {
		t.Errorf("%d rows in the ledger, stats %+v", r.Totals.Attempts, b.Stats())
	}
}

func BenchmarkInsert(b *testing.B) {
	m := newStore(b, testpg.Start(b))
	const batch = 1000
	b.ReportAllocs()
	rows := make([]tenants.UsageRecord, batch)
	for b.Loop() {
		for i := range rows {
			rows[i] = row(time.Now())
		}
		if _, err := m.Insert(context.Background(), rows); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "rows/s")
}

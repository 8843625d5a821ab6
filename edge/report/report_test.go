package report_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirhq/weir/edge/report"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/spool"
)

func TestMain(m *testing.M) { testproc.VerifyMain(m) }

// ledger is a cloud that keeps rows and drops those it has, as the real does.
type ledger struct {
	mu       sync.Mutex
	rows     map[string]bool
	posts    int
	down     bool
	loseNext int // answers to lose after taking the rows
}

func (l *ledger) Do(_ context.Context, r uplink.Request) (*uplink.Response, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posts++
	if l.down {
		return nil, uplink.ErrDown
	}
	rows, rejected, err := tenants.DecodeUsage(r.Body, "t", "d", time.Now())
	if err != nil {
		return nil, err
	}
	reply := tenants.UsageReply{Rejected: rejected}
	for _, row := range rows {
		if l.rows[row.AttemptID] {
			reply.Duplicates++
			continue
		}
		l.rows[row.AttemptID] = true
		reply.Accepted++
	}
	if l.loseNext > 0 {
		l.loseNext--
		return nil, io.ErrUnexpectedEOF
	}
	body, _ := json.Marshal(reply)
	return &uplink.Response{Response: &http.Response{StatusCode: 200, Body: io.NopCloser(bytes.NewReader(body))}}, nil
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.rows)
}

func row() tenants.UsageRecord {
	return tenants.UsageRecord{AttemptID: contract.NewID(), OperationID: contract.NewID(), Tier: tenants.Edge, Model: "m",
		Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, StartedAt: time.Now()}
}

func newReporter(t *testing.T, l *ledger, change func(*report.Options)) *report.Reporter {
	t.Helper()
	opt := report.Options{Cloud: l, Dir: t.TempDir(), Every: time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&opt)
	}
	r, err := report.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// during runs the reporter while f runs, and returns what Run returned.
func during(r *report.Reporter, f func()) error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	f()
	cancel()
	return <-done
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// Rows survive lost answers and are counted once.
func TestEveryRowOnce(t *testing.T) {
	l := &ledger{rows: map[string]bool{}, loseNext: 2}
	r := newReporter(t, l, func(o *report.Options) { o.Batch = 7 })
	err := during(r, func() {
		for range 100 {
			r.Record(row())
		}
		eventually(t, "all rows", func() bool { return r.Counts().Queued == 0 })
	})
	if err != nil || l.count() != 100 {
		t.Errorf("%d rows: %v", l.count(), err)
	}
	if c := r.Counts(); c.Sent != 100 || c.Rejected != 0 || c.Dropped != 0 {
		t.Errorf("counts %+v", c)
	}
}

// A row that the cloud refuses does not hold up the others.
func TestRejectedRowsAreDone(t *testing.T) {
	l := &ledger{rows: map[string]bool{}}
	r := newReporter(t, l, nil)
	bad := row()
	bad.Model = ""
	if err := during(r, func() {
		r.Record(row())
		r.Record(bad)
		r.Record(row())
		eventually(t, "queue empty", func() bool { return r.Counts().Queued == 0 })
	}); err != nil {
		t.Fatal(err)
	}
	if c := r.Counts(); l.count() != 2 || c.Rejected != 1 || c.Sent != 2 {
		t.Errorf("%d rows, counts %+v", l.count(), c)
	}
}

// Full files refuse rows and count them; what they hold is sent.
func TestFullFilesLoseTheNewest(t *testing.T) {
	l := &ledger{rows: map[string]bool{}, down: true}
	r := newReporter(t, l, func(o *report.Options) { o.MaxBytes = 1 })
	recorded := 0
	for r.Counts().Dropped == 0 {
		r.Record(row())
		recorded++
	}
	l.down = false
	if err := during(r, func() { eventually(t, "all that was kept", func() bool { return r.Counts().Queued == 0 }) }); err != nil {
		t.Fatal(err)
	}
	if l.count() != recorded-1 {
		t.Errorf("%d rows in the cloud: want %d", l.count(), recorded-1)
	}
}

// With the cloud away the rows stay on disk, over clean stops; each reaches the cloud once.
func TestRowsAreKeptOverAStop(t *testing.T) {
	dir := t.TempDir()
	l := &ledger{rows: map[string]bool{}, down: true}
	keep := func(o *report.Options) { o.Dir = dir }
	var all []tenants.UsageRecord
	for range 3 {
		r := newReporter(t, l, keep)
		for range 4 {
			all = append(all, row())
			r.Record(all[len(all)-1])
		}
		if err := during(r, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	l.mu.Lock()
	l.down, l.loseNext = false, 1
	l.mu.Unlock()
	r := newReporter(t, l, keep)
	if err := during(r, func() { eventually(t, "kept rows", func() bool { return r.Counts().Queued == 0 }) }); err != nil {
		t.Fatal(err)
	}
	if c := r.Counts(); l.count() != len(all) || c.Sent != uint64(len(all)) {
		t.Errorf("%d rows of %d, counts %+v", l.count(), len(all), c)
	}
	for _, rec := range all {
		if !l.rows[rec.AttemptID] {
			t.Errorf("row %s is lost", rec.AttemptID)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err != nil {
		t.Error(err)
	}
}

// What was recorded last goes out at the stop.
func TestTheStopSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // where a stall uses up no time
		l := &ledger{rows: map[string]bool{}}
		r := newReporter(t, l, func(o *report.Options) { o.Every = time.Hour })
		if err := during(r, func() { r.Record(row()) }); err != nil || l.count() != 1 || r.Counts().Queued != 0 {
			t.Errorf("%d rows, %v, counts %+v", l.count(), err, r.Counts())
		}
	})
}

// One directory serves one process.
func TestDirectoryIsOnes(t *testing.T) {
	dir := t.TempDir()
	r := newReporter(t, &ledger{rows: map[string]bool{}}, func(o *report.Options) { o.Dir = dir })
	if _, err := report.New(report.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, spool.ErrLocked) {
		t.Errorf("second reporter on the same directory: %v", err)
	}
	if err := during(r, func() {}); err != nil {
		t.Fatal(err)
	}
}

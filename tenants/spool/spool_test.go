package spool

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/testproc"
	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	testproc.VerifyMain(m)
}

const small = 16 * maxFrame

func open(t testing.TB, o Options) *Spool {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func record(i int) *tenants.UsageRecord {
	return &tenants.UsageRecord{
		AttemptID: fmt.Sprintf("01936f5e-7c1a-4b7e-9d53-%012x", i), OperationID: fmt.Sprintf("01936f5e-7c1a-7b7e-9d53-%012x", i),
		TenantID: "t1", KeyID: "abcd1234", Tier: tenants.Cloud, Model: "hub-cloud", Class: "interactive",
		Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream,
		InputTokens: int64(i), OutputTokens: 7, PriceVersion: 3, CostNanoUSD: 12345,
		StartedAt: time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC), TTFTMicros: 900, TotalMicros: 5000, Node: "g0", NodeEpoch: "e1",
	}
}

// drainAll delivers everything that waits.
func drainAll(t testing.TB, s *Spool) (rows []tenants.UsageRecord) {
	t.Helper()
	for {
		n, err := s.Drain(context.Background(), 100, 1, func(_ context.Context, batch []tenants.UsageRecord) error {
			rows = append(rows, batch...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return rows
		}
	}
}

// eventually polls, because the keeper works beside.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come to pass", what)
		}
	}
}

func TestRowsComeOutInOrderAndOnce(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), SegmentBytes: small})
	const n = 1000 // several segments
	for i := range n {
		var ticket Ticket
		if err := s.Admit(record(i), &ticket); err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(&ticket, record(i)); err != nil {
			t.Fatal(err)
		}
		if err := s.Settle(&ticket, record(i)); !errors.Is(err, ErrSettled) {
			t.Fatalf("second settlement: %v", err)
		}
	}
	if st := s.Stats(); st.Pending != n || st.Open != 0 || st.Segments < 5 {
		t.Errorf("stats %+v", st)
	}
	rows := drainAll(t, s)
	if len(rows) != n {
		t.Fatalf("%d rows, want %d", len(rows), n)
	}
	for i := range rows {
		if want := record(i); !reflect.DeepEqual(rows[i], *want) {
			t.Fatalf("row %d:\n got %+v\nwant %+v", i, rows[i], want)
		}
	}
	if more := drainAll(t, s); len(more) != 0 {
		t.Errorf("%d rows came twice", len(more))
	}
	eventually(t, "deletion of what was delivered", func() bool { return s.Stats().Segments <= 2 })
	if st := s.Stats(); st.Pending != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestFailedDeliveryComesAgain(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	for i := range 5 {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	away := errors.New("postgres is away")
	n, err := s.Drain(context.Background(), 3, 1, func(context.Context, []tenants.UsageRecord) error { return away })
	if n != 0 || !errors.Is(err, away) {
		t.Errorf("Drain = %d, %v", n, err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if n, err := s.Drain(over, 0, 0, nil); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Drain with a context that is over = %d, %v", n, err)
	}
	if rows := drainAll(t, s); len(rows) != 5 {
		t.Errorf("%d rows after a failure, want 5", len(rows))
	}
}

// TestParallelDeliveries: batches go out at the same time, some of them fail,
// and the process stops in between: only what was taken, with all before it,
// counts as delivered, and all of it is taken in the end.
func TestParallelDeliveries(t *testing.T) {
	const total, limit, parallel = 1000, 7, 3
	dir := t.TempDir()
	s := open(t, Options{Dir: dir, SegmentBytes: small})
	for i := range total {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	together := make(chan struct{})
	var arrived atomic.Int32
	n, err := s.Drain(t.Context(), limit, parallel, func(context.Context, []tenants.UsageRecord) error {
		if arrived.Add(1) == parallel {
			close(together)
		}
		<-together
		return nil
	})
	if n != parallel*limit || err != nil {
		t.Fatalf("the first round: %d, %v", n, err)
	}
	taken := make(map[string]bool)
	var mu sync.Mutex
	away := errors.New("away")
	rng := rand.New(rand.NewPCG(3, 4))
	done := n
	for done < total {
		n, err := s.Drain(t.Context(), 1+rng.IntN(9), 1+rng.IntN(4), func(_ context.Context, rows []tenants.UsageRecord) error {
			mu.Lock()
			defer mu.Unlock()
			if rng.IntN(4) == 0 {
				return away
			}
			for _, r := range rows {
				taken[r.AttemptID] = true
			}
			return nil
		})
		if err != nil && !errors.Is(err, away) {
			t.Fatal(err)
		}
		for i := done; i < done+n; i++ {
			if !taken[record(i).AttemptID] {
				t.Fatalf("row %d counts as delivered, but nobody took it", i)
			}
		}
		done += n
		if st := s.Stats(); st.Pending != int64(total-done) {
			t.Fatalf("%d rows wait, want %d", st.Pending, total-done)
		}
		if rng.IntN(10) == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, Options{Dir: dir, SegmentBytes: small})
		}
	}
}

func TestRestartDeliversWhatWasLeft(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir, SegmentBytes: small})
	var lost Ticket
	if err := s.Admit(record(900), &lost); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // 200 delivered before the restart
		if _, err := s.Drain(context.Background(), 100, 1, func(context.Context, []tenants.UsageRecord) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Stats().Pending
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	for _, err := range []error{s.Admit(record(1), new(Ticket)), s.Append(record(1)), s.Settle(&lost, record(900))} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
	s = open(t, Options{Dir: dir, SegmentBytes: small})
	if st := s.Stats(); st.Recovered != 1 || st.Pending != before+1 {
		t.Errorf("stats %+v, want one recovered and %d pending", st, before+1)
	}
	rows := drainAll(t, s)
	last := rows[len(rows)-1]
	if int64(len(rows)) != before+1 || last.AttemptID != record(900).AttemptID {
		t.Fatalf("%d rows, last %s", len(rows), last.AttemptID)
	}
	if last.Outcome != tenants.OutcomeGatewayLost || last.UsageSource != tenants.UsageEstimated || last.InputTokens != 900 {
		t.Errorf("lost row %+v", last)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir, SegmentBytes: small})
	if rows := drainAll(t, s); len(rows) != 0 || s.Stats().Recovered != 0 {
		t.Errorf("a second restart delivers %d rows again", len(rows))
	}
}

func TestFullSpoolRefusesAdmissionsButNeverSettlements(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), SegmentBytes: small, MaxBytes: 4 * small})
	var tickets []*Ticket
	var err error
	for err == nil {
		ticket := new(Ticket)
		if err = s.Admit(record(len(tickets)), ticket); err == nil {
			tickets = append(tickets, ticket)
		}
	}
	if !errors.Is(err, ErrFull) || s.Stats().Refused != 1 {
		t.Fatalf("after %d admissions: %v, stats %+v", len(tickets), err, s.Stats())
	}
	if err := s.Append(record(0)); !errors.Is(err, ErrFull) {
		t.Errorf("Append takes the room of settlements: %v", err)
	}
	for i, ticket := range tickets {
		r := record(i)
		r.ErrorCode = strings.Repeat("x", 64) // longer than it was at admission
		if err := s.Settle(ticket, r); err != nil {
			t.Fatalf("settlement %d of %d: %v", i, len(tickets), err)
		}
	}
	if b := s.Stats().Bytes; b > 4*small {
		t.Errorf("%d bytes in files, want at most %d", b, 4*small)
	}
	if rows := drainAll(t, s); len(rows) != len(tickets) {
		t.Errorf("%d rows, want %d", len(rows), len(tickets))
	}
	eventually(t, "room after delivery", func() bool { return s.Admit(record(1), new(Ticket)) == nil })
}

func TestOpenAdmissionKeepsItsSegmentOnly(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), SegmentBytes: small})
	var long Ticket // a stream that runs on
	if err := s.Admit(record(0), &long); err != nil {
		t.Fatal(err)
	}
	for i := range 2000 {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	drainAll(t, s)
	eventually(t, "deletion of all but the held one", func() bool { return s.Stats().Segments <= 3 })
	if err := s.Settle(&long, record(0)); err != nil {
		t.Fatal(err)
	}
	drainAll(t, s)
	eventually(t, "deletion of the held one", func() bool { return s.Stats().Segments <= 2 })
}

func TestConcurrentUse(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), SegmentBytes: small, SyncEvery: time.Millisecond})
	const writers, each = 8, 150
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				var ticket Ticket
				if err := s.Admit(record(w*each+i), &ticket); err != nil {
					t.Error(err)
					return
				}
				if err := s.Settle(&ticket, record(w*each+i)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var rows []tenants.UsageRecord
	stop := make(chan struct{})
	var drainer sync.WaitGroup
	drainer.Go(func() {
		for {
			rows = append(rows, drainAll(t, s)...)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	wg.Wait()
	close(stop)
	drainer.Wait()
	rows = append(rows, drainAll(t, s)...)
	seen := map[string]bool{}
	for _, r := range rows {
		seen[r.AttemptID] = true
	}
	if len(rows) != writers*each || len(seen) != len(rows) {
		t.Errorf("%d rows of %d attempts, want %d", len(rows), len(seen), writers*each)
	}
}

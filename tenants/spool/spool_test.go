package spool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/tenants"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
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
		n, err := s.Drain(context.Background(), 100, func(_ context.Context, batch []tenants.UsageRecord) error {
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
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
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
	n, err := s.Drain(context.Background(), 3, func(context.Context, []tenants.UsageRecord) error { return away })
	if n != 0 || !errors.Is(err, away) {
		t.Errorf("Drain = %d, %v", n, err)
	}
	if rows := drainAll(t, s); len(rows) != 5 {
		t.Errorf("%d rows after a failure, want 5", len(rows))
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
		if _, err := s.Drain(context.Background(), 100, func(context.Context, []tenants.UsageRecord) error { return nil }); err != nil {
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

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("second Open: %v, want ErrLocked", err)
	}
}

func TestBadOptionsAndRecords(t *testing.T) {
	for _, o := range []Options{{}, {Dir: "x", SegmentBytes: 8}, {Dir: "x", SegmentBytes: small + 1}, {Dir: "x", MaxBytes: 8 << 20}} {
		if _, err := Open(o); err == nil {
			t.Errorf("%+v accepted", o)
		}
	}
	s := open(t, Options{Dir: t.TempDir()})
	for _, alter := range []func(*tenants.UsageRecord){
		func(r *tenants.UsageRecord) { r.AttemptID = "1" },
		func(r *tenants.UsageRecord) { r.OperationID = strings.Replace(r.OperationID, "0", "g", 1) },
		func(r *tenants.UsageRecord) { r.Model = strings.Repeat("m", 256) },
	} {
		r := record(1)
		alter(r)
		if err := s.Append(r); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
	if rows := drainAll(t, s); len(rows) != 0 {
		t.Errorf("%d rows of refused records", len(rows))
	}
}

func TestDamagedFilesAreSetAside(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	for i := range 3 {
		if err := s.Append(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Overwrite a part of the second row's payload, as a machine's crash may.
	path := segmentPath(dir, 1)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := appendRecord(nil, record(0))
	if err != nil {
		t.Fatal(err)
	}
	copy(b[headerSize+frameSize(len(payload))+40:], "????")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(segmentPath(dir, 99), []byte("not a segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: dir})
	rows := drainAll(t, s)
	if len(rows) != 2 || rows[1].AttemptID != record(2).AttemptID {
		t.Errorf("%d rows around the damaged one, want 2", len(rows))
	}
	if st := s.Stats(); st.Torn != 1 {
		t.Errorf("stats %+v, want one torn", st)
	}
	eventually(t, "the files set aside", func() bool {
		kept, _ := filepath.Glob(filepath.Join(dir, "*.kept"))
		return len(kept) == 2
	})
}

// A file that is cut short under its mapping faults like a full disk; the row
// goes to the next segment instead.
func TestFaultInTheMappingIsNoCrash(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	if err := s.Append(record(0)); err != nil {
		t.Fatal(err)
	}
	if s.segs[0].mem == nil {
		t.Skip("no mappings on this system")
	}
	if err := os.Truncate(segmentPath(dir, 1), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(record(1)); err != nil {
		t.Fatalf("append after the fault: %v", err)
	}
	rows := drainAll(t, s)
	if !slices.ContainsFunc(rows, func(r tenants.UsageRecord) bool { return r.AttemptID == record(1).AttemptID }) {
		t.Errorf("the row after the fault is not among %d", len(rows))
	}
}

func TestCodecRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 60, maxText)
		n := rapid.Int64()
		id := rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
		r := tenants.UsageRecord{
			AttemptID: id.Draw(t, "a"), OperationID: id.Draw(t, "o"), TenantID: text.Draw(t, "t"), KeyID: text.Draw(t, "k"),
			DeviceID: text.Draw(t, "d"), Tier: tenants.Tier(text.Draw(t, "tier")), Model: text.Draw(t, "m"), Class: text.Draw(t, "c"),
			Outcome: tenants.Outcome(text.Draw(t, "out")), UsageSource: tenants.UsageSource(text.Draw(t, "src")),
			InputTokens: n.Draw(t, "i"), CachedTokens: n.Draw(t, "ca"), OutputTokens: n.Draw(t, "ot"), ReasoningTokens: n.Draw(t, "re"),
			PriceVersion: n.Draw(t, "pv"), CostNanoUSD: n.Draw(t, "co"), TTFTMicros: n.Draw(t, "tt"), TotalMicros: n.Draw(t, "to"),
			StartedAt: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "s"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC(),
			ErrorCode: text.Draw(t, "e"), Reason: text.Draw(t, "r"), Node: text.Draw(t, "n"), NodeEpoch: text.Draw(t, "ne"),
		}
		b, err := appendRecord(nil, &r)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > recordBound(&r) || len(b) > maxRecord {
			t.Fatalf("%d bytes, bound %d", len(b), recordBound(&r))
		}
		back, err := decodeRecord(b)
		if err != nil || !reflect.DeepEqual(back, r) {
			t.Fatalf("%v\n got %+v\nwant %+v", err, back, r)
		}
	})
}

package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/report"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

const (
	tenantA = "0190c9a4-7f7e-7000-8000-00000000000a"
	tenantB = "0190c9a4-7f7e-7000-8000-00000000000b"
	device1 = "0190c9a4-7f7e-7000-8000-0000000000d1"
)

func newStore(t testing.TB, url string) *Store {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return NewStore(pool)
}

// row returns an ordinary row that started at a time.
func row(started time.Time) tenants.UsageRecord {
	return tenants.UsageRecord{
		AttemptID: uuid.Must(uuid.NewV7()).String(), OperationID: uuid.Must(uuid.NewV7()).String(),
		TenantID: tenantA, KeyID: "abcd", Tier: tenants.Cloud, Model: "hub-cloud", Class: "standard",
		Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream,
		InputTokens: 10, CachedTokens: 4, OutputTokens: 3, ReasoningTokens: 1, PriceVersion: 2, CostNanoUSD: 1900,
		StartedAt: started.UTC().Truncate(time.Microsecond), TTFTMicros: 100, TotalMicros: 200,
		ErrorCode: "", Reason: "low_confidence", Node: "n1", NodeEpoch: "e1",
	}
}

func insert(t *testing.T, s *Store, rows ...tenants.UsageRecord) Result {
	t.Helper()
	res, err := s.Insert(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// usage returns the rows that a selection finds in the ledger, newest first.
func usage(t *testing.T, s *Store, sel report.Selection) []tenants.UsageRecord {
	t.Helper()
	sel.From, sel.To = time.Now().Add(-200*24*time.Hour), time.Now().Add(time.Hour)
	recs, _, err := report.Attempts(t.Context(), s.pool, sel, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	return recs
}

func TestRowsComeBackAsTheyWent(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	cloud, edge := row(time.Now()), row(time.Now().Add(-80*24*time.Hour))
	edge.DeviceID, edge.Tier, edge.KeyID, edge.Outcome = device1, tenants.Edge, "", tenants.OutcomeEscalated
	if res := insert(t, s, cloud, edge); res.Inserted != 2 || res.Duplicates != 0 {
		t.Fatalf("got %+v", res)
	}
	got := usage(t, s, report.Selection{TenantID: tenantA})
	if len(got) != 2 || got[0] != cloud || got[1] != edge {
		t.Errorf("got %+v", got)
	}
	if res := insert(t, s); res.Inserted != 0 || res.Duplicates != 0 {
		t.Errorf("no rows: %+v", res)
	}
}

func TestReplaysChangeNothing(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	first := row(time.Now())
	first.DeviceID = device1
	insert(t, s, first)

	same := first
	same.OutputTokens, same.StartedAt = 999, first.StartedAt.Add(time.Minute) // a replay may differ: the first copy stands
	otherTenant, otherDevice := first, first
	otherTenant.TenantID = tenantB
	otherDevice.DeviceID = ""
	// The same attempt id of another tenant or device is no duplicate: else
	// anybody could suppress a row by guessing its id.
	if res := insert(t, s, same, otherTenant, otherDevice, first); res.Inserted != 2 || res.Duplicates != 2 {
		t.Fatalf("got %+v", res)
	}
	if got := usage(t, s, report.Selection{TenantID: tenantA, DeviceID: device1}); len(got) != 1 || got[0] != first {
		t.Errorf("got %+v", got)
	}
}

func TestRowsThatCanNeverBeWritten(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	for name, harm := range map[string]func(*tenants.UsageRecord){
		"attempt":   func(r *tenants.UsageRecord) { r.AttemptID = "x" },
		"operation": func(r *tenants.UsageRecord) { r.OperationID = "" },
		"tenant":    func(r *tenants.UsageRecord) { r.TenantID = "" },
		"device":    func(r *tenants.UsageRecord) { r.DeviceID = "kitchen" },
		"tokens":    func(r *tenants.UsageRecord) { r.InputTokens = 1 << 40 },
		"NUL":       func(r *tenants.UsageRecord) { r.Model = "a\x00b" },
	} {
		bad := row(time.Now())
		harm(&bad)
		if _, err := s.Insert(t.Context(), []tenants.UsageRecord{row(time.Now()), bad}); !errors.Is(err, ErrBadRow) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := usage(t, s, report.Selection{}); len(got) != 0 {
		t.Errorf("%d rows of failed batches are in the ledger", len(got))
	}
}

func TestDayOf(t *testing.T) {
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	v7 := func(at time.Time) uuid.UUID {
		u := uuid.Must(uuid.NewV7())
		ms := at.UnixMilli()
		for i := range 6 {
			u[i] = byte(ms >> (40 - 8*i))
		}
		return u
	}
	for name, tc := range map[string]struct {
		id      uuid.UUID
		started time.Time
		want    string
	}{
		"v7 of the day":          {v7(noon), noon, "2026-03-04"},
		"v7 before midnight":     {v7(noon.Add(12*time.Hour - 1)), noon.Add(12*time.Hour + 1), "2026-03-04"},
		"v7 from another age":    {v7(noon.Add(-1000 * 24 * time.Hour)), noon, "2026-03-04"},
		"random id":              {uuid.New(), noon, "2026-03-04"},
		"start in another zone":  {uuid.New(), time.Date(2026, 3, 5, 1, 0, 0, 0, time.FixedZone("", 2*3600)), "2026-03-04"},
		"v7 a day off, not more": {v7(noon.Add(-24 * time.Hour)), noon, "2026-03-03"},
	} {
		if got := dayOf(tc.id, tc.started).Format(time.DateOnly); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestPartitionsAheadAndLost(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	now := time.Now()
	if err := s.EnsureDays(t.Context(), now.Add(-day), now.Add(3*day)); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := s.pool.QueryRow(t.Context(), `select count(*) from pg_inherits where inhparent = 'weir.usage_ledger'::regclass`).Scan(&n); err != nil || n != 5 {
		t.Errorf("%d partitions, %v", n, err)
	}
	// Retention by another process takes away what this one believes to exist.
	if _, err := s.pool.Exec(t.Context(), fmt.Sprintf(`drop table weir.usage_%s`, now.UTC().Format("20060102"))); err != nil {
		t.Fatal(err)
	}
	r := row(now)
	if _, err := s.Insert(t.Context(), []tenants.UsageRecord{r}); err == nil || errors.Is(err, ErrBadRow) {
		t.Fatalf("got %v, want an error that is worth a retry", err)
	}
	if res := insert(t, s, r); res.Inserted != 1 {
		t.Errorf("got %+v", res)
	}
}

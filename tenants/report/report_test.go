package report

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
)

func TestMain(m *testing.M) { os.Exit(testpg.Run(m)) }

const (
	tenantA = "0190c9a4-7f7e-7000-8000-00000000000a"
	tenantB = "0190c9a4-7f7e-7000-8000-00000000000b"
	device1 = "0190c9a4-7f7e-7000-8000-0000000000d1"
)

func TestSpansCoverTheTimeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		at := rapid.Custom(func(t *rapid.T) time.Time {
			d := time.Duration(rapid.Int64Range(0, int64(72*time.Hour)).Draw(t, "at"))
			return base.Add(d.Truncate(rapid.SampledFrom([]time.Duration{1, time.Second, time.Minute, time.Hour}).Draw(t, "grain")))
		})
		from, to, kept := at.Draw(t, "from"), at.Draw(t, "to"), at.Draw(t, "kept")
		s := rapid.SampledFrom([]source{rows, minutes, hours}).Draw(t, "coarsest")
		next := from
		for _, p := range spans(from, to, kept, s) {
			unit := map[source]time.Duration{rows: 1, minutes: time.Minute, hours: time.Hour}[p.source]
			if !p.lo.Equal(next) || !p.lo.Before(p.hi) || !p.lo.Truncate(unit).Equal(p.lo) || !p.hi.Truncate(unit).Equal(p.hi) || p.source > s {
				t.Fatalf("part %+v after %v of [%v, %v)", p, next, from, to)
			}
			if p.source == minutes && p.lo.Before(kept) {
				t.Fatalf("minutes from %v, kept since %v", p.lo, kept)
			}
			next = p.hi
		}
		if from.Before(to) && !next.Equal(to) {
			t.Fatalf("[%v, %v) ends at %v", from, to, next)
		}
	})
}

func TestWholeHours(t *testing.T) {
	now := time.Date(2026, 4, 4, 0, 0, 0, 0, time.UTC) // clocks of Lord Howe change by half an hour on the 5th
	for name, want := range map[string]bool{"UTC": true, "Europe/Paris": true, "Asia/Kolkata": false, "Australia/Lord_Howe": false} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := wholeHours(now, now.Add(48*time.Hour), zone); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func newDB(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), testpg.Start(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// someRow is a row of one of two tenants that starts at a time.
func someRow(rng *rand.Rand, started time.Time) tenants.UsageRecord {
	r := tenants.UsageRecord{
		AttemptID: uuid.Must(uuid.NewRandom()).String(), OperationID: uuid.Must(uuid.NewV7()).String(), Attempt: 1 + int64(rng.IntN(2)),
		TenantID: tenantA, KeyID: "key" + string(rune('a'+rng.IntN(3))), Tier: tenants.Cloud, Model: "hub-cloud", Class: "standard",
		Outcome: tenants.OutcomeOK, UsageSource: tenants.UsageUpstream, InputTokens: int64(rng.IntN(100)), OutputTokens: int64(rng.IntN(50)),
		PriceVersion: 2, CostNanoUSD: int64(rng.IntN(1e6)), StartedAt: started.UTC().Truncate(time.Microsecond),
		TTFTMicros: int64(rng.IntN(2)) * 1000, TotalMicros: 2000, Node: "n1", NodeEpoch: "e1",
	}
	if rng.IntN(3) == 0 {
		r.Tier, r.Model, r.DeviceID, r.CostNanoUSD = tenants.Edge, "hub-edge", device1, 0
		r.Outcome = []tenants.Outcome{tenants.OutcomeOK, tenants.OutcomeEscalated}[rng.IntN(2)]
	}
	if rng.IntN(4) == 0 {
		r.TenantID = tenantB
	}
	return r
}

func insert(t testing.TB, db *pgxpool.Pool, recs []tenants.UsageRecord) {
	t.Helper()
	if _, err := ledger.NewStore(db).Insert(t.Context(), recs); err != nil {
		t.Fatal(err)
	}
}

// brute adds up rows one by one.
func brute(recs []tenants.UsageRecord, match func(tenants.UsageRecord) bool) (s Sums) {
	for _, r := range recs {
		if !match(r) {
			continue
		}
		one := Sums{Attempts: 1, InputTokens: r.InputTokens, CachedTokens: r.CachedTokens, OutputTokens: r.OutputTokens,
			ReasoningTokens: r.ReasoningTokens, CostNanoUSD: r.CostNanoUSD, TTFTMicros: r.TTFTMicros, TotalMicros: r.TotalMicros}
		if r.Attempt <= 1 && r.Outcome != tenants.OutcomeEscalated {
			one.Requests = 1
		}
		if r.TTFTMicros > 0 {
			one.Answered = 1
		}
		s.Add(one)
	}
	return s
}

func TestSumsEqualTheLedger(t *testing.T) {
	db := newDB(t)
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	now := time.Now()
	var recs []tenants.UsageRecord
	for range 800 {
		recs = append(recs, someRow(rng, now.Add(-time.Duration(rng.Int64N(int64(50*time.Hour))))))
	}
	insert(t, db, recs)
	for i := range 40 {
		sel := Selection{From: now.Add(-time.Duration(rng.Int64N(int64(60 * time.Hour)))), To: now.Add(-time.Duration(rng.Int64N(int64(20 * time.Hour))))}
		if i%2 == 0 {
			sel.TenantID = tenantA
		}
		if i%3 == 0 {
			sel.KeyID = "keyb"
		}
		if i%5 == 0 {
			sel.Tier = tenants.Edge
		}
		if i%7 == 0 {
			sel.DeviceID = device1
		}
		match := func(r tenants.UsageRecord) bool {
			return !r.StartedAt.Before(sel.From) && r.StartedAt.Before(sel.To) && (sel.TenantID == "" || r.TenantID == sel.TenantID) &&
				(sel.KeyID == "" || r.KeyID == sel.KeyID) && (sel.Tier == "" || r.Tier == sel.Tier) && (sel.DeviceID == "" || r.DeviceID == sel.DeviceID)
		}
		want := brute(recs, match)
		got, err := Total(t.Context(), db, sel, now)
		if err != nil || got != want {
			t.Fatalf("seed %d, selection %+v: %+v, %v, want %+v", seed, sel, got, err, want)
		}
		groups, err := Sum(t.Context(), db, sel, Grouping{By: Dimensions, Bucket: Buckets[i%4]}, now)
		if err != nil {
			t.Fatal(err)
		}
		var sum Sums
		for _, g := range groups {
			sum.Add(g.Sums)
		}
		if sum != want {
			t.Fatalf("seed %d: groups add up to %+v, want %+v", seed, sum, want)
		}
	}
}

// TestDaysOfAZone: a day is the zone's, with 23 and 25 hours when clocks
// change, and with half an hour where the zone has one (requirement 23).
func TestDaysOfAZone(t *testing.T) {
	db := newDB(t)
	rng := rand.New(rand.NewPCG(3, 3))
	var recs []tenants.UsageRecord
	from, to := time.Date(2026, 3, 27, 0, 0, 0, 0, time.UTC), time.Date(2026, 4, 2, 0, 0, 0, 0, time.UTC)
	for at := from; at.Before(to); at = at.Add(17 * time.Minute) {
		r := someRow(rng, at)
		r.TenantID = tenantA
		recs = append(recs, r)
	}
	insert(t, db, recs)
	for _, name := range []string{"UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		days, err := Sum(t.Context(), db, Selection{TenantID: tenantA, From: from, To: to}, Grouping{Bucket: "day", Zone: zone}, to)
		if err != nil || len(days) < 6 {
			t.Fatalf("%s: %d days, %v", name, len(days), err)
		}
		for _, d := range days {
			y, m, dd := d.At.Date()
			if h, min, _ := d.At.Clock(); h != 0 || min != 0 {
				t.Errorf("%s: a day begins at %v", name, d.At)
			}
			want := brute(recs, func(r tenants.UsageRecord) bool {
				ry, rm, rd := r.StartedAt.In(zone).Date()
				return ry == y && rm == m && rd == dd
			})
			if d.Sums != want {
				t.Errorf("%s, %v: %+v, want %+v", name, d.At, d.Sums, want)
			}
		}
	}
}

func TestAttemptsPageByPage(t *testing.T) {
	db := newDB(t)
	rng := rand.New(rand.NewPCG(4, 4))
	now := time.Now().Truncate(time.Second)
	var recs []tenants.UsageRecord
	for i := range 57 {
		recs = append(recs, someRow(rng, now.Add(-time.Duration(i/3)*time.Minute))) // three share a time
	}
	insert(t, db, recs)
	sel := Selection{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
	seen := map[string]bool{}
	var last time.Time
	for after := ""; ; {
		page, next, err := Attempts(t.Context(), db, sel, after, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			if seen[r.AttemptID] || !last.IsZero() && r.StartedAt.After(last) {
				t.Errorf("attempt %s twice or out of order", r.AttemptID)
			}
			seen[r.AttemptID], last = true, r.StartedAt
		}
		if after = next; after == "" {
			break
		}
	}
	if len(seen) != len(recs) {
		t.Errorf("%d attempts of %d", len(seen), len(recs))
	}
	one, _, err := Attempts(t.Context(), db, Selection{From: sel.From, To: sel.To, OperationID: recs[5].OperationID}, "", 10)
	if err != nil || len(one) != 1 || !reflect.DeepEqual(one[0], recs[5]) {
		t.Errorf("got %+v, %v, want %+v", one, err, recs[5])
	}
	for _, bad := range []string{"!", "aGVsbG8", "MjAyNi0wMS0wMVQwMDowMDowMFogeA"} {
		if _, _, err := Attempts(t.Context(), db, sel, bad, 10); !errors.Is(err, ErrBadCursor) {
			t.Errorf("cursor %q: %v", bad, err)
		}
	}
}

func TestLimitsAreToldByTheLedger(t *testing.T) {
	db := newDB(t)
	now := time.Date(2026, 5, 20, 15, 0, 0, 0, time.UTC)
	var recs []tenants.UsageRecord
	rng := rand.New(rand.NewPCG(5, 5))
	for i, at := range []time.Time{now.Add(-time.Hour), now.Add(-2 * time.Hour), now.Add(-48 * time.Hour), now.AddDate(0, -1, 0), now.Add(-time.Minute)} {
		r := someRow(rng, at)
		r.TenantID, r.Tier, r.Model, r.KeyID, r.Outcome, r.Attempt = tenantA, tenants.Cloud, "hub-cloud", "keya", tenants.OutcomeOK, 1
		r.InputTokens, r.OutputTokens, r.CostNanoUSD = 10, 5, 1000
		if i == 1 {
			r.KeyID = "keyb"
		}
		if i == 4 { // the edge's own tokens do not count
			r.Tier = tenants.Edge
		}
		recs = append(recs, r)
	}
	insert(t, db, recs)
	limits := []tenants.Limit{
		{ID: "day", TenantID: tenantA, Kind: tenants.LimitTotal, Window: tenants.PerDay, Limit: 100},
		{ID: "month", TenantID: tenantA, Kind: tenants.LimitCost, Window: tenants.PerMonth, Limit: 2500},
		{ID: "each", TenantID: tenantA, KeyID: "*", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 5},
		{ID: "other key", TenantID: tenantA, KeyID: "keyb", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 5},
		{ID: "rate", TenantID: tenantA, Kind: tenants.LimitRequests, Window: tenants.PerMinute, Limit: 5},
		{ID: "other model", TenantID: tenantA, Model: "m2", Kind: tenants.LimitInput, Window: tenants.PerDay, Limit: 5},
		{ID: "foreign", TenantID: tenantB, Kind: tenants.LimitInput, Window: tenants.PerDay, Limit: 5},
	}
	got, err := Limits(t.Context(), db, tenantA, "keya", limits, now)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]int64{"day": {30, 70}, "month": {3000, 0}, "each": {1, 4}, "rate": {-1, -1}, "other model": {0, 5}}
	for _, u := range got {
		w, ok := want[u.ID]
		if !ok {
			t.Errorf("limit %s is told", u.ID)
			continue
		}
		delete(want, u.ID)
		if (u.Used == nil) != (w[0] < 0) || u.Used != nil && (*u.Used != w[0] || *u.Remaining != w[1]) {
			t.Errorf("%s: %+v, want %v", u.ID, u, w)
		}
	}
	if len(want) > 0 {
		t.Errorf("not told: %v", want)
	}
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	w := NewCSV(&b)
	r := someRow(rand.New(rand.NewPCG(6, 6)), time.Now())
	r.Model = "=HYPERLINK(1)"
	if err := errors.Join(w.AttemptHeader(), w.Attempt(r), w.Flush()); err != nil {
		t.Fatal(err)
	}
	lines, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(lines) != 2 || len(lines[0]) != len(lines[1]) {
		t.Fatalf("%v %v", lines, err)
	}
	if !strings.Contains(strings.Join(lines[1], " "), "'=HYPERLINK") || lines[1][1] != r.AttemptID {
		t.Errorf("line %v", lines[1])
	}
	b.Reset()
	if err := errors.Join(w.Groups([]Group{{Model: "m", Sums: Sums{Requests: 7}}}), w.Flush()); err != nil || !strings.Contains(b.String(), ",m,,,7,") {
		t.Errorf("%v %q", err, b.String())
	}
}

func TestBadGroupings(t *testing.T) {
	for _, g := range []Grouping{{By: []string{"secret"}}, {Bucket: "week"}} {
		if _, err := Sum(t.Context(), nil, Selection{}, g, time.Now()); err == nil {
			t.Errorf("%+v was accepted", g)
		}
	}
}

func FuzzCursor(f *testing.F) {
	good := tenants.UsageRecord{AttemptID: device1, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}
	f.Add("")
	f.Add(cursorAfter(good))
	f.Fuzz(func(t *testing.T, s string) {
		at, id, err := readCursor(s)
		if err != nil {
			return
		}
		again, same, err := readCursor(cursorAfter(tenants.UsageRecord{AttemptID: id.String(), StartedAt: at}))
		if err != nil || !again.Equal(at) || same != id {
			t.Fatalf("%q reads as %v %v, then as %v %v, %v", s, at, id, again, same, err)
		}
	})
}

package ledger

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/report"
)

// someRows returns n rows of the last hours, retries and escalations included.
func someRows(rng *rand.Rand, n int) []tenants.UsageRecord {
	rows := make([]tenants.UsageRecord, n)
	for i := range rows {
		r := row(time.Now().Add(-time.Duration(rng.IntN(3*3600)) * time.Second))
		r.Attempt = int64(1 + rng.IntN(2))
		r.KeyID = []string{"abcd", "efgh", ""}[rng.IntN(3)]
		r.Outcome = []tenants.Outcome{tenants.OutcomeOK, tenants.OutcomeUpstreamError, tenants.OutcomeEscalated}[rng.IntN(3)]
		r.InputTokens, r.OutputTokens = int64(rng.IntN(1000)), int64(rng.IntN(500))
		r.CostNanoUSD, r.TTFTMicros = rng.Int64N(1<<40), int64(rng.IntN(2)*100)
		rows[i] = r
	}
	return rows
}

// TestRollupsEqualTheLedger: writers that send the same batches again and at
// the same time leave sums that equal those over the rows (requirements 8, 9).
func TestRollupsEqualTheLedger(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	rng := rand.New(rand.NewPCG(1, 2))
	batches := make([][]tenants.UsageRecord, 6)
	for i := range batches {
		batches[i] = someRows(rng, 200)
	}
	batches[5] = append(batches[5], batches[0][:50]...)
	batches[5] = append(batches[5], batches[5][:50]...) // twice in one batch
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range batches {
				if _, err := s.Insert(context.Background(), batches[(i+2*w)%len(batches)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, table := range []string{"usage_minute", "usage_hour"} {
		var wrong, groups int
		err := s.pool.QueryRow(t.Context(), `with truth as (
			select date_trunc(case $1 when 'usage_minute' then 'minute' else 'hour' end, started_at at time zone 'UTC') at time zone 'UTC' as at,
				tenant_id, key_id, tier, model, class, outcome, sum((attempt <= 1 and outcome <> 'escalated')::int)::bigint as requests, count(*) as attempts,
				sum(input_tokens)::bigint, sum(cached_tokens)::bigint, sum(output_tokens)::bigint, sum(reasoning_tokens)::bigint, sum(cost_nanousd)::bigint,
				sum((ttft_us > 0)::int)::bigint, sum(ttft_us)::bigint, sum(total_us)::bigint
			from weir.usage_ledger group by 1, 2, 3, 4, 5, 6, 7),
			wrong as ((table truth except select * from weir.`+table+`) union all (select * from weir.`+table+` except table truth))
			select (select count(*) from wrong), (select count(*) from truth)`, table).Scan(&wrong, &groups)
		if err != nil {
			t.Fatal(err)
		}
		if wrong != 0 || groups < 20 {
			t.Errorf("%s: %d of %d groups differ from the ledger", table, wrong, groups)
		}
	}
	var rows int
	if err := s.pool.QueryRow(t.Context(), `select count(*) from weir.usage_ledger`).Scan(&rows); err != nil || rows != 1200 {
		t.Errorf("%d rows, %v: want 1200", rows, err)
	}
}

// TestDropDays: retention is the drop of whole partitions (requirement 33).
func TestDropDays(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	old, fresh := row(time.Now().Add(-100*24*time.Hour)), row(time.Now())
	old.AttemptID = uuid.Must(uuid.NewRandom()).String() // its day is that of its start
	insert(t, s, old, fresh)
	n, err := s.DropBefore(t.Context(), time.Now().Add(-95*24*time.Hour))
	if err != nil || n != 1 {
		t.Fatalf("%d days dropped, %v", n, err)
	}
	if got := usage(t, s, report.Selection{TenantID: tenantA}); len(got) != 1 || got[0].AttemptID != fresh.AttemptID {
		t.Errorf("rows left: %+v", got)
	}
	if res := insert(t, s, old); res.Inserted != 1 {
		t.Errorf("a row of a dropped day: %+v", res)
	}
}

// TestPrune: sums leave with their retention.
func TestPrune(t *testing.T) {
	s := newStore(t, testpg.Start(t))
	insert(t, s, row(time.Now().Add(-30*24*time.Hour)), row(time.Now()))
	if err := s.PruneSums(t.Context(), time.Now().Add(-14*24*time.Hour), time.Now().Add(-400*24*time.Hour)); err != nil {
		t.Fatal(err)
	}
	for table, want := range map[string]int{"usage_minute": 1, "usage_hour": 2} {
		var n int
		if err := s.pool.QueryRow(t.Context(), `select count(*) from weir.`+table).Scan(&n); err != nil || n != want {
			t.Errorf("%s has %d groups, %v: want %d", table, n, err, want)
		}
	}
}

func BenchmarkInsertWithSums(b *testing.B) {
	s := newStore(b, testpg.Start(b))
	rng := rand.New(rand.NewPCG(1, 2))
	n := 0
	for b.Loop() {
		b.StopTimer()
		rows := someRows(rng, 5000)
		b.StartTimer()
		if _, err := s.Insert(b.Context(), rows); err != nil {
			b.Fatal(err)
		}
		n += len(rows)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}

// BenchmarkBareCopy is the same rows by COPY into a table of the same shape.
func BenchmarkBareCopy(b *testing.B) {
	s := newStore(b, testpg.Start(b))
	conn, err := s.pool.Acquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(b.Context(), `create table bare (like weir.usage_ledger including all)`); err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	n := 0
	for b.Loop() {
		b.StopTimer()
		rows := someRows(rng, 5000)
		b.StartTimer()
		if err := BareCopy(b.Context(), conn.Conn(), "bare", rows); err != nil {
			b.Fatal(err)
		}
		n += len(rows)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}

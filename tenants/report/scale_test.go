package report

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/ledger"
)

// TestQueriesOverManyRows (requirement 23): each question that a console asks
// is one query, answered from rollups or one page. The full count is 1,000,000
// rows; times are logged, and held only there.
func TestQueriesOverManyRows(t *testing.T) {
	n, held := 20_000, false
	if os.Getenv("WEIR_SOAK") != "" {
		n, held = 1_000_000, true
	}
	db := newDB(t)
	store := ledger.NewStore(db)
	rng := rand.New(rand.NewPCG(7, 7))
	now := time.Now()
	const span = 30 * 24 * time.Hour
	for left := n; left > 0; {
		batch := make([]tenants.UsageRecord, min(left, 10_000))
		for i := range batch {
			batch[i] = someRow(rng, now.Add(-time.Duration(rng.Int64N(int64(span)))))
		}
		if _, err := store.Insert(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		left -= len(batch)
	}
	if _, err := db.Exec(t.Context(), `analyze`); err != nil {
		t.Fatal(err)
	}
	all := Selection{From: now.Add(-span - time.Hour).Truncate(time.Minute), To: now.Add(time.Minute).Truncate(time.Minute)}
	mine := all
	mine.TenantID = tenantA
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() (int, error){
		"totals of all": func() (int, error) { s, err := Total(t.Context(), db, all, now); return int(s.Attempts), err },
		"a tenant by model": func() (int, error) {
			g, err := Sum(t.Context(), db, mine, Grouping{By: []string{"tier", "model"}}, now)
			return len(g), err
		},
		"days of a zone": func() (int, error) {
			g, err := Sum(t.Context(), db, mine, Grouping{Bucket: "day", Zone: paris}, now)
			return len(g), err
		},
		"first page of a tenant": func() (int, error) { r, _, err := Attempts(t.Context(), db, mine, "", 100); return len(r), err },
		"page in the middle": func() (int, error) {
			at := cursorAfter(tenants.UsageRecord{AttemptID: device1, StartedAt: now.Add(-span / 2).UTC()})
			r, _, err := Attempts(t.Context(), db, mine, at, 100)
			return len(r), err
		},
		"first page of all": func() (int, error) { r, _, err := Attempts(t.Context(), db, all, "", 100); return len(r), err },
	} {
		began := time.Now()
		got, err := ask()
		took := time.Since(began)
		if err != nil || got == 0 {
			t.Errorf("%s: %d, %v", name, got, err)
		}
		t.Logf("%d rows, %s: %.1f ms", n, name, float64(took.Microseconds())/1e3)
		if held && took > time.Second {
			t.Errorf("%s took %v, want below 1 s", name, took)
		}
	}
}

package ledger

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/weirhq/weir/internal/testpg"
	"github.com/weirhq/weir/tenants"
)

// TestPathsLeaveTheSame: batches that repeat rows of earlier ones, and their
// own, leave the same ledger and the same sums as each row's first copy
// written alone in one batch, which no key refuses.
func TestPathsLeaveTheSame(t *testing.T) {
	repeated, once := newStore(t, testpg.Start(t)), newStore(t, testpg.Start(t))
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 12 {
		var firsts []tenants.UsageRecord
		for range 1 + rng.IntN(4) {
			var batch []tenants.UsageRecord
			for range min(rng.IntN(80), len(firsts)) {
				batch = append(batch, altered(rng, firsts[rng.IntN(len(firsts))]))
			}
			for _, r := range manyRows(rng, rng.IntN(150)) {
				batch = append(batch, r)
				if rng.IntN(5) == 0 {
					batch = append(batch, altered(rng, r))
				}
			}
			firsts = withFirsts(firsts, batch)
			before := rows(t, repeated)
			res := insert(t, repeated, batch...)
			if res.Inserted != rows(t, repeated)-before || res.Inserted+res.Duplicates != len(batch) {
				t.Fatalf("seed %d: %+v of %d rows, %d more in the ledger", seed, res, len(batch), rows(t, repeated)-before)
			}
		}
		if res := insert(t, once, firsts...); res.Duplicates != 0 {
			t.Fatalf("seed %d: %+v", seed, res)
		}
		if a, b := content(t, repeated), content(t, once); a != b {
			t.Fatalf("seed %d: %v with repetitions, %v without", seed, a, b)
		}
	}
}

// manyRows are rows of two tenants, of devices and of none, some of which
// share their attempt ids.
func manyRows(rng *rand.Rand, n int) []tenants.UsageRecord {
	out := someRows(rng, n)
	for i := range out {
		if rng.IntN(2) == 0 {
			out[i].TenantID = tenantB
		}
		if rng.IntN(3) == 0 {
			out[i].DeviceID = device1
		}
		if i > 0 && rng.IntN(10) == 0 {
			out[i].AttemptID = out[i-1].AttemptID
			out[i].TenantID, out[i].DeviceID = tenantA, uuid.NewString()
		}
	}
	return out
}

// altered is a copy of a row that tells other numbers.
func altered(rng *rand.Rand, r tenants.UsageRecord) tenants.UsageRecord {
	r.OutputTokens, r.CostNanoUSD, r.Outcome = rng.Int64N(1000), rng.Int64N(1000), tenants.OutcomeShed
	return r
}

// withFirsts adds those of the rows whose key is new.
func withFirsts(have, add []tenants.UsageRecord) []tenants.UsageRecord {
	type key struct{ attempt, tenant, device string }
	seen := make(map[key]bool)
	for _, r := range have {
		seen[key{r.AttemptID, r.TenantID, r.DeviceID}] = true
	}
	for _, r := range add {
		if k := (key{r.AttemptID, r.TenantID, r.DeviceID}); !seen[k] {
			seen[k] = true
			have = append(have, r)
		}
	}
	return have
}

func rows(t *testing.T, s *Store) (n int) {
	t.Helper()
	if err := s.pool.QueryRow(t.Context(), `select count(*) from weir.usage_ledger`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// content is digests of the ledger and of its sums.
func content(t *testing.T, s *Store) (out [3]string) {
	t.Helper()
	for i, table := range []string{`(select ` + rowColumns + ` from weir.usage_ledger)`, `weir.usage_minute`, `weir.usage_hour`} {
		if err := s.pool.QueryRow(t.Context(), `select md5(string_agg(x::text, ';' order by x::text)) from `+table+` x`).Scan(&out[i]); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestSumsThatOverflow: numbers that no column can hold are the rows' fault.
func TestSumsThatOverflow(t *testing.T) {
	a, b := row(time.Now()), row(time.Now())
	a.CostNanoUSD, b.CostNanoUSD = 1<<62, 1<<62
	lines, err := linesOf([]tenants.UsageRecord{a, b})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sum(lines); err == nil {
		t.Error("a sum of 2^63 was accepted")
	}
	if _, err := sum(lines[:1]); err != nil {
		t.Error(err)
	}
}

// TestFloor: times before 1970 belong to the minute that they are in, too.
func TestFloor(t *testing.T) {
	for at, want := range map[int64]int64{0: 0, 59: 0, 60: 60, -1: -60, -60: -60, -61: -120} {
		if got := floor(at, 60); got != want {
			t.Errorf("floor(%d) = %d, want %d", at, got, want)
		}
	}
}

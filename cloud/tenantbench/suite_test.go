package tenantbench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/internal/bench"
)

// TestRig runs the gateways' comparison small: both must answer, and the one
// with tenants must leave its rows in the database.
func TestRig(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir-bench-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	env := bench.Env{Out: t.Output(), Dir: dir, Getenv: os.Getenv}
	db, err := openDatabase(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	r, err := newRig(t.Context(), db, env)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.added(t.Context(), 20); err != nil {
		t.Error(err)
	}
	if f, err := measureLedger(t.Context(), env, db, r, 20_000); err != nil || f.rate <= 0 || f.ratio <= 0 || f.served <= 0 {
		t.Errorf("ledger %+v: %v", f, err)
	}
	r.Close() // delivers what waits
	var rows int
	if err := db.pool.QueryRow(t.Context(), `select count(*) from weir.usage_ledger where node = 'bench' and node_epoch = 'bench'`).Scan(&rows); err != nil || rows < 22 {
		t.Errorf("%d rows of the gateway, %v", rows, err)
	}
}

func TestCore(t *testing.T) {
	bars, err := core(bench.Env{Out: t.Output(), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bars {
		if b.Name == "tenants.admit_settle.allocs" && !b.OK() {
			t.Errorf("%s", b)
		}
	}
}

// TestFairness: the figures need recordings; without them they are missing.
func TestFairness(t *testing.T) {
	for _, dir := range []string{"", t.TempDir()} {
		bars, err := fairness(bench.Env{Out: t.Output(), Data: dir})
		if err != nil || len(bars) != 3 {
			t.Errorf("data %q: %v, %v", dir, bars, err)
		}
		for _, b := range bars {
			if b.OK() || b.Missing == "" {
				t.Errorf("data %q: %s", dir, b)
			}
		}
	}
	dir := filepath.Join("..", "..", "..", "shared", "data")
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("recorded data is not beside this checkout: %v", err)
	}
	bars, err := fairness(bench.Env{Out: t.Output(), Data: dir})
	if err != nil || len(bars) != 3 {
		t.Fatalf("%v, %v", bars, err)
	}
	for _, b := range bars {
		if !b.OK() || b.Measured <= 0 {
			t.Errorf("%s", b)
		}
	}
}

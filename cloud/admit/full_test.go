package admit_test

import (
	"context"
	"testing"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/testpg"
)

// TestDatabaseFull: a database that answers but cannot store rows, as one on a
// full disk, is told by /readyz and by metrics; requests are served and their
// rows follow when there is room again.
func TestDatabaseFull(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 2}, false, limit{kind: "requests", window: "minute", max: 1_000_000})
	n := f.nodes[0]
	f.exec(`create function public.full() returns trigger language plpgsql as $$
		begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$`)
	f.exec(`create trigger full_disk before insert on weir.usage_ledger for each row execute function public.full()`)
	var l load
	ctx, cancel := context.WithCancel(t.Context())
	clients := l.run(ctx, f, 2, "")
	eventually(t, "the gateway is degraded", func() bool { return n.status() == "degraded" })
	served := l.count.Load()
	eventually(t, "requests are served all the same", func() bool { return l.count.Load() > served+20 })
	cancel()
	clients.Wait()
	if lag, waiting := n.metric("weir_ledger_lag_seconds"), n.metric("weir_ledger_waiting_rows"); lag == "0" || lag == "" || waiting == "0" {
		t.Errorf("%s rows wait for %s s by the metrics", waiting, lag)
	}
	if s := n.status(); s != "degraded" {
		t.Errorf("status %s while rows wait", s)
	}
	f.exec(`drop trigger full_disk on weir.usage_ledger`)
	n.awaitReady()
	eventually(t, "no row is lost", func() bool { return l.missing(f) == 0 })
	eventually(t, "none waits", func() bool { return n.metric("weir_ledger_waiting_rows") == "0" })
	if l.refused.Load()+l.broken.Load() != 0 {
		t.Errorf("%d refused, %d broken: %v", l.refused.Load(), l.broken.Load(), l.last.Load())
	}
}

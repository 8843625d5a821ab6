package admit_test

import (
	"testing"
	"time"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/testpg"
)

// TestRatesAreDivided: three gateways share a rate and slots (requirement 15):
// together they admit what one would, from the first request on, and the one
// that is asked gets the others' part.
func TestRatesAreDivided(t *testing.T) {
	sixty := limit{kind: "requests", window: "minute", max: 60}
	f := newFleet(t, testpg.Start(t), 3, fake.Options{MaxTokens: 1}, false, sixty)
	for deadline := time.Now().Add(time.Minute); ; {
		began := time.Now()
		got := f.parallel(180, "")
		refilled := int(time.Since(began)/time.Second) + 1 // one per second came in again
		if got[200] > 60+refilled || got[200]+got[429] != 180 {
			t.Errorf("statuses %v: want 60 of 180", got)
		}
		if got[200] >= 55 {
			break
		}
		if began.After(deadline) {
			t.Fatalf("statuses %v: want 60 of 180", got)
		}
		f = f.of(t, false, sixty) // parts have moved between the calls, as each second they may
	}
	// From now on one gateway is asked, and within some refreshes gets most of
	// what the rate refills: one per second, while an even part is a third.
	r := f.nodes[0].ask(t.Context(), "")
	if r.status == 429 && r.header.Get("Retry-After-Ms") == "" {
		t.Errorf("refusal without Retry-After-Ms: %v", r.header)
	}
	// A part that another must still give up may be held twice until it has
	// refreshed: a tenth of the limit, no more, and not for long.
	eventually(t, "the asked gateway has most of the rate, and all of them no more than it", func() bool {
		f.nodes[0].ask(t.Context(), "")
		sum := f.number(`select coalesce(sum(max), 0) from weir.rate_shares where tenant_id = $1 and seen_at > now() - interval '5 s'`, f.tenant)
		if sum > 66 {
			t.Fatalf("shares sum to %d of 60", sum)
		}
		return sum <= 60 && f.number(`select coalesce(max(max), 0) from weir.rate_shares where tenant_id = $1`, f.tenant) >= 50
	})
}

// TestBlocksOfTheDeadComeBack: a gateway dies with a block of a budget. While
// it is away nobody spends the block; when it is back, the ledger's sum frees
// the rest, and the budget is spent exactly.
func TestBlocksOfTheDeadComeBack(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 2, fake.Options{MaxTokens: 1}, true, limit{kind: "requests", window: "month", max: 100})
	spent := 0
	for unspent := int64(0); unspent == 0 && spent < 50; { // a block that was idle for a second had gone back before
		if spent > 0 {
			f.nodes[0].start()
			f.nodes[0].awaitReady()
		}
		for range 5 {
			if r := f.nodes[0].ask(t.Context(), ""); r.status != 200 {
				t.Fatalf("%d %s", r.status, r.body)
			}
			spent++
		}
		f.nodes[0].kill() // with most of its first block unspent
		unspent = f.number(`select coalesce(sum(granted - returned), 0) - 5 from weir.budget_leases l join weir.gateways g using (epoch)
			where l.tenant_id = $1 and g.name = 'gw0' and not final`, f.tenant)
	}
	for f.nodes[1].ask(t.Context(), "").status == 200 {
		spent++
	}
	held := f.number(`select coalesce(sum(granted - returned), 0) from weir.budget_leases where tenant_id = $1 and not final`, f.tenant)
	if spent >= 100 || held > 100 {
		t.Fatalf("%d spent, %d held while a gateway is dead: its block must be nobody's", spent, held)
	}
	t.Logf("%d spent before the dead gateway came back", spent)
	f.nodes[0].start()
	f.nodes[0].awaitReady()
	eventually(t, "the whole budget is spent", func() bool {
		if f.nodes[1].ask(t.Context(), "").status == 200 {
			spent++
		}
		return spent == 100
	})
	if r := f.nodes[0].ask(t.Context(), ""); r.status != 429 {
		t.Errorf("request 101: %d", r.status)
	}
	eventually(t, "the counter is the ledger's sum", func() bool { return f.used("requests") == 100 && f.ledgered("1") == 100 })
}

// TestEndingGatewayLeavesNothing: a gateway that ends gives its blocks and its
// place back at once, and its rows are in the ledger.
func TestEndingGatewayLeavesNothing(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 1, fake.Options{MaxTokens: 1}, true, limit{kind: "requests", window: "month", max: 100})
	if r := f.nodes[0].ask(t.Context(), ""); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	f.nodes[0].end()
	if n := f.number(`select sum(granted - returned) from weir.budget_leases where tenant_id = $1`, f.tenant); n != 1 {
		t.Errorf("%d of the budget are still held: want the 1 that was used", n)
	}
	if n := f.number(`select count(*) from weir.gateways`); n != 0 {
		t.Errorf("%d gateways are registered", n)
	}
	if n := f.ledgered("1"); n != 1 {
		t.Errorf("%d ledger rows", n)
	}
}

// TestRotationGrace: during a rotation's grace all gateways accept both
// secrets, and the key's own counter goes on (requirement 24, 2).
func TestRotationGrace(t *testing.T) {
	f := newFleet(t, testpg.Start(t), 2, fake.Options{MaxTokens: 1}, false, limit{kind: "requests", window: "month", max: 6, key: "*"})
	_, other := f.newKey()
	for range 3 {
		if r := f.nodes[0].ask(t.Context(), ""); r.status != 200 {
			t.Fatalf("%d %s", r.status, r.body)
		}
	}
	old := f.key
	fresh := f.rotate(time.Minute)
	for _, n := range f.nodes {
		eventually(t, "the new secret is accepted", func() bool { return n.askAs(t.Context(), fresh, `,"max_tokens":0`).status == 400 }) // authorised, then refused
	}
	admitted := 0
	eventually(t, "the rest of the budget", func() bool {
		for _, key := range []string{old, fresh} {
			for _, n := range f.nodes {
				switch r := n.askAs(t.Context(), key, ""); r.status {
				case 200:
					admitted++
				case 429:
				default:
					t.Fatalf("%d %s", r.status, r.body)
				}
			}
		}
		return admitted >= 3
	})
	if admitted != 3 {
		t.Errorf("%d admitted after the rotation: want the 3 that were left", admitted)
	}
	eventually(t, "another key has its own counter", func() bool { return f.nodes[1].askAs(t.Context(), other, "").status == 200 })
}

package admit

import (
	"testing"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// dearer adds a pool of ten times the price.
func dearer(s *tenants.Snapshot) {
	s.Prices = append(s.Prices, tenants.Price{Version: 1, Tier: tenants.Cloud, Model: "dear", Input: 10_000_000, Output: 10_000_000})
}

// Room is what limits that name the pool leave; those of all are Admit's matter.
func TestRoom(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		s.Limits = []tenants.Limit{{ID: "named", TenantID: "a", Model: "m", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 1},
			{ID: "all", TenantID: "a", Kind: tenants.LimitConcurrent, Window: tenants.AtOnce, Limit: 1}}
	})
	w := r.work("a", "")
	if !r.Room(w) {
		t.Error("no room for the first")
	}
	g := r.admit(t, w)
	if r.Room(w) {
		t.Error("room for a second")
	}
	w.Pool = "other"
	if !r.Room(w) || !r.Room(r.work("b", "")) {
		t.Error("no room where no limit names the pool")
	}
	g.Settle(used(1, 1))
}

// Work moves to another pool where no limit names either, and reserves its price.
func TestMoves(t *testing.T) {
	for name, tt := range map[string]struct {
		limit tenants.Limit
		moves bool
	}{
		"none":            {tenants.Limit{Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 9}, true},
		"the pool":        {tenants.Limit{Model: "m", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 9}, false},
		"the other":       {tenants.Limit{Model: "dear", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 9}, false},
		"a third":         {tenants.Limit{Model: "x", Kind: tenants.LimitRequests, Window: tenants.PerDay, Limit: 9}, true},
		"money enough":    {tenants.Limit{Kind: tenants.LimitCost, Window: tenants.PerDay, Limit: 10_000_000}, true},
		"money too tight": {tenants.Limit{Kind: tenants.LimitCost, Window: tenants.PerDay, Limit: 1_000_000}, false},
	} {
		r := newRig(t, func(s *tenants.Snapshot) {
			dearer(s)
			tt.limit.ID, tt.limit.TenantID = "l", "a"
			s.Limits = []tenants.Limit{tt.limit}
		})
		w := r.work("a", "")
		g := r.admit(t, w)
		before := r.Limits(w.Identity, "m", "")
		if got := g.Moves("dear"); got != tt.moves {
			t.Errorf("%s: %v", name, got)
		}
		after := r.Limits(w.Identity, "m", "")
		if tt.limit.Kind == tenants.LimitCost && (after[0].Reserved == 10*before[0].Reserved) != tt.moves {
			t.Errorf("%s: reserved %d, then %d", name, before[0].Reserved, after[0].Reserved)
		}
		if !tt.moves && len(after) > 0 && after[0].Remaining != before[0].Remaining {
			t.Errorf("%s: it took something", name)
		}
		g.Settle(used(10, 5))
	}
}

// A strict tenant's stream that has moved is topped up at the new pool's price.
func TestAMovedStreamPaysTheNewPrice(t *testing.T) {
	r := newRig(t, func(s *tenants.Snapshot) {
		dearer(s)
		limitOn(tenants.LimitCost, tenants.PerDay, 3_000_000)(s)
	})
	w := r.work("a", "")
	g := r.admit(t, w)
	if !g.Moves("dear") {
		t.Fatal("it does not move")
	}
	if err := g.Delivered(100); err != nil {
		t.Errorf("within the reservation: %v", err)
	}
	err := g.Delivered(1000) // 10 million nano-dollars
	if e := openai.AsError(err); err == nil || e.Code != string(tenants.OutcomeQuotaExceeded) {
		t.Errorf("%v", err)
	}
	g.Settle(used(10, 1000))
}

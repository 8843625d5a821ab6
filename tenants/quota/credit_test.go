package quota

import (
	"testing"
	"time"
)

// TestGiveBack: what is given back may be used again, and the store is told the
// same as if it had never been taken.
func TestGiveBack(t *testing.T) {
	for _, leased := range []bool{false, true} {
		now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
		a, err := NewAccount([]Limit{{ID: "b", Kind: Requests, Window: Day, Max: 2}}, Options{Leased: leased, Strict: true}, now)
		if err != nil {
			t.Fatal(err)
		}
		b := &Budget{Max: 2}
		h := Holder{Node: "n", Epoch: "e"}
		lease := func() {
			for _, n := range a.LeaseNews(nil, now) {
				reply, err := b.Renew(h, n.LeaseRequest, DefaultBlocks(2), now)
				if err != nil {
					t.Fatal(err)
				}
				a.ApplyLease(n.Budget, reply, now, now)
			}
		}
		one := Request{Key: "k", Model: "m", Amount: Amount{Requests: 1}}
		run := func() Reason {
			var r Reservation
			v := a.Admit(&one, now, &r)
			if v.Reason == LeaseWanted {
				lease()
				v = a.Admit(&one, now, &r)
			}
			r.Settle(Amount{}, now)
			lease()
			return v.Reason
		}
		for i, want := range []Reason{Admitted, Admitted, QuotaExhausted} {
			if got := run(); got != want {
				t.Fatalf("leased %v, request %d: %s", leased, i, got)
			}
		}
		a.GiveBack(&one, now, now)
		a.GiveBack(&Request{Key: "k", Model: "m", Amount: Amount{Requests: 9}}, now.Add(-24*time.Hour), now) // a day that is over
		now = now.Add(time.Minute)                                                                           // every lease has ended
		lease()
		for i, want := range []Reason{Admitted, QuotaExhausted} {
			if got := run(); got != want {
				t.Errorf("leased %v, request %d after one was given back: %s", leased, i, got)
			}
		}
		if leased && (b.Used() != 2 || b.Committed() != 2) {
			t.Errorf("the store counts %d used, %d committed", b.Used(), b.Committed())
		}
	}
}

// TestGiveBackIsBounded: nobody is given back more than was used.
func TestGiveBackIsBounded(t *testing.T) {
	now := time.Now()
	a, err := NewAccount([]Limit{{ID: "b", Kind: Cost, Window: Month, Max: 100}}, Options{}, now)
	if err != nil {
		t.Fatal(err)
	}
	var r Reservation
	a.Admit(&Request{Amount: Amount{Cost: 40}}, now, &r)
	r.Settle(Amount{Cost: 30}, now)
	for range 3 {
		a.GiveBack(&Request{Amount: Amount{Cost: 20}}, now, now)
	}
	a.GiveBack(&Request{Amount: Amount{Cost: -1}}, now, now)
	st := a.Status(&Request{}, now, nil)
	if len(st) != 1 || st[0].Used != 0 || st[0].Remaining != 100 {
		t.Errorf("%+v", st)
	}
}

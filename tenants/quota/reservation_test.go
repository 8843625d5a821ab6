package quota

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCorrectTopUpSettle(t *testing.T) {
	a := account(t,
		Limit{ID: "tpm", Kind: Total, Window: Minute, Max: 1000},
		Limit{ID: "day", Kind: Cost, Window: Day, Max: 1000},
	)
	used := func() (rate, reserved, used int64) {
		st := a.Status(ask(0, 0), noon, nil)
		return 1000 - st[0].Remaining, st[1].Reserved, st[1].Used
	}
	expect := func(when string, rate, reserved, settled int64) {
		t.Helper()
		if r, p, u := used(); r != rate || p != reserved || u != settled {
			t.Errorf("%s: rate %d, reserved %d, used %d, want %d, %d, %d", when, r, p, u, rate, reserved, settled)
		}
	}
	var res Reservation
	if v := a.Admit(&Request{Amount: Amount{Requests: 1, Input: 500, Output: 100, Cost: 600}}, noon, &res); !v.OK() {
		t.Fatal(v)
	}
	expect("admitted", 600, 600, 0)
	res.Correct(Amount{Input: 300, Output: 100, Cost: 400}, Amount{Input: 300, Output: 100, Cost: 400}, noon)
	expect("corrected", 400, 400, 0)
	if v := res.TopUp(Amount{Input: 300, Output: 300, Cost: 600}, noon); !v.OK() {
		t.Fatal(v)
	}
	expect("topped up", 600, 600, 0)
	if v := res.TopUp(Amount{Input: 300, Output: 300, Cost: 1001}, noon); v.LimitID != "day" || v.Reason == Admitted {
		t.Errorf("top-up over the budget: %+v", v)
	}
	if v := res.TopUp(Amount{Output: 900, Cost: 700}, noon); v.LimitID != "tpm" || v.Reason != RateLimited {
		t.Errorf("top-up over the rate: %+v", v)
	}
	expect("refused top-ups", 600, 600, 0)
	if !res.Settle(Amount{Input: 300, Output: 50, Cost: 350}, noon) {
		t.Error("not settled")
	}
	expect("settled", 350, 0, 350)
	if res.Settle(Amount{}, noon) || res.Release(noon) || res.Correct(Amount{}, Amount{}, noon) || res.TopUp(Amount{}, noon).Reason != ReservationClosed {
		t.Error("a closed reservation still acts")
	}
	expect("settled once", 350, 0, 350)
}

func TestSettlementOverTheReservationIsOwed(t *testing.T) {
	a := account(t, Limit{ID: "tpm", Kind: Output, Window: Minute, Max: 60})
	var res Reservation
	a.Admit(ask(0, 60), noon, &res)
	res.Settle(Amount{Output: 120}, noon)
	v := a.Admit(ask(0, 1), noon, new(Reservation))
	if v.Reason != RateLimited || v.RetryAfter != 61*time.Second {
		t.Errorf("verdict %+v, want the debt of 60 and one more paid in 61 s", v)
	}
}

func TestReservationAcrossMidnight(t *testing.T) {
	a := account(t, Limit{ID: "day", Kind: Cost, Window: Day, Max: 100})
	late := time.Date(2026, 11, 30, 23, 59, 59, 0, time.UTC)
	early := late.Add(2 * time.Second)
	var old, fresh Reservation
	if v := a.Admit(&Request{Amount: Amount{Cost: 100}}, late, &old); !v.OK() {
		t.Fatal(v)
	}
	if v := a.Admit(&Request{Amount: Amount{Cost: 1}}, late, &fresh); v.RetryAfter != time.Second {
		t.Errorf("verdict %+v, want the second to midnight", v)
	}
	if v := a.Admit(&Request{Amount: Amount{Cost: 100}}, early, &fresh); !v.OK() {
		t.Fatalf("a new day: %+v", v)
	}
	old.Settle(Amount{Cost: 60}, early)
	if st := a.Status(&Request{}, early, nil)[0]; st.Used != 0 || st.Reserved != 100 {
		t.Errorf("yesterday's settlement is counted today: %+v", st)
	}
	fresh.Settle(Amount{Cost: 10}, early.Add(72*time.Hour)) // its period is long gone
	if st := a.Status(&Request{}, early.Add(72*time.Hour), nil)[0]; st.Used != 0 || st.Reserved != 0 {
		t.Errorf("three days on: %+v", st)
	}
}

func TestExpire(t *testing.T) {
	a := account(t, Limit{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 3}, Limit{ID: "b", Kind: Cost, Window: Day, Max: 100})
	res := make([]Reservation, 3)
	for i := range res {
		r := &Request{Amount: Amount{Cost: 10}, Deadline: noon.Add(time.Duration(i) * time.Minute)}
		if i == 2 {
			r.Deadline = time.Time{} // never
		}
		a.Admit(r, noon, &res[i])
	}
	if n := a.Expire(noon.Add(30 * time.Second)); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
	if res[0].Settle(Amount{Cost: 10}, noon) {
		t.Error("an expired reservation settled")
	}
	if n := a.Expire(noon.Add(24 * time.Hour)); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
	if a.Open() != 1 || !res[2].Release(noon) || a.Open() != 0 {
		t.Errorf("%d open", a.Open())
	}
	st := a.Status(&Request{}, noon, nil)
	if st[0].Used != 0 || st[1].Reserved != 0 {
		t.Errorf("after expiry and release: %+v", st)
	}
}

func TestOwnersAndSweeperRace(t *testing.T) {
	a := account(t, Limit{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 1000}, Limit{ID: "b", Kind: Cost, Window: Day, Max: 1 << 40})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var res Reservation
			for i := range 200 {
				a.Admit(&Request{Amount: Amount{Cost: 3}, Deadline: noon}, noon, &res)
				res.TopUp(Amount{Cost: 4}, noon)
				if i%2 == 0 {
					res.ReleaseSlot()
				}
				res.Settle(Amount{Cost: 2}, noon)
				res.Release(noon)
			}
		})
	}
	for range 200 {
		a.Expire(noon)
	}
	wg.Wait()
	st := a.Status(&Request{}, noon, nil)
	if st[0].Used != 0 || st[1].Reserved != 0 || a.Open() != 0 {
		t.Errorf("after all: %+v, %d open", st, a.Open())
	}
}

// Whatever happens to reservations, in the end nothing is held, the budget
// counter is the sum of what was settled, and it never passed its limit.
func TestEveryReservationEndsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const budget = 300
		a, err := NewAccount([]Limit{
			{ID: "rpm", Kind: Requests, Window: Minute, Max: 30},
			{ID: "tpm", Kind: Total, Window: Minute, Max: 900},
			{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 4},
			{ID: "month", Kind: Cost, Window: Month, Max: budget},
			{ID: "shadow", Kind: Cost, Window: Month, Max: budget / 2, Shadow: true},
		}, Options{}, noon)
		if err != nil {
			t.Fatal(err)
		}
		b := &bookkeeper{a: a, now: noon, budget: budget}
		for i := range b.reserved {
			b.reserved[i] = -1
		}
		t.Repeat(map[string]func(*rapid.T){
			"":             b.check,
			"pass time":    b.passTime,
			"admit":        b.admit,
			"correct down": b.correct,
			"top up":       b.topUp,
			"settle":       b.settle,
			"release":      b.release,
		})
	})
}

// bookkeeper knows what an account's counters should be.
type bookkeeper struct {
	a        *Account
	now      time.Time
	budget   int64
	res      [6]Reservation
	reserved [6]int64 // cost; -1: closed
	settled  int64
}

func (b *bookkeeper) pick(t *rapid.T) int { return rapid.IntRange(0, len(b.res)-1).Draw(t, "i") }

func (b *bookkeeper) amount(t *rapid.T, most int64) Amount {
	n := rapid.Int64Range(0, most).Draw(t, "n")
	return Amount{Requests: 1, Input: n, Output: n / 2, Cost: n}
}

func (b *bookkeeper) check(t *rapid.T) {
	st := b.a.Status(&Request{}, b.now, nil)
	var open, sum int64
	for _, n := range b.reserved {
		if n >= 0 {
			open, sum = open+1, sum+n
		}
	}
	if st[2].Used != open || st[3].Reserved != sum || st[3].Used != b.settled || sum+b.settled > b.budget {
		t.Fatalf("slots %d (want %d), reserved %d (want %d), used %d (want %d)",
			st[2].Used, open, st[3].Reserved, sum, st[3].Used, b.settled)
	}
}

func (b *bookkeeper) passTime(t *rapid.T) {
	b.now = b.now.Add(time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, "ns")))
}

func (b *bookkeeper) admit(t *rapid.T) {
	i, am := b.pick(t), b.amount(t, 60)
	before := b.a.Status(&Request{}, b.now, nil)
	if b.a.Admit(&Request{Amount: am}, b.now, &b.res[i]).OK() {
		b.reserved[i] = am.Cost
		return
	}
	for j, st := range b.a.Status(&Request{}, b.now, nil) {
		if st != before[j] {
			t.Fatalf("refusal changed %+v to %+v", before[j], st)
		}
	}
}

func (b *bookkeeper) correct(t *rapid.T) {
	i := b.pick(t)
	if am := b.amount(t, max(b.reserved[i], 0)); b.res[i].Correct(am, am, b.now) {
		b.reserved[i] = am.Cost
	}
}

func (b *bookkeeper) topUp(t *rapid.T) {
	i := b.pick(t)
	if am := b.amount(t, 90); b.res[i].TopUp(am, b.now).OK() {
		b.reserved[i] = max(b.reserved[i], am.Cost)
	}
}

func (b *bookkeeper) settle(t *rapid.T) {
	i := b.pick(t)
	am := b.amount(t, max(b.reserved[i], 0))
	if b.res[i].Settle(am, b.now) != (b.reserved[i] >= 0) {
		t.Fatalf("settling reservation %d: wrong answer", i)
	}
	if b.reserved[i] >= 0 {
		b.settled += am.Cost
	}
	b.reserved[i] = -1
}

func (b *bookkeeper) release(t *rapid.T) {
	i := b.pick(t)
	if b.res[i].Release(b.now) != (b.reserved[i] >= 0) {
		t.Fatalf("releasing reservation %d: wrong answer", i)
	}
	b.reserved[i] = -1
}

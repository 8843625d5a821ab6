package quota

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func account(t testing.TB, limits ...Limit) *Account {
	t.Helper()
	a, err := NewAccount(limits, Options{}, noon)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ask(input, output int64) *Request {
	return &Request{Key: "k1", Model: "m", Tier: "cloud", Amount: Amount{Requests: 1, Input: input, Output: output, Cost: input + output}}
}

func TestParallelCallsAgainstABudget(t *testing.T) {
	a := account(t, Limit{ID: "b", Kind: Cost, Window: Month, Max: 50})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	reservations := make([]Reservation, 200)
	for i := range reservations {
		wg.Go(func() {
			if a.Admit(ask(1, 0), noon, &reservations[i]).OK() {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 50 {
		t.Errorf("%d of 200 parallel calls admitted on a budget of 50", admitted.Load())
	}
	for i := range reservations {
		wg.Go(func() { reservations[i].Settle(Amount{Requests: 1, Input: 1, Cost: 1}, noon) })
	}
	wg.Wait()
	st := a.Status(ask(0, 0), noon, nil)[0]
	if st.Used != 50 || st.Reserved != 0 || st.Remaining != 0 || a.Open() != 0 {
		t.Errorf("after settling: %+v, %d open", st, a.Open())
	}
}

// peers.md B 10: the limit must bite by reservation, not one request late.
func TestTokenRateBitesAtOnce(t *testing.T) {
	a := account(t, Limit{ID: "tpm", Kind: Total, Window: Minute, Max: 1000})
	n := 0
	for range 100 {
		if a.Admit(ask(0, 200), noon, new(Reservation)).OK() {
			n++
		}
	}
	if n != 5 {
		t.Errorf("%d calls of 200 tokens in flight at 1000 tokens per minute, want 5", n)
	}
}

// peers.md B 14: a refused request leaves all counters as they were.
func TestAllOrNothing(t *testing.T) {
	a := account(t,
		Limit{ID: "rpm", Kind: Requests, Window: Minute, Max: 10},
		Limit{ID: "day", Kind: Cost, Window: Day, Max: 1000},
		Limit{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 1},
	)
	var first, second Reservation
	if v := a.Admit(ask(5, 5), noon, &first); !v.OK() {
		t.Fatal(v)
	}
	before := a.Status(ask(0, 0), noon, nil)
	v := a.Admit(ask(5, 5), noon, &second)
	if v.Reason != ConcurrencyFull || v.LimitID != "slots" || v.RetryAfter != ConcurrencyRetry {
		t.Errorf("verdict %+v", v)
	}
	for i, st := range a.Status(ask(0, 0), noon, nil) {
		if st != before[i] {
			t.Errorf("a refused request changed %+v to %+v", before[i], st)
		}
	}
	if second.Settle(Amount{}, noon) {
		t.Error("a refused reservation settles")
	}
	first.ReleaseSlot()
	first.ReleaseSlot() // a second time does nothing
	if v := a.Admit(ask(5, 5), noon, &second); !v.OK() {
		t.Errorf("the slot was freed before the settlement, but %+v", v)
	}
	first.Settle(Amount{}, noon)
	if v := a.Admit(ask(5, 5), noon, &first); v.Reason != ConcurrencyFull {
		t.Errorf("settling after ReleaseSlot freed the slot twice: %+v", v)
	}
}

func TestVerdictNamesTheLongestWait(t *testing.T) {
	a := account(t,
		Limit{ID: "fast", Kind: Requests, Window: Minute, Max: 60, Burst: 1},
		Limit{ID: "slow", Kind: Requests, Window: Minute, Max: 6, Burst: 1},
		Limit{ID: "day", Kind: Input, Window: Day, Max: 100},
	)
	var res Reservation
	if v := a.Admit(ask(1, 0), noon, &res); !v.OK() {
		t.Fatal(v)
	}
	v := a.Admit(ask(1, 0), noon, new(Reservation))
	if v.LimitID != "slow" || v.RetryAfter != 10*time.Second {
		t.Errorf("verdict %+v, want 10 s of slow", v)
	}
	if v := a.Admit(ask(1, 0), noon.Add(v.RetryAfter), new(Reservation)); !v.OK() {
		t.Errorf("after exactly Retry-After: %+v", v)
	}
	v = a.Admit(ask(99, 0), noon.Add(time.Hour), new(Reservation))
	if v.Reason != QuotaExhausted || v.RetryAfter != 11*time.Hour {
		t.Errorf("verdict %+v, want the end of the UTC day", v)
	}
	v = a.Admit(ask(101, 0), noon, new(Reservation))
	if v.Reason != TooLarge || v.LimitID != "day" || v.RetryAfter != 0 {
		t.Errorf("verdict %+v, want too large for day", v)
	}
}

func TestMatching(t *testing.T) {
	a := account(t,
		Limit{ID: "k1", Key: "k1", Kind: Concurrent, Window: AtOnce, Max: 0},
		Limit{ID: "m2", Model: "m2", Kind: Concurrent, Window: AtOnce, Max: 0},
		Limit{ID: "edge", Tier: "edge", Kind: Concurrent, Window: AtOnce, Max: 0},
		Limit{ID: "batch", Class: "batch", Kind: Concurrent, Window: AtOnce, Max: 0},
		Limit{ID: "esc", Kind: Escalations, Window: Minute, Max: 1},
	)
	cases := []struct {
		r    Request
		want string
	}{
		{Request{Key: "k1", Model: "m", Tier: "cloud"}, "k1"},
		{Request{Key: "k2", Model: "m2", Tier: "cloud"}, "m2"},
		{Request{Key: "k2", Model: "m", Tier: "edge"}, "edge"},
		{Request{Key: "k2", Model: "m", Tier: "cloud", Class: "batch"}, "batch"},
		{Request{Key: "k2", Model: "m", Tier: "cloud", Class: "other"}, ""},
		{Request{Key: "k3", Model: "m3", Tier: "cloud", Amount: Amount{Escalations: 1}}, ""},
		{Request{Key: "k3", Model: "m3", Tier: "cloud", Amount: Amount{Escalations: 1}}, "esc"},
		{Request{Key: "k3", Model: "m3", Tier: "cloud"}, ""}, // not an escalation
	}
	for i, c := range cases {
		if v := a.Admit(&c.r, noon, new(Reservation)); v.LimitID != c.want {
			t.Errorf("case %d: %+v, want limit %q", i, v, c.want)
		}
	}
}

// peers.md B 2: the first parallel requests of a new key all meet its limit.
func TestEachKeyHasItsOwnCounter(t *testing.T) {
	a := account(t, Limit{ID: "per-key", Key: EachKey, Kind: Requests, Window: Minute, Max: 3})
	for _, key := range []string{"a", "b", "c"} {
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				r := Request{Key: key, Amount: Amount{Requests: 1}}
				if a.Admit(&r, noon, new(Reservation)).OK() {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		if admitted.Load() != 3 {
			t.Errorf("key %s: %d of 8 admitted, want 3", key, admitted.Load())
		}
	}
}

func TestShadowLimits(t *testing.T) {
	a := account(t,
		Limit{ID: "shadow", Kind: Requests, Window: Minute, Max: 2, Shadow: true},
		Limit{ID: "real", Kind: Requests, Window: Minute, Max: 5},
	)
	for range 5 {
		if v := a.Admit(ask(0, 0), noon, new(Reservation)); !v.OK() {
			t.Fatalf("a shadow limit refused: %+v", v)
		}
	}
	if v := a.Admit(ask(0, 0), noon, new(Reservation)); v.LimitID != "real" {
		t.Errorf("verdict %+v", v)
	}
	st := a.Status(ask(0, 0), noon, nil)
	// The sixth is counted too: the shadow limit would have refused it.
	shadowed := map[string]int64{}
	a.Shadowed(shadowed)
	if shadowed["shadow"] != 4 || len(shadowed) != 1 || st[0].Remaining != 0 {
		t.Errorf("shadowed %v, status %+v", shadowed, st)
	}
	if a.Shadowed(shadowed); shadowed["shadow"] != 4 {
		t.Errorf("told twice: %v", shadowed)
	}
	if h, ok := Headline(st, Requests); !ok || h.Limit.ID != "real" {
		t.Errorf("headline %+v, %v", h, ok)
	}
	if _, ok := Headline(st, Input, Total); ok {
		t.Error("a headline of kinds that no limit counts")
	}
}

func TestInvalidRequests(t *testing.T) {
	a := account(t, Limit{ID: "x", Kind: Total, Window: Minute, Max: 10})
	for _, bad := range []Amount{{Input: -1}, {Output: -1}, {Cost: -1}, {Requests: MaxRate + 1}, {Cost: 1<<60 + 1}} {
		if v := a.Admit(&Request{Amount: bad}, noon, new(Reservation)); v.Reason != InvalidRequest {
			t.Errorf("amount %+v: %v", bad, v.Reason)
		}
	}
	var res Reservation
	a.Admit(ask(1, 1), noon, &res)
	if v := a.Admit(ask(1, 1), noon, &res); v.Reason != InvalidRequest {
		t.Errorf("an open reservation was opened again: %v", v.Reason)
	}
	many := make([]Limit, maxMatching+1)
	for i := range many {
		many[i] = Limit{ID: string(rune('A' + i)), Kind: Requests, Window: Minute, Max: 1}
	}
	if v := account(t, many...).Admit(ask(0, 0), noon, new(Reservation)); v.Reason != TooManyLimits {
		t.Errorf("65 limits: %v", v.Reason)
	}
}

func TestLimitValidation(t *testing.T) {
	bad := []Limit{
		{Kind: Requests, Window: Minute},
		{ID: "x", Kind: numKinds, Window: Minute},
		{ID: "x", Kind: Concurrent, Window: Minute},
		{ID: "x", Kind: Requests, Window: AtOnce},
		{ID: "x", Kind: Cost, Window: Minute},
		{ID: "x", Kind: Requests, Window: Minute, Max: -1},
		{ID: "x", Kind: Requests, Window: Day, Max: 1, Burst: 1},
		{ID: "x", Kind: Requests, Window: Minute, Max: MaxRate + 1},
	}
	for _, l := range bad {
		if _, err := NewAccount([]Limit{l}, Options{}, noon); err == nil {
			t.Errorf("%+v accepted", l)
		}
	}
	good := Limit{ID: "x", Kind: Requests, Window: Minute, Max: 1}
	if _, err := NewAccount([]Limit{good, good}, Options{}, noon); err == nil {
		t.Error("one id twice accepted")
	}
	for k := range numKinds {
		if got, err := ParseKind(k.String()); err != nil || got != k {
			t.Errorf("ParseKind(%q) = %v, %v", k, got, err)
		}
	}
	for w := range numWindows {
		if got, err := ParseWindow(w.String()); err != nil || got != w {
			t.Errorf("ParseWindow(%q) = %v, %v", w, got, err)
		}
	}
	if _, err := ParseKind("bytes"); err == nil {
		t.Error("unknown kind parsed")
	}
}

func TestPeriods(t *testing.T) {
	east := time.FixedZone("east", 9*3600)
	at := time.Date(2026, 12, 1, 3, 0, 0, 0, east) // 30 November in UTC
	if p := PeriodAt(Month, at); !p.Start(Month).Equal(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("month of %s starts %s", at, p.Start(Month))
	}
	if p := PeriodAt(Day, at); !p.Start(Day).Equal(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("day of %s starts %s", at, p.Start(Day))
	}
	before := time.Date(1969, 12, 31, 23, 0, 0, 0, time.UTC)
	if PeriodAt(Day, before) != -1 || PeriodAt(Month, before) != -1 {
		t.Errorf("before 1970: day %d, month %d", PeriodAt(Day, before), PeriodAt(Month, before))
	}
}

package quota

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestUpdateKeepsCounters(t *testing.T) {
	rpm := Limit{ID: "rpm", Kind: Requests, Window: Minute, Max: 10}
	day := Limit{ID: "day", Kind: Cost, Window: Day, Max: 100}
	slots := Limit{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 2}
	a := account(t, rpm, day, slots)
	var res, other Reservation
	a.Admit(ask(10, 10), noon, &res)
	rpm.Max, day.Max, slots.Max = 20, 50, 1
	extra := Limit{ID: "new", Kind: Input, Window: Minute, Max: 5}
	if err := a.Update([]Limit{rpm, day, slots, extra}, noon); err != nil {
		t.Fatal(err)
	}
	st := a.Status(ask(0, 0), noon, nil)
	if st[0].Remaining != 9 || st[1].Remaining != 30 || st[2].Remaining != 0 || st[3].Remaining != 5 {
		t.Errorf("after the update: %+v", st)
	}
	if v := a.Admit(ask(1, 0), noon, &other); v.Reason != ConcurrencyFull {
		t.Errorf("verdict %+v", v)
	}
	if err := a.Update([]Limit{{ID: "rpm"}, {}}, noon); err == nil {
		t.Error("bad limits accepted")
	}
	if err := a.Update([]Limit{day}, noon); err != nil { // drops counters under an open reservation
		t.Fatal(err)
	}
	if !res.Settle(Amount{Cost: 20}, noon) {
		t.Error("not settled")
	}
	if st := a.Status(ask(0, 0), noon, nil); len(st) != 1 || st[0].Used != 20 || st[0].Reserved != 0 {
		t.Errorf("after dropping limits: %+v", st)
	}
	if v := a.Admit(ask(30, 1), noon, &other); v.Reason != QuotaExhausted {
		t.Errorf("verdict %+v, want the lowered budget to hold", v)
	}
}

func TestUpdateReplacesWhatCountsOtherwise(t *testing.T) {
	a := account(t, Limit{ID: "x", Kind: Requests, Window: Minute, Max: 1})
	a.Admit(ask(1, 1), noon, new(Reservation))
	if err := a.Update([]Limit{{ID: "x", Kind: Input, Window: Day, Max: 7}}, noon); err != nil {
		t.Fatal(err)
	}
	if st := a.Status(ask(0, 0), noon, nil); st[0].Remaining != 7 {
		t.Errorf("status %+v", st)
	}
}

func TestSplit(t *testing.T) {
	cases := []struct {
		total  int64
		demand []int64
		want   []int64
	}{
		{100, nil, nil},
		{100, []int64{0}, []int64{100}},
		{90, []int64{0, 0, 0}, []int64{30, 30, 30}},
		{100, []int64{1, 0}, []int64{95, 5}},
		{1, []int64{5, 5, 5}, []int64{1, 0, 0}},
		{0, []int64{5, 5}, []int64{0, 0}},
		{10, []int64{-3, 1}, []int64{1, 9}}, // .5 and 9.5: the tie goes to the lower index
	}
	for _, c := range cases {
		if got := Split(c.total, c.demand); !slices.Equal(got, c.want) {
			t.Errorf("Split(%d, %v) = %v, want %v", c.total, c.demand, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(0, MaxRate).Draw(t, "total")
		demand := rapid.SliceOfN(rapid.Int64Range(0, 1<<50), 1, 9).Draw(t, "demand")
		var sum int64
		for i, p := range Split(total, demand) {
			if p < 0 {
				t.Fatalf("part %d is %d", i, p)
			}
			sum += p
		}
		if sum != total {
			t.Fatalf("parts sum to %d, want %d", sum, total)
		}
	})
}

// Three gateways with moving shares admit no more than rate and burst allow
// one gateway, because parts always sum to the whole.
func TestSharedRateHolds(t *testing.T) {
	const rate, seconds = 600, 120
	limit := Limit{ID: "rpm", Kind: Requests, Window: Minute, Max: rate, Burst: 30}
	slot := Limit{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 10}
	var nodes [3]*Account
	for i := range nodes {
		nodes[i] = account(t, limit, slot)
		nodes[i].ApplyShare(Share{LimitID: "rpm", Max: rate / 3, Burst: 10}, noon)
		nodes[i].ApplyShare(Share{LimitID: "slots", Max: 3}, noon)
		nodes[i].ApplyShare(Share{LimitID: "unknown", Max: 3}, noon)
	}
	admitted := 0
	for ms := 0; ms < seconds*1000; ms += 10 {
		now := noon.Add(time.Duration(ms) * time.Millisecond)
		if ms%1000 == 0 {
			reshare(nodes[:], now, rate, 30)
		}
		busy := nodes[ms/20_000%3] // demand wanders
		var res Reservation
		if busy.Admit(&Request{Amount: Amount{Requests: 1}}, now, &res).OK() {
			admitted++
			res.Settle(Amount{}, now)
		}
	}
	if most := rate*seconds/60 + 30; admitted > most {
		t.Errorf("%d admitted in %d s, want at most %d", admitted, seconds, most)
	}
	if least := rate * seconds / 60 * 85 / 100; admitted < least {
		t.Errorf("%d admitted in %d s, want at least %d: shares do not follow demand", admitted, seconds, least)
	}
}

func reshare(nodes []*Account, now time.Time, rate, burst int64) {
	demand := make([]int64, len(nodes))
	for i, n := range nodes {
		for _, d := range n.Demands(nil) {
			if d.LimitID == "rpm" {
				demand[i] = d.Asked
			}
		}
	}
	rates, bursts := Split(rate, demand), Split(burst, demand)
	for i, n := range nodes {
		n.ApplyShare(Share{LimitID: "rpm", Max: rates[i], Burst: bursts[i]}, now)
	}
}

func TestBook(t *testing.T) {
	b := NewBook()
	limits := func(n int64) TenantLimits {
		return TenantLimits{Limits: []Limit{{ID: "x", Kind: Requests, Window: Minute, Max: n}}}
	}
	if err := b.Update(map[string]TenantLimits{"t1": limits(5), "t2": limits(5)}, noon); err != nil {
		t.Fatal(err)
	}
	a := b.Account("t1")
	r := &Request{Amount: Amount{Requests: 1}, Deadline: noon}
	a.Admit(r, noon, new(Reservation))
	err := b.Update(map[string]TenantLimits{"t1": limits(6), "t3": limits(-1)}, noon)
	if err == nil {
		t.Error("a negative limit accepted")
	}
	if b.Account("t1") != a || b.Account("t2") != nil || b.Account("t3") != nil {
		t.Error("t1 should keep its account, t2 be gone, t3 have none")
	}
	if n := b.Expire(noon); n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
}

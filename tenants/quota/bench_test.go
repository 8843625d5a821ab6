package quota

import "testing"

// common is what a tenant usually has: both rates, slots and a budget for the
// tenant, and a rate for its key.
func common() []Limit {
	return []Limit{
		{ID: "rpm", Kind: Requests, Window: Minute, Max: MaxRate},
		{ID: "in", Kind: Input, Window: Minute, Max: MaxRate},
		{ID: "out", Kind: Output, Window: Minute, Max: MaxRate},
		{ID: "slots", Kind: Concurrent, Window: AtOnce, Max: 100},
		{ID: "month", Kind: Cost, Window: Month, Max: 1 << 60},
		{ID: "key", Key: "k1", Kind: Requests, Window: Minute, Max: MaxRate},
	}
}

func BenchmarkAdmitSettle(b *testing.B) {
	a := account(b, common()...)
	r := ask(500, 200)
	var res Reservation
	b.ReportAllocs()
	for b.Loop() {
		if v := a.Admit(r, noon, &res); !v.OK() {
			b.Fatal(v)
		}
		res.Settle(Amount{Requests: 1, Input: 480, Output: 100, Cost: 580}, noon)
	}
}

func BenchmarkAdmitSettleAmongOthers(b *testing.B) {
	a := account(b, common()...)
	for range 90 {
		a.Admit(ask(1, 1), noon, new(Reservation))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		r := ask(500, 200)
		var res Reservation
		for pb.Next() {
			a.Admit(r, noon, &res)
			res.Settle(Amount{Requests: 1, Input: 480, Output: 100, Cost: 580}, noon)
		}
	})
}

func BenchmarkRefuse(b *testing.B) {
	a := account(b, append(common(), Limit{ID: "day", Kind: Cost, Window: Day, Max: 1})...)
	r := ask(500, 200)
	var res Reservation
	b.ReportAllocs()
	for b.Loop() {
		a.Admit(r, noon, &res)
	}
}

func BenchmarkStatus(b *testing.B) {
	a := account(b, common()...)
	r := ask(500, 200)
	dst := make([]Status, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		dst = a.Status(r, noon, dst[:0])
	}
}

func TestAdmissionDoesNotAllocate(t *testing.T) {
	a := account(t, common()...)
	r := ask(500, 200)
	var res Reservation
	n := testing.AllocsPerRun(100, func() {
		a.Admit(r, noon, &res)
		res.TopUp(Amount{Input: 500, Output: 300, Cost: 800}, noon)
		res.Settle(Amount{Requests: 1, Input: 480, Output: 100, Cost: 580}, noon)
	})
	if n != 0 {
		t.Errorf("admission, top-up and settlement allocate %v times", n)
	}
}

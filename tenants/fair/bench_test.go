package fair

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkDecision is one decision with 1,000 tenants and 100,000 queued
// requests: queue one, choose and take out the next, charge its answer. All lie
// in one band, so that the queue stays as mixed as it began.
func BenchmarkDecision(b *testing.B) {
	o := DefaultOptions()
	o.Holdback = 0
	q, err := New(o, noon)
	if err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pool := &Pool{PrefillRate: 20_000}
	now := noon
	fill := func(it *Item) {
		it.Band, it.Input = 1, rng.Int64N(2000)
		it.Deadline = now.Add(time.Duration(rng.IntN(60_000)) * time.Millisecond)
		it.MaxQueue = time.Minute
		it.Sheddable = rng.IntN(3) == 0
	}
	tenants := make([]string, 1000)
	for i := range tenants {
		tenants[i] = fmt.Sprintf("tenant-%04d", i)
	}
	for i := range 99_999 {
		it := &Item{Tenant: tenants[i%1000]}
		fill(it)
		if r, _ := q.Push(it, pool, now); r != Accepted {
			b.Fatal(r)
		}
	}
	spare := &Item{Tenant: tenants[0]}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		now = now.Add(10 * time.Microsecond)
		if n%5000 == 0 {
			for _, it := range q.Expire(now, nil) { // as a gateway does every 50 ms
				fill(it)
				q.Push(it, pool, now)
			}
		}
		fill(spare)
		q.Push(spare, pool, now)
		spare = q.Next(pool, now)
		q.Served(spare, 100, now)
		q.Done(spare)
	}
}

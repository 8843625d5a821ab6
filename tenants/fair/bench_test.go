package fair

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// crowd is 1,000 tenants with 100,000 requests in one band, so that the queue
// stays as mixed as it began.
type crowd struct {
	q       *Queue
	rng     *rand.Rand
	pool    *Pool
	now     time.Time
	tenants []string
}

func newCrowd(b *testing.B) *crowd {
	o := DefaultOptions()
	o.Holdback, o.MaxQueued = 0, 200_000
	q, err := New(o, noon)
	if err != nil {
		b.Fatal(err)
	}
	c := &crowd{q: q, rng: rand.New(rand.NewPCG(1, 2)), pool: &Pool{PrefillRate: 20_000}, now: noon}
	for i := range 1000 {
		c.tenants = append(c.tenants, fmt.Sprintf("tenant-%04d", i))
	}
	for range 100_000 {
		c.push(b, &Item{})
	}
	return c
}

func (c *crowd) push(b *testing.B, it *Item) {
	it.Tenant, it.Band, it.Input = c.tenants[c.rng.IntN(1000)], 1, c.rng.Int64N(2000)
	it.Deadline = c.now.Add(time.Duration(c.rng.IntN(60_000)) * time.Millisecond)
	it.MaxQueue, it.Sheddable = time.Minute, c.rng.IntN(3) == 0
	if r, _ := c.q.Push(it, c.pool, c.now); r != Accepted {
		b.Fatal(r)
	}
}

// BenchmarkDecision is one decision: choose and take out the next, charge its
// prompt and its answer.
func BenchmarkDecision(b *testing.B) {
	c := newCrowd(b)
	gone := make([]*Item, 0, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		c.now = c.now.Add(10 * time.Microsecond)
		it := c.q.Next(c.pool, c.now)
		c.q.Served(it, 100, c.now)
		c.q.Done(it)
		if gone = append(gone, it); len(gone) == cap(gone) {
			b.StopTimer()
			gone = append(gone, c.q.Expire(c.now, nil)...)
			for _, it := range gone {
				c.push(b, it)
			}
			gone = gone[:0:10_000]
			b.StartTimer()
		}
	}
}

// BenchmarkPushAndDecide is the same with the queuing of another request.
func BenchmarkPushAndDecide(b *testing.B) {
	c := newCrowd(b)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		c.now = c.now.Add(10 * time.Microsecond)
		it := c.q.Next(c.pool, c.now)
		c.q.Served(it, 100, c.now)
		c.q.Done(it)
		c.push(b, it)
		if n%5000 == 0 { // every 50 ms, as a gateway does
			for _, it := range c.q.Expire(c.now, nil) {
				c.push(b, it)
			}
		}
	}
}

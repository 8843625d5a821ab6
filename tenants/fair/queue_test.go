package fair

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func queue(t testing.TB, alter func(*Options)) *Queue {
	t.Helper()
	o := DefaultOptions()
	o.HalfLife, o.Holdback, o.PerToken = 0, 0, 0
	if alter != nil {
		alter(&o)
	}
	q, err := New(o, noon)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func push(t testing.TB, q *Queue, it *Item) *Item {
	t.Helper()
	if r, _ := q.Push(it, &Pool{}, noon); r != Accepted {
		t.Fatalf("%v: %v", it.Value, r)
	}
	return it
}

// drain serves everything at once and names what came.
func drain(q *Queue, pool Pool, now time.Time) (names []string) {
	for it := q.Next(&pool, now); it != nil; it = q.Next(&pool, now) {
		names = append(names, fmt.Sprint(it.Value))
		q.Done(it)
	}
	return names
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestBandsAreOutermost(t *testing.T) {
	q := queue(t, nil)
	push(t, q, &Item{Tenant: "a", Band: 2, Value: "batch", Input: 1})
	push(t, q, &Item{Tenant: "b", Band: 1, Value: "normal", Input: 1})
	push(t, q, &Item{Tenant: "a", Band: 0, Value: "urgent", Input: 100})
	push(t, q, &Item{Tenant: "a", Band: 0, Value: "urgent2", Input: 100})
	expect(t, "order", drain(q, Pool{}, noon), "urgent", "urgent2", "normal", "batch")
}

func TestLeastServedTenantGoesNext(t *testing.T) {
	q := queue(t, nil)
	for i := range 3 {
		push(t, q, &Item{Tenant: "big", Input: 100, Value: fmt.Sprint("big", i)})
	}
	for i := range 3 {
		push(t, q, &Item{Tenant: "small", Input: 40, Value: fmt.Sprint("small", i)})
	}
	push(t, q, &Item{Tenant: "paying", Input: 100, Weight: 10, Value: "paying0"})
	push(t, q, &Item{Tenant: "paying", Input: 100, Weight: 10, Value: "paying1"})
	// Counters as they are served: big 100, small 40, paying 10, 20; small 80, 120; big 200, 300.
	expect(t, "order", drain(q, Pool{}, noon),
		"big0", "small0", "paying0", "paying1", "small1", "small2", "big1", "big2")
}

func TestOutputIsChargedAsItStreams(t *testing.T) {
	q := queue(t, nil)
	a := push(t, q, &Item{Tenant: "a", Input: 10, Value: "a0"})
	push(t, q, &Item{Tenant: "b", Input: 10, Value: "b0"})
	push(t, q, &Item{Tenant: "a", Input: 10, Value: "a1"})
	push(t, q, &Item{Tenant: "b", Input: 10, Value: "b1"})
	if got := q.Next(&Pool{}, noon); got != a {
		t.Fatal(got)
	}
	q.Served(a, 100, noon) // a stands at 210 now, b at 0
	expect(t, "order", drain(q, Pool{}, noon), "b0", "b1", "a1")
	if c := q.Counter(0, "a", noon); c != 220 {
		t.Errorf("counter %v, want 220", c)
	}
	q.Corrected(a, 4, noon)
	if c := q.Counter(0, "a", noon); c != 214 || a.Input != 4 {
		t.Errorf("corrected counter %v, want 214", c)
	}
	q.Done(a)
	q.Served(a, 100, noon) // too late
	if c := q.Counter(0, "a", noon); c != 214 || q.Counter(0, "nobody", noon) != 0 {
		t.Errorf("counter %v, want 214", c)
	}
}

func TestIdlenessEarnsNothing(t *testing.T) {
	q := queue(t, nil)
	for range 10 {
		push(t, q, &Item{Tenant: "busy", Input: 100, Value: "busy"})
	}
	for range 5 {
		q.Next(&Pool{}, noon)
	}
	push(t, q, &Item{Tenant: "idle", Input: 1, Value: "idle"})
	if c := q.Counter(0, "idle", noon); c != 500 {
		t.Errorf("the returning tenant stands at %v, want 500", c)
	}
	drain(q, Pool{}, noon)
	push(t, q, &Item{Tenant: "new", Input: 1})
	if c := q.Counter(0, "new", noon); c != 1000 {
		t.Errorf("after an empty queue the new tenant stands at %v, want that of the last, 1000", c)
	}
}

func TestDeadlinesAndRelegation(t *testing.T) {
	at := func(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }
	q := queue(t, nil)
	push(t, q, &Item{Tenant: "a", Value: "none"})
	push(t, q, &Item{Tenant: "a", Value: "far", Deadline: at(900)})
	push(t, q, &Item{Tenant: "a", Value: "near", Deadline: at(100)})
	push(t, q, &Item{Tenant: "a", Value: "long", Deadline: at(300), Input: 1000})
	// At 1000 tokens per second the long one needs a second and cannot make it.
	expect(t, "order", drain(q, Pool{PrefillRate: 1000}, at(50)), "near", "far", "none", "long")

	push(t, q, &Item{Tenant: "a", Value: "missed", Deadline: at(100)})
	push(t, q, &Item{Tenant: "a", Value: "made", Deadline: at(5000)})
	expect(t, "without a rate", drain(q, Pool{}, at(200)), "made", "missed")

	q = queue(t, func(o *Options) { o.PerToken = 8 * time.Millisecond })
	push(t, q, &Item{Tenant: "a", Value: "long", Deadline: at(1000), Input: 1000})
	push(t, q, &Item{Tenant: "a", Value: "short", Deadline: at(2000), Input: 10})
	expect(t, "hybrid order", drain(q, Pool{}, noon), "short", "long")
}

func TestHeadThatDoesNotFitIsNotPassed(t *testing.T) {
	q := queue(t, nil)
	push(t, q, &Item{Tenant: "a", Value: "large", Input: 1000})
	push(t, q, &Item{Tenant: "b", Value: "small", Input: 1, Band: 1})
	fits := func(it *Item) bool { return it.Input < 100 }
	if it := q.Next(&Pool{Fits: fits}, noon); it != nil {
		t.Errorf("%v was let past", it.Value)
	}
	expect(t, "order", drain(q, Pool{}, noon), "large", "small")
}

func TestHoldback(t *testing.T) {
	q := queue(t, func(o *Options) { o.Holdback = 0.2 })
	for band := range 3 {
		push(t, q, &Item{Tenant: "a", Band: band, Value: band})
	}
	expect(t, "saturated", drain(q, Pool{Saturation: 1}, noon))
	expect(t, "at .95", drain(q, Pool{Saturation: 0.95}, noon), "0")
	expect(t, "at .85", drain(q, Pool{Saturation: 0.85}, noon), "1")
	expect(t, "at .80", drain(q, Pool{Saturation: 0.80}, noon))
	expect(t, "below", drain(q, Pool{Saturation: 0.79}, noon), "2")
}

func TestExpiry(t *testing.T) {
	q := queue(t, nil)
	long := push(t, q, &Item{Tenant: "a", Value: "long", MaxQueue: 10 * time.Minute}) // more than a turn of the wheel
	push(t, q, &Item{Tenant: "a", Value: "short", MaxQueue: time.Second})
	push(t, q, &Item{Tenant: "b", Value: "ever"})
	gone := push(t, q, &Item{Tenant: "b", Value: "gone", MaxQueue: time.Second})
	if !q.Remove(gone) || q.Remove(gone) {
		t.Error("an item is removed exactly once")
	}
	if out := q.Expire(noon.Add(time.Second-1), nil); len(out) != 0 {
		t.Errorf("%d expired too early", len(out))
	}
	if out := q.Expire(noon.Add(time.Second+100*time.Millisecond), nil); len(out) != 1 || out[0].Value != "short" {
		t.Errorf("expired %v", out)
	}
	for at := 2 * time.Second; at < 10*time.Minute; at += 7 * time.Second {
		if out := q.Expire(noon.Add(at), nil); len(out) != 0 {
			t.Fatalf("%v expired after %s", out[0].Value, at)
		}
	}
	if it := q.Next(&Pool{}, noon.Add(10*time.Minute)); it == nil || it.Value != "ever" {
		t.Errorf("Next gives %v: what has waited too long must not be served", it)
	}
	if out := q.Expire(noon.Add(10*time.Minute), nil); len(out) != 1 || out[0] != long {
		t.Errorf("Expire does not tell what Next found: %v", out)
	}
	if q.Len(0) != 0 {
		t.Errorf("%d left", q.Len(0))
	}
}

func TestSheddingMakesRoom(t *testing.T) {
	q := queue(t, func(o *Options) { o.MaxQueued, o.MaxPerTenant, o.ShedAt = 3, 2, 1.5 })
	push(t, q, &Item{Tenant: "a", Band: 1, Value: "keep"})
	push(t, q, &Item{Tenant: "b", Band: 1, Value: "old", Sheddable: true})
	push(t, q, &Item{Tenant: "c", Band: 1, Value: "new", Sheddable: true})
	cases := []struct {
		it     *Item
		at     float64
		want   Refusal
		victim string
	}{
		{&Item{Tenant: "d", Band: 2}, 0, QueueFull, ""},
		{&Item{Tenant: "d", Band: 1, Sheddable: true}, 0, QueueFull, ""},
		{&Item{Tenant: "d", Band: 0, Sheddable: true}, 1.5, Shed, ""},
		{&Item{Tenant: "d", Band: 1, Value: "x"}, 0, Accepted, "new"},
		{&Item{Tenant: "d", Band: 0, Value: "y", Sheddable: true}, 0, Accepted, "old"},
		{&Item{Tenant: "e", Band: 0, Sheddable: true}, 0, QueueFull, ""},
		{&Item{Tenant: "e", Band: 3}, 0, BadItem, ""},
		{&Item{Tenant: "e", Weight: -1}, 0, BadItem, ""},
	}
	for i, c := range cases {
		r, victim := q.Push(c.it, &Pool{Saturation: c.at}, noon)
		name := ""
		if victim != nil {
			name = fmt.Sprint(victim.Value)
		}
		if r != c.want || name != c.victim {
			t.Errorf("case %d: %v, victim %q, want %v, %q", i, r, name, c.want, c.victim)
		}
	}
	expect(t, "left", drain(q, Pool{}, noon), "y", "keep", "x")
	push(t, q, &Item{Tenant: "t"})
	push(t, q, &Item{Tenant: "t"})
	if r, _ := q.Push(&Item{Tenant: "t"}, &Pool{}, noon); r != TenantFull {
		t.Errorf("third of a tenant with two: %v", r)
	}
}

func TestDecayLetsOldServiceFade(t *testing.T) {
	q := queue(t, func(o *Options) { o.HalfLife = time.Minute })
	a := push(t, q, &Item{Tenant: "a", Input: 1000})
	q.Next(&Pool{}, noon)
	q.Done(a)
	for _, c := range [][2]float64{{1, 500}, {3, 125}, {70, 0}} {
		minutes, want := c[0], c[1]
		if c := q.Counter(0, "a", noon.Add(time.Duration(minutes)*time.Minute)); c < want-.001 || c > want+.001 {
			t.Errorf("after %v half-lives the counter is %v, want %v", minutes, c, want)
		}
	}
}

func TestPruneForgetsOnlyWhatTheLiftRestores(t *testing.T) {
	q := queue(t, nil)
	for range 3 {
		push(t, q, &Item{Tenant: "busy", Input: 100})
	}
	push(t, q, &Item{Tenant: "light", Input: 1})
	for range 3 {
		q.Done(q.Next(&Pool{}, noon))
	}
	if n := q.Prune(); n != 1 || q.Counter(0, "light", noon) != 0 || q.Counter(0, "busy", noon) != 200 {
		t.Errorf("%d pruned, light %v, busy %v", n, q.Counter(0, "light", noon), q.Counter(0, "busy", noon))
	}
	push(t, q, &Item{Tenant: "light", Input: 1})
	if c := q.Counter(0, "light", noon); c != 200 {
		t.Errorf("after pruning the lift gives %v, want 200", c)
	}
}

func TestOptionsValidation(t *testing.T) {
	bad := []func(*Options){
		func(o *Options) { o.Bands = 0 }, func(o *Options) { o.Bands = 17 }, func(o *Options) { o.MaxQueued = 0 },
		func(o *Options) { o.MaxPerTenant = 0 }, func(o *Options) { o.InputCost = -1 }, func(o *Options) { o.InputCost, o.OutputCost = 0, 0 },
		func(o *Options) { o.PerToken = -1 }, func(o *Options) { o.HalfLife = 1 }, func(o *Options) { o.Holdback = 1 }, func(o *Options) { o.ShedAt = -1 },
	}
	for i, alter := range bad {
		o := DefaultOptions()
		alter(&o)
		if _, err := New(o, noon); err == nil {
			t.Errorf("case %d accepted", i)
		}
	}
	for r := range numRefusals {
		if r.String() == "unknown" {
			t.Errorf("refusal %d has no name", r)
		}
	}
}

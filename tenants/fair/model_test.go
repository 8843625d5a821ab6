package fair

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// slow is the queue's order by sorting everything each time.
type slow struct {
	items    []*Item
	late     map[*Item]bool // relegated
	counters map[flowKey]float64
	entered  map[flowKey]int // when the tenant last began to wait
	clock    int
	last     map[int]flowKey
}

type flowKey struct {
	band   int
	tenant string
}

func (s *slow) of(k flowKey) (out []*Item) {
	for _, it := range s.items {
		if it.Band == k.band && it.Tenant == k.tenant {
			out = append(out, it)
		}
	}
	slices.SortFunc(out, func(a, b *Item) int {
		return cmp.Or(cmp.Compare(rank(s.late[a]), rank(s.late[b])), cmp.Compare(modelKey(a), modelKey(b)), cmp.Compare(a.seq, b.seq))
	})
	return out
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

func modelKey(it *Item) int64 {
	if it.Deadline.IsZero() {
		return noDeadline
	}
	return it.Deadline.UnixMicro() + it.Input*8000
}

func (s *slow) waiting(band int) (keys []flowKey) {
	for _, it := range s.items {
		if k := (flowKey{it.Band, it.Tenant}); it.Band == band && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b flowKey) int {
		return cmp.Or(cmp.Compare(s.counters[a], s.counters[b]), cmp.Compare(s.entered[a], s.entered[b]))
	})
	return keys
}

func (s *slow) push(it *Item) {
	k := flowKey{it.Band, it.Tenant}
	if len(s.of(k)) == 0 {
		if w := s.waiting(it.Band); len(w) > 0 {
			s.counters[k] = max(s.counters[k], s.counters[w[0]])
		} else if l, ok := s.last[it.Band]; ok {
			s.counters[k] = max(s.counters[k], s.counters[l])
		}
		s.clock++
		s.entered[k] = s.clock
	}
	s.items = append(s.items, it)
}

func (s *slow) remove(it *Item) {
	s.items = slices.DeleteFunc(s.items, func(o *Item) bool { return o == it })
	delete(s.late, it)
	if k := (flowKey{it.Band, it.Tenant}); len(s.of(k)) == 0 {
		s.last[it.Band] = k
	}
}

func (s *slow) next(rate float64, now time.Time) *Item {
	for band := range 2 {
		for _, k := range s.waiting(band) {
			for {
				it := s.of(k)[0]
				done := now.Add(time.Duration(float64(it.Input) / rate * 1e9)).Truncate(time.Microsecond)
				if s.late[it] || it.Deadline.IsZero() || !done.After(it.Deadline) {
					s.remove(it)
					s.counters[k] += float64(it.Input)
					return it
				}
				s.late[it] = true
			}
		}
	}
	return nil
}

func TestQueueEqualsSortingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := DefaultOptions()
		o.Bands, o.HalfLife, o.Holdback = 2, 0, 0
		q, err := New(o, noon)
		if err != nil {
			t.Fatal(err)
		}
		s := &slow{late: map[*Item]bool{}, counters: map[flowKey]float64{}, entered: map[flowKey]int{}, last: map[int]flowKey{}}
		pool := &Pool{PrefillRate: 1000}
		now := noon
		var running []*Item
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				it := &Item{Band: rapid.IntRange(0, 1).Draw(t, "band"), Tenant: fmt.Sprint(rapid.IntRange(0, 4).Draw(t, "tenant"))}
				it.Input = rapid.Int64Range(0, 2000).Draw(t, "input")
				if ms := rapid.Int64Range(0, 4000).Draw(t, "deadline"); ms > 0 {
					it.Deadline = now.Add(time.Duration(ms) * time.Millisecond)
				}
				if r, _ := q.Push(it, pool, now); r != Accepted {
					t.Fatal(r)
				}
				s.push(it)
			},
			"next": func(t *rapid.T) {
				got, want := q.Next(pool, now), s.next(pool.PrefillRate, now)
				if got != want {
					t.Fatalf("Next gives %+v, the model %+v", got, want)
				}
				if got != nil {
					running = append(running, got)
				}
			},
			"remove": func(t *rapid.T) {
				if len(s.items) > 0 {
					it := s.items[rapid.IntRange(0, len(s.items)-1).Draw(t, "i")]
					if !q.Remove(it) {
						t.Fatal("not removed")
					}
					s.remove(it)
				}
			},
			"serve": func(t *rapid.T) {
				if len(running) > 0 {
					it := running[rapid.IntRange(0, len(running)-1).Draw(t, "i")]
					n := rapid.Int64Range(1, 500).Draw(t, "output")
					q.Served(it, n, now)
					s.counters[flowKey{it.Band, it.Tenant}] += float64(2 * n)
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, 1000).Draw(t, "ms")) * time.Millisecond)
			},
		})
		if q.Len(0)+q.Len(1) != len(s.items) {
			t.Fatalf("queue holds %d, model %d", q.Len(0)+q.Len(1), len(s.items))
		}
	})
}

package plan

import (
	"math"
	"slices"
)

// Joint search: replica counts and packing together. Greedy counts are the
// best for the heaviest single replica, not for packing; where slots per
// device are few, other counts pack better (FlashLB, vllm-ascend#3042).

// smallJoint bounds the problems whose every change of counts is packed anew:
// experts with load * slots.
const smallJoint = 4096

// joint tries to lower the top of a settled table until enough, or until the
// work is used up.
func (t *table) joint(f Fleet, enough float64) {
	busy := 0
	for _, w := range t.load {
		if w > 0 {
			busy++
		}
	}
	if busy*len(t.slot) <= smallJoint && len(t.slot) > len(t.cnt) {
		keep := t.work / 4 // some work is left for shake
		t.work -= keep
		t.recounts(f, enough)
		t.work = max(0, t.work) + keep
	}
	t.shake(enough)
}

// recounts is local search over replica counts, from several starts: counts
// that cap every replica at some weight and spend what is left on light ones.
func (t *table) recounts(f Fleet, enough float64) {
	try, cur := t.spare(0), t.spare(1)
	t.descend(try, f, enough)
	idle := slices.Contains(t.load, 0)
	for _, limit := range t.caps(f) {
		for _, busy := range []bool{false, true} {
			if t.work <= 0 || t.top() <= enough {
				return
			}
			cnt := capped(t.load, f, limit, busy)
			if cnt == nil || busy && !idle || !t.repack(cur, f, cnt, enough) {
				continue
			}
			cur.work = t.work
			cur.descend(try, f, enough)
			t.work = cur.work
			if cur.betterThan(t) {
				t.copyFrom(cur)
			}
		}
	}
}

// descend moves one replica from one expert to another, packs and settles
// anew, and keeps what is better, until no such move is.
func (t *table) descend(try *table, f Fleet, enough float64) {
	limit := int32(f.active())
	cnt := make([]int32, len(t.cnt))
	for better := true; better && t.top() > enough; {
		better = false
		for a := range t.cnt {
			idle := false // experts without load are all alike
			for b := range t.cnt {
				if t.work <= 0 || t.cnt[a] < 2 || a == b || t.cnt[b] >= limit || idle && t.load[b] == 0 {
					continue
				}
				idle = idle || t.load[b] == 0
				copy(cnt, t.cnt)
				cnt[a]--
				cnt[b]++
				if t.repack(try, f, cnt, enough) && try.betterThan(t) {
					t.copyFrom(try)
					better = true
				}
			}
		}
	}
}

// caps are the replica weights at which some expert needs one replica fewer,
// between the bound and the present top, heaviest first.
func (t *table) caps(f Fleet) []float64 {
	low, top := Bound(t.load, f)/2, t.top()
	var out []float64
	for _, w := range t.load {
		for r := 1; r <= f.active(); r++ {
			if x := w / float64(r); x >= low && x < top {
				out = append(out, x)
			}
		}
	}
	slices.SortFunc(out, func(a, b float64) int {
		if a > b {
			return -1
		}
		return 1
	})
	return slices.Compact(out)
}

// capped gives every expert the replicas it needs to weigh at most limit each,
// and the rest to those that become lightest, with busy only among those that
// have load; nil when slots do not suffice.
func capped(load []float64, f Fleet, limit float64, busy bool) []int32 {
	cnt, left := make([]int32, len(load)), f.Total()
	for e, w := range load {
		cnt[e] = max(1, int32(math.Ceil(w/limit*(1-1e-12))))
		left -= int(cnt[e])
	}
	if left < 0 {
		return nil
	}
	weight := func(e int) float64 {
		if busy && load[e] == 0 {
			return math.Inf(1)
		}
		return load[e] / float64(cnt[e]+1)
	}
	for ; left > 0; left-- {
		best := -1
		for e := range cnt {
			if int(cnt[e]) < f.active() && (best < 0 || weight(e) < weight(best)) {
				best = e
			}
		}
		cnt[best]++
	}
	return cnt
}

// repack fills try with the given counts, settles it at t's expense and
// reports whether that was possible.
func (t *table) repack(try *table, f Fleet, cnt []int32, enough float64) bool {
	if slices.Max(cnt) > int32(f.active()) || !packable(cnt, f) {
		return false
	}
	try.reset()
	try.work = t.work - len(t.slot)*t.devices()
	try.pack(cnt)
	try.settle(enough)
	t.work = try.work
	return true
}

// betterThan compares tops and, where they are equal, sums of squares: a
// spread that is more even below the top is one step nearer to a lower top.
func (t *table) betterThan(o *table) bool {
	a, b := t.top(), o.top()
	if a < b*(1-1e-12) {
		return true
	}
	return a <= b*(1+1e-12) && squares(t.time) < squares(o.time)*(1-1e-12)
}

func squares(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	return s
}

// shake is iterated local search: disturb the hottest device, settle, keep the
// result if it is better. The disturbances follow a fixed sequence, so a plan
// depends on its inputs alone.
func (t *table) shake(enough float64) {
	best := t.spare(0)
	best.copyFrom(t)
	rnd := sequence(uint64(len(t.slot))<<32 | uint64(len(t.cnt)))
	top := t.top()
	for t.work > 0 && top > enough {
		t.work -= t.devices() + len(t.slot)/8
		if !t.kick(&rnd, top) {
			continue
		}
		t.settle(enough)
		if now := t.top(); now < top*(1-1e-12) {
			top = now
			best.copyFrom(t)
		} else {
			t.copyFrom(best)
		}
	}
	t.copyFrom(best)
}

// kick changes one slot of the hottest device for one elsewhere, or the expert
// of a surplus slot, without letting any device grow far above top.
func (t *table) kick(rnd *sequence, top float64) bool {
	h := t.hottest()
	p := t.first[h] + int32(rnd.below(int(t.first[h+1]-t.first[h])))
	q := int32(rnd.below(len(t.slot)))
	a, b, d := t.slot[p], t.slot[q], t.dev[q]
	if d == h || a == b {
		return false
	}
	if t.cnt[b] > 1 && !t.holds(d, a) && rnd.below(2) == 0 {
		t.overwrite(q, a)
		return true
	}
	if t.holds(h, b) || t.holds(d, a) || t.share[a] <= t.share[b] {
		return false
	}
	if t.time[d]+(t.share[a]-t.share[b])*t.inv[d] > 1.25*top {
		return false
	}
	t.swap(p, q)
	return true
}

// sequence is splitmix64, a fixed sequence of well spread numbers.
type sequence uint64

// below is a number in [0, n).
func (s *sequence) below(n int) int {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) % uint64(n))
}

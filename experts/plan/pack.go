package plan

import "slices"

// replicas chooses how many slots each expert gets: EPLB's greedy, but no
// expert gets more replicas than there are devices, ties go to the expert with
// fewer replicas, and the counts fit devices of unequal size.
func replicas(load []float64, f Fleet) []int32 {
	cnt := make([]int32, len(load))
	per := make([]float64, len(load))
	for e, w := range load {
		cnt[e], per[e] = 1, w
	}
	limit := int32(f.active())
	for range f.Total() - len(load) {
		best := -1
		for e := range per {
			if cnt[e] < limit && (best < 0 || per[e] > per[best] || per[e] == per[best] && cnt[e] < cnt[best]) {
				best = e
			}
		}
		cnt[best]++
		per[best] = load[best] / float64(cnt[best])
	}
	for !packable(cnt, f) {
		even(cnt)
	}
	return cnt
}

// packable is the Gale-Ryser condition: experts with these counts can fill
// devices of these sizes without an expert twice on one device. With equal
// sizes it holds whenever no count exceeds the devices.
func packable(cnt []int32, f Fleet) bool {
	sizes := slices.Clone(f.Slots)
	slices.SortFunc(sizes, func(a, b int) int { return b - a })
	if sizes[0] == 0 || sizes[f.active()-1] == sizes[0] {
		return true
	}
	need := 0
	for k, s := range sizes {
		if s == 0 {
			break
		}
		need += s
		room := 0
		for _, c := range cnt {
			room += min(int(c), k+1)
		}
		if need > room {
			return false
		}
	}
	return true
}

// even moves one replica from the expert with most to the one with fewest.
// More even counts are never harder to pack.
func even(cnt []int32) {
	hi, lo := 0, 0
	for e, c := range cnt {
		if c > cnt[hi] {
			hi = e
		}
		if c < cnt[lo] {
			lo = e
		}
	}
	cnt[hi]--
	cnt[lo]++
}

// pack fills an empty table with the given replica counts: heaviest replica
// first, each to the device whose time stays lowest among those with a free
// slot and without the expert.
func (t *table) pack(cnt []int32) {
	p := len(t.slot)
	items := make([]int32, 0, p)
	share := make([]float64, len(cnt))
	for e, c := range cnt {
		share[e] = t.load[e] / float64(c)
		for range c {
			items = append(items, int32(e))
		}
	}
	slices.SortStableFunc(items, func(a, b int32) int {
		switch {
		case share[a] > share[b]:
			return -1
		case share[a] < share[b]:
			return 1
		}
		return 0
	})
	next := make([]int32, t.devices())
	copy(next, t.first)
	copy(t.cnt, cnt)
	copy(t.share, share)
	for _, e := range items {
		d := t.lightest(e, next)
		if d < 0 {
			t.refit(cnt)
			return
		}
		t.seat(next[d], e)
		next[d]++
	}
}

func (t *table) lightest(e int32, next []int32) int32 {
	best, bestTime := int32(-1), 0.0
	for d := range next {
		if next[d] == t.first[d+1] || t.holds(int32(d), e) {
			continue
		}
		if x := t.time[d] + t.share[e]*t.inv[d]; best < 0 || x < bestTime {
			best, bestTime = int32(d), x
		}
	}
	return best
}

// refit is Ryser's construction: the largest device takes the experts with
// most replicas left, then the next. It always ends where packable holds; the
// swap search repairs its balance.
func (t *table) refit(cnt []int32) {
	t.reset()
	copy(t.cnt, cnt)
	for e, c := range cnt {
		t.share[e] = t.load[e] / float64(c)
	}
	left := slices.Clone(cnt)
	order := make([]int, t.devices())
	for d := range order {
		order[d] = d
	}
	size := func(d int) int32 { return t.first[d+1] - t.first[d] }
	slices.SortStableFunc(order, func(a, b int) int { return int(size(b) - size(a)) })
	for _, d := range order {
		most := descendingCounts(left)
		for i := range size(d) {
			e := most[i]
			left[e]--
			t.seat(t.first[d]+i, e)
		}
	}
}

func descendingCounts(left []int32) []int32 {
	order := make([]int32, len(left))
	for e := range order {
		order[e] = int32(e)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return int(left[b] - left[a]) })
	return order
}

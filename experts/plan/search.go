package plan

// settle lowers the highest device time by swapping a slot of the hottest
// device with the best slot elsewhere, until nothing helps, the time is at
// most enough, or the work is used up.
func (t *table) settle(enough float64) {
	for t.work > 0 {
		h := t.hottest()
		if t.time[h] <= enough {
			return
		}
		p, q := t.bestSwap(h)
		if p < 0 {
			return
		}
		t.swap(p, q)
	}
}

// bestSwap is the swap between device h and another that leaves the lowest
// maximum of the two, below h's time now; -1, -1 when there is none.
func (t *table) bestSwap(h int32) (int32, int32) {
	hot := t.time[h]
	best, bp, bq := hot*(1-1e-12), int32(-1), int32(-1)
	ih := t.inv[h]
	slots := t.slot[t.first[h]:t.first[h+1]]
	for d := range t.time {
		id := t.inv[d]
		// Whatever moves, the two devices keep the sum of their loads.
		if int32(d) == h || id == 0 || (hot*id+t.time[d]*ih)/(ih+id) >= best {
			continue
		}
		t.work -= len(slots) * int(t.first[d+1]-t.first[d])
		// Both times stay below best for a difference of shares in (low, high).
		low, high := (hot-best)/ih, (best-t.time[d])/id
		for i, a := range slots {
			sa := t.share[a]
			for q := t.first[d]; q < t.first[d+1]; q++ {
				b := t.slot[q]
				diff := sa - t.share[b]
				if diff <= low || diff >= high || t.holds(h, b) || t.holds(int32(d), a) {
					continue
				}
				best, bp, bq = max(hot-diff*ih, t.time[d]+diff*id), t.first[h]+int32(i), q
				low, high = (hot-best)/ih, (best-t.time[d])/id
			}
		}
	}
	return bp, bq
}

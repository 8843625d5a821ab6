package plan

// table is one layer while it is being searched: a placement with everything
// that a step needs to be judged without a scan.
type table struct {
	load   []float64 // of each expert
	inv    []float64 // 1/speed per device, 0 out of service
	first  []int32   // first slot per device, then P
	dev    []int32   // device of slot
	slot   []int32   // expert in slot, -1 while empty
	cnt    []int32   // replicas per expert
	share  []float64 // load per replica
	time   []float64 // device load / speed
	has    []uint64  // bitset [device][expert]
	words  int       // words per device in has
	head   []int32   // a slot of each expert, -1 for none
	next   []int32   // the next slot of the same expert
	work   int       // evaluations left
	spares []*table
}

// newTable makes an empty table for layers of that many experts.
func newTable(experts int, f Fleet) *table {
	g, p, e := len(f.Slots), f.Total(), experts
	t := &table{inv: make([]float64, g), first: make([]int32, g+1),
		dev: make([]int32, p), slot: make([]int32, p), cnt: make([]int32, e),
		share: make([]float64, e), time: make([]float64, g), words: (e + 63) / 64}
	t.has = make([]uint64, g*t.words)
	t.head, t.next = make([]int32, e), make([]int32, p)
	at := 0
	for d, n := range f.Slots {
		t.first[d] = int32(at)
		if v := f.speed(d); v > 0 {
			t.inv[d] = 1 / v
		}
		for range n {
			t.dev[at] = int32(d)
			at++
		}
	}
	t.first[g] = int32(at)
	t.reset()
	return t
}

// start empties the table for a layer with the given loads and work.
func (t *table) start(load []float64, work int) {
	t.load, t.work = load, work
	t.reset()
}

// spare is the i-th scratch table, made on first use, for the same layer.
func (t *table) spare(i int) *table {
	for len(t.spares) <= i {
		c := *t
		c.slot = make([]int32, len(t.slot))
		c.cnt = make([]int32, len(t.cnt))
		c.share = make([]float64, len(t.share))
		c.time = make([]float64, len(t.time))
		c.has = make([]uint64, len(t.has))
		c.head = make([]int32, len(t.head))
		c.next = make([]int32, len(t.next))
		c.spares = nil
		t.spares = append(t.spares, &c)
	}
	s := t.spares[i]
	s.load = t.load
	return s
}

// reset empties the table.
func (t *table) reset() {
	clear(t.has)
	clear(t.time)
	clear(t.cnt)
	clear(t.share)
	for e := range t.head {
		t.head[e] = -1
	}
	for s := range t.slot {
		t.slot[s] = -1
	}
}

// copyFrom makes t equal to o, a table of the same layer and fleet, and keeps
// t's own work counter.
func (t *table) copyFrom(o *table) {
	copy(t.slot, o.slot)
	copy(t.cnt, o.cnt)
	copy(t.share, o.share)
	copy(t.time, o.time)
	copy(t.has, o.has)
	copy(t.head, o.head)
	copy(t.next, o.next)
}

func (t *table) holds(d, e int32) bool {
	return t.has[int(d)*t.words+int(e)>>6]>>(uint(e)&63)&1 != 0
}

// link adds slot s to those of expert e.
func (t *table) link(e, s int32) {
	t.next[s] = t.head[e]
	t.head[e] = s
	t.has[int(t.dev[s])*t.words+int(e)>>6] |= 1 << (uint(e) & 63)
}

// unlink removes slot s from those of expert e.
func (t *table) unlink(e, s int32) {
	t.has[int(t.dev[s])*t.words+int(e)>>6] &^= 1 << (uint(e) & 63)
	at := &t.head[e]
	for *at != s {
		at = &t.next[*at]
	}
	*at = t.next[s]
}

// put places expert e into the empty slot s and spreads its load anew.
func (t *table) put(s, e int32) {
	t.recount(e, +1)
	t.seat(s, e)
}

// seat puts e into the empty slot s when cnt and share already count it.
func (t *table) seat(s, e int32) {
	t.slot[s] = e
	t.link(e, s)
	t.time[t.dev[s]] += t.share[e] * t.inv[t.dev[s]]
}

// take empties slot s.
func (t *table) take(s int32) {
	e := t.slot[s]
	t.slot[s] = -1
	t.time[t.dev[s]] -= t.share[e] * t.inv[t.dev[s]]
	t.unlink(e, s)
	t.recount(e, -1)
}

// recount changes the replica count of e and adjusts the devices that hold it.
func (t *table) recount(e int32, by int32) {
	old := t.share[e]
	t.cnt[e] += by
	t.share[e] = 0
	if t.cnt[e] > 0 {
		t.share[e] = t.load[e] / float64(t.cnt[e])
	}
	diff := t.share[e] - old
	for s := t.head[e]; s >= 0; s = t.next[s] {
		t.time[t.dev[s]] += diff * t.inv[t.dev[s]]
	}
}

// overwrite replaces what slot s holds by e.
func (t *table) overwrite(s, e int32) {
	t.take(s)
	t.put(s, e)
}

// swap exchanges two slots of different devices.
func (t *table) swap(p, q int32) {
	a, b := t.slot[p], t.slot[q]
	dp, dq := t.dev[p], t.dev[q]
	t.unlink(a, p)
	t.unlink(b, q)
	t.slot[p], t.slot[q] = b, a
	t.link(a, q)
	t.link(b, p)
	d := t.share[a] - t.share[b]
	t.time[dp] -= d * t.inv[dp]
	t.time[dq] += d * t.inv[dq]
}

// hottest is the device with the highest time, lowest index on ties.
func (t *table) hottest() int32 {
	best := 0
	for d, x := range t.time {
		if x > t.time[best] {
			best = d
		}
	}
	return int32(best)
}

// top is the highest device time.
func (t *table) top() float64 { return t.time[t.hottest()] }

// row is the placement as phy2log.
func (t *table) row() []int {
	out := make([]int, len(t.slot))
	for i, e := range t.slot {
		out[i] = int(e)
	}
	return out
}

// devices is the number of devices.
func (t *table) devices() int { return len(t.time) }

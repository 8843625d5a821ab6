package fair

import "math"

// flow is one tenant in one band: its waiting requests and its counter.
type flow struct {
	band    *band
	counter float64 // weighted service, in the band's scaled unit
	place   int     // in the band's heap; -1 while nothing waits
	running int
	waiting int // live ones in the two heaps

	// Both heaps may hold nodes of requests that have left; see Queue.live.
	viable    heap[int64, uint32] // handles, by deadline and length
	relegated heap[int64, uint32] // too late for their deadline
}

func flowMoved(f *flow, to int) { f.place = to }

// pop takes out the node that head chose.
func (f *flow) pop() {
	if f.viable.len() > 0 {
		f.viable.remove(0)
	} else {
		f.relegated.remove(0)
	}
}

// band is the tenants of one priority.
type band struct {
	flows     map[string]*flow     // all that are remembered, by tenant
	heap      heap[float64, *flow] // those with something waiting, by counter
	last      *flow                // that left the heap last
	queued    int
	shed      []ref // sheddable ones, newest on top, some dead
	sheddable int   // live ones of these
	seq       uint32
}

func (b *band) flow(tenant string) *flow {
	f := b.flows[tenant]
	if f == nil {
		f = &flow{band: b, place: -1}
		b.flows[tenant] = f
	}
	return f
}

// prune forgets the flows that a lift would raise anyway.
func (b *band) prune() (n int) {
	for tenant, f := range b.flows {
		if f.waiting > 0 || f.running > 0 {
			continue
		}
		lifted := *f
		if b.lift(&lifted); lifted.counter > f.counter {
			delete(b.flows, tenant)
			n++
		}
	}
	return n
}

// lift sets a returning tenant's counter to the least of those waiting, or to
// that of the one who left last where nobody waits: idleness earns nothing.
func (b *band) lift(f *flow) {
	switch {
	case b.heap.len() > 0:
		f.counter = max(f.counter, b.heap.nodes[0].key)
	case b.last != nil:
		f.counter = max(f.counter, b.last.counter)
	}
}

// charge adds service to a flow's counter.
func (b *band) charge(f *flow, cost float64) {
	f.counter += cost
	if f.place >= 0 {
		b.heap.rekey(f.place, f.counter)
	}
}

// enter makes the flow take part in the band's choice; leave ends it.
func (b *band) enter(f *flow) {
	b.lift(f)
	b.seq++
	b.heap.push(f.counter, b.seq, f)
}

func (b *band) leave(f *flow) {
	b.heap.remove(f.place)
	b.last = f
}

// rescale multiplies all counters, which changes no order.
func (q *Queue) rescale(by float64) {
	for i := range q.bands {
		for _, f := range q.bands[i].flows {
			f.counter *= by
		}
		nodes := q.bands[i].heap.nodes
		for j := range nodes {
			nodes[j].key = nodes[j].val.counter
		}
	}
}

// unit is the scaled cost of one unit of service at the time now. Decay is
// forward: instead of shrinking every counter, new service counts more
// (Cormode et al., ICDE 2009), and all are rescaled when numbers grow large.
func (q *Queue) unit(now int64) float64 {
	life := q.opts.HalfLife.Microseconds()
	if life == 0 || now-q.scaled < life>>10 {
		return q.scale // at most 0.07 % too small
	}
	lives := float64(now-q.epoch) / float64(life)
	if lives > 64 {
		q.rescale(math.Exp2(-lives))
		q.epoch, lives = now, 0
	}
	q.scale, q.scaled = math.Exp2(max(lives, 0)), now
	return q.scale
}

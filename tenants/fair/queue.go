package fair

import "time"

// Queue holds waiting requests. It is not safe for concurrent use.
type Queue struct {
	opts   Options
	bands  []band
	queued int
	seq    uint32
	epoch  int64 // Unix microseconds at which the scaled unit is 1
	scale  float64
	scaled int64 // when scale was computed
	table  table
	wheel  wheel
	late   []*Item // found timed out by Next, not yet told by Expire
}

// New returns an empty queue, or the error of Options.Validate.
func New(o Options, now time.Time) (*Queue, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	q := &Queue{opts: o, bands: make([]band, o.Bands), epoch: now.UnixMicro(), scale: 1}
	for i := range q.bands {
		q.bands[i].flows, q.bands[i].heap.moved = map[string]*flow{}, flowMoved
	}
	q.wheel.at = tick(now.UnixMicro())
	return q, nil
}

// Pool is what the queue must know of the instances behind it.
type Pool struct {
	// Saturation is 0 when idle and 1 when nothing more should be sent.
	Saturation float64
	// PrefillRate is prompt tokens per second that one request gets; 0 if
	// unknown.
	PrefillRate float64
	// Fits reports whether the pool has room for the item; nil stands for
	// always.
	Fits func(*Item) bool
}

// Push queues an item. When the queue is full it sheds the newest sheddable
// item of the lowest band that is less important than this one, and returns
// it as victim; if there is none, the item itself is refused.
func (q *Queue) Push(it *Item, pool *Pool, now time.Time) (r Refusal, victim *Item) {
	if it.Band < 0 || it.Band >= len(q.bands) || !(it.Weight >= 0) || it.Input < 0 || it.queued || it.running {
		return BadItem, nil
	}
	if it.Sheddable && q.opts.ShedAt > 0 && pool.Saturation >= q.opts.ShedAt {
		return Shed, nil
	}
	f := q.bands[it.Band].flow(it.Tenant)
	if f.waiting >= q.opts.MaxPerTenant {
		return TenantFull, nil
	}
	if q.queued >= q.opts.MaxQueued {
		if victim = q.victim(it); victim == nil {
			return QueueFull, nil
		}
		q.Remove(victim)
	}
	q.insert(it, f, now.UnixMicro())
	return Accepted, victim
}

func (q *Queue) insert(it *Item, f *flow, now int64) {
	q.seq++
	it.flow, it.seq, it.queued = f, q.seq, true
	it.deadline, it.expires = noDeadline, 0
	key := int64(noDeadline)
	if !it.Deadline.IsZero() {
		it.deadline = it.Deadline.UnixMicro()
		key = it.deadline + min(it.Input, 1<<30)*q.opts.PerToken.Microseconds()
	}
	if it.MaxQueue > 0 {
		it.expires = now + it.MaxQueue.Microseconds()
	}
	f.waiting++
	if f.place < 0 {
		f.band.enter(f)
	}
	f.band.queued++
	q.queued++
	q.table.add(it)
	f.viable.push(key, it.seq, it.handle)
	q.wheel.add(it)
	q.pushShed(f.band, it)
}

// Next takes out and returns the request that goes now, or nil: the queue is
// empty, the pool is saturated for the bands that wait, or the one whose turn
// it is does not fit. Its prompt is charged to its tenant. The caller calls
// Next until nil whenever room appears.
func (q *Queue) Next(pool *Pool, now time.Time) *Item {
	if q.queued == 0 {
		return nil
	}
	us := now.UnixMicro()
	for i := range q.bands {
		if pool.Saturation >= q.ceiling(i) {
			return nil // lower bands have lower ceilings
		}
		for b := &q.bands[i]; b.heap.len() > 0; {
			f := b.heap.nodes[0].val
			it := q.head(f, pool, us)
			if it == nil {
				continue // its last one had timed out
			}
			if pool.Fits != nil && !pool.Fits(it) {
				return nil
			}
			f.pop()
			q.take(it)
			it.running = true
			f.running++
			b.charge(f, float64(it.Input)*q.opts.InputCost/it.weight()*q.unit(us))
			return it
		}
	}
	return nil
}

// ceiling is the saturation up to which a band is served.
func (q *Queue) ceiling(band int) float64 {
	if len(q.bands) == 1 {
		return 1
	}
	return 1 - q.opts.Holdback*float64(band)/float64(len(q.bands)-1)
}

// head returns a flow's first request: the first viable one, else the first
// relegated. Requests that can no longer make it are relegated on the way, and
// those that waited too long are taken out.
func (q *Queue) head(f *flow, pool *Pool, now int64) *Item {
	for f.viable.len() > 0 {
		n := f.viable.nodes[0]
		it := q.live(&n)
		switch {
		case it == nil:
			f.viable.remove(0)
		case it.expires != 0 && it.expires <= now:
			q.timedOut(it)
		case !hopeless(it, pool, now):
			return it
		default:
			f.viable.remove(0)
			f.relegated.push(n.key, n.seq, n.val)
		}
	}
	for f.relegated.len() > 0 {
		it := q.live(&f.relegated.nodes[0])
		switch {
		case it == nil:
			f.relegated.remove(0)
		case it.expires != 0 && it.expires <= now:
			q.timedOut(it)
		default:
			return it
		}
	}
	return nil
}

// live returns the request of a heap's node, or nil if it has left. Removing a
// request only empties its place in the table, which spares the heaps from
// writing every request's place whenever it moves.
func (q *Queue) live(n *node[int64, uint32]) *Item { return q.table.get(ref{n.val, n.seq}) }

// compact drops a flow's dead nodes once they are the greater part.
func (q *Queue) compact(f *flow) {
	if all := f.viable.len() + f.relegated.len(); all > 32 && all > 2*f.waiting {
		alive := func(n *node[int64, uint32]) bool { return q.live(n) != nil }
		f.viable.keep(alive)
		f.relegated.keep(alive)
	}
}

// hopeless reports whether the first token would come after the deadline.
func hopeless(it *Item, pool *Pool, now int64) bool {
	if it.deadline == noDeadline {
		return false
	}
	if pool.PrefillRate > 0 {
		now += int64(float64(it.Input) / pool.PrefillRate * 1e6)
	}
	return now > it.deadline
}

func (q *Queue) timedOut(it *Item) {
	q.Remove(it)
	q.late = append(q.late, it)
}

// Remove takes an item out, as when its client went away. It reports whether
// the item was queued.
func (q *Queue) Remove(it *Item) bool {
	if !it.queued {
		return false
	}
	q.take(it)
	q.compact(it.flow)
	return true
}

// take marks an item as gone. Its node in a heap is dead from then on.
func (q *Queue) take(it *Item) {
	f := it.flow
	it.queued = false
	f.waiting--
	f.band.queued--
	q.queued--
	if f.waiting == 0 {
		f.band.leave(f)
	}
	q.table.remove(it)
	if it.sheddable {
		f.band.sheddable--
	}
}

// Served charges output tokens of a running request to its tenant. Call it
// while tokens stream, so that the counter tells the truth before the end.
func (q *Queue) Served(it *Item, output int64, now time.Time) {
	if it.running && output > 0 {
		it.flow.band.charge(it.flow, float64(output)*q.opts.OutputCost/it.weight()*q.unit(now.UnixMicro()))
	}
}

// Corrected charges or gives back input tokens when the prompt's true length,
// or how much of it was cached, is known.
func (q *Queue) Corrected(it *Item, input int64, now time.Time) {
	if it.running {
		it.flow.band.charge(it.flow, float64(input-it.Input)*q.opts.InputCost/it.weight()*q.unit(now.UnixMicro()))
		it.Input = input
	}
}

// Done ends a running request. Its item may be queued again.
func (q *Queue) Done(it *Item) {
	if it.running {
		it.running = false
		it.flow.running--
	}
}

// Expire appends to dst the requests that have waited for their MaxQueue,
// taken out of the queue. Call it every 50 ms.
func (q *Queue) Expire(now time.Time, dst []*Item) []*Item {
	q.wheel.advance(now.UnixMicro(), &q.table, q.timedOut)
	dst = append(dst, q.late...)
	clear(q.late)
	q.late = q.late[:0]
	return dst
}

// Len returns how many requests wait in a band.
func (q *Queue) Len(band int) int { return q.bands[band].queued }

// Counter returns a tenant's counter in a band, in the present unit of
// service: what the console shows beside its position.
func (q *Queue) Counter(band int, tenant string, now time.Time) float64 {
	if f := q.bands[band].flows[tenant]; f != nil {
		return f.counter / q.unit(now.UnixMicro())
	}
	return 0
}

// Prune forgets tenants with nothing waiting or running whose counter the lift
// would raise anyway when they return, and returns how many.
func (q *Queue) Prune() int {
	n := 0
	for i := range q.bands {
		n += q.bands[i].prune()
	}
	return n
}

package admit

import (
	"context"
	"sync"
	"time"

	"github.com/weirhq/weir/tenants/fair"
)

// line is the queue before one model's pool. Every request passes it, because
// the tenants' counters must see all service; while there is room it passes at
// once.
type line struct {
	slots func() int

	mu      sync.Mutex
	queue   *fair.Queue
	running int // let in and not yet settled
	waiting int
	expired []*fair.Item
}

func (a *Admitter) lineOf(model string) *line {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lines[model]
	if l == nil {
		q, err := fair.New(a.o.Queue, time.Now())
		if err != nil { // New has validated the options
			panic(err)
		}
		l = &line{slots: func() int { return a.o.Pool.Slots(model) }, queue: q}
		a.lines[model] = l
	}
	return l
}

func (a *Admitter) allLines() []*line {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*line, 0, len(a.lines))
	for _, l := range a.lines {
		out = append(out, l)
	}
	return out
}

// saturation is 1 when every slot has a request. Without known slots the line
// never holds anybody: the pool will say what it thinks.
func saturation(requests, slots int) float64 {
	if slots <= 0 {
		return 0
	}
	return float64(requests) / float64(slots)
}

// enter returns when the request may go, is refused, or ctx ends.
func (l *line) enter(ctx context.Context, g *grant) (fair.Refusal, error) {
	now := time.Now()
	slots := l.slots()
	l.mu.Lock()
	refusal, victim := l.queue.Push(&g.item, &fair.Pool{Saturation: saturation(l.running+l.waiting, slots)}, now)
	if victim != nil {
		l.waiting--
		victim.Value.(*grant).turn <- fair.Shed
	}
	if refusal != fair.Accepted {
		l.mu.Unlock()
		return refusal, nil
	}
	l.waiting++
	l.pump(now, slots)
	if g.going {
		l.mu.Unlock()
		return fair.Accepted, nil
	}
	g.turn = make(chan fair.Refusal, 1)
	l.mu.Unlock()
	select {
	case r := <-g.turn:
		return r, nil
	case <-ctx.Done():
	}
	l.abandon(g)
	return 0, ctx.Err()
}

// abandon takes out a request that no longer waits, also when its turn came at
// the same moment.
func (l *line) abandon(g *grant) {
	l.mu.Lock()
	left := l.queue.Remove(&g.item)
	if left {
		l.waiting--
	}
	going := g.going
	l.mu.Unlock()
	if going {
		l.leave(g, 0, time.Now())
	}
}

// pump lets go whoever may.
func (l *line) pump(now time.Time, slots int) {
	for {
		it := l.queue.Next(&fair.Pool{Saturation: saturation(l.running, slots)}, now)
		if it == nil {
			return
		}
		l.running++
		l.waiting--
		g := it.Value.(*grant)
		g.going = true
		if g.turn != nil {
			g.turn <- fair.Accepted
		}
	}
}

// leave ends a request that was let go and charges its output to its tenant.
func (l *line) leave(g *grant, output int64, now time.Time) {
	slots := l.slots()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !g.going {
		return
	}
	g.going = false
	l.queue.Served(&g.item, output, now)
	l.queue.Done(&g.item)
	l.running--
	l.pump(now, slots)
}

func (l *line) corrected(g *grant, input int64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.Corrected(&g.item, input, now)
}

// tend tells requests that have waited too long, and looks for room.
func (l *line) tend(now time.Time, prune bool) {
	slots := l.slots()
	l.mu.Lock()
	defer l.mu.Unlock()
	if prune {
		l.queue.Prune()
	}
	if l.waiting == 0 {
		return
	}
	l.pump(now, slots)
	l.expired = l.queue.Expire(now, l.expired[:0])
	for i, it := range l.expired {
		l.waiting--
		it.Value.(*grant).turn <- fair.QueueTimedOut
		l.expired[i] = nil
	}
}

// lengths returns how many requests run and how many wait.
func (l *line) lengths() (running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running, l.waiting
}

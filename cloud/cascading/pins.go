package cascading

import (
	"container/list"
	"sync"
	"time"
)

// Bounds of what is remembered of sessions. Beyond them, after a restart and on
// another gateway a session is chosen for anew, by a draw that only the session
// seeds, so that it mostly ends where it was.
const (
	maxPins = 4096
	pinLife = 30 * time.Minute
)

// pins are the pools with which sessions stay, because their prompts are cached
// there and their style is known. It is safe for concurrent use.
type pins struct {
	mu    sync.Mutex
	byKey map[string]*list.Element
	order list.List // of *pin, the one used last in front
}

type pin struct {
	session, pool string
	used          time.Time
}

// find is the session's pool, "" for none.
func (p *pins) find(session string, now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.byKey[session]
	if e == nil || now.Sub(e.Value.(*pin).used) > pinLife {
		return ""
	}
	return e.Value.(*pin).pool
}

func (p *pins) set(session, pool string, now time.Time) {
	if session == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.byKey[session]; e != nil {
		e.Value = &pin{session, pool, now}
		p.order.MoveToFront(e)
		return
	}
	if p.byKey == nil {
		p.byKey = map[string]*list.Element{}
	}
	p.byKey[session] = p.order.PushFront(&pin{session, pool, now})
	if old := p.order.Back(); len(p.byKey) > maxPins {
		delete(p.byKey, old.Value.(*pin).session)
		p.order.Remove(old)
	}
}

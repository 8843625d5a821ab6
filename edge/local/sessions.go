package local

import (
	"container/list"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
)

// maxSessions bounds the conversations that are remembered.
const maxSessions = 4096

// sessions remembers which conversations stay in the cloud. It is in memory
// only: a restart forgets them, and the next turn is decided afresh.
type sessions struct {
	mu    sync.Mutex
	byKey map[sessionKey]*list.Element
	order list.List // of *session, the one used last in front
}

type sessionKey struct{ keyID, name string }

type session struct {
	key sessionKey
	cascade.Session
}

// sticky reports whether the session's next turn goes to the cloud.
func (t *sessions) sticky(k sessionKey, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[k]
	return e != nil && e.Value.(*session).Sticky(cascade.StickyOptions{}, now)
}

// turn notes what became of a turn. Only sessions that stay somewhere take
// room; when there is none, the one idle longest is forgotten.
func (t *sessions) turn(k sessionKey, turn cascade.Turn, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[k]
	var before cascade.Session
	if e != nil {
		before = e.Value.(*session).Session
	}
	after := before.Next(turn, cascade.StickyOptions{}, now)
	switch {
	case !after.Pinned && e != nil:
		t.forget(e)
	case !after.Pinned:
	case e != nil:
		e.Value.(*session).Session = after
		t.order.MoveToFront(e)
	default:
		if t.byKey == nil {
			t.byKey = map[sessionKey]*list.Element{}
		}
		t.byKey[k] = t.order.PushFront(&session{k, after})
		if len(t.byKey) > maxSessions {
			t.forget(t.order.Back())
		}
	}
}

func (t *sessions) forget(e *list.Element) {
	delete(t.byKey, e.Value.(*session).key)
	t.order.Remove(e)
}

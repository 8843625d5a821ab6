package quota

import "time"

// Named reports whether a limit names the request's model, and whether all that do
// and that enforce have room for it at the time now. It takes nothing. A budget
// whose next block is still to be fetched counts as room.
func (a *Account) Named(r *Request, now time.Time) (named, room bool) {
	e := r.estimate()
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := a.planFor(r, now)
	if err != nil {
		return false, true // Admit refuses it, whatever its model
	}
	c := readClock(now)
	room = true
	for _, s := range p.states {
		if s.limit.Model == "" {
			continue
		}
		named = true
		if s.limit.Shadow {
			continue
		}
		if reason, _ := a.room(s, e.of(&s.limit), c); reason != Admitted && reason != LeaseWanted {
			room = false
		}
	}
	return named, room
}

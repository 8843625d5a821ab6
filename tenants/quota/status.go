package quota

import "time"

// Status is one limit as a response's headers and the usage API show it.
type Status struct {
	Limit     Limit
	Key       string // where the limit counts each key apart
	Remaining int64  // may be taken now
	Used      int64  // budgets: settled in this period by this gateway; slots: in use
	Reserved  int64  // budgets: by open requests
	Reset     time.Duration
}

// Status appends to dst what the request's limits stand at, in the order in
// which they were configured.
func (a *Account) Status(r *Request, now time.Time, dst []Status) []Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := a.planFor(r, now)
	if err != nil {
		return dst
	}
	c := readClock(now)
	for _, s := range p.states {
		dst = append(dst, a.status(s, c))
	}
	return dst
}

func (a *Account) status(s *state, c clock) Status {
	st := Status{Limit: s.limit, Key: s.key}
	switch s.limit.Window {
	case AtOnce:
		st.Remaining, st.Used = max(s.share-s.inUse, 0), s.inUse
	case Minute:
		s.bucket.advance(c.us)
		st.Remaining = s.bucket.remaining()
		st.Reset = time.Duration(s.bucket.refill()) * time.Microsecond
	default:
		p := c.period(s.limit.Window)
		end := (p + 1).Start(s.limit.Window).UnixMicro()
		st.Reset = time.Duration(end-c.us) * time.Microsecond
		if w := a.wallet(s, p); w != nil {
			st.Remaining = max(w.obtainable(), 0)
			st.Used, st.Reserved = max(w.used-w.credit, 0), w.reserved
		}
	}
	return st
}

// Headline is the limit that an X-RateLimit header group shows: of those given
// that enforce and count one of the kinds, the one with the least remaining.
func Headline(all []Status, kinds ...Kind) (Status, bool) {
	var best Status
	found := false
	for _, st := range all {
		if st.Limit.Shadow || found && st.Remaining >= best.Remaining {
			continue
		}
		for _, k := range kinds {
			if st.Limit.Kind == k {
				best, found = st, true
			}
		}
	}
	return best, found
}

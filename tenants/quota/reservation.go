package quota

import "time"

// Reservation is what one admitted attempt holds of its account. Its owner
// keeps it by value and in place; the zero value is closed.
type Reservation struct {
	account *Account // set once by Admit, read without its lock
	held
}

// held is the part of a reservation that belongs to its account's lock.
type held struct {
	open       bool
	plan       *plan
	mask       uint64 // which of the plan's counters it is counted in
	estimate   estimate
	slot       bool // holds concurrency
	day, month Period
	deadline   int64 // Unix microseconds

	prev, next *Reservation // the account's open ones, oldest first
}

func (r *Reservation) period(w Window) Period {
	switch w {
	case Day:
		return r.day
	case Month:
		return r.month
	}
	return 0
}

// Correct sets the reservation to what is now known, in either direction and
// without asking: after prefill the prompt's true length is a fact. bound and
// likely are totals as in Request; requests and escalations stay. It reports
// whether the reservation was open.
func (r *Reservation) Correct(bound, likely Amount, now time.Time) bool {
	e := estimate{bound, likely}
	if !e.valid() || !r.lock() {
		return false
	}
	defer r.account.mu.Unlock()
	e.fix(&r.estimate)
	r.move(&e, readClock(now))
	return true
}

// TopUp raises the reservation to a higher total while tokens stream. If a
// limit has no room nothing changes, and the verdict says which; the owner of
// a strict tenant then ends the stream before the tokens go out. Shadow limits
// follow without refusing. Parts that are not higher stay as they are.
func (r *Reservation) TopUp(to Amount, now time.Time) Verdict {
	if !to.valid() {
		return Verdict{Reason: InvalidRequest}
	}
	if !r.lock() {
		return Verdict{Reason: ReservationClosed}
	}
	a := r.account
	defer a.mu.Unlock()
	e := estimate{r.estimate.bound.raised(to), r.estimate.likely.raised(to)}
	c := readClock(now)
	var v Verdict
	for i, s := range r.plan.states {
		if r.mask&(1<<i) == 0 || s.limit.Shadow || s.limit.Window == AtOnce {
			continue
		}
		more := e.of(&s.limit) - r.estimate.of(&s.limit)
		if reason, us := a.roomFor(s, more, r.period(s.limit.Window), c); reason != Admitted {
			v.refuse(reason, us, s)
		}
	}
	if v.OK() {
		r.move(&e, c)
	}
	return v
}

// raised returns the greater of each part of which tokens and cost consist.
func (a Amount) raised(to Amount) Amount {
	a.Input, a.Output, a.Cost = max(a.Input, to.Input), max(a.Output, to.Output), max(a.Cost, to.Cost)
	return a
}

// roomFor is room within the period in which a reservation was made.
func (a *Account) roomFor(s *state, n int64, p Period, c clock) (Reason, int64) {
	if s.limit.Window == Minute {
		return a.room(s, n, c)
	}
	return a.roomIn(s, n, p, c)
}

// move shifts every counter by the difference to the new estimate.
func (r *Reservation) move(to *estimate, c clock) {
	for i, s := range r.plan.states {
		if r.mask&(1<<i) == 0 || s.limit.Window == AtOnce {
			continue
		}
		diff := to.of(&s.limit) - r.estimate.of(&s.limit)
		if diff == 0 {
			continue
		}
		if s.limit.Window == Minute {
			s.bucket.advance(c.us)
		}
		r.account.commit(s, diff, r.period(s.limit.Window), c)
	}
	r.estimate = *to
}

// Settle ends the reservation with what was really used: rates get back or
// owe the difference, budgets move from reserved to used, the slot is free.
// Requests and escalations count as reserved. It reports whether the
// reservation was open: only the first end counts.
func (r *Reservation) Settle(actual Amount, now time.Time) bool {
	if !actual.valid() || !r.lock() {
		return false
	}
	defer r.account.mu.Unlock()
	e := estimate{actual, actual}
	e.fix(&r.estimate)
	r.end(&e, now)
	return true
}

// Release ends the reservation as if it had never been made: a request that
// was shed from the queue leaves all counters as they were.
func (r *Reservation) Release(now time.Time) bool {
	if !r.lock() {
		return false
	}
	defer r.account.mu.Unlock()
	r.end(&estimate{}, now)
	return true
}

// ReleaseSlot frees the concurrency slot ahead of the settlement, which may
// wait for the end of a log or of a slow client.
func (r *Reservation) ReleaseSlot() {
	if r.lock() {
		r.freeSlot()
		r.account.mu.Unlock()
	}
}

func (r *Reservation) freeSlot() {
	if !r.slot {
		return
	}
	r.slot = false
	for i, s := range r.plan.states {
		if r.mask&(1<<i) != 0 && s.limit.Window == AtOnce {
			s.inUse--
		}
	}
}

func (r *Reservation) end(actual *estimate, now time.Time) {
	a, us := r.account, now.UnixMicro()
	r.freeSlot()
	for i, s := range r.plan.states {
		if r.mask&(1<<i) == 0 || s.limit.Window == AtOnce {
			continue
		}
		reserved, used := r.estimate.of(&s.limit), actual.of(&s.limit)
		if s.limit.Window == Minute {
			s.bucket.advance(us)
			s.bucket.take(used - reserved)
		} else if w := a.wallet(s, r.period(s.limit.Window)); w != nil {
			w.settle(reserved, used, us)
		}
	}
	a.unlink(r)
	r.held = held{}
}

// lock takes the account's lock if the reservation is open.
func (r *Reservation) lock() bool {
	if r.account == nil {
		return false
	}
	r.account.mu.Lock()
	if r.open {
		return true
	}
	r.account.mu.Unlock()
	return false
}

func (a *Account) link(r *Reservation) {
	last := a.queue[1]
	r.prev = last
	if last == nil {
		a.queue[0] = r
	} else {
		last.next = r
	}
	a.queue[1] = r
	a.nopen++
}

func (a *Account) unlink(r *Reservation) {
	if r.prev == nil {
		a.queue[0] = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		a.queue[1] = r.prev
	} else {
		r.next.prev = r.prev
	}
	a.nopen--
}

// Expire releases open reservations whose deadline has passed and returns how
// many. Their owners' later calls find them closed.
func (a *Account) Expire(now time.Time) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	us, n := now.UnixMicro(), 0
	for r := a.queue[0]; r != nil; {
		next := r.next
		if r.deadline <= us {
			r.end(&estimate{}, now)
			n++
		}
		r = next
	}
	return n
}

// Open returns how many reservations are open.
func (a *Account) Open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.nopen
}

package quota

import (
	"errors"
	"time"
)

// LeaseKey names one budget of one tenant in one period, for which gateways
// hold leases.
type LeaseKey struct {
	LimitID string
	Key     string // API key's id where the limit counts each key apart
	Window  Window
	Period  Period
}

// LeaseRequest is what a gateway tells the store of one lease. All counts are
// cumulative for the generation, so that messages may be lost or repeated.
type LeaseRequest struct {
	Generation int64 // of this gateway process's leases on the budget
	Used       int64 // settled
	Reserved   int64 // by open reservations
	Returned   int64 // given back of what was granted
	Ask        int64 // least amount wanted now, 0 for none
}

// LeaseReply is the store's answer. Granted is cumulative for the generation.
type LeaseReply struct {
	Generation int64
	Granted    int64
	TTL        time.Duration // from when the request was sent
	Remaining  int64         // of the budget, held by nobody
	Elsewhere  int64         // of the budget, held unspent by other gateways
}

// LeaseNews is one budget's message to the store.
type LeaseNews struct {
	Budget LeaseKey
	Max    int64 // the limit, which the store may know only by the snapshot
	LeaseRequest
}

// LeaseNews appends to dst what the store should be told now of leased budgets:
// what was used, what is wanted and what goes back. Budgets of which the store
// knows all are left out. Send it about five times a second, and at once after
// a LeaseWanted; one message of a budget at a time. After a period's end its
// lease is reported until nothing is reserved.
func (a *Account) LeaseNews(dst []LeaseNews, now time.Time) []LeaseNews {
	if !a.opts.Leased {
		return dst
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c := readClock(now)
	for k, s := range a.states {
		if s.limit.Window != Day && s.limit.Window != Month {
			continue
		}
		current := c.period(s.limit.Window)
		a.wallet(s, current) // starts a new period's wallet
		for i := range s.wallets {
			w := &s.wallets[i]
			if w.period == noPeriod {
				continue
			}
			if r, due := w.request(c.us, w.period < current); due {
				dst = append(dst, LeaseNews{LeaseKey{k.limit, k.key, s.limit.Window, w.period}, s.limit.Max, r})
			}
		}
	}
	return dst
}

// ApplyLease takes in the store's reply to a message that was sent at the
// time sent.
func (a *Account) ApplyLease(k LeaseKey, r LeaseReply, sent, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.leased(k); w != nil {
		w.apply(r, sent.UnixMicro(), now.UnixMicro())
	}
}

// LeaseClosed takes in that the store has closed a lease, counting closedUsed
// for it. Nothing more is admitted from it; a new lease is asked for.
func (a *Account) LeaseClosed(k LeaseKey, generation, closedUsed int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.leased(k); w != nil && w.generation == generation {
		w.refound(closedUsed)
	}
}

// StoreAway says that the store cannot be reached. Until the next reply,
// leases run on to their end; after it, or when they are used up, a strict
// tenant is refused and any other uses the remainder that was last known.
func (a *Account) StoreAway() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.states {
		for i := range s.wallets {
			s.wallets[i].away = true
		}
	}
}

// AssumeRemaining tells a gateway that starts without the store what a budget
// had left when the snapshot was taken. A reply of the store replaces it.
func (a *Account) AssumeRemaining(limitID string, remaining int64, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := readClock(now)
	for i := range a.limits {
		l := &a.limits[i]
		if l.ID != limitID || l.Key == EachKey || l.Window != Day && l.Window != Month {
			continue
		}
		w := a.wallet(a.stateFor(*l, "", now), c.period(l.Window))
		if w != nil && w.leased && w.answered == 0 {
			w.remaining, w.answered, w.away = remaining, c.us, true
		}
	}
}

// Remainder is what a budget had left in a period, as far as a gateway knew.
type Remainder struct {
	LimitID   string
	Window    Window
	Period    Period
	Remaining int64
}

// Remainders appends to dst what leased budgets have left now: what nobody
// holds, and what this gateway holds unspent. Budgets of each key apart, and
// those of which the store has told nothing, are left out.
func (a *Account) Remainders(dst []Remainder, now time.Time) []Remainder {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := readClock(now)
	for k, s := range a.states {
		if k.key != "" || s.limit.Window != Day && s.limit.Window != Month {
			continue
		}
		p := c.period(s.limit.Window)
		if w := a.wallet(s, p); w != nil && w.leased && w.answered != 0 {
			dst = append(dst, Remainder{k.limit, s.limit.Window, p, max(w.available(), 0) + w.remaining})
		}
	}
	return dst
}

func (a *Account) leased(k LeaseKey) *wallet {
	s := a.states[stateKey{k.LimitID, k.Key}]
	if s == nil {
		return nil
	}
	for i := range s.wallets {
		if w := &s.wallets[i]; w.period == k.Period && w.leased {
			return w
		}
	}
	return nil
}

// ErrLeaseClosed answers a gateway whose lease the store has closed. The
// lease's final count goes with it as ClosedLease.
var ErrLeaseClosed = errors.New("lease is closed")

// ClosedLease is the error of a renewal that came after the close.
type ClosedLease struct{ Used int64 }

func (e *ClosedLease) Error() string { return "lease is closed: start a new one" }

// Is makes errors.Is(err, ErrLeaseClosed) true.
func (e *ClosedLease) Is(target error) bool { return target == ErrLeaseClosed }

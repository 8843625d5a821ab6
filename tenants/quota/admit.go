package quota

import (
	"math"
	"time"
)

// Request is what an attempt asks of an account.
type Request struct {
	Key, Model, Tier, Class string
	// Amount is the most that the attempt may take: budgets and totals per day
	// and month reserve it, so that a settlement never exceeds it.
	Amount Amount
	// Likely is what it will probably take: rates reserve it, so that cautious
	// bounds do not starve them. The zero value stands for Amount.
	Likely Amount
	// Deadline is when Expire may end a reservation that its owner forgot.
	Deadline time.Time
}

// Reason says why a request was refused.
type Reason uint8

// Reasons.
const (
	Admitted          Reason = iota
	RateLimited              // a rate; wait for its refill
	ConcurrencyFull          // wait for a slot
	QuotaExhausted           // a budget is used up, or the rest is held elsewhere
	LeaseWanted              // ask the store for a block, then try once more
	TooLarge                 // over the limit even when nothing is used; do not retry
	InvalidRequest           // a negative or absurd amount
	TooManyLimits            // more than 64 limits match
	ReservationClosed        // top-up after the reservation had ended
	numReasons
)

var reasonNames = [numReasons]string{
	"admitted", "rate_limited", "concurrency_full", "quota_exhausted", "lease_wanted",
	"too_large", "invalid_request", "too_many_limits", "reservation_closed",
}

// String returns the reason's name for logs and errors.
func (r Reason) String() string {
	if r < numReasons {
		return reasonNames[r]
	}
	return "unknown"
}

// ConcurrencyRetry is the wait told to who found no free slot: nobody knows
// when one will end.
const ConcurrencyRetry = time.Second

// Verdict is the answer to a request. Where several limits refuse, it names
// the one that needs the longest wait.
type Verdict struct {
	Reason     Reason
	LimitID    string
	Kind       Kind
	Window     Window
	RetryAfter time.Duration // exact for rates; 0 where a retry is pointless
}

// OK reports whether the request was admitted.
func (v Verdict) OK() bool { return v.Reason == Admitted }

// Admit checks every limit that matches the request at the time now. If all
// allow it, it commits to all and opens res; otherwise no counter changes. A
// shadow limit never refuses: it counts the refusal and lets the request pass
// uncounted, as if it had been refused there.
//
// res must be new or closed, must not be copied while open, and ends with
// exactly one of Settle, Release and Expire.
func (a *Account) Admit(r *Request, now time.Time, res *Reservation) Verdict {
	e := r.estimate()
	if !e.valid() {
		return Verdict{Reason: InvalidRequest}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if res.open {
		return Verdict{Reason: InvalidRequest}
	}
	p, err := a.planFor(r, now)
	if err != nil {
		return Verdict{Reason: TooManyLimits}
	}
	c := readClock(now)
	v, mask := a.check(p, &e, c)
	if !v.OK() {
		return v
	}
	res.account = a
	res.held = held{
		open: true, plan: p, mask: mask, estimate: e, slot: true,
		day: c.day, month: c.month, deadline: math.MaxInt64,
	}
	if !r.Deadline.IsZero() {
		res.deadline = r.Deadline.UnixMicro()
	}
	for i, s := range p.states {
		if mask&(1<<i) != 0 {
			a.commit(s, e.of(&s.limit), c.period(s.limit.Window), c)
		}
	}
	a.link(res)
	return v
}

func (r *Request) estimate() estimate {
	e := estimate{r.Amount, r.Likely}
	if e.likely == (Amount{}) {
		e.likely = e.bound
	}
	return e
}

// check asks every counter of a plan and returns the verdict and which of the
// counters will count the request.
func (a *Account) check(p *plan, e *estimate, c clock) (v Verdict, mask uint64) {
	for i, s := range p.states {
		n := e.of(&s.limit)
		s.demand += n
		reason, us := a.room(s, n, c)
		switch {
		case reason == Admitted, reason == LeaseWanted && s.limit.Shadow:
			mask |= 1 << i
		case s.limit.Shadow:
			s.wouldHave++
		default:
			v.refuse(reason, us, s)
		}
	}
	return v, mask
}

// clock is one reading of the time in the forms that counters use.
type clock struct {
	us         int64 // Unix microseconds
	day, month Period
}

func readClock(t time.Time) clock {
	return clock{t.UnixMicro(), PeriodAt(Day, t), PeriodAt(Month, t)}
}

func (c *clock) period(w Window) Period {
	switch w {
	case Day:
		return c.day
	case Month:
		return c.month
	}
	return 0
}

// refuse keeps the refusal with the longest wait; one that no wait can heal
// goes before all.
func (v *Verdict) refuse(reason Reason, us int64, s *state) {
	wait := time.Duration(us) * time.Microsecond
	if v.Reason == TooLarge || v.Reason != Admitted && reason != TooLarge && wait <= v.RetryAfter {
		return
	}
	*v = Verdict{reason, s.limit.ID, s.limit.Kind, s.limit.Window, wait}
}

// room says whether a counter can take n, and if not how many microseconds to
// wait. It only lets time pass; it takes nothing.
func (a *Account) room(s *state, n int64, c clock) (Reason, int64) {
	switch s.limit.Window {
	case AtOnce:
		if s.inUse < s.share {
			return Admitted, 0
		}
		if s.limit.Max == 0 {
			return TooLarge, 0
		}
		return ConcurrencyFull, ConcurrencyRetry.Microseconds()
	case Minute:
		s.bucket.advance(c.us)
		us, ok := s.bucket.wait(n, &s.limit)
		if !ok {
			return TooLarge, 0
		}
		if us > 0 {
			return RateLimited, us
		}
		return Admitted, 0
	}
	return a.roomIn(s, n, c.period(s.limit.Window), c)
}

// roomIn asks a budget's counter of a period.
func (a *Account) roomIn(s *state, n int64, p Period, c clock) (Reason, int64) {
	w := a.wallet(s, p)
	if w == nil {
		return Admitted, 0 // the books of that period are closed
	}
	if w.available() >= n && (!w.leased || c.us < w.expires) {
		return Admitted, 0 // without asking the calendar for the period's end
	}
	return w.room(n, s.limit.Max, c.us, (p + 1).Start(s.limit.Window).UnixMicro(), a.opts.Strict)
}

// commit takes n out of a counter.
func (a *Account) commit(s *state, n int64, p Period, c clock) {
	switch s.limit.Window {
	case AtOnce:
		s.inUse++
	case Minute:
		s.bucket.take(n)
	default:
		if w := a.wallet(s, p); w != nil {
			w.reserve(n, c.us)
		}
	}
}

package quota

import "time"

// Credit is what was settled and then turned out not to count: a second answer
// to an attempt that another gateway has answered and billed. What a holder
// reports as used never falls, so a credit does not lower it: the next
// settlements of its period are paid with it.

// GiveBack credits the budgets that match r with r.Amount, which was settled
// for a request admitted at a time. Rates keep what they have counted: it was
// work.
func (a *Account) GiveBack(r *Request, admitted, now time.Time) {
	e := estimate{r.Amount, r.Amount}
	if !e.valid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p, err := a.planFor(r, now)
	if err != nil {
		return
	}
	c := readClock(admitted)
	for _, s := range p.states {
		if s.limit.Window != Day && s.limit.Window != Month {
			continue
		}
		if w := a.wallet(s, c.period(s.limit.Window)); w != nil {
			w.credit += min(e.of(&s.limit), w.used-w.credit)
		}
	}
}

// spend pays for a settlement with credit, as far as there is some, and returns
// what is left to count.
func (w *wallet) spend(n int64) int64 {
	paid := min(max(n, 0), w.credit)
	w.credit -= paid
	return n - paid
}

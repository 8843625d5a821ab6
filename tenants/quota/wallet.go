package quota

// wallet is one gateway's part of a budget in one period: what it was granted
// and what became of it. All counts are in the limit's unit and cumulative
// over the process's life, so that a lost or repeated message to the store
// changes nothing. Times are Unix microseconds.
type wallet struct {
	period Period
	leased bool // false: the whole budget is this gateway's
	// generation counts the leases that the store closed under this process.
	generation int64

	granted  int64
	returned int64 // given back of granted
	used     int64 // settled
	reserved int64 // by open reservations
	credit   int64 // of used: does not count after all
	expires  int64 // of the lease; after it nothing more is admitted

	// As of the last reply of the store:
	remaining int64 // nobody's
	elsewhere int64 // held unspent by other gateways
	answered  int64 // when; 0: never
	away      bool  // since then the store could not be reached

	ttl   int64 // of the lease
	sent  counts
	acked counts // what the store is known to know

	short   int64 // most that a refused request lacked since the last grant
	shortAt int64 // when one was refused last
	lastUse int64
}

// counts is what a holder reports.
type counts struct{ used, reserved, returned int64 }

// available is what may still be reserved.
func (w *wallet) available() int64 { return w.granted - w.returned - w.used + w.credit - w.reserved }

// obtainable is what may be reserved if the store is asked: what nobody holds,
// and what is on its way back to it, could be this gateway's.
func (w *wallet) obtainable() int64 {
	return w.available() + w.remaining + w.returned - w.acked.returned
}

// Waits of a budget that is refused for now.
const (
	leaseWaitMicros  = 50_000    // a lease was asked for: a round trip to the store
	returnWaitMicros = 2_000_000 // others hold the rest and return it when idle
	askAgainMicros   = 250_000   // a refusal of the store holds that long
	idleMicros       = 1_000_000 // an unspent block goes back after that
)

// room decides whether n may be reserved, and if not why and for how long.
// periodEnd is when the budget starts anew.
func (w *wallet) room(n, most, now, periodEnd int64, strict bool) (reason Reason, us int64) {
	switch {
	case n == 0:
		return Admitted, 0
	case n > most:
		return TooLarge, 0
	case w.available() >= n && (!w.leased || now < w.expires):
		return Admitted, 0
	case !w.leased:
		return QuotaExhausted, periodEnd - now
	case (w.away || now >= w.expires) && w.answered != 0 && !strict && w.available()+w.remaining >= n:
		// The store is away and the tenant prefers service: the remainder that
		// was last known bounds the overrun of each gateway.
		return Admitted, 0
	}
	denied := w.available()+w.remaining < n && now < w.answered+askAgainMicros && now < w.expires
	switch {
	case !denied:
		w.short, w.shortAt = max(w.short, n-w.available()), now
		return LeaseWanted, leaseWaitMicros
	case w.remaining+w.elsewhere+w.available() >= n:
		return QuotaExhausted, min(returnWaitMicros, periodEnd-now)
	}
	return QuotaExhausted, periodEnd - now
}

// reserve moves n from available to reserved.
func (w *wallet) reserve(n, now int64) {
	w.reserved += n
	w.lastUse = now
}

// settle ends a reservation of n that came to actual.
func (w *wallet) settle(n, actual, now int64) {
	w.reserved -= n
	w.used += w.spend(actual)
	w.lastUse = now
}

// apply takes in a reply to a request that was made at the time sent. The
// lease runs from then, so that it ends here before it ends at the store.
func (w *wallet) apply(r LeaseReply, sent, now int64) {
	if r.Generation != w.generation {
		return
	}
	if r.Granted > w.granted {
		w.granted = r.Granted
		w.lastUse = now // a fresh block has its idle time before it
	}
	w.away, w.acked, w.ttl = false, w.sent, r.TTL.Microseconds()
	w.remaining, w.elsewhere, w.answered = r.Remaining, r.Elsewhere, now
	w.expires = max(w.expires, sent+r.TTL.Microseconds())
	// What cannot be met whole is not asked for again until somebody wants it:
	// less might be met.
	if w.available() >= w.short || r.Remaining < w.short {
		w.short = 0
	}
}

// refound starts a new lease after the store has closed the old one and given
// its rest away. What is open here, and what was used here beyond what the
// store counted when it closed, moves to the new lease.
func (w *wallet) refound(closedUsed int64) {
	w.generation++
	w.used = max(w.used-closedUsed, 0)
	w.granted, w.returned, w.expires, w.answered = 0, 0, 0, 0
	w.sent, w.acked = counts{}, counts{}
}

// request says what this gateway has done with its lease and what it wants
// next. It gives back a block that nobody used for idleMicros, or at once when
// the period is over; what it names as returned can no longer be spent. due is
// false while the store knows all that and the lease need not be renewed.
func (w *wallet) request(now int64, over bool) (r LeaseRequest, due bool) {
	if idle := w.available() - w.credit; idle > 0 && (over || now-w.lastUse >= idleMicros) {
		w.returned += idle
	}
	w.sent = counts{w.used, w.reserved, w.returned}
	r = LeaseRequest{Generation: w.generation, Used: w.used, Reserved: w.reserved, Returned: w.returned}
	if !over {
		r.Ask = w.ask(now)
	}
	holds := w.reserved > 0 || w.granted-w.returned > w.used || w.credit > 0 && !over
	renew := holds && now >= w.expires-w.ttl/2
	return r, r.Ask > 0 || renew || w.sent != w.acked
}

// ask is the least amount that is wanted now.
func (w *wallet) ask(now int64) int64 {
	if now-w.shortAt >= idleMicros {
		w.short = 0 // whoever was refused has not come back
	}
	avail := w.available()
	switch low := (w.granted - w.returned) / 4; {
	case w.short > 0:
		return w.short
	case avail < 0:
		return -avail
	case avail < low && now-w.lastUse < idleMicros:
		return 1 // the store rounds up to a block
	}
	return 0
}

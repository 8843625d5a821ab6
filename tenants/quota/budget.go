package quota

import (
	"errors"
	"slices"
	"time"
)

// Budget is the store's side of one budget in one period: what is spent, and
// which gateway holds how much of the rest. It is a value: a database holds
// it in rows, locks them, applies one method and writes them back.
//
// Whatever happens, Committed never grows beyond Max by a grant. So the sum
// that gateways admit within their leases never exceeds the budget.
type Budget struct {
	Max    int64
	Closed int64 // used by leases that are closed
	Leases []Lease
}

// Holder names a gateway process's lease. Epoch is random per process start;
// Generation counts leases that were closed under it.
type Holder struct {
	Node       string
	Epoch      string
	Generation int64
}

// Lease is what one holder was granted and has told of it, all cumulative.
type Lease struct {
	Holder
	Granted   int64
	Returned  int64
	Used      int64
	Reserved  int64
	ExpiresAt time.Time
	Final     bool // closed; kept so that its holder can be told
}

// committed is the part of the budget that a lease takes up.
func (l *Lease) committed() int64 {
	if l.Final {
		return 0 // in Budget.Closed
	}
	return max(l.Granted-l.Returned, l.Used)
}

// unspent is what the holder may still use or return.
func (l *Lease) unspent() int64 {
	if l.Final {
		return 0
	}
	return max(l.Granted-l.Returned-l.Used, 0)
}

// Blocks says how much is granted at once.
type Blocks struct {
	Parts int64         // a block is what remains, divided by Parts and the holders
	Most  int64         // and at most this; 0 for no bound
	Near  int64         // below this remainder only what was asked for is granted
	TTL   time.Duration // of a lease
}

// DefaultBlocks suits a budget of the given size: two blocks per holder
// would empty what remains, and the last twentieth goes request by request.
func DefaultBlocks(budget int64) Blocks {
	return Blocks{Parts: 2, Near: budget / 20, TTL: 10 * time.Second}
}

// Committed is what is used or held by gateways.
func (b *Budget) Committed() int64 {
	sum := b.Closed
	for i := range b.Leases {
		sum += b.Leases[i].committed()
	}
	return sum
}

// Used is what gateways have reported as used, and what was counted for those
// that are gone.
func (b *Budget) Used() int64 {
	sum := b.Closed
	for i := range b.Leases {
		if !b.Leases[i].Final {
			sum += b.Leases[i].Used
		}
	}
	return sum
}

// Remaining is what nobody has used or holds; never below 0.
func (b *Budget) Remaining() int64 { return max(b.Max-b.Committed(), 0) }

// Renew takes in a holder's report, extends its lease and grants a block if
// one is asked for and remains. Repeating a request without Ask changes
// nothing. The error is a *ClosedLease after Close.
func (b *Budget) Renew(h Holder, r LeaseRequest, rule Blocks, now time.Time) (LeaseReply, error) {
	l, err := b.lease(h)
	if err != nil {
		return LeaseReply{}, err
	}
	l.report(r)
	l.ExpiresAt = now.Add(rule.TTL)
	if r.Ask > 0 {
		l.Granted += b.block(r.Ask, rule)
	}
	reply := LeaseReply{Generation: h.Generation, Granted: l.Granted, TTL: rule.TTL, Remaining: b.Remaining()}
	for i := range b.Leases {
		if b.Leases[i].Holder != h {
			reply.Elsewhere += b.Leases[i].unspent()
		}
	}
	return reply, nil
}

func (b *Budget) lease(h Holder) (*Lease, error) {
	for i := range b.Leases {
		l := &b.Leases[i]
		switch {
		case l.Holder != h:
		case l.Final:
			return nil, &ClosedLease{l.Used}
		default:
			return l, nil
		}
	}
	b.Leases = append(b.Leases, Lease{Holder: h})
	return &b.Leases[len(b.Leases)-1], nil
}

// report keeps the largest of every cumulative count, because messages may
// arrive late or twice.
func (l *Lease) report(r LeaseRequest) {
	l.Used = max(l.Used, r.Used)
	l.Returned = max(l.Returned, min(r.Returned, l.Granted))
	l.Reserved = r.Reserved
}

// block decides the size of a grant: nothing if the ask cannot be met whole,
// because a part would only lie idle.
func (b *Budget) block(ask int64, rule Blocks) int64 {
	remaining := b.Remaining()
	if remaining < ask {
		return 0
	}
	if remaining <= rule.Near {
		return ask
	}
	live := int64(0)
	for i := range b.Leases {
		if !b.Leases[i].Final {
			live++
		}
	}
	size := remaining / max(rule.Parts*live, 1)
	if rule.Most > 0 {
		size = min(size, rule.Most)
	}
	return min(max(size, ask), remaining)
}

// Expired lists the holders whose leases ended before now and were neither
// renewed nor closed. Before closing one, the store brings the ledger of that
// epoch up to date; and after an outage of its own it gives holders a TTL of
// time to renew. Until Close a late renewal revives the lease.
func (b *Budget) Expired(now time.Time) []Lease {
	var out []Lease
	for _, l := range b.Leases {
		if !l.Final && l.ExpiresAt.Before(now) {
			out = append(out, l)
		}
	}
	return out
}

// ErrNoLease says that a holder has no lease to close.
var ErrNoLease = errors.New("no such lease")

// Close ends a lease for good and frees its unspent part. used is what the
// ledger holds of it; the holder's own report counts where it is more. For a
// holder that may still be alive, or whose spool has not been read, the caller
// adds the lease's Reserved, or Granted less Returned to be quite safe, and
// takes the excess back by Late once the ledger is complete. From then on the
// holder is fenced: Renew answers with ClosedLease.
func (b *Budget) Close(h Holder, used int64) error {
	for i := range b.Leases {
		l := &b.Leases[i]
		if l.Holder != h || l.Final {
			continue
		}
		l.Used = max(l.Used, used)
		l.Final = true
		b.Closed += l.Used
		return nil
	}
	return ErrNoLease
}

// Late adds what ledger rows say that came after their process's lease was
// closed, or where it is negative takes back what Close had counted too much,
// so that the counter becomes the ledger's sum. It may bring the budget over
// Max: it records what has happened.
func (b *Budget) Late(used int64) { b.Closed += used }

// Clone returns a deep copy.
func (b *Budget) Clone() Budget {
	c := *b
	c.Leases = slices.Clone(b.Leases)
	return c
}

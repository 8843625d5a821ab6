package quota

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxMatching is how many limits may match one request: a Reservation marks
// them in one word.
const maxMatching = 64

// Options are an Account's own settings.
type Options struct {
	// Leased budgets are granted in blocks by ApplyLease. Otherwise this
	// gateway is alone and owns every budget whole.
	Leased bool
	// Strict refuses when a lease has expired and cannot be renewed.
	Strict bool
}

// Account holds one tenant's limits and counters. It is safe for concurrent
// use.
type Account struct {
	opts Options

	mu     sync.Mutex
	peers  int64 // gateways that share rates and slots
	limits []Limit
	states map[stateKey]*state
	plans  map[planKey]*plan
	named  names
	queue  [2]*Reservation // first and last of the open ones
	nopen  int
}

// noPeriod is the period of an unused wallet.
const noPeriod Period = -1 << 31

// stateKey names a counter. Key is set where a limit counts each key apart.
type stateKey struct{ limit, key string }

// planKey is a request as far as limits can tell requests apart.
type planKey struct{ key, model, tier, class string }

// names is what limits name, so that all other requests share one plan.
type names struct {
	keys, models, classes map[string]bool
	each                  bool // some limit counts each key apart
}

func namesOf(limits []Limit) names {
	n := names{map[string]bool{}, map[string]bool{}, map[string]bool{}, false}
	for _, l := range limits {
		n.each = n.each || l.Key == EachKey
		for _, m := range [...]struct {
			set  map[string]bool
			name string
		}{{n.keys, l.Key}, {n.models, l.Model}, {n.classes, l.Class}} {
			if m.name != "" {
				m.set[m.name] = true
			}
		}
	}
	return n
}

// planKey leaves out of a request what no limit names.
func (n *names) planKey(r *Request) planKey {
	k := planKey{tier: r.Tier}
	if n.each || len(n.keys) > 0 && n.keys[r.Key] {
		k.key = r.Key
	}
	if len(n.models) > 0 && n.models[r.Model] {
		k.model = r.Model
	}
	if len(n.classes) > 0 && n.classes[r.Class] {
		k.class = r.Class
	}
	return k
}

// plan lists the counters that a kind of request must pass.
type plan struct{ states []*state }

// state is the counter behind a limit.
type state struct {
	limit     Limit
	key       string
	bucket    bucket    // Minute
	wallets   [2]wallet // Day, Month: this period and the last
	inUse     int64     // AtOnce
	share     int64     // AtOnce: this gateway's part of Max
	demand    int64     // asked for since the last Demands
	wouldHave int64     // Shadow: refusals not made since the last Shadowed
}

// NewAccount makes an account with full buckets and, where not leased, whole
// budgets. The error says which limit is wrong.
func NewAccount(limits []Limit, opts Options, now time.Time) (*Account, error) {
	a := &Account{opts: opts, states: map[stateKey]*state{}}
	if err := a.Update(limits, now); err != nil {
		return nil, err
	}
	return a, nil
}

// Update replaces the limits. A counter lives on where a limit of the same id
// counts the same thing; open reservations settle as they were made.
func (a *Account) Update(limits []Limit, now time.Time) error {
	seen := make(map[string]bool, len(limits))
	for _, l := range limits {
		if err := l.Validate(); err != nil {
			return err
		}
		if seen[l.ID] {
			return fmt.Errorf("limit %s: id is used twice", l.ID)
		}
		seen[l.ID] = true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits = append([]Limit(nil), limits...)
	a.plans = map[planKey]*plan{}
	a.named = namesOf(limits)
	a.carryOver(now)
	return nil
}

// carryOver moves counters to the new limits and drops those without one.
func (a *Account) carryOver(now time.Time) {
	byID := make(map[string]*Limit, len(a.limits))
	for i := range a.limits {
		byID[a.limits[i].ID] = &a.limits[i]
	}
	for k, s := range a.states {
		l := byID[k.limit]
		if l == nil || l.Kind != s.limit.Kind || l.Window != s.limit.Window || l.Key != s.limit.Key {
			delete(a.states, k)
			continue
		}
		s.adopt(*l, now)
	}
}

func (s *state) adopt(l Limit, now time.Time) {
	// A share of the old limit stays the same part of the new one until the
	// next refresh.
	old := s.limit
	s.limit = l
	switch l.Window {
	case Minute:
		s.bucket.resize(scale(s.bucket.max, l.Max, old.Max), scale(s.bucket.burst, l.burst(), old.burst()), now.UnixMicro())
	case AtOnce:
		s.share = scale(s.share, l.Max, old.Max)
	default:
		for i := range s.wallets {
			if w := &s.wallets[i]; !w.leased {
				w.granted = l.Max
			}
		}
	}
}

// scale returns share*to/from, and to where from was nothing.
func scale(share, to, from int64) int64 {
	if from == 0 || share == from {
		return to
	}
	return int64(float64(share) / float64(from) * float64(to))
}

func (a *Account) newState(l Limit, key string, now time.Time) *state {
	s := &state{limit: l, key: key, share: a.part(l.Max)}
	switch l.Window {
	case Minute:
		s.bucket = newBucket(a.part(l.Max), a.part(l.burst()), now.UnixMicro())
	case Day, Month:
		s.wallets[0] = a.newWallet(&l, PeriodAt(l.Window, now))
		s.wallets[1].period = noPeriod
	}
	return s
}

func (a *Account) newWallet(l *Limit, p Period) wallet {
	w := wallet{period: p, leased: a.opts.Leased}
	if !w.leased {
		w.granted = l.Max
	}
	return w
}

// wallet returns the counter of a period: the present one, started when now is
// in a new period, or the last. It is nil for periods further back.
func (a *Account) wallet(s *state, p Period) *wallet {
	if p > s.wallets[0].period {
		s.wallets[1] = s.wallets[0]
		s.wallets[0] = a.newWallet(&s.limit, p)
	}
	for i := range s.wallets {
		if s.wallets[i].period == p {
			return &s.wallets[i]
		}
	}
	return nil
}

var errTooManyLimits = errors.New("more than 64 limits match one request: merge some")

// planFor returns the counters that a request must pass, made once for each
// kind of request that limits can tell apart.
func (a *Account) planFor(r *Request, now time.Time) (*plan, error) {
	k := a.named.planKey(r)
	if p := a.plans[k]; p != nil {
		return p, nil
	}
	p := &plan{}
	for _, l := range a.limits {
		if !l.matches(r) {
			continue
		}
		p.states = append(p.states, a.stateFor(l, r.Key, now))
	}
	if len(p.states) > maxMatching {
		return nil, errTooManyLimits
	}
	a.plans[k] = p
	return p, nil
}

func (l *Limit) matches(r *Request) bool {
	return (l.Key == "" || l.Key == EachKey || l.Key == r.Key) &&
		(l.Model == "" || l.Model == r.Model) && (l.Tier == "" || l.Tier == r.Tier) && (l.Class == "" || l.Class == r.Class)
}

func (a *Account) stateFor(l Limit, key string, now time.Time) *state {
	k := stateKey{limit: l.ID}
	if l.Key == EachKey {
		k.key = key
	}
	s := a.states[k]
	if s == nil {
		s = a.newState(l, k.key, now)
		a.states[k] = s
	}
	return s
}

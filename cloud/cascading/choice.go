package cascading

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade/tiers"
)

// Cell is what an arm belongs to beside its entry: the equals are compared within
// an SLO class.
type Cell struct{ Class, Pool string }

// Arms are what the equals' answers have earned.
type Arms map[Cell]tiers.Arm

// SetArms replaces what is known of the equals. The entry owns the map from now on,
// and leaves pools out that it does not have any more.
func (e *Entry) SetArms(a Arms) {
	maps.DeleteFunc(a, func(c Cell, _ tiers.Arm) bool { return !slices.Contains(e.Equals(), c.Pool) })
	e.arms.Store(&a)
}

// Arms returns what is known of the equals.
func (e *Entry) Arms() Arms { return *e.arms.Load() }

// How says how one of the equals was chosen.
type How string

// The ways. Only a drawn one explores.
const (
	HowDrawn   How = "drawn"   // by chance: the better arms more often
	HowBest    How = "best"    // exploration is excluded: the best mean less its price
	HowSession How = "session" // the session, or the chain of tool calls, is there already
	HowOnly    How = "only"    // nobody else may be asked
	HowNone    How = "none"    // limits leave nobody: the cheapest, which they will refuse
)

// Out is why a pool cannot be chosen.
type Out string

// The limits. None is ever traded for quality or price.
const (
	OutAbsent   Out = "absent" // no instance takes the request
	OutCostCap  Out = "cost_cap"
	OutBudget   Out = "budget"
	OutDeadline Out = "deadline"
	OutQuota    Out = "quota" // a limit of the tenant names it and has no room
)

// Offer is what a request finds of one of the equals.
type Offer struct {
	Nano int64 // bound of what an answer costs, nano-dollars
	Out  Out   // of the limits that the caller knows; "": none
}

// Asking is what a choice looks at. Seed makes it: the same Asking finds the same
// pool as long as the arms are the same.
type Asking struct {
	Class     string
	Offers    []Offer       // one for each of Equals
	Judged    bool          // a small pool is asked before: the entry's budget pays
	Remaining time.Duration // until the deadline; 0 without one
	Steady    bool          // nothing may be explored
	Session   string        // names whom a conversation stays with; "": none
	Seed      uint64
	Now       time.Time
}

// Candidate is one of the equals in a Choice.
type Candidate struct {
	Pool       string  `json:"pool"`
	Mean       float64 `json:"mean"`       // expected quality, 0 to 1
	Price      float64 `json:"price"`      // in units of quality
	Right      float64 `json:"right"`      // the arm's fading weight of good answers
	Wrong      float64 `json:"wrong"`      // and of bad ones
	Propensity float64 `json:"propensity"` // with which it is chosen
	Out        Out     `json:"out,omitempty"`
}

// Choice is which of the equals answers.
type Choice struct {
	Tier int // as Case and Ask count
	// Propensity is the probability with which it was chosen, given what was known.
	Propensity float64
	How        How
	// Rest are the tiers that may answer instead, the best first.
	Rest       []int
	Candidates []Candidate
}

// Choose picks one of the equals: Thompson sampling of quality less price, and
// the best mean where exploring is excluded. Source: Thompson 1933; for the
// exclusions see docs/cascade.md.
func (e *Entry) Choose(a *Asking) Choice {
	c, explores := e.candidates(a)
	var arms []tiers.Arm
	var price []float64
	var open []int // of the candidates, those that may be asked
	for i := range c {
		if c[i].Out == "" {
			arms = append(arms, tiers.Arm{Right: c[i].Right, Wrong: c[i].Wrong})
			price = append(price, c[i].Price)
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return e.none(a, c)
	}
	out := Choice{How: HowDrawn, Candidates: c}
	at, shares := tiers.Best(arms, price), make([]float64, len(open))
	switch stays := slices.IndexFunc(open, func(i int) bool { return c[i].Pool == e.pins.find(a.Session, a.Now) }); {
	case len(open) == 1:
		out.How = HowOnly
	case stays >= 0:
		out.How, at = HowSession, stays
	case a.Steady || !explores:
		out.How = HowBest
	default:
		at = tiers.Choose(arms, price, rand.New(rand.NewPCG(a.Seed, 0)))
		shares = tiers.Propensities(arms, price)
	}
	if out.How != HowDrawn {
		shares[at] = 1
	}
	for k, i := range open {
		c[i].Propensity = shares[k]
		if k != at {
			out.Rest = append(out.Rest, e.drafts+i)
		}
	}
	slices.SortStableFunc(out.Rest, func(x, y int) int { return c[x-e.drafts].compare(&c[y-e.drafts]) })
	out.Tier, out.Propensity = e.drafts+open[at], shares[at]
	return out
}

// compare puts the better of two candidates first.
func (c *Candidate) compare(d *Candidate) int {
	switch x, y := c.Mean-c.Price, d.Mean-d.Price; {
	case x > y:
		return -1
	case x < y:
		return 1
	}
	return 0
}

// none is the choice where limits leave nobody. The limits' own refusals follow.
func (e *Entry) none(a *Asking, c []Candidate) Choice {
	at := 0
	for i := range c {
		if c[at].Out == OutAbsent && c[i].Out != OutAbsent || (c[at].Out == OutAbsent) == (c[i].Out == OutAbsent) && a.Offers[i].Nano < a.Offers[at].Nano {
			at = i
		}
	}
	c[at].Propensity = 1
	return Choice{Tier: e.drafts + at, Propensity: 1, How: HowNone, Candidates: c}
}

// candidates are the equals with what is known of them, and whether the choice may
// explore: never where money or time is short.
func (e *Entry) candidates(a *Asking) (c []Candidate, explores bool) {
	arms := e.Arms()
	e.mu.Lock()
	defer e.mu.Unlock()
	left, budgeted := e.left(a.Now)
	explores = e.o.Policy.Shadow == nil
	typical := e.typical(a.Offers)
	for i, name := range e.Equals() {
		arm, took := arms[Cell{a.Class, name}], e.duration(e.drafts+i)
		nano, out := a.Offers[i].Nano, a.Offers[i].Out
		switch {
		case out != "":
		case a.Judged && budgeted && nano > left:
			out = OutBudget
		case a.Remaining != 0 && a.Remaining < took:
			out = OutDeadline
		}
		explores = explores && (out == "" || out == OutAbsent) && (a.Remaining == 0 || out != "" || took > 0 && a.Remaining >= 2*took)
		c = append(c, Candidate{Pool: name, Mean: arm.Mean(), Price: e.price(e.drafts+i, nano, typical), Right: arm.Right, Wrong: arm.Wrong, Out: out})
	}
	return c, explores
}

// typical is the share of its bound that an answer costs, as far as that is known
// of one of the equals: else one that has never answered would look too dear to try.
func (e *Entry) typical(offers []Offer) float64 {
	share := 1.0
	for i, o := range offers {
		if m := e.mean[e.drafts+i]; m > 0 && o.Nano > 0 {
			share = min(share, m/float64(o.Nano))
		}
	}
	return share
}

// price is what an answer is expected to cost in units of quality, 0 where nothing
// says what a right one is worth.
func (e *Entry) price(tier int, bound int64, typical float64) float64 {
	right := int64(0)
	if v := e.o.Policy.Value; v != nil {
		right = v.RightNano
	} else if b := e.o.Policy.Budget; b != nil {
		right = b.RightNano
	}
	if right == 0 {
		return 0
	}
	cost := float64(bound) * typical
	if e.mean[tier] > 0 {
		cost = float64(e.cost(tier, bound))
	}
	return cost / float64(right)
}

// duration is how long a whole answer of a tier is expected to take, 0 where none
// has been seen.
func (e *Entry) duration(tier int) time.Duration {
	return time.Duration(e.took[tier] * float64(time.Second))
}

// equal reports whether a tier is one of several equals.
func (e *Entry) equal(tier int) bool { return e.o.Equals > 1 && tier >= e.drafts }

// Paid notes what an attempt at one of the equals has cost, nano-dollars, and how
// long it took where it brought the whole answer; 0 for another.
func (e *Entry) Paid(pool string, nano int64, took time.Duration) {
	i := slices.Index(e.pools, pool)
	if i < 0 || !e.equal(i) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if nano > 0 {
		average(&e.mean[i], float64(nano))
	}
	if took > 0 {
		average(&e.took[i], took.Seconds())
	}
}

// Stay keeps a session with the pool that has answered it.
func (e *Entry) Stay(session, pool string, now time.Time) { e.pins.set(session, pool, now) }

package cascading

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/tiers"
	"github.com/weirhq/weir/cascade/verifier"
)

// Ask is what a judgement looks at beside the answer.
type Ask struct {
	Now         time.Time
	Fingerprint string            // of the instance that answers, as package pool tells it
	Remaining   time.Duration     // until the deadline; 0 without one, negative once it has passed
	Nano        [tiers.Most]int64 // bounds of what asking each tier costs, nano-dollars
}

// Case is one request before the entry's policy. One goroutine owns it, and
// ends it with Settle.
type Case struct {
	e       *Entry
	last    int             // the tier that answers in the end
	next    int             // the tier to ask after an escalation
	verdict cascade.Verdict // the one that counts
	ran     [tiers.Most]run

	// What the newest judgement rested on: see Told.
	threshold float64
	weighed   []Weighed
}

// run is what is known of a tier's answer.
type run struct {
	ran, known     bool
	failed         bool    // it is no answer, or breaks its form
	absent         bool    // there is no instance that could give one
	p              float64 // that it is right
	reserved, paid int64
}

// Open begins a request; last is the one of the equals that Choose has chosen, and
// may be any where there is one.
func (e *Entry) Open(last int) *Case {
	return &Case{e: e, last: min(max(last, e.drafts), len(e.pools)-1)}
}

// Instead lets another of the equals answer in the end, because the one before
// does not. It reports false, and changes nothing, where the budget does not hold
// that.
func (c *Case) Instead(tier int, ask Ask) bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	was, held := c.last, c.ran[c.last].reserved
	c.ran[was].reserved, c.last, c.next = 0, tier, tier
	if c.e.reserved -= held; c.reserve(&ask) {
		return true
	}
	c.ran[was].reserved, c.last, c.next = held, was, was
	c.e.reserved += held
	return false
}

// Next is the tier that an escalation asks. One that has answered already is
// the better of those that did: its answer is to stand.
func (c *Case) Next() int { return c.next }

// Policy is the name of the policy that judges.
func (c *Case) Policy() string {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.ctl.Policy(policy.Costs{}).Name
}

// judge is the policy's verdict on a tier's answer that is right with
// probability pe, unless that is not known; failed says that it is no answer at
// all, unseen that nothing of it was shown. votes are its model's own on it, nil
// where there are none.
func (c *Case) judge(tier int, pe float64, known, failed, unseen bool, votes *verifier.Votes, ask *Ask) cascade.Verdict {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	quality := math.NaN()
	switch {
	case failed:
		pe = 0
	case known && votes != nil:
		pe, quality = c.voted(tier, pe, votes, ask)
	}
	r := &c.ran[tier]
	r.ran, r.known, r.failed, r.p = true, known || failed, failed, pe
	var p cascade.Policy
	if e.drafts == 1 {
		c.next, p = c.last, e.ctl.Policy(policy.Costs{CloudNano: e.cost(c.last, ask.Nano[c.last])})
	} else {
		p = c.weigh(tier, known, failed, ask)
	}
	c.note(&p)
	if e.drafts > 1 && p.Rule == cascade.RuleAlwaysEdge && unseen && c.next != tier { // a better answer waits
		return cascade.Verdict{Escalate: true, Wanted: true, Reason: cascade.ReasonLowConfidence, Confidence: pe, Known: known}
	}
	if p.Rule == cascade.RuleGain && !math.IsNaN(quality) {
		p.CloudQuality = quality
	}
	req := cascade.Request{Remaining: ask.Remaining}
	node := cascade.Node{EdgeReady: true, Link: cascade.LinkUp, CloudCost: c.most(c.next, ask)}
	node.Budget, node.Budgeted = e.left(ask.Now)
	v := cascade.Judge(&req, pe, known, failed, &p, &node)
	if failed && !v.Escalate { // whatever limit keeps it, the client is told what is wrong
		v.Reason = cascade.ReasonValidatorFailed
	}
	return v
}

// weigh is the policy for an answer of three and more tiers, and sets the tier
// that comes next; where none is worth its price that is the best that ran.
func (c *Case) weigh(tier int, known, failed bool, ask *Ask) cascade.Policy {
	p := c.e.ctl.Policy(policy.Costs{})
	c.next = c.route(ask)
	switch {
	case c.next >= 0 && known:
		p.Rule, p.Theta = cascade.RuleAlwaysCloud, c.e.theta(c.next, ask)
	case c.next >= 0:
	case known && !failed:
		p.Rule, c.next = cascade.RuleAlwaysEdge, tier
		for i := range c.ran {
			if r := &c.ran[i]; r.ran && r.known && r.p > c.ran[c.next].p {
				c.next = i
			}
		}
	default: // nothing is known of the answer: the next larger one is
		c.next = c.above(tier)
	}
	return p
}

// above is the next larger tier that is there and has not answered, or the last.
func (c *Case) above(tier int) int {
	for tier++; tier < c.e.drafts && (c.ran[tier].absent || c.ran[tier].ran); tier++ {
	}
	if tier < c.e.drafts {
		return tier
	}
	return c.last
}

// Absent says that a tier has no instance to ask, and chooses again. It returns ""
// where Next is to be asked then, and else the reason for which nobody is: an
// answer that waits stands, or the request is refused. Where every tier is absent
// Next is the last one.
func (c *Case) Absent(tier int, ask Ask) cascade.Reason {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	r := &c.ran[tier]
	c.e.reserved -= r.reserved
	r.reserved, r.absent = 0, true
	if c.next = c.last; c.e.drafts > 1 {
		c.next = c.route(&ask)
	}
	if c.next < 0 {
		if c.next = c.above(tier); c.affords(c.next, &ask) && c.judged() {
			return cascade.ReasonLowConfidence
		}
	}
	if !c.reserve(&ask) {
		return cascade.ReasonBudget
	}
	return ""
}

// judged reports whether something is known of an answer that ran and is one.
func (c *Case) judged() bool {
	return slices.ContainsFunc(c.ran[:], func(r run) bool { return r.ran && r.known && !r.failed })
}

// calibration is that of the model that answered, nil for another: nothing is
// known of its answers.
func (c *Case) calibration(tier int, ask *Ask) *cascade.Calibration {
	if cal := &c.e.o.Tiers[tier].Calibration; strings.HasPrefix(ask.Fingerprint, cal.Fingerprint+":") {
		return cal
	}
	return nil
}

// reserve promises the request what asking the next tier may cost. It reports
// false where the budget does not hold that any more. The entry is locked.
func (c *Case) reserve(ask *Ask) bool {
	r := &c.ran[c.next]
	if r.ran {
		return true
	}
	if !c.affords(c.next, ask) {
		return false
	}
	r.reserved = c.most(c.next, ask)
	c.e.reserved += r.reserved
	return true
}

// affords reports whether the budget, which the small tier is not a part of,
// holds what asking a tier may cost.
func (c *Case) affords(tier int, ask *Ask) bool {
	left, budgeted := c.e.left(ask.Now)
	return !budgeted || tier == 0 || left > 0 && c.most(tier, ask) <= left
}

// most bounds what asking a tier costs: its answer and, where its votes on it may
// be asked for, another prompt.
func (c *Case) most(tier int, ask *Ask) int64 {
	nano := ask.Nano[tier]
	if tier < c.e.drafts && c.e.votes[tier] && nano < math.MaxInt64/2 {
		nano *= 2
	}
	return nano
}

// Paid notes what an attempt at a pool has cost, nano-dollars, and how long it took
// where it brought the whole answer; 0 for another. Of how long equals take
// Entry.Paid hears.
func (c *Case) Paid(pool string, nano int64, took time.Duration) {
	i := slices.Index(c.e.pools, pool)
	if i < 0 {
		return
	}
	c.ran[i].paid += nano
	if took > 0 && !c.e.equal(i) {
		c.e.mu.Lock()
		defer c.e.mu.Unlock()
		average(&c.e.took[i], took.Seconds())
	}
}

// Settle tells the controller how the request ended. Answers that could not be
// judged do not move a threshold: it has no hold on them.
func (c *Case) Settle(now time.Time) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	spent := int64(0)
	for i := range e.pools {
		r := &c.ran[i]
		e.reserved -= r.reserved
		if r.ran && r.known {
			e.expects[i].observe(r.p)
		}
		if i > 0 {
			spent += r.paid
		}
		if r.paid > 0 && !e.equal(i) { // of those Entry.Paid hears
			average(&e.mean[i], float64(r.paid))
		}
	}
	if _, money := e.ctl.BudgetLeft(now); money || c.verdict.Known {
		e.ctl.Observe(policy.Decided{Verdict: c.verdict, SpentNano: spent}, now)
	}
}

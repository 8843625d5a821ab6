package policies

import (
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
)

// Class is one policy in force. It is safe for concurrent use; the methods of a
// nil Class say that there is none.
type Class struct {
	settings policy.Settings
	*owner
}

// owner holds the controller, which is not safe for concurrent use, and the
// money that is promised to requests under way.
type owner struct {
	fallback cascade.Policy
	name     string
	plain    bool // the settings name no threshold: the fallback's is used

	mu       sync.Mutex
	ctl      *policy.Controller
	money    bool
	reserved int64   // nano-dollars of requests under way
	mean     float64 // moving mean of what an answer of the cloud cost, nano-dollars
	judged   uint64
	wanted   uint64
}

func (s *Set) newClass(set policy.Settings) *Class {
	kind := ""
	switch {
	case set.Threshold != nil:
		kind = s.fallback.Name
	case set.Rate != nil:
		kind = "rate"
	case set.Value != nil:
		kind = "value"
	case set.Budget != nil:
		kind = "budget"
	case set.Risk != nil:
		kind = "risk"
	}
	o := &owner{fallback: s.fallback, name: set.Name, plain: kind == "", ctl: policy.NewController(set, s.cal), money: set.Budget != nil}
	if o.name == "" {
		o.name = kind
	}
	if o.name == "" {
		o.name = s.fallback.Name
	}
	return &Class{settings: set, owner: o}
}

// restore continues from what an earlier controller of the same row knew.
func (o *owner) restore(from policy.Saved) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ctl.Restore(from)
}

// saved is what the controller has to remember. Money that is promised to
// requests under way counts as spent: if this process dies they may still cost it.
func (o *owner) saved() policy.Saved {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.ctl.Saved()
	s.Spent += o.reserved
	return s
}

// guarded returns the class with the same owner, made as strict as a refused
// policy asks for.
func (c *Class) guarded(strict policy.Settings) *Class {
	g := &Class{settings: c.settings, owner: c.owner}
	g.settings.Privacy = cascade.Stricter(g.settings.Privacy, strict.Privacy)
	if strict.Mode == cascade.ModeEdgeOnly {
		g.settings.Mode = strict.Mode
	}
	return g
}

// Settings are the settings in force.
func (c *Class) Settings() policy.Settings { return c.settings }

// Policy returns the rule for an answer that is to be judged now. The cost in
// k is an upper bound; once answers have been paid for, their mean stands in.
func (c *Class) Policy(k policy.Costs) cascade.Policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.fallback
	if !c.plain {
		if c.mean > 0 {
			k.CloudNano = min(k.CloudNano, int64(c.mean))
		}
		p = c.ctl.Policy(k)
	}
	p.Name = c.name
	return p
}

// Budget is what may still be promised on the day of now (UTC), nano-dollars; ok
// is false where no budget is set.
func (c *Class) Budget(now time.Time) (left int64, ok bool) {
	if c == nil || !c.money {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left, ok = c.ctl.BudgetLeft(now)
	return max(0, left-c.reserved), ok
}

// Reserve promises a request what asking the cloud may cost at most. It reports
// false, and promises nothing, when the budget does not hold it any more.
func (c *Class) Reserve(nano int64, now time.Time) bool {
	if c == nil || !c.money {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	left, _ := c.ctl.BudgetLeft(now)
	if left -= c.reserved; left <= 0 || nano > left {
		return false
	}
	c.reserved += nano
	return true
}

// Charge ends a call that was made for a label: what Reserve promised, and what
// it cost.
func (c *Class) Charge(reserved, spent int64, now time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ctl.Charge(spent, now)
	if c.money {
		c.reserved -= reserved
	}
}

// Settlement ends what a request had with its class.
type Settlement struct {
	Verdict  cascade.Verdict
	Judged   bool  // the policy's rule was asked
	Reserved int64 // what Reserve promised, 0 for nothing
	Spent    int64 // on the cloud, nano-dollars
}

// Settle tells the controller of a request that has ended. Answers that could
// not be judged do not move a threshold: it has no hold on them.
func (c *Class) Settle(e Settlement, now time.Time) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.money { // without a budget Reserve adds nothing
		c.reserved -= e.Reserved
	}
	if e.Spent > 0 {
		if c.mean == 0 {
			c.mean = float64(e.Spent)
		}
		c.mean += (float64(e.Spent) - c.mean) / 32
	}
	if e.Judged {
		c.judged++
		if e.Verdict.Wanted {
			c.wanted++
		}
	}
	if (e.Judged && (e.Verdict.Known || e.Verdict.Reason != cascade.ReasonSignalUnusable)) || c.money {
		c.ctl.Observe(policy.Decided{Verdict: e.Verdict, SpentNano: e.Spent}, now)
	}
}

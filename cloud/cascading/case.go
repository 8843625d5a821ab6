package cascading

import (
	"strings"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
)

// Ask is what a judgement looks at beside the answer.
type Ask struct {
	Now         time.Time
	Fingerprint string        // of the instance that answers, as package pool tells it
	Remaining   time.Duration // until the deadline; 0 without one, negative once it has passed
	LargeNano   int64         // bound of what asking the large pool costs
}

// Case is one request before the entry's policy. One goroutine owns it, and
// ends it with Settle.
type Case struct {
	e        *Entry
	verdict  cascade.Verdict // the one that counts
	reserved int64
	spent    int64
}

// Open begins a request.
func (e *Entry) Open() *Case { return &Case{e: e} }

// Policy is the name of the policy that judges.
func (c *Case) Policy() string {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.ctl.Policy(policy.Costs{}).Name
}

// judge is the policy's verdict on an answer that is right with probability pe,
// unless that is not known; failed says that it is no answer at all.
func (c *Case) judge(pe float64, known, failed bool, ask *Ask) cascade.Verdict {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	cost := ask.LargeNano
	if e.mean > 0 {
		cost = min(cost, int64(e.mean))
	}
	p := e.ctl.Policy(policy.Costs{CloudNano: cost})
	req := cascade.Request{Remaining: ask.Remaining}
	node := cascade.Node{EdgeReady: true, Link: cascade.LinkUp, CloudCost: ask.LargeNano}
	node.Budget, node.Budgeted = e.left(ask.Now)
	return cascade.Judge(&req, pe, known, failed, &p, &node)
}

// calibration is that of the model that answered, nil for another: nothing is
// known of its answers.
func (c *Case) calibration(ask *Ask) *cascade.Calibration {
	if cal := &c.e.o.Calibration; strings.HasPrefix(ask.Fingerprint, cal.Fingerprint+":") {
		return cal
	}
	return nil
}

// reserve promises the request what asking the large pool may cost. It reports
// false where the budget does not hold that any more.
func (c *Case) reserve(ask *Ask) bool {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if left, ok := c.e.left(ask.Now); ok && (left <= 0 || ask.LargeNano > left) {
		return false
	}
	c.reserved += ask.LargeNano
	c.e.reserved += ask.LargeNano
	return true
}

// Paid notes what an attempt at the large pool has cost, nano-dollars.
func (c *Case) Paid(nano int64) { c.spent += nano }

// Settle tells the controller how the request ended. Answers that could not be
// judged do not move a threshold: it has no hold on them.
func (c *Case) Settle(now time.Time) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved -= c.reserved
	if n := float64(c.spent); n > 0 {
		if e.mean == 0 {
			e.mean = n
		}
		e.mean += (n - e.mean) / 32
	}
	if _, money := e.ctl.BudgetLeft(now); money || c.verdict.Known {
		e.ctl.Observe(policy.Decided{Verdict: c.verdict, SpentNano: c.spent}, now)
	}
}

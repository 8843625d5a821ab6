package cascading

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/tiers"
)

// expectation is what is expected of a tier's next answer: mean and spread of
// the confidence that it will have. It starts with what is configured and moves
// with the confidences of the answers that are seen, which are those that the
// tier is asked for.
type expectation struct{ weight, sum, square float64 }

const (
	priorWeight  = 20   // answers that the configured values count for
	expectMemory = .999 // of the weight, by answer
)

func newExpectation(mean, sd float64) expectation {
	return expectation{priorWeight, priorWeight * mean, priorWeight * (mean*mean + sd*sd)}
}

func (x *expectation) observe(p float64) {
	x.weight = expectMemory*x.weight + 1
	x.sum = expectMemory*x.sum + p
	x.square = expectMemory*x.square + p*p
}

func (x *expectation) tier() tiers.Tier {
	mean := x.sum / x.weight
	return tiers.Tier{Mean: mean, SD: math.Sqrt(math.Max(0, x.square/x.weight-mean*mean))}
}

// expect starts the expectations.
func (e *Entry) expect() error {
	for i, t := range e.o.Tiers {
		mean, sd := t.Quality, 0.0
		if i < e.drafts {
			sd = spread(&t.Calibration)
		}
		switch {
		case mean < 0 || mean > 1:
			return fmt.Errorf("quality of pool %s is %v, want 0 to 1", t.Pool, mean)
		case mean > 0:
		case i < e.drafts:
			mean = t.Calibration.EdgeAccuracy
		case e.drafts > 0:
			mean = e.o.Tiers[e.drafts-1].Calibration.CloudAccuracy
		}
		switch many := e.drafts > 1; {
		case many && mean == 0:
			return fmt.Errorf("nothing is known of pool %s: set its quality", t.Pool)
		case many && i < e.drafts && sd == 0:
			return fmt.Errorf("the calibration of pool %s has no quantiles, by which the route weighs what may come: make it with 'weir cascade calibrate'", t.Pool)
		}
		e.expects = append(e.expects, newExpectation(mean, sd))
	}
	return nil
}

// spread is the standard deviation of a calibration's confidences, 0 where it
// does not tell.
func spread(c *cascade.Calibration) float64 {
	if len(c.Quantiles) == 0 {
		return 0
	}
	sum, square := 0.0, 0.0
	for _, q := range c.Quantiles {
		sum, square = sum+q, square+q*q
	}
	n := float64(len(c.Quantiles))
	return math.Sqrt(math.Max(0, square/n-sum*sum/n/n))
}

// cost is what an answer of a tier is expected to cost, nano-dollars, of which
// bound is the most.
func (e *Entry) cost(tier int, bound int64) int64 {
	if m := e.mean[tier]; m > 0 {
		return min(bound, int64(m))
	}
	return bound
}

// average moves a mean of a pool by one answer.
func average(mean *float64, x float64) {
	if *mean == 0 {
		*mean = x
	}
	*mean += (x - *mean) / 32
}

// theta is the gain that an answer of a tier must bring to be worth its price.
func (e *Entry) theta(tier int, ask *Ask) float64 {
	return e.ctl.Policy(policy.Costs{CloudNano: e.cost(tier, ask.Nano[tier])}).Theta
}

// route is the tier to ask now by cascade routing (tiers.Next), -1 for none
// beyond those that ran.
func (c *Case) route(ask *Ask) int {
	var list [tiers.Most]tiers.Tier
	c.weighed = c.weighed[:0]
	for i, name := range c.e.pools {
		t := c.e.expects[i].tier()
		t.Cost = c.e.theta(i, ask)
		state := c.standing(i, ask)
		if state == StandingJudged {
			t = tiers.Tier{Ran: true, Mean: c.ran[i].p, Cost: t.Cost}
		}
		t.Blocked = state != StandingJudged && state != StandingOpen
		list[i] = t
		c.weighed = append(c.weighed, Weighed{name, t.Mean, t.SD, t.Cost, state})
	}
	next, err := tiers.Next(list[:len(c.e.pools)], 1)
	if err != nil { // prices beyond counting
		return -1
	}
	return next
}

package policy

import (
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
)

// Controller owns the threshold of one tenant and SLO class on one node. It is
// not safe for concurrent use: Policy and Observe are called by its owner, who
// publishes the policies.
type Controller struct {
	set     Settings
	cal     cascade.Calibration
	quality float64

	tracker  *control.Tracker
	pacer    control.Pacer
	forecast control.Forecast
	risk     *control.RiskTracker
	bound    control.Bound
	hasBound bool

	day   int64 // Unix day of spent
	spent int64 // nano-dollars today
	hour  int64 // Unix hour of count
	count float64
}

// NewController returns a controller that starts where the calibration says.
func NewController(s Settings, cal cascade.Calibration) *Controller {
	c := &Controller{set: s, cal: cal, quality: cal.CloudAccuracy}
	if c.quality == 0 {
		c.quality = 1 // labels are agreement with the cloud
	}
	if s.Rate != nil {
		if t, ok := cal.ThresholdFor(*s.Rate); ok {
			c.tracker = control.NewWarmTracker(*s.Rate, c.quality-t)
		} else {
			c.tracker = control.NewTracker(*s.Rate, c.quality-cal.Threshold)
		}
	}
	return c
}

// Costs are the node's estimates for one request.
type Costs struct {
	CloudNano    int64   // cost of the cloud call, nano-dollars
	ExtraSeconds float64 // latency that escalation adds
	RTTSeconds   float64
	// CloudQuality is what the node has learned of the cloud's probability of
	// being right; 0 leaves the calibration's.
	CloudQuality float64
}

// Policy returns the policy for the next request.
func (c *Controller) Policy(k Costs) cascade.Policy {
	var p cascade.Policy
	quality := c.quality
	if k.CloudQuality > 0 {
		quality = k.CloudQuality
	}
	switch {
	case c.set.Threshold != nil:
		p = cascade.ThresholdPolicy(*c.set.Threshold)
	case c.tracker != nil:
		p = cascade.GainPolicy(c.tracker.Theta(), c.quality)
	case c.set.Value != nil:
		v := c.set.Value
		latency := (k.ExtraSeconds + k.RTTSeconds) * float64(v.PerSecondNano)
		p = cascade.GainPolicy(cascade.PriceTheta(float64(k.CloudNano), 0, latency, 0, float64(v.RightNano)), quality)
	case c.set.Budget != nil:
		p = cascade.GainPolicy(cascade.PriceTheta(float64(k.CloudNano), c.pacer.Lambda(), 0, 0, float64(c.set.Budget.RightNano)), quality)
	case c.set.Risk != nil:
		p = c.riskPolicy()
	default:
		p = cascade.ThresholdPolicy(c.cal.Threshold)
	}
	p.Name = c.set.Name
	return p
}

// riskPolicy escalates all until a bound is known: a promise is kept before it
// can be proved. The tracker may escalate more than the bound asks, never less.
func (c *Controller) riskPolicy() cascade.Policy {
	p := cascade.Policy{Rule: cascade.RuleAlwaysCloud, Risk: true}
	if c.hasBound {
		p.Rule, p.CloudQuality, p.Theta = cascade.RuleGain, 1, min(c.risk.Theta(), c.bound.Theta)
	}
	return p
}

// Decided is what became of a judged answer.
type Decided struct {
	Verdict   cascade.Verdict
	SpentNano int64
}

// Observe notes a request at the caller's time.
func (c *Controller) Observe(d Decided, now time.Time) {
	if c.tracker != nil {
		c.tracker.Observe(d.Verdict.Wanted)
	}
	if c.risk != nil {
		c.risk.Observe(0, 1) // its label, if one comes, makes up for it
	}
	if c.set.Budget != nil {
		c.pace(d.SpentNano, now)
	}
}

// Label notes the late label of a kept answer: loss is 1 when it was wrong and
// right at the cloud, propensity the probability with which the label is seen.
func (c *Controller) Label(loss, propensity float64) {
	if c.risk != nil {
		c.risk.Label(loss, propensity)
	}
}

// Charge notes money that was spent beside the request's own answer, as on a
// shadow label.
func (c *Controller) Charge(nano int64, now time.Time) {
	if c.set.Budget != nil {
		c.turn(now)
		c.spent += nano
	}
}

// pace spreads what is left of the day over the requests expected until its
// end (UTC).
func (c *Controller) pace(spent int64, now time.Time) {
	c.turn(now)
	left := float64(c.set.Budget.PerDayNano - c.spent)
	hours := 24 - now.UTC().Hour()
	c.count++
	c.spent += spent
	c.pacer.Observe(float64(spent), c.forecast.PerRequest(left, control.HourOfWeek(now), hours))
}

// turn ends the hour and the day that now lies beyond.
func (c *Controller) turn(now time.Time) {
	hour, day := now.Unix()/3600, now.Unix()/86400
	if hour != c.hour {
		if c.hour > 0 {
			c.forecast.Observe(control.HourOfWeek(time.Unix(c.hour*3600, 0)), c.count)
		}
		c.hour, c.count = hour, 0
	}
	if day != c.day {
		c.day, c.spent = day, 0
	}
}

// BudgetLeft is what may still be spent on the day of now (UTC), nano-dollars;
// ok is false without a budget. The hard limit of cascade.Node.
func (c *Controller) BudgetLeft(now time.Time) (left int64, ok bool) {
	if c.set.Budget == nil {
		return 0, false
	}
	c.turn(now)
	return max(0, c.set.Budget.PerDayNano-c.spent), true
}

// Calibrate bounds the risk on a window of labelled requests, whose scores are
// gains over a cloud that is always right, and moves the threshold there. It returns control.ErrInfeasible, and leaves
// the threshold, when no threshold keeps the target.
func (c *Controller) Calibrate(items []control.RiskItem) (control.Bound, error) {
	if c.set.Risk == nil {
		return control.Bound{}, nil
	}
	b, err := control.LTT(items, c.set.Risk.Alpha, c.set.Risk.Delta)
	if err != nil {
		return control.Bound{}, err
	}
	c.bound, c.hasBound = b, true
	c.risk = control.NewRiskTracker(c.set.Risk.Alpha, b.Theta)
	return b, nil
}

// Drifted freezes the risk threshold at its last bound.
func (c *Controller) Drifted() {
	if c.risk != nil {
		c.risk.Freeze(c.bound.Theta)
	}
}

// Settled ends what Drifted began.
func (c *Controller) Settled() {
	if c.risk != nil {
		c.risk.Thaw()
	}
}

// State are the numbers that an operator sees.
type State struct {
	Theta, Lambda        float64
	RiskTarget, RiskUCB  float64
	SpentNano            int64
	RiskKnown, RateOwned bool
}

// State returns the controller's numbers.
func (c *Controller) State() State {
	s := State{Theta: c.Policy(Costs{}).Theta, Lambda: c.pacer.Lambda(), SpentNano: c.spent, RiskKnown: c.hasBound, RateOwned: c.tracker != nil}
	if c.set.Risk != nil {
		s.RiskTarget, s.RiskUCB = c.set.Risk.Alpha, c.bound.UCB
	}
	return s
}

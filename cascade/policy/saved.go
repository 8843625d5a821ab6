package policy

import (
	"math"

	"github.com/weirhq/weir/cascade/control"
)

// Saved is what a controller remembers over a restart, or over a change of
// settings. What was spent today stays spent whatever the settings say now;
// a threshold is taken over only by settings that ask for the same.
type Saved struct {
	Rate      *float64       `json:"rate,omitempty"`
	Theta     float64        `json:"theta,omitempty"`
	Decisions float64        `json:"decisions,omitempty"`
	Lambda    float64        `json:"lambda,omitempty"`
	Demand    []float64      `json:"demand,omitempty"` // requests by hour of the week, -1 where unknown
	Risk      *Risk          `json:"risk,omitempty"`
	Bound     *control.Bound `json:"bound,omitempty"`
	RiskTheta float64        `json:"risk_theta,omitempty"`
	Frozen    bool           `json:"frozen,omitempty"` // RiskTheta is held after a drift alarm
	Day       int64          `json:"day,omitempty"`    // Unix day of Spent
	Spent     int64          `json:"spent,omitempty"`  // nano-dollars
	Hour      int64          `json:"hour,omitempty"`   // Unix hour of Count
	Count     float64        `json:"count,omitempty"`
}

// Saved returns what the controller has to remember.
func (c *Controller) Saved() Saved {
	s := Saved{Rate: c.set.Rate, Risk: c.set.Risk, Lambda: c.pacer.Lambda(), Day: c.day, Spent: c.spent, Hour: c.hour, Count: c.count}
	if c.set.Budget != nil {
		s.Demand = c.forecast.Profile()
	}
	if c.tracker != nil {
		s.Theta, s.Decisions = c.tracker.Theta(), c.tracker.Decisions()
	}
	if c.hasBound && !math.IsInf(c.bound.Theta, 0) { // a bound that escalates all is no loss, and no JSON
		bound := c.bound
		s.Bound, s.RiskTheta, s.Frozen = &bound, c.risk.Theta(), c.risk.Frozen()
	}
	return s
}

// Restore takes over what an earlier controller of the same tenant and class
// has saved.
func (c *Controller) Restore(s Saved) {
	c.day, c.spent, c.hour, c.count = s.Day, s.Spent, s.Hour, s.Count
	c.pacer.Restore(s.Lambda)
	c.forecast.Restore(s.Demand)
	if c.tracker != nil && s.Rate != nil && *s.Rate == *c.set.Rate {
		c.tracker = control.RestoreTracker(*s.Rate, s.Theta, s.Decisions)
	}
	if c.set.Risk != nil && s.Risk != nil && *s.Risk == *c.set.Risk && s.Bound != nil {
		c.bound, c.hasBound = *s.Bound, true
		c.risk = control.NewRiskTracker(s.Risk.Alpha, s.RiskTheta)
		if s.Frozen {
			c.Drifted()
		}
	}
}

package cascading

import (
	"slices"

	"github.com/weirhq/weir/cascade"
)

// Told is what a judgement rested on, for the explanation. The price of the next
// pool is the verdict's Theta, in units of quality.
type Told struct {
	Broken bool // the answer broke its form, or said nothing
	// Threshold is the confidence below which the policy escalates; 0 where another
	// rule decides.
	Threshold float64
	// Weighed is what the route over three and more pools expected, the small one
	// first.
	Weighed []Weighed
}

// Weighed is a pool as the route saw it.
type Weighed struct {
	Pool    string   `json:"pool"`
	Quality float64  `json:"quality"`      // expected, 0 to 1; of an answer that was judged its confidence
	SD      float64  `json:"sd,omitempty"` // of what is expected
	Price   float64  `json:"price"`        // in units of quality
	State   Standing `json:"state"`
}

// Standing says whether a pool might be asked.
type Standing string

// The standings.
const (
	StandingOpen    Standing = "open"
	StandingJudged  Standing = "judged"  // its answer is known
	StandingUnknown Standing = "unknown" // it was asked, and nothing is known of its answer
	StandingAbsent  Standing = "absent"  // no instance is ready
	StandingBudget  Standing = "budget"  // the day's budget does not hold its price
	StandingOther   Standing = "other"   // another of its equals was chosen
)

// standing is that of a pool now.
func (c *Case) standing(tier int, ask *Ask) Standing {
	r := &c.ran[tier]
	switch {
	case r.ran && r.known:
		return StandingJudged
	case r.ran:
		return StandingUnknown
	case r.absent:
		return StandingAbsent
	case !c.affords(tier, ask):
		return StandingBudget
	case tier >= c.e.drafts && tier != c.last:
		return StandingOther
	}
	return StandingOpen
}

// note keeps what a judgement by the policy rests on.
func (c *Case) note(p *cascade.Policy) {
	if c.threshold = 0; p.Rule == cascade.RuleThreshold {
		c.threshold = p.Threshold
	}
}

// Told is what the newest judgement of the draft rested on.
func (d *Draft) Told() Told {
	return Told{Broken: d.failed, Threshold: d.c.threshold, Weighed: slices.Clone(d.c.weighed)}
}

// Package control holds the controllers that move a cascade's threshold: to
// hold an escalation rate, to spread a budget, to bound a risk, and to notice
// that the traffic has changed. Controllers are passive: they are told what
// happened and asked for the threshold. Each has one owner; none reads a clock.
package control

import "math"

// Tracker holds the share of escalations at Target by moving a threshold on a
// score: escalate when the score is above Theta. It is a quantile tracker
// without clipping, so that over T decisions the realised rate misses the
// target by at most (range of the scores + step)/(step T), whatever the scores
// do. Source: adaptive conformal inference (Gibbs and Candes 2021).
type Tracker struct {
	// Target is the wanted share, 0 to 1.
	Target float64
	// Scale is the spread of the scores; 0 counts as 1, right for gains and
	// probabilities.
	Scale float64

	theta float64
	n     float64
}

// NewTracker returns a tracker for scores of spread about one, starting at theta.
func NewTracker(target, theta float64) *Tracker { return &Tracker{Target: target, theta: theta} }

// NewWarmTracker returns a tracker whose theta is known to be about right, so
// that it makes no large first steps.
func NewWarmTracker(target, theta float64) *Tracker {
	t := NewTracker(target, theta)
	t.n = (.5 / minStep) * (.5 / minStep)
	return t
}

// RestoreTracker returns the tracker that had this theta after n decisions.
func RestoreTracker(target, theta, n float64) *Tracker {
	return &Tracker{Target: target, theta: theta, n: n}
}

// Theta is the current threshold.
func (t *Tracker) Theta() float64 { return t.theta }

// Decisions is how many decisions have moved theta, or count as if they had.
func (t *Tracker) Decisions() float64 { return t.n }

// Decide reports whether an item with this score escalates, and notes it.
func (t *Tracker) Decide(score float64) bool {
	escalate := score > t.theta
	t.Observe(escalate)
	return escalate
}

// minStep is the step per decision in units of Scale: .02 was best of .005 to
// .05 for the worst 1,000-request window at little cost in accuracy.
const minStep = .02

// Observe notes what the policy wanted for one item, also where a hard limit
// forbade it: noting only what was done would drag theta along with an outage.
func (t *Tracker) Observe(wanted bool) {
	t.n++
	scale := t.Scale
	if scale <= 0 {
		scale = 1
	}
	step := scale * math.Max(minStep, .5/math.Sqrt(t.n))
	if wanted {
		t.theta += step * (1 - t.Target)
	} else {
		t.theta -= step * t.Target
	}
	// A sanity box far outside the scores; clipping inside their range would
	// make the rate drift.
	box := 16 * scale
	t.theta = math.Max(-box, math.Min(box, t.theta))
}

// Package control holds the controllers that move a cascade's threshold: to
// hold an escalation rate, to spread a budget, to bound a risk, and to notice
// that the traffic has changed. Controllers are passive: they are told what
// happened and asked for the threshold. Each has one owner; none reads a clock.
package control

import "math"

// Tracker holds the share of escalations at Target by moving a threshold on a
// score: escalate when the score is above Theta. Each decision moves theta by a
// step towards the target, so that a change of the scores costs at most
// (distance that theta has to go)/step decisions; an integral term then makes
// up for these, so that the share holds also counted over the change. Source:
// adaptive conformal inference (Gibbs and Candes 2021), conformal PID control
// (Angelopoulos, Candes and Tibshirani 2023).
type Tracker struct {
	// Target is the wanted share, 0 to 1.
	Target float64
	// Scale is the spread of the scores; 0 counts as 1, right for gains and
	// probabilities.
	Scale float64

	start, theta float64
	n            float64
	excess       float64 // escalations above the target so far, bounded
}

// NewTracker returns a tracker for scores of spread about one, starting at theta.
func NewTracker(target, theta float64) *Tracker {
	return &Tracker{Target: target, start: theta, theta: theta}
}

// NewWarmTracker returns a tracker whose theta is known to be about right, so
// that it makes no large first steps.
func NewWarmTracker(target, theta float64) *Tracker {
	t := NewTracker(target, theta)
	t.n = (.5 / minStep) * (.5 / minStep)
	return t
}

// RestoreTracker returns the tracker that had this theta after n decisions.
func RestoreTracker(target, theta, n float64) *Tracker {
	return &Tracker{Target: target, start: theta, theta: theta, n: n}
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

const (
	// minStep is the step per decision in units of Scale: .02 was best of .005
	// to .05 for the worst 1,000-request window at little cost in accuracy.
	minStep = .02
	// integral is the share of a step that every escalation too many adds. Of
	// .002 to .02 it gave the best worst window over orders of tasks, and no
	// swinging.
	integral = .005
	// box is how far theta may go from its start, in units of Scale: a sanity
	// box far outside the scores. Clipping inside would make the rate drift.
	box = 16
)

// Observe notes what the policy wanted for one item, also where a hard limit
// forbade it: noting only what was done would drag theta along with an outage.
func (t *Tracker) Observe(wanted bool) {
	t.n++
	scale := t.Scale
	if scale <= 0 {
		scale = 1
	}
	miss := -t.Target
	if wanted {
		miss = 1 - t.Target
	}
	// Bounded so that the integral never outweighs the step: outside the scores
	// theta always comes back, and an outage leaves nothing to make up for.
	bound := .5 * math.Min(t.Target, 1-t.Target) / integral
	t.excess = math.Max(-bound, math.Min(bound, t.excess+miss))
	t.theta += scale * (math.Max(minStep, .5/math.Sqrt(t.n))*miss + minStep*integral*t.excess)
	t.theta = math.Max(t.start-box*scale, math.Min(t.start+box*scale, t.theta))
}

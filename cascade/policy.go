package cascade

import (
	"fmt"
	"math"
)

// Rule is how a policy turns probabilities into a wish to escalate.
type Rule string

// The rules.
const (
	// RuleThreshold escalates when the edge's probability of being right is
	// below Policy.Threshold.
	RuleThreshold Rule = "threshold"
	// RuleGain escalates when the cloud's probability of being right exceeds
	// the edge's by more than Policy.Theta. It is optimal when both are
	// calibrated.
	RuleGain Rule = "gain"
	// RuleAlwaysEdge and RuleAlwaysCloud ignore the signals.
	RuleAlwaysEdge  Rule = "always-edge"
	RuleAlwaysCloud Rule = "always-cloud"
)

// Policy is a post-hoc decision rule with its parameters. Controllers (rate,
// budget, risk) move Theta from outside; a Policy itself is an immutable value.
type Policy struct {
	Name string
	Rule Rule
	// Threshold in probability, for RuleThreshold.
	Threshold float64
	// Theta in probability, for RuleGain. Not clipped: a rate tracker may move
	// it beyond [-1, 1].
	Theta float64
	// CloudQuality is the cloud's probability of being right in this cell, for
	// RuleGain.
	CloudQuality float64
	// KeepUnusable keeps the edge's answer when its signals cannot be judged.
	// The default escalates: an unknown answer is not a good one.
	KeepUnusable bool
	// Risk says that a risk controller owns the threshold; the reason of an
	// escalation is then risk_control.
	Risk bool
}

// ThresholdPolicy returns the default policy: keep what is right with at least
// the probability tau.
func ThresholdPolicy(tau float64) Policy {
	return Policy{Name: "static", Rule: RuleThreshold, Threshold: tau}
}

// GainPolicy returns the policy that escalates for an expected gain above
// theta over a cloud that is right with probability q.
func GainPolicy(theta, q float64) Policy {
	return Policy{Name: "gain", Rule: RuleGain, Theta: theta, CloudQuality: q}
}

// Validate reports an impossible parameter.
func (p *Policy) Validate() error {
	switch {
	case p.Rule != RuleThreshold && p.Rule != RuleGain && p.Rule != RuleAlwaysEdge && p.Rule != RuleAlwaysCloud:
		return fmt.Errorf("policy %q: unknown rule %q", p.Name, p.Rule)
	case p.Rule == RuleThreshold && math.IsNaN(p.Threshold):
		return fmt.Errorf("policy %q: threshold is not a number", p.Name)
	case p.Rule == RuleGain && (math.IsNaN(p.Theta) || !unit(p.CloudQuality)):
		return fmt.Errorf("policy %q: theta or cloud quality is out of range", p.Name)
	}
	return nil
}

// wants reports whether the policy would escalate an answer that is right with
// probability pe, and the gain it sees.
func (p *Policy) wants(pe float64) (escalate bool, gain float64) {
	switch p.Rule {
	case RuleAlwaysEdge:
		return false, 0
	case RuleAlwaysCloud:
		return true, 0
	case RuleGain:
		gain = p.CloudQuality - pe
		return gain > p.Theta, gain
	default:
		return pe < p.Threshold, 0
	}
}

// PriceTheta is the gain above which escalation pays: the cost of the cloud
// call (inflated by the shadow price lambda of the budget), of the extra
// latency and of privacy, over the value of a right answer. cost, latencyCost,
// privacyCost and value share one unit of money; value must be positive,
// otherwise the result is +Inf and nothing is worth escalating.
func PriceTheta(cost, lambda, latencyCost, privacyCost, value float64) float64 {
	if !(value > 0) {
		return math.Inf(1)
	}
	return ((1+lambda)*cost + latencyCost + privacyCost) / value
}

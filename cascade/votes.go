package cascade

import "github.com/weirhq/weir/cascade/verifier"

// Voted is what an answer's yes votes make of a judgement: the probability that
// the edge is right and, for RuleGain, the policy with the cloud's. cloud is the
// cloud's probability of being right for the other rules. Judge compares the new
// values as it does the old.
func Voted(pe float64, pol Policy, cloud float64, t *verifier.Table, yes int) (float64, Policy) {
	if pol.Rule != RuleGain {
		pe, _ = t.Judge(pe, cloud, yes)
		return pe, pol
	}
	pe, pol.CloudQuality = t.Judge(pe, pol.CloudQuality, yes)
	return pe, pol
}

// VotesMatter reports whether any number of votes turns what the policy wants of
// an answer that is right with probability pe: elsewhere nobody need be asked. It
// allocates nothing.
func VotesMatter(pe float64, pol *Policy, cloud float64, t *verifier.Table) bool {
	wanted, _ := pol.wants(pe)
	for yes := range t.Samples() + 1 {
		after, p := Voted(pe, *pol, cloud, t, yes)
		if turned, _ := p.wants(after); turned != wanted {
			return true
		}
	}
	return false
}

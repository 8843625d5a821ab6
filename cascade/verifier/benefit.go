package verifier

import "math"

// Bounds of Benefit: fewer labels, or fewer of either kind, tell nothing.
const (
	leastLabels = 200
	leastEither = 20
)

// Benefit tells how well the votes find the requests on which escalation helps:
// the AUROC of the gain that they promise, and its lower 95 % limit (one-sided,
// by DeLong's placement values). Each pair of labels is ordered by what the others
// say, so that a table of noise does not flatter itself (leave-pair-out, Airola et
// al. 2011); labels count by their effective number. Both are NaN with fewer than
// 200 effective labels, or fewer than 20 of either kind.
func (t *Table) Benefit() (auroc, lower float64) {
	labels := t.Labels()
	if labels < leastLabels {
		return math.NaN(), math.NaN()
	}
	scale := labels / t.weight()
	var place [stateCount][MostVotes + 1]float64 // of the other kind, the part that is ordered right
	helped, others := 0.0, 0.0
	for s := range stateCount {
		for o := range t.votes + 1 {
			n := scale * (t.counts[s][o] - prior)
			if s == OnlyCloud {
				helped += n
				continue
			}
			others += n
			for o2 := range t.votes + 1 {
				right := t.ordered(o2, s, o, 1/scale)
				place[s][o] += scale * (t.counts[OnlyCloud][o2] - prior) * right
				place[OnlyCloud][o2] += n * right
			}
		}
	}
	if helped < leastEither || others < leastEither {
		return math.NaN(), math.NaN()
	}
	for o := range t.votes + 1 {
		auroc += scale * (t.counts[OnlyCloud][o] - prior) * place[OnlyCloud][o] / (helped * others)
	}
	variance := 0.0
	for s := range stateCount {
		own, other := others, helped
		if s == OnlyCloud {
			own, other = helped, others
		}
		for o := range t.votes + 1 {
			d := (place[s][o]/other - auroc) / own
			variance += scale * (t.counts[s][o] - prior) * d * d
		}
	}
	return auroc, auroc - 1.645*math.Sqrt(variance)
}

// ordered says whether a label of OnlyCloud with helps votes is ranked above one
// of state s with votes by all other labels: 1, or 1/2 where both rank alike. w is
// a label's weight.
func (t *Table) ordered(helps int, s State, votes int, w float64) float64 {
	if helps == votes {
		return .5
	}
	a, b := t.gainWithout(OnlyCloud, helps, w), t.gainWithout(s, votes, w)
	switch {
	case a > b:
		return 1
	case a == b:
		return .5
	}
	return 0
}

// gainWithout is the expected gain of escalating after yes votes, the probability
// that only the cloud is right less that only the edge is, without one label of
// state s and weight w.
func (t *Table) gainWithout(s State, yes int, w float64) float64 {
	var b [stateCount]float64
	total := 0.0
	for i := range b {
		b[i] = t.counts[i][yes]
		if State(i) == s {
			b[i] = max(prior, b[i]-w)
		}
		total += b[i]
	}
	return (b[OnlyCloud] - b[OnlyEdge]) / total
}

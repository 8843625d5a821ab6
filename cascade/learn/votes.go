package learn

import (
	"math"

	"github.com/weirhq/weir/cascade/verifier"
)

// vote learns from a label with votes. Votes of another kind than before, or among
// another number of samples, begin a table of their own.
func (e *entry) vote(v verifier.Votes, s verifier.State, w, halfLife float64) {
	if v.Of < 1 || v.Of > verifier.MostVotes || v.Yes < 0 || v.Yes > v.Of {
		return
	}
	if e.voted == nil || !e.voted.Reads(v) {
		e.voted = verifier.NewFor(v)
	}
	e.voted.Age(math.Exp2(-1 / halfLife))
	e.voted.Observe(s, v.Yes, w)
}

// verifier is the table of a cell: the shipped one with the cell's own labels,
// nil where there is neither. voted may be nil.
func (t *Table) verifier(voted *verifier.Table) *verifier.Table {
	var shipped *verifier.Table
	if t.shipped != nil {
		shipped = t.shipped.Verifier
	}
	switch {
	case voted == nil:
		return shipped
	case shipped == nil || !shipped.Like(voted):
		return voted.Clone()
	}
	return shipped.Plus(voted)
}

// gradeVotes says what a verifier's votes may be used for; nil is unknown. Only
// usable ones may change a verdict.
func gradeVotes(t *verifier.Table) Grade {
	if t == nil {
		return GradeUnknown
	}
	_, lower := t.Benefit()
	return GradeOf(lower)
}

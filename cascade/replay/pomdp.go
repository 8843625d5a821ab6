package replay

import (
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/verifier"
)

// scorePOMDP is scoreGain after the edge model's votes on its own answers: both
// probabilities are updated by what votes have meant on the train rows, or on those
// before where there is no split. Votes that are not usable by then change nothing.
func scorePOMDP(s *setData) (scores, error) {
	samples := s.votes
	if samples == 0 {
		return scores{}, lacks("votes")
	}
	gain, err := scoreGain(s)
	if err != nil {
		return scores{}, err
	}
	v := voter{s: s, table: verifier.New(samples), gain: gain, scores: scores{priority: make([]float64, len(s.rows)), edge: make([]float64, len(s.rows))}}
	if len(s.train) > 0 {
		for _, k := range s.train {
			v.learn(k)
		}
		v.test()
		for k := range s.rows {
			v.judge(k)
		}
	} else {
		const every = 50 // rows between tests
		for i, k := range s.test {
			if i%every == 0 {
				v.test()
			}
			v.judge(k)
			v.learn(k)
		}
	}
	v.test()
	if v.note = fmt.Sprintf("the votes are %s (AUROC %s), so pomdp decides as gain", v.grade, show(v.auroc)); v.usable() {
		v.note = ""
	}
	return v.scores, nil
}

// voter judges rows by votes.
type voter struct {
	scores
	s     *setData
	gain  scores
	table *verifier.Table
	grade learn.Grade
	auroc float64
}

func (v *voter) usable() bool { return v.grade == learn.GradeUsable }

func (v *voter) test() {
	auroc, lower := v.table.Benefit()
	v.auroc, v.grade = auroc, learn.GradeOf(lower)
}

func (v *voter) learn(k int) {
	if r := v.s.record(k); !math.IsNaN(r.Votes) {
		v.table.Observe(verifier.StateOf(r.Edge >= .5, r.Cloud >= .5), int(r.Votes), 1)
	}
}

func (v *voter) judge(k int) {
	edge, votes := v.gain.edge[k], v.s.record(k).Votes
	v.priority[k], v.edge[k] = v.gain.priority[k], edge
	if !v.usable() || math.IsNaN(edge) || math.IsNaN(votes) {
		return
	}
	cloud := max(0, min(1, v.gain.priority[k]+edge))
	edge, cloud = v.table.Judge(edge, cloud, int(votes))
	v.priority[k], v.edge[k] = cloud-edge, edge
}

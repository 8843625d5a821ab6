package replay

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// CostMetrics are mean accuracies between the costs of the edge alone and of
// the cloud alone; NaN without costs.
type CostMetrics struct {
	CQAUC float64 // at the rate that the train rows choose for each budget
	AIQ   float64 // on the hull of the test rows' curve
}

// costed are the rows of a set with known costs. The rate for each budget is
// chosen on the train rows where there are any, else on the test rows.
type costed struct {
	test, train costedRows
	all         int // test rows, with a cost or without
}

// costedRows are parallel slices; edgeCost is nil for a free edge.
type costedRows struct {
	at                               []int // positions in the set
	edge, cloud, edgeCost, cloudCost []float64
}

func newCosted(s *setData, payEdge bool) costed {
	return costed{costedOf(s, s.test, payEdge), costedOf(s, s.train, payEdge), len(s.test)}
}

func costedOf(s *setData, rows []int, payEdge bool) (c costedRows) {
	for _, k := range rows {
		r := s.record(k)
		if !price(r.CloudCost) || (payEdge && !price(r.EdgeCost)) {
			continue
		}
		c.at, c.edge, c.cloud = append(c.at, k), append(c.edge, r.Edge), append(c.cloud, r.Cloud)
		c.cloudCost = append(c.cloudCost, r.CloudCost)
		if payEdge {
			c.edgeCost = append(c.edgeCost, r.EdgeCost)
		}
	}
	return c
}

// price reports whether v is a cost, and not missing.
func price(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

// missing counts the test rows without a cost where others have one.
func (c costed) missing() int {
	if len(c.test.at) == 0 {
		return 0
	}
	return c.all - len(c.test.at)
}

// edgeDearer reports whether the cloud alone costs no more than the edge, so
// that there is nothing to save.
func (c costed) edgeDearer() bool {
	return len(c.test.at) > 0 && mean(c.test.cloudCost) <= mean(c.test.edgeCost)
}

func (c costedRows) curve(priority []float64) measure.CostCurve {
	return measure.NewCostCurve(measure.Rank(pick(priority, c.at)), c.edge, c.cloud, c.edgeCost, c.cloudCost)
}

func (c costed) metrics(w ranked) CostMetrics {
	if len(c.test.at) == 0 {
		return CostMetrics{math.NaN(), math.NaN()}
	}
	test := c.test.curve(w.priority)
	choose := test
	if len(c.train.at) > 0 {
		choose = c.train.curve(w.priority)
	}
	return CostMetrics{test.Affordable(choose), test.AIQ()}
}

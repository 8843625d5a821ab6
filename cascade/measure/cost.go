package measure

import (
	"cmp"
	"math"
	"slices"
)

// Point is a mean cost per request and the accuracy that it buys.
type Point struct{ Cost, Accuracy float64 }

// CostCurve is a Curve with the mean cost per request at each of its rates:
// the edge's for all, and the cloud's for those that are escalated by then.
type CostCurve struct {
	Curve
	cost       []float64
	cloudAlone float64
}

// NewCostCurve builds the curve of an order over per-item scores and costs.
// edgeCost may be nil: the edge is free.
func NewCostCurve(o Order, edge, cloud, edgeCost, cloudCost []float64) CostCurve {
	c := CostCurve{Curve: NewCurve(o, edge, cloud)}
	total := 0.0
	for _, v := range edgeCost {
		total += v
	}
	c.cost = append(make([]float64, 0, len(o.ends)+1), total/c.n)
	start := int32(0)
	for _, end := range o.ends {
		for _, i := range o.idx[start:end] {
			total += cloudCost[i]
			c.cloudAlone += cloudCost[i] / c.n
		}
		c.cost = append(c.cost, total/c.n)
		start = end
	}
	return c
}

// Ends are the two tiers alone; the cloud alone does not pay for the edge.
func (c CostCurve) Ends() (edge, cloud Point) {
	return Point{c.cost[0], c.Edge()}, Point{c.cloudAlone, c.Cloud()}
}

// budgets is the number of steps in which a budget is raised.
const budgets = 200

// Affordable is the accuracy of c averaged over budgets from the edge's cost to
// the cloud's, at the rate that is best within the budget on the curve choose
// (CQ-AUC). NaN where the cloud costs no more than the edge.
func (c CostCurve) Affordable(choose CostCurve) float64 {
	edge, cloud := c.Ends()
	if !(cloud.Cost > edge.Cost) {
		return math.NaN()
	}
	sum, best, rate, next := 0.0, math.Inf(-1), 0.0, 0
	take := func(acc, r float64) {
		if acc > best {
			best, rate = acc, r
		}
	}
	for step := range budgets + 1 {
		x := edge.Cost + (cloud.Cost-edge.Cost)*float64(step)/budgets
		for ; next < len(choose.cost) && choose.cost[next] <= x*(1+1e-12); next++ {
			take(choose.acc[next], choose.rate[next])
		}
		if next > 0 && next < len(choose.cost) {
			f := (x - choose.cost[next-1]) / (choose.cost[next] - choose.cost[next-1])
			take(choose.acc[next-1]+f*(choose.acc[next]-choose.acc[next-1]), choose.rate[next-1]+f*(choose.rate[next]-choose.rate[next-1]))
		}
		sum += c.At(rate)
	}
	return sum / (budgets + 1)
}

// AIQ is the mean height, over costs from the edge's to the cloud's, of the
// rising convex hull of the curve and of the cloud alone: what mixing its points
// at random attains. NaN where the cloud costs no more than the edge. Source:
// RouterBench.
func (c CostCurve) AIQ() float64 {
	edge, cloud := c.Ends()
	points := []Point{cloud}
	for i := range c.cost {
		points = append(points, Point{c.cost[i], c.acc[i]})
	}
	return areaUnder(Hull(points), edge.Cost, cloud.Cost)
}

// Hull returns the points on the upper convex hull, by rising cost and
// accuracy: the last is the most accurate.
func Hull(points []Point) []Point {
	points = slices.Clone(points)
	slices.SortFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(b.Accuracy, a.Accuracy))
	})
	var hull []Point
	for _, p := range points {
		if n := len(hull); n > 0 && p.Accuracy <= hull[n-1].Accuracy {
			continue
		}
		for n := len(hull); n > 1 && slope(hull[n-2], hull[n-1]) <= slope(hull[n-2], p); n = len(hull) {
			hull = hull[:n-1]
		}
		hull = append(hull, p)
	}
	return hull
}

func slope(a, b Point) float64 { return (b.Accuracy - a.Accuracy) / (b.Cost - a.Cost) }

// areaUnder is the mean height of a hull between two costs; the first point
// lies at or before from, and after the last the height stays.
func areaUnder(hull []Point, from, to float64) float64 {
	if !(to > from) || len(hull) == 0 {
		return math.NaN()
	}
	area, last := 0.0, hull[len(hull)-1]
	for i, a := range hull[:len(hull)-1] {
		b := hull[i+1]
		low, high := max(from, a.Cost), min(to, b.Cost)
		if high > low {
			area += (high - low) * (a.Accuracy + slope(a, b)*((low+high)/2-a.Cost))
		}
	}
	if to > last.Cost {
		area += (to - max(from, last.Cost)) * last.Accuracy
	}
	return area / (to - from)
}

// IBCLift is how much more accuracy a dollar buys at p than by the mix of the
// two tiers: the slope from the edge to p over that from the edge to the cloud,
// less one. NaN where a slope is undefined. Source: AutoMix.
func IBCLift(p, edge, cloud Point) float64 {
	if cloud.Accuracy-edge.Accuracy < MinGap || !(cloud.Cost > edge.Cost) || !(p.Cost > edge.Cost) {
		return math.NaN()
	}
	return slope(edge, p)/slope(edge, cloud) - 1
}

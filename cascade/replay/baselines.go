package replay

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// Baselines are what any policy must be compared with on a set.
type Baselines struct {
	AlwaysEdge, AlwaysCloud float64 // accuracy
	RandomAPGR              float64 // 0.5 by construction
	RandomAtRate            float64 // accuracy of a random mix at the target rate
	TaskAPGR                float64 // order by the task's mean gain alone
	StaticAtRate            float64 // accuracy of raw confidence at the target rate; NaN without one
	SignalAUROC             float64 // of raw confidence for a right edge; NaN without one
	OracleAPGR              float64
	OracleAtRate            float64
	// DatasetOracle is the accuracy of the better tier per cell, in hindsight.
	DatasetOracle float64
}

func baselines(s *setData, edge, cloud []float64, o Options) Baselines {
	b := Baselines{AlwaysEdge: mean(edge), AlwaysCloud: mean(cloud), RandomAPGR: .5,
		TaskAPGR: math.NaN(), StaticAtRate: math.NaN(), SignalAUROC: math.NaN()}
	b.RandomAtRate = b.AlwaysEdge + o.Rate*(b.AlwaysCloud-b.AlwaysEdge)
	curve := func(priority []float64) measure.Curve {
		return measure.NewCurve(measure.Rank(pick(priority, s.test)), edge, cloud)
	}
	if sc, err := scoreSubject(s); err == nil {
		b.TaskAPGR = curve(sc.priority).APGR()
	}
	if sc, err := scoreRaw(s); err == nil {
		b.StaticAtRate = curve(sc.priority).At(o.Rate)
		b.SignalAUROC = edgeAUROC(pick(sc.priority, s.test), edge)
	}
	oracle, _ := scoreOracle(s)
	b.OracleAPGR, b.OracleAtRate = curve(oracle.priority).APGR(), curve(oracle.priority).At(o.Rate)
	b.DatasetOracle = datasetOracle(s, edge, cloud)
	return b
}

// edgeAUROC is how well a low priority predicts a right edge.
func edgeAUROC(priority, edge []float64) float64 {
	keep, right := make([]float64, len(edge)), make([]bool, len(edge))
	for i := range edge {
		keep[i], right[i] = -priority[i], edge[i] >= .5
	}
	return measure.AUROC(keep, right)
}

func datasetOracle(s *setData, edge, cloud []float64) float64 {
	type sums struct{ edge, cloud float64 }
	cells := map[string]*sums{}
	for i, k := range s.test {
		name := s.record(k).Cell
		if cells[name] == nil {
			cells[name] = &sums{}
		}
		cells[name].edge += edge[i]
		cells[name].cloud += cloud[i]
	}
	total := 0.0
	for _, c := range cells {
		total += math.Max(c.edge, c.cloud)
	}
	return total / float64(len(s.test))
}

// costMetrics are the mean accuracy that is affordable between the cost of the
// edge alone and of the cloud alone (CQ-AUC), with the file's costs and with a
// free edge. The rate for each budget is chosen on the train rows where there
// are any. NaN without costs.
func costMetrics(s *setData, w ranked, test measure.Curve) (cq, cqFree float64) {
	edgeCost := pick(s.column(func(r *Record) float64 { return r.EdgeCost }), s.test)
	cloudCost := pick(s.column(func(r *Record) float64 { return r.CloudCost }), s.test)
	e, c := mean(edgeCost), mean(cloudCost)
	if math.IsNaN(c) || !(c > 0) {
		return math.NaN(), math.NaN()
	}
	choose := test
	if len(s.train) > 0 {
		edge := pick(s.column(func(r *Record) float64 { return r.Edge }), s.train)
		cloud := pick(s.column(func(r *Record) float64 { return r.Cloud }), s.train)
		choose = measure.NewCurve(measure.Rank(pick(w.priority, s.train)), edge, cloud)
	}
	if !math.IsNaN(e) && c > e {
		cq = affordable(choose, test, e, c)
	} else {
		cq = math.NaN()
	}
	return cq, affordable(choose, test, 0, c)
}

// affordable averages, over budgets x from e to c, the accuracy at the best
// rate whose cost e + r c is within x.
func affordable(choose, test measure.Curve, e, c float64) float64 {
	const steps = 200
	sum, best, bestRate := 0.0, math.Inf(-1), 0.0
	reach := 0
	for i := range steps + 1 {
		x := e + (c-e)*float64(i)/steps
		for ; reach <= steps && e+c*float64(reach)/steps <= x+1e-15; reach++ {
			if a := choose.At(float64(reach) / steps); a > best {
				best, bestRate = a, float64(reach)/steps
			}
		}
		sum += test.At(bestRate)
	}
	return sum / (steps + 1)
}

// Latency is what an edge-first cascade costs in time at the target rate,
// milliseconds and relative to the cloud alone; NaN without latencies.
type Latency struct {
	EdgeMean, CloudMean, CascadeMean, Relative float64
}

func latency(s *setData, rate float64) Latency {
	e := mean(pick(s.column(func(r *Record) float64 { return r.EdgeMS }), s.test))
	c := mean(pick(s.column(func(r *Record) float64 { return r.CloudMS }), s.test))
	l := Latency{EdgeMean: e, CloudMean: c, CascadeMean: e + rate*c}
	l.Relative = l.CascadeMean / c
	return l
}

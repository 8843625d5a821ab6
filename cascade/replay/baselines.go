package replay

import (
	"math"

	"github.com/weirhq/weir/cascade/measure"
)

// Baselines are what any policy must be compared with on a set.
type Baselines struct {
	AlwaysEdge, AlwaysCloud float64 // accuracy
	RandomAPGR              float64 // 0.5 by construction; NaN without a gap
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
	if b.AlwaysCloud-b.AlwaysEdge < measure.MinGap {
		b.RandomAPGR = math.NaN()
	}
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

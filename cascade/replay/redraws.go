package replay

import (
	"math"
	"math/rand/v2"

	"github.com/weirhq/weir/cascade/control"
)

// How often a risk bound is tried anew, and on how many labels.
const (
	redraws      = 200
	redrawLabels = 500
)

// Redraws is how often learn-then-test breaks its promise: of 200 draws of 500
// labelled test rows, the share whose threshold gives the other rows a risk above
// alpha, and the mean share of escalations. NaN below 1,000 rows and for policies
// without a risk target.
type Redraws struct{ Violations, Escalated float64 }

func redrawn(s *setData, w ranked, o Options) Redraws {
	n := len(s.test)
	if w.control != controlRisk || n < 2*redrawLabels {
		return Redraws{math.NaN(), math.NaN()}
	}
	items := make([]control.RiskItem, n)
	for i, k := range s.test {
		r := s.record(k)
		items[i] = control.RiskItem{Score: w.priority[k], Loss: math.Max(0, r.Cloud-r.Edge)}
	}
	var out Redraws
	rng := rand.New(rand.NewPCG(o.Seed, 10))
	for range redraws {
		for i := range redrawLabels { // the first are the draw
			j := i + rng.IntN(n-i)
			items[i], items[j] = items[j], items[i]
		}
		theta := math.Inf(-1)
		if b, err := control.LTT(items[:redrawLabels], o.Alpha, o.Delta); err == nil {
			theta = b.Theta
		}
		risk, escalated := keptRisk(items[redrawLabels:], theta)
		out.Violations += b2f(risk > o.Alpha) / redraws
		out.Escalated += escalated / redraws
	}
	return out
}

// keptRisk is the mean loss when scores above theta are escalated, and their share.
func keptRisk(items []control.RiskItem, theta float64) (risk, escalated float64) {
	for _, it := range items {
		if it.Score > theta {
			escalated++
		} else {
			risk += it.Loss
		}
	}
	n := float64(len(items))
	return risk / n, escalated / n
}

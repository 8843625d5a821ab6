package replay

import (
	"math"
	"testing"

	"github.com/weirhq/weir/cascade/control"
)

func TestKeptRiskByHand(t *testing.T) {
	items := []control.RiskItem{{Score: .1, Loss: 0}, {Score: .2, Loss: 1}, {Score: .3, Loss: 1}, {Score: .4, Loss: 1}}
	risk, escalated := keptRisk(items, .2)
	equal(t, "risk", risk, .25)
	equal(t, "escalated", escalated, .5)
}

// The promise of delta .1 is kept over draws; a promise that rests on luck
// (delta .9) is broken more often.
func TestRedraws(t *testing.T) {
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"risk", "gain"}, 0
	violations := func(delta float64) Metrics {
		o.Delta = delta
		res, err := Evaluate(stream(4000), o)
		if err != nil {
			t.Fatal(err)
		}
		if g := res.Sets[0].Policies["gain"].Redraws; !math.IsNaN(g.Violations) {
			t.Errorf("gain promises no risk, %+v", g)
		}
		return res.Sets[0].Policies["risk"]
	}
	kept, broken := violations(.1), violations(.9)
	if kept.Redraws.Violations > .15 || kept.Redraws.Escalated < .2 || kept.Redraws.Escalated > .95 {
		t.Errorf("delta .1: %+v", kept.Redraws)
	}
	if broken.Redraws.Violations < .5 || broken.Redraws.Escalated >= kept.Redraws.Escalated {
		t.Errorf("delta .9: %+v", broken.Redraws)
	}
}

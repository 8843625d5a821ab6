package e2e

import (
	"math"
	"testing"

	"github.com/weirhq/weir/internal/evaluate"
)

// TestEval holds the product's first promise on held-out prompts through the
// running system. The short form draws fewer prompts and so widens the bands
// by its sampling error.
func TestEval(t *testing.T) {
	s := running(t)
	n := count(300, 1000)
	r, err := evaluate.Run(t.Context(), s.Ready, n, 1, func(int, int) {})
	if err != nil {
		t.Fatal(err)
	}
	edge, cloud, auto := r.Modes["edge-only"], r.Modes["cloud-only"], r.Modes["auto"]
	t.Logf("%d prompts: edge %.1f %%, cloud %.1f %%, auto %.1f %% at %.1f %% escalated, gap recovered %.1f %% %v, hindsight %+v, ECE %.3f",
		n, 100*edge.Accuracy, 100*cloud.Accuracy, 100*auto.Accuracy, 100*auto.Escalated, 100*r.GapRecovered, r.GapRecovered95, r.Hindsight, r.ECE)
	slack := 0.01
	if !soak {
		slack += 2 * math.Sqrt(0.781*0.219/float64(n)) // two standard errors of the draw
	}
	if math.Abs(edge.Accuracy-0.781) > slack {
		t.Errorf("edge-only %.3f, want 0.781 within %.3f", edge.Accuracy, slack)
	}
	if math.Abs(cloud.Accuracy-0.980) > slack {
		t.Errorf("cloud-only %.3f, want 0.980 within %.3f", cloud.Accuracy, slack)
	}
	if edge.Escalated != 0 || cloud.Escalated != 1 {
		t.Errorf("escalated: edge-only %v, cloud-only %v", edge.Escalated, cloud.Escalated)
	}
	if r.GapRecovered < 0.85 || auto.Escalated > 0.40 {
		t.Errorf("auto recovers %.3f of the gap at %.3f escalated; want at least 0.85 at no more than 0.40", r.GapRecovered, auto.Escalated)
	}
	if auto.Accuracy < r.Hindsight.Accuracy-0.02 {
		t.Errorf("auto %.3f is more than 2 points below hindsight's %.3f", auto.Accuracy, r.Hindsight.Accuracy)
	}
}

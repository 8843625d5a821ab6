package e2e

import (
	"encoding/json"
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
	gap, most, below := 0.85, 0.40, 0.02
	if soak { // all prompts: the bars themselves
		gap, most, below = 0.92, 0.32, 0.015
		if r.ECE > 0.05 {
			t.Errorf("calibration error %.3f", r.ECE)
		}
	}
	if r.GapRecovered < gap || auto.Escalated > most {
		t.Errorf("auto recovers %.3f of the gap at %.3f escalated; want at least %.2f at no more than %.2f", r.GapRecovered, auto.Escalated, gap, most)
	}
	if auto.Accuracy < r.Hindsight.Accuracy-below {
		t.Errorf("auto %.3f is more than %.3f below hindsight's %.3f", auto.Accuracy, below, r.Hindsight.Accuracy)
	}
}

// TestRateTarget holds a share of escalations through the running system, on
// all held-out prompts: a short form would only measure its own sampling error.
func TestRateTarget(t *testing.T) {
	if !soak {
		t.Skip("WEIR_SOAK=1 runs all prompts; edge/policies has the short form")
	}
	var r evaluate.Report
	out := running(t).weir(t, "eval", "--rate", "0.2", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	auto := r.Modes["auto"]
	t.Logf("%d prompts: auto %.1f %% at %.1f %% escalated", r.Prompts, 100*auto.Accuracy, 100*auto.Escalated)
	if math.Abs(auto.Escalated-.2) > .01 || auto.Accuracy < .925 {
		t.Errorf("auto is right in %.3f at %.3f escalated; want at least .925 at .20 within .01", auto.Accuracy, auto.Escalated)
	}
}

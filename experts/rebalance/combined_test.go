package rebalance

import (
	"math/rand/v2"
	"testing"

	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// synthetic makes softmax scores whose experts are unevenly popular, and
// whose popularity follows the seed: a topic.
func synthetic(spec gate.Spec, tokens int, topic uint64) [][]float32 {
	g, err := gate.New(spec)
	if err != nil {
		panic(err)
	}
	rng := rand.New(rand.NewPCG(topic, 99))
	skew := make([]float64, spec.Experts)
	for e := range skew {
		skew[e] = 0.8 * rng.NormFloat64()
	}
	out := make([][]float32, tokens)
	logits := make([]float32, spec.Experts)
	for i := range out {
		for e := range logits {
			logits[e] = float32(skew[e] + rng.NormFloat64())
		}
		out[i] = make([]float32, spec.Experts)
		g.Scores(out[i], logits)
	}
	return out
}

// observe routes scores and records the window; placed may be nil.
func observe(t *testing.T, spec gate.Spec, p gate.Params, scores [][]float32, placed *plan.Placement) (load.Window, []float64) {
	t.Helper()
	r, err := gate.NewRouter(spec, []gate.Params{p})
	if err != nil {
		t.Fatal(err)
	}
	if placed != nil {
		homes := make([][]int32, spec.Experts)
		slots := placed.Fleet.Slots[0]
		for s, e := range placed.Layers[0] {
			homes[e] = append(homes[e], int32(s/slots))
		}
		speed := make([]float64, placed.Fleet.Devices())
		for d := range speed {
			speed[d] = 1
		}
		if err := r.Place(0, homes, speed); err != nil {
			t.Fatal(err)
		}
	}
	rec := load.NewRecorder(load.Prefill, 1, spec.Experts, spec.TopK)
	var sel []int32
	for _, row := range scores {
		var own []int32
		var out gate.Outcome
		sel, own, out = r.Route(0, sel, row, nil)
		rec.Token(0, own, sel, out.Rigid)
	}
	rec.Tokens(len(scores))
	return rec.Take(), r.DeviceLoads(0)
}

// The LASER-style combination: flexible load goes to routing, rigid load to
// replicas. For the same imbalance it needs fewer moves than placement alone,
// and the routed imbalance that results is real: it is measured by routing.
func TestCombinedNeedsFewerMoves(t *testing.T) {
	spec := gate.Spec{Experts: 32, TopK: 4}
	fleet := plan.Uniform(8, 6)
	const target, budget, tokens = 1.05, 0.05, 6000
	alone, together := 0, 0
	for topic := range uint64(5) {
		before, after := synthetic(spec, tokens, 2*topic), synthetic(spec, tokens, 2*topic+1)
		off := gate.Params{EpsHigh: 0, Tau: 1, Pool: spec.TopK}
		wBefore, _ := observe(t, spec, off, before, nil)
		old, err := plan.Solve(plan.Problem{Loads: wBefore.Demand, Fleet: fleet})
		if err != nil {
			t.Fatal(err)
		}
		on, rep, err := gate.Calibrate(spec, gate.Params{EpsHigh: 0.9, Pool: 12}, after[:tokens/2], nil, budget)
		if err != nil {
			t.Fatal(err)
		}
		w, _ := observe(t, spec, on, after, nil)
		a, _ := movesTo(t, w.Demand, nil, old.Placement, target)
		rigid, level := w.Planned(1)
		b, next := movesTo(t, rigid, level, old.Placement, target)
		_, devices := observe(t, spec, on, after, &next)
		routed := load.Imbalance(devices)
		t.Logf("topic %d: before %.3f; alone %d moves; with routing (tau %.2f, %.1f %% of mass, rigid %.0f %%) %d moves, routed imbalance %.4f",
			topic, old.Placement.Imbalance(0, w.Demand[0]), a, on.Tau, 100*rep.Lost, 100*rep.Rigid, b, routed)
		if routed > target {
			t.Errorf("topic %d: routed imbalance %.4f, target %v", topic, routed, target)
		}
		if b > a {
			t.Errorf("topic %d: %d moves with routing, %d without", topic, b, a)
		}
		alone, together = alone+a, together+b
	}
	t.Logf("moves to imbalance %v: alone %d, with routing %d", target, alone, together)
	if together*100 > alone*85 {
		t.Errorf("routing saves too little: %d of %d moves left", together, alone)
	}
}

// movesTo is the fewest transfers that reach the target.
func movesTo(t *testing.T, loads load.Counts, level []float64, old plan.Placement, target float64) (int, plan.Placement) {
	t.Helper()
	for k := range 64 {
		r, err := plan.Solve(plan.Problem{Loads: loads, Level: level, Fleet: old.Fleet, Old: &old, Moves: k})
		if err != nil {
			t.Fatal(err)
		}
		if r.Layers[0].After <= target {
			return r.Moves(), r.Placement
		}
	}
	t.Fatalf("no plan reaches %v", target)
	return 0, old
}

package plan

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// V3: the example of FlashLB, where EPLB's counts are not the best to pack.
func TestJointSearchVector(t *testing.T) {
	w := []float64{600, 560, 120, 120, 20, 10, 10, 10}
	row, err := EPLB(w, 16, 1, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	eplb := Placement{Experts: 8, Fleet: Uniform(8, 2), Layers: [][]int{row}}
	if got := slices.Max(eplb.DeviceLoads(0, w)); got != 232 {
		t.Errorf("EPLB: highest device load %v, want 232", got)
	}
	r := mustSolve(t, Problem{Loads: [][]float64{w}, Fleet: Uniform(8, 2)})
	got := slices.Max(r.Placement.DeviceLoads(0, w))
	t.Logf("joint search: %v, counts %v", got, r.Placement.Replicas(0))
	if got > 196.7 {
		t.Errorf("joint search: highest device load %v, want at most 196.7", got)
	}
	if b := Bound(w, Uniform(8, 2)); b != 181.25 || itemBound(w, Uniform(8, 2)) != 120 {
		t.Errorf("bounds: got %v and item %v, want 181.25 and 120", b, itemBound(w, Uniform(8, 2)))
	}
}

func TestFreeSplitVectors(t *testing.T) {
	tests := []struct {
		w             []float64
		groups, nodes int
		want          float64
	}{
		{readme0, 4, 2, 154}, {readme1, 4, 2, 173}, {readme0, 1, 1, 137}, {readme1, 1, 1, 172},
	}
	for _, tt := range tests {
		row, err := EPLB(tt.w, 16, tt.groups, tt.nodes, 8)
		if err != nil {
			t.Fatal(err)
		}
		p := Placement{Experts: 12, Fleet: Uniform(8, 2), Layers: [][]int{row}}
		if got := p.FreeSplit(0, tt.w); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("free split of %v with %d groups: got %v, want %v", tt.w, tt.groups, got, tt.want)
		}
	}
}

func TestReplicaBound(t *testing.T) {
	// Counts 2 1 1 on 2 devices of 2: shares 3 3 2 1, the heaviest with the lightest.
	if got := ReplicaBound([]float64{6, 2, 1}, []int{2, 1, 1}, 2); got != 4 {
		t.Errorf("got %v, want 4", got)
	}
}

func TestUnequalDevices(t *testing.T) {
	w := []float64{4, 4, 4, 4}
	f := Fleet{Slots: []int{3, 1}, Speed: []float64{3, 1}}
	r := mustSolve(t, Problem{Loads: [][]float64{w}, Fleet: f})
	if r.Layers[0].After != 1 {
		t.Errorf("imbalance %v on devices whose speed fits their slots, want 1", r.Layers[0].After)
	}
	// A slow device in the way: speed 1 must take one of two equal experts.
	f = Fleet{Slots: []int{1, 1}, Speed: []float64{4, 1}}
	r = mustSolve(t, Problem{Loads: [][]float64{{4, 4}}, Fleet: f})
	if got := r.Layers[0].After; got != 2.5 {
		t.Errorf("imbalance %v, want 4/(8/5)", got)
	}
}

func TestTargetSavesMoves(t *testing.T) {
	decode, prefill := sharedLoads(t, decodeFile), sharedLoads(t, prefillFile)
	f := mustEven(t, 256, 32, 32)
	old := mustSolve(t, Problem{Loads: decode, Fleet: f}).Placement
	all := mustSolve(t, Problem{Loads: prefill, Fleet: f, Old: &old, Moves: 32})
	some := mustSolve(t, Problem{Loads: prefill, Fleet: f, Old: &old, Moves: 32, Target: 1.1})
	t.Logf("to 1.1: %d transfers, imbalance %.4f; best: %d, %.4f",
		some.Moves(), meanAfter(some, some.MoE), all.Moves(), meanAfter(all, all.MoE))
	if some.Moves()*3 > all.Moves()*2 || meanAfter(some, some.MoE) > 1.1 {
		t.Error("a target does not save transfers")
	}
}

func TestObjectives(t *testing.T) {
	w := []float64{90, 30, 20, 10, 5, 5, 4, 1}
	if got := Regime(w, 4, 2, 50); got != Activated {
		t.Errorf("4 tokens a step below a ridge of 50 tokens: %v", got)
	}
	if got := Regime(w, 4096, 2, 50); got != Tokens {
		t.Errorf("4096 tokens a step: %v", got)
	}
	a := activation(w, 1000, 2)
	for e, x := range a {
		if x > 1 || x <= 0 || e > 0 && x > a[e-1] {
			t.Errorf("activation %v is not a falling chance", a)
		}
	}
	f := Uniform(4, 3)
	tokens := mustSolve(t, Problem{Loads: [][]float64{w}, Fleet: f})
	active := mustSolve(t, Problem{Loads: [][]float64{w}, Fleet: f, Objective: Activated, StepTokens: 8, TopK: 2})
	weights := Problem{Loads: [][]float64{w}, Objective: Activated, StepTokens: 8, TopK: 2}.Weights(0)
	if active.Layers[0].After > tokens.Placement.Imbalance(0, weights) {
		t.Errorf("activated objective: %v activates more evenly than its own plan %v",
			tokens.Placement.Imbalance(0, weights), active.Layers[0].After)
	}
}

func TestAllocate(t *testing.T) {
	values := [][]float64{{1.5, 1.1, 1.05}, {1.3, 1.3, 1.0}, {1.02, 1.01, 1}}
	if got := Allocate(values, []float64{1, 1, 1}, 3); !slices.Equal(got, []int{1, 2, 0}) {
		t.Errorf("got %v, want the steep layer once, the flat stretch whole, nothing for the even layer", got)
	}
	v, err := SpareValue([]float64{8, 1, 1, 1, 1}, 2, 4, 2000)
	if err != nil || len(v) != 3 || v[2] != 1 {
		t.Errorf("value of spare slots: %v, %v; want 3 points down to 1", v, err)
	}
}

func TestErrors(t *testing.T) {
	good := [][]float64{{1, 2}, {3, 4}}
	old := Trivial(2, 2, Uniform(2, 1))
	tests := []struct {
		name string
		p    Problem
		want error
	}{
		{"no layers", Problem{Fleet: Uniform(1, 1)}, ErrLoad},
		{"ragged", Problem{Loads: [][]float64{{1, 2}, {1}}, Fleet: Uniform(1, 2)}, ErrLoad},
		{"NaN", Problem{Loads: [][]float64{{1, math.NaN()}}, Fleet: Uniform(1, 2)}, ErrLoad},
		{"negative", Problem{Loads: [][]float64{{1, -1}}, Fleet: Uniform(1, 2)}, ErrLoad},
		{"infinite", Problem{Loads: [][]float64{{1, math.Inf(1)}}, Fleet: Uniform(1, 2)}, ErrLoad},
		{"too few slots", Problem{Loads: good, Fleet: Uniform(1, 1)}, ErrFleet},
		{"more slots than experts", Problem{Loads: good, Fleet: Uniform(1, 3)}, ErrFleet},
		{"no devices", Problem{Loads: good}, ErrFleet},
		{"speed 0", Problem{Loads: good, Fleet: Fleet{Slots: []int{1, 1}, Speed: []float64{1, 0}}}, ErrFleet},
		{"old of other experts", Problem{Loads: [][]float64{{1, 2, 3}, {1, 2, 3}}, Fleet: Uniform(3, 1), Old: &old}, ErrPlacement},
		{"activated without tokens", Problem{Loads: good, Fleet: Uniform(2, 1), Objective: Activated}, ErrLoad},
		{"no moves after a loss", Problem{Loads: good, Fleet: Fleet{Slots: []int{2, 0}}, Old: &old}, ErrMoves},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := Solve(tt.p); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
	if _, err := Even(256, 32, 31); !errors.Is(err, ErrFleet) {
		t.Errorf("31 spares over 32 devices: %v", err)
	}
}

package plan

import (
	"slices"
	"testing"
)

// permuted makes loads of a power law whose order of experts differs by layer
// and by stride, as two kinds of traffic differ.
func permuted(layers, experts, stride int) [][]float64 {
	out := make([][]float64, layers)
	for l := range out {
		out[l] = make([]float64, experts)
		for e := range out[l] {
			out[l][e] = 1e6 / (1 + .1*float64((e*stride+l*13)%experts))
		}
	}
	return out
}

// Work that is shared by many layers suffices to use a budget of moves, on few
// devices and on many.
func TestBudgetIsUsed(t *testing.T) {
	tests := []struct {
		experts, devices, spare int
		eight, many             float64 // mean imbalance after 8 and 32 moves per layer, at most
	}{
		{60, 4, 4, 1.005, 1.001},
		{128, 8, 8, 1.06, 1.001},
		{128, 16, 16, 1.15, 1.005},
		{256, 16, 16, 1.30, 1.01},
		{256, 32, 32, 1.43, 1.07},
	}
	for _, tt := range tests {
		before, after := permuted(48, tt.experts, 7), permuted(48, tt.experts, 11)
		f := mustEven(t, tt.experts, tt.devices, tt.spare)
		old := mustSolve(t, Problem{Loads: before, Fleet: f}).Placement
		for k, want := range map[int]float64{8: tt.eight, 32: tt.many} {
			r := mustSolve(t, Problem{Loads: after, Fleet: f, Old: &old, Moves: k})
			if got := meanAfter(r, r.MoE); got > want {
				t.Errorf("%d experts on %d devices: imbalance %.4f after %d moves, want at most %v", tt.experts, tt.devices, got, k, want)
			}
		}
	}
}

// Five busy experts of many: their slots are shared out as among five alone.
func TestFewBusyExperts(t *testing.T) {
	load := make([]float64, 64)
	for e := range 5 {
		load[e] = 100
	}
	r := mustSolve(t, Problem{Loads: [][]float64{load}, Fleet: Uniform(8, 9)})
	// Counts 5 2 2 2 2: a device holds 50 and at most one 20.
	if got := r.Layers[0].After; got > 1.1201 {
		t.Errorf("imbalance %.4f, want 70/62.5", got)
	}
}

// A greedy first transfer can leave none for the second, or win nothing alone.
func TestFirstStepBlocksTheSecond(t *testing.T) {
	for _, c := range []struct {
		load  []float64
		fleet Fleet
		old   []int
		want  float64
	}{
		{[]float64{983, 1, 1, 3.5}, Uniform(3, 2), []int{2, 3, 2, 0, 3, 1}, 332},
		{[]float64{22, 1.6, 1.6, 518}, Uniform(3, 2), []int{3, 2, 0, 1, 0, 2}, 195},
		{[]float64{0, 0, 1, 2}, Uniform(2, 3), []int{1, 2, 0, 1, 3, 0}, 1.5},
	} {
		old := Placement{Experts: 4, Fleet: c.fleet, Layers: [][]int{c.old}}
		r, err := Solve(Problem{Loads: [][]float64{c.load}, Fleet: c.fleet, Old: &old, Moves: 2})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Max(r.Placement.DeviceLoads(0, c.load)); got > c.want {
			t.Errorf("largest load %v in %v, want at most %v", got, r.Placement.Layers[0], c.want)
		}
	}
}

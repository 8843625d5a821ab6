package plan

import (
	"errors"
	"math"
	"slices"
	"testing"
)

const (
	prefillFile = "deepseek-r1-sglang/prefill_in4096.json"
	decodeFile  = "deepseek-r1-sglang/decode_in1000out1000.json"
)

func meanAfter(r Result, layers []int) float64 {
	s := 0.0
	for _, l := range layers {
		s += r.Layers[l].After / float64(len(layers))
	}
	return s
}

func mustEven(t testing.TB, experts, devices, spare int) Fleet {
	t.Helper()
	f, err := Even(experts, devices, spare)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func mustSolve(t testing.TB, p Problem) Result {
	t.Helper()
	r, err := Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Placement.Validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRealLoads(t *testing.T) {
	tests := []struct {
		file    string
		devices int
		spare   int
		want    float64 // mean imbalance at most
	}{
		{prefillFile, 32, 32, 1.0005},
		{decodeFile, 32, 32, 1.0005},
		{decodeFile, 72, 32, 1.004},
		{prefillFile, 64, 64, 1.003},
		{prefillFile, 8, 0, 1.0001},
		{"olmoe/olmoe-expert_counts-c4.json", 8, 8, 1.0005},
		{"mixtral-8x7b/mistral-expert_counts-c4.json", 4, 4, 1.02},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			loads := sharedLoads(t, tt.file)
			f := mustEven(t, len(loads[0]), tt.devices, tt.spare)
			r := mustSolve(t, Problem{Loads: loads, Fleet: f})
			got := meanAfter(r, r.MoE)
			t.Logf("%s on %d devices with %d spares: mean imbalance %.6f", tt.file, tt.devices, tt.spare, got)
			if got > tt.want {
				t.Errorf("mean imbalance %v, want at most %v", got, tt.want)
			}
			for _, l := range r.MoE {
				if r.Layers[l].After < r.Layers[l].Bound*(1-1e-9) {
					t.Errorf("layer %d: %v is below its bound %v", l, r.Layers[l].After, r.Layers[l].Bound)
				}
			}
		})
	}
}

// V6: EPLB on a real file, and the trivial placement.
func TestRealEPLB(t *testing.T) {
	loads := sharedLoads(t, decodeFile)
	tests := []struct {
		layer                 int
		trivial, hier, global float64
		device0               []int
	}{
		{3, 2.188183, 1.164009, 1.005769, []int{75, 7, 152, 151, 29, 169, 118, 209, 244}},
		{30, 4.286404, 1.730622, 1.004494, []int{17, 21, 9, 153, 141, 236, 239, 76, 166}},
		{60, 1.696683, 1.148766, 1.006235, []int{67, 178, 38, 193, 160, 105, 129, 245, 238}},
	}
	f := Uniform(32, 9)
	for _, tt := range tests {
		w := loads[tt.layer]
		global, err := EPLB(w, 288, 1, 1, 32)
		if err != nil {
			t.Fatal(err)
		}
		hier, err := EPLB(w, 288, 8, 4, 32)
		if err != nil {
			t.Fatal(err)
		}
		p := Placement{Experts: 256, Fleet: f, Layers: [][]int{trivialRow(256, 288), hier, global}}
		for i, want := range []float64{tt.trivial, tt.hier, tt.global} {
			if got := p.Imbalance(i, w); math.Abs(got-want) > 1e-6 {
				t.Errorf("layer %d plan %d: imbalance %v, want %v", tt.layer, i, got, want)
			}
		}
		if !slices.Equal(global[:9], tt.device0) {
			t.Errorf("layer %d: device 0 holds %v, want %v", tt.layer, global[:9], tt.device0)
		}
	}
}

func TestShift(t *testing.T) {
	decode, prefill := sharedLoads(t, decodeFile), sharedLoads(t, prefillFile)
	f := mustEven(t, 256, 32, 32)
	old := mustSolve(t, Problem{Loads: decode, Fleet: f}).Placement
	var every4 []int
	for l := 3; l < 61; l += 4 {
		every4 = append(every4, l)
	}
	for _, tt := range []struct {
		moves int
		want  float64
	}{{0, 1.5}, {8, 1.12}, {32, 1.025}} {
		r := mustSolve(t, Problem{Loads: prefill, Fleet: f, Old: &old, Moves: tt.moves})
		got := meanAfter(r, every4)
		t.Logf("K=%d: mean imbalance %.4f, %d transfers", tt.moves, got, r.Moves())
		if got > tt.want {
			t.Errorf("K=%d: mean imbalance %v, want at most %v", tt.moves, got, tt.want)
		}
		for l := range prefill {
			if n := r.Placement.Incoming(l, old); n > tt.moves || n != r.Layers[l].Moves {
				t.Errorf("K=%d: layer %d has %d transfers, reported %d", tt.moves, l, n, r.Layers[l].Moves)
			}
		}
	}
}

func TestUnlimitedMovesAreAligned(t *testing.T) {
	decode, prefill := sharedLoads(t, decodeFile), sharedLoads(t, prefillFile)
	f := mustEven(t, 256, 32, 32)
	old := mustSolve(t, Problem{Loads: decode, Fleet: f}).Placement
	fresh := mustSolve(t, Problem{Loads: prefill, Fleet: f})
	aligned := mustSolve(t, Problem{Loads: prefill, Fleet: f, Old: &old, Moves: -1})
	loose := 0
	for l := range prefill {
		loose += fresh.Placement.Incoming(l, old)
	}
	t.Logf("transfers per layer: %d, after relabelling %d", loose/58, aligned.Moves()/58)
	if aligned.Moves() > loose*9/10 {
		t.Errorf("relabelling devices left %d of %d transfers", aligned.Moves(), loose)
	}
	if math.Abs(meanAfter(aligned, aligned.MoE)-meanAfter(fresh, fresh.MoE)) > 1e-9 {
		t.Error("relabelling devices changed the balance")
	}
}

func TestStopKeepsOldPlan(t *testing.T) {
	w := [][]float64{{5, 3, 1, 1}, {1, 1, 3, 5}}
	f := Uniform(2, 3)
	old := mustSolve(t, Problem{Loads: w, Fleet: f}).Placement
	calls := 0
	p := Problem{Loads: [][]float64{{1, 1, 1, 9}, {9, 1, 1, 1}}, Fleet: f, Old: &old, Moves: 2,
		Stop: func() bool { calls++; return calls > 1 }}
	r, err := Solve(p)
	if err != nil || !r.Expired || r.Moves() != 0 {
		t.Fatalf("expired plan: %+v, %v", r, err)
	}
	for l := range w {
		if !slices.Equal(r.Placement.Layers[l], old.Layers[l]) {
			t.Errorf("layer %d changed: %v to %v", l, old.Layers[l], r.Placement.Layers[l])
		}
	}
	p.Old, calls = nil, 0
	if _, err := Solve(p); !errors.Is(err, ErrExpired) {
		t.Errorf("without an old plan: %v, want ErrExpired", err)
	}
}

func BenchmarkFresh72(b *testing.B)   { benchFresh(b, 72) }
func BenchmarkFresh32(b *testing.B)   { benchFresh(b, 32) }
func BenchmarkBounded72(b *testing.B) { benchBounded(b, 72, 8) }
func BenchmarkBounded32(b *testing.B) { benchBounded(b, 32, 8) }

func benchFresh(b *testing.B, devices int) {
	p := Problem{Loads: moe(sharedLoads(b, prefillFile)), Fleet: mustEven(b, 256, devices, 32)}
	b.ReportAllocs()
	var r Result
	for b.Loop() {
		r = mustSolve(b, p)
	}
	b.ReportMetric(meanAfter(r, r.MoE), "IR")
}

func benchBounded(b *testing.B, devices, moves int) {
	f := mustEven(b, 256, devices, 32)
	old := mustSolve(b, Problem{Loads: moe(sharedLoads(b, decodeFile)), Fleet: f}).Placement
	p := Problem{Loads: moe(sharedLoads(b, prefillFile)), Fleet: f, Old: &old, Moves: moves}
	b.ReportAllocs()
	var r Result
	for b.Loop() {
		r = mustSolve(b, p)
	}
	b.ReportMetric(meanAfter(r, r.MoE), "IR")
}

package plan

import (
	"math"
	"slices"
	"testing"
)

var (
	readme0 = []float64{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86}
	readme1 = []float64{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27}
)

func TestEPLBVectors(t *testing.T) {
	tests := []struct {
		name          string
		w             []float64
		groups, nodes int
		row, cnt      []int
		loads         []float64
		ir            float64
	}{
		{"V1 layer 0 hierarchical", readme0, 4, 2,
			[]int{5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1}, []int{1, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 1},
			[]float64{121.5, 86.5, 125, 113, 147.5, 131.5, 156, 152}, 1.2081},
		{"V1 layer 1 hierarchical", readme1, 4, 2,
			[]int{7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1}, []int{1, 2, 1, 1, 1, 2, 2, 1, 2, 1, 1, 1},
			[]float64{173, 179.5, 120.5, 172, 123, 152, 118.5, 117.5}, 1.2422},
		{"V2 layer 0 global", readme0, 1, 1,
			[]int{10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1}, nil,
			[]float64{130.5, 95.5, 130, 138, 138.5, 134.5, 134, 132}, 1.0726},
		{"V2 layer 1 global", readme1, 1, 1,
			[]int{1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7}, nil,
			[]float64{123, 123, 125.5, 118.5, 172, 157.5, 172, 164.5}, 1.1903},
		{"nodes that do not divide groups mean global", readme1, 4, 3,
			[]int{1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7}, nil, nil, 1.1903},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			row, err := EPLB(tt.w, 16, tt.groups, tt.nodes, 8)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(row, tt.row) {
				t.Fatalf("phy2log\n got %v\nwant %v", row, tt.row)
			}
			p := Placement{Experts: 12, Fleet: Uniform(8, 2), Layers: [][]int{row}}
			if tt.cnt != nil && !slices.Equal(p.Replicas(0), tt.cnt) {
				t.Errorf("logcnt got %v want %v", p.Replicas(0), tt.cnt)
			}
			if tt.loads != nil && !slices.Equal(p.DeviceLoads(0, tt.w), tt.loads) {
				t.Errorf("device loads got %v want %v", p.DeviceLoads(0, tt.w), tt.loads)
			}
			if ir := p.Imbalance(0, tt.w); math.Abs(ir-tt.ir) > 5e-5 {
				t.Errorf("imbalance got %v want %v", ir, tt.ir)
			}
		})
	}
}

func TestEPLBSlotsOf(t *testing.T) {
	row, err := EPLB(readme0, 16, 4, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	p := Placement{Experts: 12, Fleet: Uniform(8, 2), Layers: [][]int{row}}
	want := [][]int{{12}, {13, 15}, {11}, {6}, {5, 7}, {0, 2}, {1}, {3}, {4}, {9}, {8, 10}, {14}}
	for e, slots := range p.SlotsOf(0) {
		if !slices.Equal(slots, want[e]) {
			t.Errorf("expert %d: slots %v, want %v", e, slots, want[e])
		}
	}
}

func TestEPLBMayDuplicate(t *testing.T) {
	row, err := EPLB(readme1, 16, 1, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	p := Placement{Experts: 12, Fleet: Uniform(8, 2), Layers: [][]int{row}}
	if p.Duplicates() != 1 || p.Validate() == nil {
		t.Errorf("slots 12 and 13 hold expert 8 twice: duplicates %d, error %v", p.Duplicates(), p.Validate())
	}
}

func TestPackVectors(t *testing.T) {
	tests := []struct {
		name       string
		w          []float64
		m          int
		pack, rank []int
	}{
		{"V4", []float64{3, 1, 4, 1, 5, 9, 2, 6}, 4, []int{3, 1, 3, 0, 2, 0, 2, 1}, []int{1, 1, 0, 1, 0, 0, 1, 0}},
		{"V4 SGLang", []float64{9, 1, 1, 1}, 2, []int{0, 1, 1, 0}, []int{0, 0, 1, 1}},
		{"one item a pack", []float64{1, 5, 3}, 3, []int{0, 1, 2}, []int{0, 0, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pack, rank, err := Pack(tt.w, tt.m)
			if err != nil || !slices.Equal(pack, tt.pack) || !slices.Equal(rank, tt.rank) {
				t.Errorf("got %v %v %v, want %v %v", pack, rank, err, tt.pack, tt.rank)
			}
		})
	}
	if _, _, err := Pack([]float64{1, 2, 3}, 2); err == nil {
		t.Error("3 items in 2 packs: no error")
	}
}

func TestReplicateVector(t *testing.T) {
	phy, rank, cnt, err := Replicate([]float64{10, 6, 1, 1}, 7)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(phy, []int{0, 1, 2, 3, 0, 1, 0}) || !slices.Equal(rank, []int{0, 0, 0, 0, 1, 1, 2}) || !slices.Equal(cnt, []int{3, 2, 1, 1}) {
		t.Errorf("V5: got %v %v %v", phy, rank, cnt)
	}
}

func TestReplicasVector(t *testing.T) {
	p := Placement{Experts: 4, Fleet: Uniform(3, 2), Layers: [][]int{{0, 1, 2, 3, 0, 1}, {0, 2, 0, 1, 0, 3}}}
	if !slices.Equal(p.Replicas(0), []int{2, 2, 1, 1}) || !slices.Equal(p.Replicas(1), []int{3, 1, 1, 1}) {
		t.Errorf("V7: got %v %v", p.Replicas(0), p.Replicas(1))
	}
}

package format

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

func samplePlan() Plan {
	return Plan{
		Placement: plan.Placement{Experts: 3, Fleet: plan.Uniform(2, 2),
			Layers: [][]int{{0, 1, 2, 0}, {2, 1, 0, 1}, {0, 2, 1, 0}}},
		MoE: []int{1, 2},
	}
}

func TestPlanRoundTrip(t *testing.T) {
	p := samplePlan()
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			var b bytes.Buffer
			if err := WritePlan(&b, kind, p); err != nil {
				t.Fatal(err)
			}
			got, err := ParsePlan(b.Bytes(), 2)
			if err != nil {
				t.Fatalf("%v in\n%s", err, b.String())
			}
			want := p.Placement.Layers
			if kind == TRTLLM || kind == VLLMAscend {
				want = want[1:] // MoE layers only
			}
			if got.Experts != 3 || !reflect.DeepEqual(got.Placement.Layers, want) || !slices.Equal(got.Fleet.Slots, []int{2, 2}) {
				t.Errorf("got %+v, want rows %v", got, want)
			}
			loads := Loads{Counts: load.Counts{{0, 0, 0}, {1, 2, 3}, {3, 2, 1}}}
			rows, err := got.Rows(loads)
			if err != nil || !reflect.DeepEqual(rows.Layers[1:], p.Placement.Layers[1:]) {
				t.Errorf("fitted to loads: %+v, %v", rows, err)
			}
		})
	}
}

func TestWriteSGLangRules(t *testing.T) {
	p := samplePlan()
	p.Layers, p.MoE = []int{1, 2, 4}, nil
	var b bytes.Buffer
	if err := WritePlan(&b, SGLang, p); !errors.Is(err, ErrRule) {
		t.Errorf("unknown number of hidden layers: %v", err)
	}
	p.Hidden = 6
	if err := WritePlan(&b, SGLang, p); err != nil {
		t.Fatal(err)
	}
	var file map[string][][]int
	if err := json.Unmarshal(b.Bytes(), &file); err != nil || len(file) != 1 {
		t.Fatalf("%v in %s", err, b.String())
	}
	rows := file["physical_to_logical_map"]
	if len(rows) != 6 || !slices.Equal(rows[0], []int{0, 1, 2, 0}) || !slices.Equal(rows[2], p.Placement.Layers[1]) {
		t.Errorf("rows %v", rows)
	}
	p.Hidden = 4
	if err := WritePlan(&b, SGLang, p); !errors.Is(err, ErrRule) {
		t.Errorf("layer 4 of 4: %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	uneven := Plan{Placement: plan.Placement{Experts: 3, Fleet: plan.Fleet{Slots: []int{3, 1}}, Layers: [][]int{{0, 1, 2, 0}}}}
	for _, kind := range []Kind{SGLang, TRTLLM, VLLMAscend} {
		if err := WritePlan(&bytes.Buffer{}, kind, uneven); !errors.Is(err, ErrRule) {
			t.Errorf("%s with unequal slots: %v", kind, err)
		}
	}
	twice := Plan{Placement: plan.Placement{Experts: 2, Fleet: plan.Uniform(2, 2), Layers: [][]int{{0, 0, 1, 1}}}}
	if err := WritePlan(&bytes.Buffer{}, Weir, twice); !errors.Is(err, plan.ErrPlacement) {
		t.Errorf("an expert twice on a device: %v", err)
	}
	if err := WritePlan(&bytes.Buffer{}, "vllm", samplePlan()); !errors.Is(err, ErrRule) {
		t.Errorf("unknown format: %v", err)
	}
}

// The map that vllm-ascend's own tests use (Apache-2.0, see shared data).
func TestAscendFixture(t *testing.T) {
	in := `{"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_count": 2, "device_list": [
		{"device_id": 0, "device_expert": [7, 2, 0, 3, 5]}, {"device_id": 1, "device_expert": [6, 1, 4, 7, 2]}]}]}`
	p, err := ParsePlan([]byte(in), 0)
	if err != nil || p.Experts != 8 || !slices.Equal(p.Fleet.Slots, []int{5, 5}) {
		t.Fatalf("got %+v, %v", p, err)
	}
	if c := p.Replicas(0); c[2] != 2 || c[7] != 2 || c[0] != 1 {
		t.Errorf("replicas %v, want experts 2 and 7 twice", c)
	}
}

func TestBadPlans(t *testing.T) {
	for name, in := range map[string]string{
		"empty":           ``,
		"not a map":       `{"x": 1}`,
		"ragged":          `{"physical_to_logical_map": [[0,1],[0]]}`,
		"negative":        `{"physical_to_logical_map": [[0,-1]]}`,
		"fraction":        `{"physical_to_logical_map": [[0,0.5]]}`,
		"missing expert":  `{"physical_to_logical_map": [[0,2]]}`,
		"does not divide": `{"physical_to_logical_map": [[0,1,2]]}`,
		"huge expert":     `{"physical_to_logical_map": [[0,99999999]]}`,
		"three deep":      `{"physical_to_logical_map": [[[0,1]]]}`,
		"weir version":    `{"weir_plan": 2, "experts": 1, "slots": [1], "physical_to_logical": [[0]]}`,
		"weir slots":      `{"weir_plan": 1, "experts": 2, "slots": [1], "physical_to_logical": [[0]]}`,
		"weir moe rows":   `{"weir_plan": 1, "experts": 1, "slots": [1], "moe_rows": [4], "physical_to_logical": [[0]]}`,
		"ascend counts":   `{"moe_layer_count": 2, "layer_list": [{"layer_id":0,"device_count":1,"device_list":[{"device_id":0,"device_expert":[0]}]}]}`,
		"ascend devices":  `{"moe_layer_count": 1, "layer_list": [{"layer_id":0,"device_count":2,"device_list":[{"device_id":0,"device_expert":[0]}]}]}`,
		"ascend order":    `{"moe_layer_count": 1, "layer_list": [{"layer_id":0,"device_count":1,"device_list":[{"device_id":3,"device_expert":[0]}]}]}`,
		"trtllm slots":    "num_slots: 3\ninitial_global_assignments:\n  0: [0, 1]\n",
		"trtllm layer":    "num_slots: 2\ninitial_global_assignments:\n  -1: [0, 1]\n",
		"trtllm nothing":  "num_slots: 3\n",
		"trtllm expert":   "num_slots: 2\ninitial_global_assignments:\n  0: [0, -1]\n",
		"not yaml":        "a: [",
	} {
		if p, err := ParsePlan([]byte(in), 2); err == nil {
			t.Errorf("%s was read as %+v", name, p)
		}
	}
	small := samplePlan()
	if _, err := small.Rows(Loads{Counts: load.Counts{{1, 1}}}); !errors.Is(err, ErrFormat) {
		t.Errorf("3 experts for loads of 2: %v", err)
	}
	if _, err := small.Rows(Loads{Counts: load.Counts{{1, 1, 1}}}); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "3 layers") {
		t.Errorf("3 layers for loads of 1: %v", err)
	}
	// Loads of layers 1 and 2 of a model with three.
	some := Loads{Counts: load.Counts{{1, 2, 3}, {3, 2, 1}}, Layers: []int{1, 2}}
	if rows, err := small.Rows(some); err != nil || !reflect.DeepEqual(rows.Layers, small.Placement.Layers[1:]) {
		t.Errorf("two of three layers: %+v, %v", rows.Layers, err)
	}
	small.Placement.Layers, small.Layers = small.Placement.Layers[1:], []int{1, 4}
	if _, err := small.Rows(some); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "layer 4") {
		t.Errorf("layers 1 and 4 for loads of 1 and 2: %v", err)
	}
}

func FuzzParsePlan(f *testing.F) {
	for _, kind := range Kinds() {
		var b bytes.Buffer
		if err := WritePlan(&b, kind, samplePlan()); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePlan(data, 2)
		if err != nil {
			return
		}
		for r := range p.Placement.Layers {
			for e, c := range p.Replicas(r) {
				if c < 1 {
					t.Fatalf("row %d has no slot for expert %d", r, e)
				}
			}
		}
	})
}

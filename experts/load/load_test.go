package load

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

func TestMetrics(t *testing.T) {
	tests := []struct {
		name               string
		x                  []float64
		ir, variation, top float64 // top: share above 1.5 times the mean
	}{
		{"even", []float64{2, 2, 2, 2}, 1, 0, 0},
		{"one hot", []float64{4, 0, 0, 0}, 4, math.Sqrt(3), 0.625},
		{"zeros", []float64{0, 0}, 1, 0, 0},
		{"empty", nil, 1, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Imbalance(tt.x); !near(got, tt.ir) || !near(Balancedness(tt.x), 1/tt.ir) {
				t.Errorf("imbalance %v balancedness %v, want %v", got, Balancedness(tt.x), tt.ir)
			}
			if got := Variation(tt.x); !near(got, tt.variation) {
				t.Errorf("variation %v, want %v", got, tt.variation)
			}
			if got := OverCapacity(tt.x, 1.5); !near(got, tt.top) {
				t.Errorf("over capacity %v, want %v", got, tt.top)
			}
		})
	}
	s := Summarise([]float64{1, 3, 9, 2}, []int{1, 3})
	if s.Mean != 2.5 || s.Max != 3 || s.Layer != 1 {
		t.Errorf("summary of layers 1 and 3: %+v", s)
	}
}

func TestValidate(t *testing.T) {
	many := make(Counts, MaxLayers+1)
	for l := range many {
		many[l] = []float64{1}
	}
	tests := []struct {
		name string
		c    Counts
		want error
	}{
		{"good", Counts{{1, 0}, {0, 0}}, nil},
		{"none", nil, ErrEmpty},
		{"no experts", Counts{{}}, ErrEmpty},
		{"ragged", Counts{{1, 2}, {1}}, ErrRagged},
		{"NaN", Counts{{math.NaN()}}, ErrValue},
		{"negative", Counts{{-1}}, ErrValue},
		{"infinite", Counts{{math.Inf(1)}}, ErrValue},
		{"too many layers", many, ErrTooLarge},
	}
	for _, tt := range tests {
		if err := tt.c.Validate(); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestRecorder(t *testing.T) {
	r := NewRecorder(Decode, 2, 4, 2)
	r.Tokens(40)
	for range 40 {
		r.Token(0, []int32{0, 1}, []int32{0, 2}, 0)
		r.Token(1, []int32{2, 3}, []int32{2, 3}, 1)
		r.Shape(1, 0.9, 0.2)
	}
	w := r.Take()
	if err := w.Validate(); err != nil || !w.Enough() {
		t.Fatalf("window %+v: %v", w, err)
	}
	if w.Demand[0][1] != 40 || w.Served[0][1] != 0 || w.Served[0][2] != 40 || w.Rigid[0][0] != 0 || w.Rigid[1][3] != 40 {
		t.Errorf("counts: %+v", w)
	}
	if got := w.Distortion(); got != 0.5 {
		t.Errorf("distortion %v: half of layer 0 moved (|1-0|+|0-1| of 2), nothing of layer 1; want 0.5", got)
	}
	if w.Shapes[1].Tokens() != 40 || w.Shapes[1].FlatShare(0.8) != 0 || w.Shapes[1].FlatShare(0.95) != 1 {
		t.Errorf("shape: %+v", w.Shapes[1])
	}
	if c, level := w.Planned(1); Sum(c[0]) != 0 || level[0] != 80 || c[1][3] != 40 || level[1] != 0 {
		t.Errorf("planned %v and %v: layer 0 is flexible, layer 1 rigid", c, level)
	}
	if c, level := w.Planned(0); c[0][0] != 40 || level[0] != 0 {
		t.Errorf("planned without routing %v and %v", c, level)
	}
	next := r.Take()
	if next.Tokens != 0 || Sum(next.Demand[0]) != 0 || w.Demand[0][1] != 40 {
		t.Error("a taken window is not independent of the next")
	}
}

func TestRecorderDoesNotAllocate(t *testing.T) {
	r := NewRecorder(Decode, 1, 8, 2)
	sel := []int32{1, 2}
	if n := testing.AllocsPerRun(100, func() { r.Token(0, sel, sel, 1); r.Shape(0, 0.5, 0.5) }); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

func TestShapeTakesAnyFloat(t *testing.T) {
	var s Shape
	for _, x := range []float32{-1, 0, 0.5, 1, 2, float32(math.NaN()), float32(math.Inf(1))} {
		s.Observe(x, x)
	}
	if s.Tokens() != 7 {
		t.Errorf("%d tokens, want 7", s.Tokens())
	}
}

func TestAverageHalfLife(t *testing.T) {
	a := NewAverage(1000)
	if a.Mean(0) != nil {
		t.Error("mean before any window")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(a.Add(Counts{{1000, 0}}, 1000))
	if m := a.Mean(0); !near(m[0][0], 1) {
		t.Errorf("mean of one window %v, want its rate", m)
	}
	must(a.Add(Counts{{0, 1000}}, 1000))
	// Weights 1/4 and 1/2, normalised.
	if m := a.Mean(0); !near(m[0][0], 1.0/3) || !near(m[0][1], 2.0/3) {
		t.Errorf("mean %v, want 1/3 and 2/3", m)
	}
	if m := a.Mean(1); m[0][0] <= 1.0/3 {
		t.Errorf("one deviation above the mean: %v", m)
	}
	if err := a.Add(Counts{{1}}, 5); !errors.Is(err, ErrShape) {
		t.Errorf("other shape: %v", err)
	}
}

// Splitting a window in two gives nearly what the whole gives: half-life is in
// tokens, not in windows.
func TestAverageIsPerToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(2, 100000).Draw(t, "tokens")
		rate := rapid.Float64Range(0, 1).Draw(t, "rate")
		one, two := NewAverage(5000), NewAverage(5000)
		_ = one.Add(Counts{{rate * float64(n)}}, n)
		_ = two.Add(Counts{{rate * float64(n/2)}}, n/2)
		_ = two.Add(Counts{{rate * float64(n-n/2)}}, n-n/2)
		if x, y := one.Mean(0)[0][0], two.Mean(0)[0][0]; !near(x, y) || !near(one.weight, two.weight) {
			t.Fatalf("whole %v weight %v, halves %v weight %v", x, one.weight, y, two.weight)
		}
	})
}

func TestAddScaled(t *testing.T) {
	c := Counts{{1, 2}}
	if err := c.AddScaled(Counts{{1, 1}}, 2); err != nil || c[0][1] != 4 {
		t.Errorf("%v, %v", c, err)
	}
	if err := c.AddScaled(Counts{{1}}, 1); !errors.Is(err, ErrShape) {
		t.Errorf("other shape: %v", err)
	}
	d := c.Clone()
	d.Scale(10)
	if c[0][0] != 3 || d[0][0] != 30 {
		t.Errorf("clone shares memory: %v %v", c, d)
	}
	if got := (Counts{{0, 0}, {0, 1}}).MoE(); len(got) != 1 || got[0] != 1 {
		t.Errorf("MoE layers %v, want 1", got)
	}
}

package measure

import (
	"math"
	"slices"
	"testing"
)

func TestBlocks(t *testing.T) {
	for _, c := range []struct {
		values []float64
		size   int
		want   []float64
	}{
		{[]float64{1, 0, 1, 1, 0, 0, 1}, 2, []float64{.5, 1, 0}},
		{[]float64{1, 0, 0, 1}, 1000, []float64{.5}},
		{nil, 1000, nil},
	} {
		if got := Blocks(c.values, c.size); !slices.Equal(got, c.want) {
			t.Errorf("blocks of %v are %v, want %v", c.values, got, c.want)
		}
	}
	near(t, "farthest", Farthest([]float64{.3, .1, .45}, .3), .2, 1e-12)
	near(t, "exceeding", Exceeding([]float64{.04, .05, .06, .2}, .05), .5, 0)
	if !math.IsNaN(Farthest(nil, .3)) || !math.IsNaN(Exceeding(nil, 1)) {
		t.Error("no blocks have figures")
	}
}

func TestQuantiles(t *testing.T) {
	v := []float64{40, 10, 30, 20}
	for q, want := range map[float64]float64{.5: 20, .51: 30, .95: 40, .25: 10, 0: 10} {
		near(t, "quantile", Quantiles(v, q)[0], want, 0)
	}
	if v[0] != 40 || !math.IsNaN(Quantiles(nil, .5)[0]) {
		t.Error("values were moved, or none have a quantile")
	}
}

// Two of four escalated, one of which gains: .25 against .5 x .25 at random.
func TestOverRandom(t *testing.T) {
	c := Choice{[]bool{true, true, false, false}, []float64{1, 0, 0, 0}}
	near(t, "over random", c.OverRandom(), .25-.125, 1e-12)
	near(t, "all", Choice{[]bool{true, true}, []float64{1, -1}}.OverRandom(), 0, 1e-12)
	near(t, "harm", Choice{[]bool{true, false}, []float64{-1, 1}}.OverRandom(), -.5, 1e-12)
}

func TestBootstrapOverRandom(t *testing.T) {
	n := 400
	good, none := Choice{make([]bool, n), make([]float64, n)}, Choice{make([]bool, n), make([]float64, n)}
	for i := range n {
		good.Gain[i] = float64(i % 2)
		none.Gain[i] = good.Gain[i]
		good.Escalated[i], none.Escalated[i] = i%4 == 1, i%4 < 2
	}
	s := BootstrapOverRandom([]Choice{good, none, good}, 500, 1)
	if low, high := Interval(s[0], .95); !(low > .08) || !(high < .17) { // .25 - .25 x .5
		t.Errorf("a good choice gains %v to %v", low, high)
	}
	if low, high := Interval(s[1], .95); !(low < 0 && high > 0) {
		t.Errorf("a choice at random gains %v to %v", low, high)
	}
	if !slices.Equal(s[0], s[2]) {
		t.Error("the same choice differs in a paired resample")
	}
}

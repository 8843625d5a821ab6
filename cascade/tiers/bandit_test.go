package tiers

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestThompsonFindsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	quality, arms := []float64{.6, .8, .7}, make([]Arm, 3)
	chosen := 0
	for i := range 3000 {
		k := Choose(arms, nil, rng)
		y := 0.0
		if rng.Float64() < quality[k] {
			y = 1
		}
		arms[k].Observe(y, 1)
		if i >= 2000 && k == 1 {
			chosen++
		}
	}
	if chosen < 800 {
		t.Errorf("the best arm is chosen %d of the last 1000 times", chosen)
	}
	if Choose(nil, nil, rng) != -1 || Best(nil, nil) != -1 {
		t.Error("a choice without arms")
	}
	if k := Choose(arms, []float64{0, 5, 5}, rng); k != 0 {
		t.Errorf("arm %d although the others are unaffordable", k)
	}
	if k := Best(arms, nil); k != 1 {
		t.Errorf("arm %d has the best mean", k)
	}
	if k := Best(arms, []float64{0, .9, .9}); k != 0 {
		t.Errorf("arm %d is the best for its price", k)
	}
}

// drawArms are arms as labels make them, with prices.
func drawArms(t *rapid.T) (arms []Arm, price []float64) {
	for range rapid.IntRange(1, Most).Draw(t, "arms") {
		n := rapid.Float64Range(0, 1/(1-Decay)).Draw(t, "labels")
		p := rapid.Float64Range(0, 1).Draw(t, "right")
		arms = append(arms, Arm{n * p, n * (1 - p)})
		price = append(price, rapid.Float64Range(0, .3).Draw(t, "price"))
	}
	return arms, price
}

func TestPropensitiesSumToOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		arms, price := drawArms(t)
		sum := 0.0
		for i, p := range Propensities(arms, price) {
			if !(p >= 0 && p <= 1) {
				t.Fatalf("propensity %v of arm %d", p, i)
			}
			sum += p
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Fatalf("the propensities sum to %v", sum)
		}
	})
}

// The propensities are the shares in which the draws fall.
func TestPropensitiesAgreeWithDraws(t *testing.T) {
	const n = 200_000
	for name, tt := range map[string]struct {
		arms  []Arm
		price []float64
	}{
		"nothing known":   {make([]Arm, 3), nil},
		"a price":         {make([]Arm, 2), []float64{0, .25}},
		"much is known":   {[]Arm{{800, 200}, {790, 210}}, nil},
		"next to certain": {[]Arm{{998, 2}, {995, 5}, {0, 0}}, []float64{.001, 0, .1}},
		"out of reach":    {[]Arm{{10, 10}, {10, 10}}, []float64{0, 2}},
	} {
		rng := rand.New(rand.NewPCG(5, 6))
		count := make([]float64, len(tt.arms))
		for range n {
			count[Choose(tt.arms, tt.price, rng)]++
		}
		for i, p := range Propensities(tt.arms, tt.price) {
			// Four standard errors of the count beside the integration's own error.
			if noise := 4*math.Sqrt(p*(1-p)/n) + .002; math.Abs(p-count[i]/n) > noise {
				t.Errorf("%s: arm %d has propensity %v, drawn %v", name, i, p, count[i]/n)
			}
		}
	}
}

func TestInterval(t *testing.T) {
	for _, tt := range []struct {
		arm       Arm
		low, high float64 // of the Beta distribution, 5 and 95 %
	}{
		{Arm{}, .05, .95},
		{Arm{1, 0}, math.Sqrt(.05), math.Sqrt(.95)},
		{Arm{0, 9}, 1 - math.Pow(.95, .1), 1 - math.Pow(.05, .1)},
		{Arm{500, 500}, .5 - .02596, .5 + .02596},
	} {
		if low, high := tt.arm.Interval(.9); math.Abs(low-tt.low) > 1./1024 || math.Abs(high-tt.high) > 1./1024 {
			t.Errorf("%+v: %v to %v, want %v to %v", tt.arm, low, high, tt.low, tt.high)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		arms, _ := drawArms(t)
		low, high := arms[0].Interval(.9)
		if !(low >= 0 && low < arms[0].Mean() && arms[0].Mean() < high && high <= 1) {
			t.Fatalf("%+v: %v to %v, mean %v", arms[0], low, high, arms[0].Mean())
		}
	})
}

func BenchmarkPropensities(b *testing.B) {
	arms, price := []Arm{{800, 200}, {300, 100}}, []float64{.01, .02}
	b.ReportAllocs()
	for b.Loop() {
		if p := Propensities(arms, price); len(p) != 2 {
			b.Fatal(p)
		}
	}
}

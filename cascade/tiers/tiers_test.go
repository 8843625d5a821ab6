package tiers

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func TestNext(t *testing.T) {
	small := Tier{Mean: .6, SD: .2, Cost: 0}
	big := Tier{Mean: .9, SD: .1, Cost: 1}
	ran := func(t Tier, mean float64) Tier { t.Ran, t.Mean, t.SD = true, mean, .01; return t }
	blocked := big
	blocked.Blocked = true
	tests := []struct {
		name   string
		tiers  []Tier
		lambda float64
		want   int
	}{
		{"cheapest of a worthwhile set first", []Tier{small, big}, .1, 0},
		{"free money", []Tier{small, big}, 0, 0},
		{"good answer stops", []Tier{ran(small, .97), big}, .1, -1},
		{"bad answer goes on", []Tier{ran(small, .3), big}, .1, 1},
		{"too dear", []Tier{ran(small, .3), big}, 2, -1},
		{"blocked", []Tier{ran(small, .3), blocked}, 0, -1},
		{"middle tier not worth its cost", []Tier{ran(small, .3), {Mean: .35, SD: .01, Cost: .9}, big}, .1, 2},
		{"something must run", []Tier{{Mean: .1, Cost: 5}}, 1, 0},
	}
	for _, tt := range tests {
		if got, err := Next(tt.tiers, tt.lambda); err != nil || got != tt.want {
			t.Errorf("%s: %d, %v, want %d", tt.name, got, err, tt.want)
		}
	}
	for _, bad := range [][]Tier{nil, make([]Tier, Most+1), {{Mean: math.NaN()}}, {{SD: -1}}} {
		if _, err := Next(bad, 1); !errors.Is(err, ErrTiers) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// The expected best agrees with sampling, and an answer that is right for sure
// leaves nothing to gain.
func TestExpectedBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	list := []Tier{{Mean: .5, SD: .2}, {Mean: .8, SD: .3}, {Mean: .6}}
	q := distributions(list)
	sum := 0.0
	const n = 200_000
	for range n {
		x := math.Max(.5+.2*rng.NormFloat64(), .8+.3*rng.NormFloat64())
		sum += math.Min(1, math.Max(.6, x))
	}
	if got := value(list, &q, 7, 0); math.Abs(got-sum/n) > .002 {
		t.Errorf("expected best %v, samples %v", got, sum/n)
	}
	if next, err := Next([]Tier{{Mean: .999, Ran: true}, {Mean: .8, SD: .3, Cost: .001}}, 1); err != nil || next != -1 {
		t.Errorf("tier %d after an answer that is right, %v", next, err)
	}
}

func BenchmarkNext(b *testing.B) {
	list := []Tier{{Mean: .4, Ran: true}, {Mean: .7, SD: .2, Cost: .01}, {Mean: .8, SD: .2, Cost: .03}, {Mean: .95, Cost: .1}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Next(list, 1); err != nil {
			b.Fatal(err)
		}
	}
}

// More models never make the expected best worse at no cost.
func TestMaximumGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tiers := make([]Tier, rapid.IntRange(1, Most).Draw(t, "n"))
		for i := range tiers {
			tiers[i] = Tier{Mean: rapid.Float64Range(0, 1).Draw(t, "mean"), SD: rapid.Float64Range(0, .5).Draw(t, "sd")}
		}
		q, last := distributions(tiers), math.Inf(-1)
		for i := range tiers {
			v := value(tiers, &q, 1<<(i+1)-1, 0)
			if v < last-1e-9 {
				t.Fatalf("with tier %d the value falls from %v to %v", i, last, v)
			}
			last = v
		}
	})
}

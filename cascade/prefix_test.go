package cascade

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// tokenAnswers are synthetic answers: the tokens of wrong ones are less sure.
func tokenAnswers(n, tokens int) []TokenSample {
	rng := rand.New(rand.NewPCG(1, 2))
	out := make([]TokenSample, n)
	for i := range out {
		a := TokenSample{LogProbs: make([]float64, tokens), Right: float64(rng.IntN(2))}
		for j := range a.LogProbs {
			a.LogProbs[j] = -.4 * rng.ExpFloat64() * (1.05 - a.Right)
		}
		out[i] = a
	}
	return out
}

func TestFitPrefix(t *testing.T) {
	p, err := FitPrefix(tokenAnswers(400, 80), 64)
	if err != nil {
		t.Fatal(err)
	}
	c := Calibration{Version: 1, Terms: []Term{{FeatureProduct, 1}}, Prefix: &p}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if p.Tokens != 64 || p.PhiMean < 1 || p.PhiSD <= 0 {
		t.Errorf("prefix %+v", p)
	}
	hits, n := 0, 0
	for _, a := range tokenAnswers(400, 80) {
		var acc Accumulator
		for _, lp := range a.LogProbs[:32] {
			acc.Add(lp, math.NaN())
		}
		s := acc.Signals()
		v, ok := c.PrefixProbability(&s)
		if !ok {
			t.Fatal("a beginning cannot be judged")
		}
		if n++; (v > .5) == (a.Right > .5) {
			hits++
		}
	}
	if hits < n*9/10 {
		t.Errorf("%d of %d beginnings are judged right", hits, n)
	}
}

// A calibration without a prefix judges no beginning, and nothing is fitted on
// answers that are over before the first cut.
func TestPrefixIsOptional(t *testing.T) {
	c := Calibration{Terms: []Term{{FeatureProduct, 1}}}
	s := Signals{Usable: true, Tokens: 3, SumLogProb: -.1}
	if _, ok := c.PrefixProbability(&s); ok {
		t.Error("a beginning is judged by a calibration of whole answers")
	}
	if _, err := FitPrefix(tokenAnswers(100, 4), 64); !errors.Is(err, ErrFit) {
		t.Errorf("fitted on short answers: %v", err)
	}
	for _, bad := range []Prefix{{}, {Tokens: 1, WaitMS: -1}, {Tokens: 1, Terms: []Term{{"nonsense", 1}}}, {Tokens: 1, PhiSD: -1, Terms: []Term{{FeatureProduct, 1}}}} {
		c := Calibration{Version: 1, Terms: []Term{{FeatureProduct, 1}}, Prefix: &bad}
		if c.Validate() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

package measure

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

func near(t *testing.T, name string, got, want, tol float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tol) {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

func TestCurveByHand(t *testing.T) {
	edge, cloud := []float64{0, 0, 1, 1}, []float64{1, 0, 1, 1}
	c := NewCurve(Rank([]float64{4, 3, 2, 1}), edge, cloud)
	near(t, "edge", c.Edge(), .5, 0)
	near(t, "cloud", c.Cloud(), .75, 0)
	near(t, "area", c.Area(), .75-.25*.125, 1e-12)
	near(t, "APGR", c.APGR(), (.75-.25*.125-.5)/.25, 1e-12)
	near(t, "CPT95", c.CPT(.95), .25, 0)
	near(t, "at .125", c.At(.125), .625, 1e-12)
	best, rate := c.Best()
	near(t, "best", best, .75, 0)
	near(t, "best rate", rate, .25, 0)
}

// All items tied is a random mix: APGR one half and CPT(x) = x rounded up.
func TestTiesAreARandomMix(t *testing.T) {
	edge, cloud := []float64{0, 1, 0, 0, 1}, []float64{1, 1, 0, 1, 0}
	c := NewCurve(Rank(make([]float64, 5)), edge, cloud)
	near(t, "APGR", c.APGR(), .5, 1e-12)
	near(t, "CPT50", c.CPT(.5), .6, 1e-12)
}

func TestAPGRUndefinedWithoutGap(t *testing.T) {
	c := NewCurve(Rank([]float64{1, 2}), []float64{1, 0}, []float64{0, 1})
	if !math.IsNaN(c.APGR()) || !math.IsNaN(c.CPT(.5)) {
		t.Errorf("APGR %v, CPT %v without a gap", c.APGR(), c.CPT(.5))
	}
}

// The oracle order is never worse than any other order.
func TestOracleDominates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 60).Draw(t, "n")
		edge, cloud, gain, other := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range n {
			edge[i] = float64(rapid.IntRange(0, 1).Draw(t, "e"))
			cloud[i] = float64(rapid.IntRange(0, 1).Draw(t, "c"))
			gain[i], other[i] = cloud[i]-edge[i], float64(rapid.IntRange(0, 5).Draw(t, "p"))
		}
		best, any := NewCurve(Rank(gain), edge, cloud), NewCurve(Rank(other), edge, cloud)
		for _, r := range []float64{0, .1, .25, .5, .9, 1} {
			if best.At(r) < any.At(r)-1e-9 {
				t.Fatalf("at %v the oracle has %v, another order %v", r, best.At(r), any.At(r))
			}
		}
	})
}

func TestAUROC(t *testing.T) {
	near(t, "AUROC", AUROC([]float64{1, 2, 3, 4}, []bool{false, true, false, true}), .75, 1e-12)
	near(t, "tied AUROC", AUROC([]float64{1, 1, 1}, []bool{false, true, true}), .5, 1e-12)
	if !math.IsNaN(AUROC([]float64{1}, []bool{true})) {
		t.Error("AUROC of one class is a number")
	}
	// Weighting an item twice is the same as having it twice.
	a, _ := WeightedAUROC([]float64{1, 2, 3}, []bool{false, true, false}, []float64{1, 1, 2})
	near(t, "weighted", a, AUROC([]float64{1, 2, 3, 3}, []bool{false, true, false, false}), 1e-12)
}

// DeLong's standard error agrees with the spread over repeated samples.
func TestAUROCStandardError(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var values []float64
	meanSE := 0.0
	for range 300 {
		score, pos := make([]float64, 200), make([]bool, 200)
		for i := range score {
			pos[i] = i%2 == 0
			score[i] = rng.NormFloat64()
			if pos[i] {
				score[i]++
			}
		}
		a, se := WeightedAUROC(score, pos, nil)
		values = append(values, a)
		meanSE += se / 300
	}
	mean, sq := 0.0, 0.0
	for _, v := range values {
		mean += v / 300
	}
	for _, v := range values {
		sq += (v - mean) * (v - mean) / 299
	}
	near(t, "standard error", meanSE, math.Sqrt(sq), .004)
}

func TestCalibrationErrors(t *testing.T) {
	p, y := []float64{.9, .9, .1, .1}, []float64{1, 0, 0, 0}
	near(t, "ECE", ECE(Reliability(p, y, nil, 10)), .5*.4+.5*.1, 1e-12)
	near(t, "Brier", Brier(p, y), (.01+.81+.01+.01)/4, 1e-12)
	near(t, "log loss", LogLoss([]float64{.5}, []float64{1}), math.Ln2, 1e-12)
}

func TestBootstrapCoversAndPairs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	n := 400
	edge, cloud, prio := make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		edge[i], cloud[i] = float64(rng.IntN(2)), float64(min(1, rng.IntN(4)))
		prio[i] = cloud[i] - edge[i] + rng.NormFloat64()
	}
	o := Rank(prio)
	s := BootstrapAPGR([]Order{o, o}, edge, cloud, 200, 1)
	for _, d := range Difference(s[0], s[1]) {
		if d != 0 {
			t.Fatal("the same order differs from itself in a paired resample")
		}
	}
	low, high := Interval(s[0], .95)
	if v := NewCurve(o, edge, cloud).APGR(); v < low || v > high {
		t.Errorf("APGR %v outside its interval %v..%v", v, low, high)
	}
}

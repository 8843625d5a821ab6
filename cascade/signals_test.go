package cascade

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestAccumulator(t *testing.T) {
	var a Accumulator
	if a.Signals().Usable {
		t.Error("signals without tokens are usable")
	}
	a.Add(-.1, 2)
	a.Add(-1.5, .25)
	a.Add(0, math.NaN())
	a.AddToken(Token{LogProb: -9, Margin: math.NaN(), Entropy: math.NaN(), Span: SpanStructure})
	s := a.Signals()
	if !s.Usable || s.Tokens != 3 || s.Low != 1 || s.MinLogProb != -1.5 || s.FirstLogProb != -.1 {
		t.Errorf("signals = %+v", s)
	}
	if math.Abs(s.SumLogProb+1.6) > 1e-12 || math.Abs(s.MeanLogProb+1.6/3) > 1e-12 {
		t.Errorf("sum %v, mean %v", s.SumLogProb, s.MeanLogProb)
	}
	if s.Margins != 2 || s.MinMargin != .25 || s.MeanMargin != 1.125 {
		t.Errorf("margins: %+v", s)
	}
	if st := a.SpanSignals(SpanStructure); st.Tokens != 1 || st.SumLogProb != -9 {
		t.Errorf("structure span: %+v", st)
	}
	a.Reset()
	if a.Signals().Tokens != 0 {
		t.Error("Reset leaves tokens")
	}
}

func TestUnusableSignals(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), 1} {
		var a Accumulator
		a.Add(-.1, math.NaN())
		a.Add(bad, math.NaN())
		if a.Signals().Usable {
			t.Errorf("log-probability %v leaves the signals usable", bad)
		}
	}
	var a Accumulator
	a.Add(-.1, math.NaN())
	a.Missing()
	if a.Signals().Usable {
		t.Error("a missing log-probability leaves the signals usable")
	}
	a.Reset()
	a.Add(math.Inf(-1), math.NaN())
	if s := a.Signals(); !s.Usable || s.SumLogProb != -50 {
		t.Errorf("probability 0: %+v, want a usable, clipped signal", s)
	}
}

func TestPhiIsMonotoneAndContinuous(t *testing.T) {
	if d := Phi(-math.Ln2-1e-9) - Phi(-math.Ln2+1e-9); math.Abs(d) > 1e-6 {
		t.Errorf("jump of %v at one half", d)
	}
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Float64Range(-60, 0).Draw(t, "a")
		b := rapid.Float64Range(-60, 0).Draw(t, "b")
		if a < b && Phi(a) > Phi(b) {
			t.Fatalf("Phi(%v) = %v > Phi(%v) = %v", a, Phi(a), b, Phi(b))
		}
	})
}

func TestPhiQuantile(t *testing.T) {
	var a Accumulator
	for i := range 1000 {
		a.Add(-float64(i)/100, math.NaN()) // 0 .. -9.99
	}
	s := a.Signals()
	for _, q := range []float64{.1, .25, .5, .75} {
		want := Phi(-10 * (1 - q))
		if got := s.PhiQuantile(q); math.Abs(got-want) > 1.2 {
			t.Errorf("quantile %v is %v, want %v within one bin", q, got, want)
		}
	}
}

func TestFitPlattRecovers(t *testing.T) {
	// Labels drawn from sigmoid(.8 phi - .5) at fixed quantiles of a uniform
	// variable, so the fit must come back to those numbers.
	var samples []Sample
	for i := range 400 {
		lp := -8 * float64(i+1) / 400
		p := Sigmoid(.8*Phi(lp) - .5)
		samples = append(samples, Sample{Signals: signalsOf(lp), Right: p})
	}
	c, err := FitPlatt(samples)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(c.Terms[0].Weight-.8) > .01 || math.Abs(c.Bias+.5) > .02 {
		t.Errorf("fit gives weight %v bias %v, want .8 and -.5", c.Terms[0].Weight, c.Bias)
	}
	if _, err := FitPlatt(samples[:5]); err == nil {
		t.Error("five samples are enough")
	}
}

func TestAfterDoesNotAllocate(t *testing.T) {
	cal, pol := unitCalibration(), ThresholdPolicy(.6)
	r, a, n := Request{}, Answer{Signals: signalsOf(-.1, -.2)}, Node{EdgeReady: true}
	var acc Accumulator
	allocs := testing.AllocsPerRun(100, func() {
		acc.Reset()
		acc.Add(-.1, 1)
		a.Signals = acc.Signals()
		After(&r, &a, cal, &pol, &n)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per decision", allocs)
	}
}

func BenchmarkTokenUpdate(b *testing.B) {
	b.ReportAllocs()
	var a Accumulator
	for b.Loop() {
		a.Add(-.01, 3)
	}
}

func BenchmarkAfter(b *testing.B) {
	b.ReportAllocs()
	cal, pol := unitCalibration(), ThresholdPolicy(.6)
	r, a, n := Request{}, Answer{Signals: signalsOf(-.1, -.2)}, Node{EdgeReady: true}
	for b.Loop() {
		After(&r, &a, cal, &pol, &n)
	}
}

// A signal that points the wrong way is not believed, and the mean stays right.
func TestFitPlattKeepsTheOrder(t *testing.T) {
	var samples []Sample
	for i := range 200 {
		lp := -4 * float64(i+1) / 200
		samples = append(samples, Sample{Signals: signalsOf(lp), Right: .3 + .3*float64(i)/200})
	}
	c, err := FitPlatt(samples)
	if err != nil {
		t.Fatal(err)
	}
	if c.Terms[0].Weight != slopeFloor {
		t.Errorf("weight %v, want the floor", c.Terms[0].Weight)
	}
	mean := 0.0
	for _, s := range samples {
		p, _ := c.Probability(&s.Signals)
		mean += p / 200
	}
	if math.Abs(mean-.45) > .01 {
		t.Errorf("mean probability %v, want .45", mean)
	}
}

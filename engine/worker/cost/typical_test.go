package cost

import (
	"errors"
	"math"
	"testing"
)

// steps are measurements of a known machine; every third one was disturbed.
func steps(disturbed float64) (truth Model, out []Sample) {
	truth = Model{Pieces: []Piece{{Fixed: 1, PerDecode: .2, PerPrefill: .5, PerContext: .001, PerPair: .0001}}}
	i := 0
	for _, decodes := range []int{0, 1, 2, 4, 8} {
		for _, prefill := range []int{0, 16, 64, 256} {
			for ctx := 16; ctx < 1000 && decodes+prefill > 0; ctx *= 4 {
				for repeat := range 3 {
					s := Step{Decodes: decodes, Prefill: prefill, Context: decodes * (ctx + repeat), Pairs: prefill * prefill / 2}
					ms := truth.Milliseconds(s)
					if i++; i%3 == 0 {
						ms *= disturbed
					}
					out = append(out, Sample{s, ms})
				}
			}
		}
	}
	return truth, out
}

// TestTypical: steps that others on the machine have disturbed do not change what
// the model says of it.
func TestTypical(t *testing.T) {
	truth, samples := steps(8)
	typical, noise := Typical(samples)
	pieces, err := Fit(typical)
	if err != nil {
		t.Fatal(err)
	}
	got := Model{Pieces: pieces}
	for _, s := range samples {
		if want := truth.Milliseconds(s.Step); math.Abs(got.Milliseconds(s.Step)-want) > .03*want {
			t.Fatalf("%+v: %v ms, want %v", s.Step, got.Milliseconds(s.Step), want)
		}
	}
	residual, err := HeldOut(typical)
	if err != nil || residual > .03 {
		t.Errorf("held out %v, %v", residual, err)
	}
	if raw, _ := HeldOut(samples); raw < 5*residual || noise < .3 {
		t.Errorf("without the medians %v, with them %v, noise %v: the test disturbs nothing", raw, residual, noise)
	}
	if _, noise := Typical(nil); noise != 0 {
		t.Errorf("noise of nothing: %v", noise)
	}
	if _, err := HeldOut(samples[:10]); !errors.Is(err, ErrSamples) {
		t.Errorf("too few: %v", err)
	}
}

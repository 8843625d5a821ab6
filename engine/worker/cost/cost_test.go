package cost

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// TestFitFindsTheMachine: samples of a known machine give its coefficients back.
func TestFitFindsTheMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		coefficient := func(name string, most float64) float64 {
			return rapid.Float64Range(most/100, most).Draw(t, name)
		}
		truth := Model{Pieces: []Piece{
			{UpTo: 32, Fixed: coefficient("fixed", 10), PerDecode: coefficient("decode", 1), PerPrefill: coefficient("prefill", 1), PerContext: coefficient("context", 0.01), PerPair: coefficient("pair", 0.001)},
			{Fixed: coefficient("fixed2", 10), PerDecode: coefficient("decode2", 1), PerPrefill: coefficient("prefill2", 1), PerContext: coefficient("context2", 0.01), PerPair: coefficient("pair2", 0.001)},
		}}
		var samples []Sample
		for decodes := 0; decodes <= 16; decodes += 2 {
			for _, prefill := range []int{0, 3, 16, 64, 200} {
				for _, ctx := range []int{10, 300} {
					s := Step{Decodes: decodes, Prefill: prefill, Context: decodes * ctx, Pairs: prefill * (ctx + prefill) / 2}
					if s.Tokens() > 0 {
						samples = append(samples, Sample{s, truth.Milliseconds(s)})
					}
				}
			}
		}
		pieces, err := Fit(samples)
		if err != nil {
			t.Fatal(err)
		}
		got := Model{Pieces: pieces}
		for _, s := range samples {
			if x := got.Milliseconds(s.Step); math.Abs(x-s.MS) > 0.02*s.MS+1e-6 {
				t.Fatalf("%+v: %v ms, want %v; %+v", s.Step, x, s.MS, pieces)
			}
		}
	})
}

// TestFitOfNoise: whatever was measured, no coefficient is negative and no
// prediction is not a number.
func TestFitOfNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Sample {
			n := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
			return Sample{Step{Decodes: n("d", 8), Prefill: n("p", 100), Context: n("c", 1000), Pairs: n("x", 10000)}, rapid.Float64Range(0.001, 1000).Draw(t, "ms")}
		}), 0, 60).Draw(t, "samples")
		pieces, err := Fit(samples)
		if len(samples) < leastSamples {
			if !errors.Is(err, ErrSamples) {
				t.Fatalf("%d samples: %v", len(samples), err)
			}
			return
		}
		m := Model{Pieces: pieces}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		for _, p := range pieces {
			for _, c := range []float64{p.Fixed, p.PerDecode, p.PerPrefill, p.PerContext, p.PerPair} {
				if !(c >= 0) || math.IsInf(c, 0) {
					t.Fatalf("%+v", p)
				}
			}
		}
	})
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cost.json")
	want := Model{Fingerprint: "f", Pieces: []Piece{{UpTo: 8, Fixed: 1}, {Fixed: 2, PerDecode: 0.5}}}
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil || got.Milliseconds(Step{Decodes: 8}) != 1 || got.Milliseconds(Step{Decodes: 10}) != 7 {
		t.Errorf("%+v, %v", got, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "no pieces": `{}`, "open first": `{"pieces":[{"up_to":0},{"up_to":4}]}`,
		"negative": `{"pieces":[{"fixed_ms":-1}]}`, "absurd": `{"pieces":[{"per_pair_ms":1e300}]}`, "in the second": `{"pieces":[{"up_to":4},{"per_decode_ms":-0.1}]}`,
		"negative error": `{"held_out":-1,"pieces":[{}]}`, "negative residual": `{"pieces":[{"residual":-1}]}`,
		"closed last": `{"pieces":[{"up_to":4}]}`, "out of order": `{"pieces":[{"up_to":8},{"up_to":4},{"up_to":0}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for print, ok := range map[string]bool{"f": true, "": true, "g": false} {
		if err := want.CheckFor(print); (err == nil) != ok {
			t.Errorf("for %q: %v", print, err)
		}
	}
	for print, want := range map[string]struct{ refused, dated bool }{
		"w:llama.cpp/b1:f16/f16": {},
		"w:llama.cpp/b2:f16/f16": {dated: true},
		"w:llama.cpp/b1:q8/q8":   {dated: true},
		"w:weir-moe/b1:f16/f16":  {refused: true, dated: true},
		"x:llama.cpp/b1:f16/f16": {refused: true, dated: true},
		":llama.cpp/b2:f16/f16":  {dated: true},
		"":                       {},
	} {
		m := Model{Fingerprint: "w:llama.cpp/b1:f16/f16"}
		if refused, dated := m.CheckFor(print) != nil, m.Dated(print); refused != want.refused || dated != want.dated {
			t.Errorf("for %q: refused %v, dated %v", print, refused, dated)
		}
	}
	if want.Poor() || !(&Model{HeldOut: .847}).Poor() {
		t.Error("what is poor")
	}
	if _, err := Read(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}

package gate

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestTopK(t *testing.T) {
	tests := []struct {
		name   string
		spec   Spec
		scores []float32
		bias   []float32
		want   []int32
		weight []float32
	}{
		{"ties go to the lower index", Spec{Experts: 4, TopK: 2}, []float32{.25, .25, .25, .25}, nil, []int32{0, 1}, []float32{.25, .25}},
		{"normalised and scaled", Spec{Experts: 3, TopK: 2, Normalise: true, Scale: 2}, []float32{.1, .6, .2}, nil, []int32{1, 2}, []float32{1.5, .5}},
		{"bias selects but does not weigh", Spec{Experts: 3, TopK: 1}, []float32{.5, .4, .1}, []float32{0, .2, 0}, []int32{1}, []float32{.4}},
		{"groups by their best", Spec{Experts: 4, TopK: 2, Groups: 2, TopGroups: 1}, []float32{.3, .0, .29, .28}, nil, []int32{0, 1}, []float32{.3, 0}},
		{"groups by their best two", Spec{Experts: 4, TopK: 2, Groups: 2, TopGroups: 1, GroupBest: 2}, []float32{.3, .0, .29, .28}, nil, []int32{2, 3}, []float32{.29, .28}},
		{"NaN ranks last", Spec{Experts: 3, TopK: 2}, []float32{float32(math.NaN()), .1, .2}, nil, []int32{2, 1}, []float32{.2, .1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := New(tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			sel := g.TopK(nil, tt.scores, tt.bias)
			if !slices.Equal(sel, tt.want) {
				t.Fatalf("selected %v, want %v", sel, tt.want)
			}
			w := make([]float32, len(sel))
			g.Weights(w, tt.scores, sel)
			for i := range w {
				if math.Abs(float64(w[i]-tt.weight[i])) > 1e-6 {
					t.Errorf("weights %v, want %v", w, tt.weight)
				}
			}
		})
	}
}

func TestScores(t *testing.T) {
	g, _ := New(Spec{Experts: 3, TopK: 1})
	s := make([]float32, 3)
	g.Scores(s, []float32{1000, 1000, -1000})
	if s[0] != .5 || s[1] != .5 || s[2] != 0 {
		t.Errorf("softmax %v", s)
	}
	g, _ = New(Spec{Experts: 2, TopK: 1, Score: Sigmoid})
	g.Scores(s[:2], []float32{0, 1000})
	if s[0] != .5 || s[1] != 1 {
		t.Errorf("sigmoid %v", s)
	}
}

func TestSpecErrors(t *testing.T) {
	for _, s := range []Spec{{}, {Experts: 2, TopK: 3}, {Experts: 6, TopK: 1, Groups: 4, TopGroups: 1},
		{Experts: 8, TopK: 4, Groups: 4, TopGroups: 1}, {Experts: MaxExperts + 1, TopK: 1}} {
		if _, err := New(s); !errors.Is(err, ErrSpec) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	spec := Spec{Experts: 4, TopK: 2}
	for _, p := range []Params{{}, {EpsHigh: 1, Tau: 0, Pool: 2}, {EpsHigh: 1, Tau: 1, Pool: 1}, {EpsHigh: float32(math.NaN()), Tau: 1, Pool: 2}, {EpsHigh: 1, Tau: 1, Pool: 5}} {
		if _, err := NewRouter(spec, []Params{p}); !errors.Is(err, ErrSpec) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	r, _ := NewRouter(spec, []Params{{EpsHigh: 1, Tau: 1, Pool: 2}})
	for _, homes := range [][][]int32{nil, {{0}, {0}, {0}, {}}, {{0}, {0}, {0}, {2}}} {
		if err := r.Place(0, homes, []float64{1, 1}); !errors.Is(err, ErrSpec) {
			t.Errorf("homes %v: %v", homes, err)
		}
	}
}

// The vectors of the LASER-style rule, counters carried from line to line.
func TestRouteVectors(t *testing.T) {
	r, err := NewRouter(Spec{Experts: 8, TopK: 2}, []Params{{EpsHigh: .80, Tau: .60, Pool: 6}})
	if err != nil {
		t.Fatal(err)
	}
	copy(r.Counters(0), []float64{10, 3, 0, 5, 0, 0, 0, 0})
	flat := []float32{.20, .18, .16, .14, .12, .10, .06, .04}
	even := []float32{.125, .125, .125, .125, .125, .125, .125, .125}
	lines := []struct {
		scores []float32
		mass   float32
		want   []int32
		after  []float64
	}{
		{[]float32{.60, .25, .05, .03, .03, .02, .01, .01}, .85, []int32{0, 1}, []float64{11, 4, 0, 5, 0, 0, 0, 0}},
		{flat, .38, []int32{2, 4}, []float64{11, 4, 1, 5, 1, 0, 0, 0}},
		{flat, .38, []int32{2, 4}, []float64{11, 4, 2, 5, 2, 0, 0, 0}},
		{even, .25, []int32{2, 5}, []float64{11, 4, 3, 5, 2, 1, 0, 0}},
	}
	for i, l := range lines {
		sel, _, out := r.Route(0, nil, l.scores, nil)
		if !slices.Equal(sel, l.want) || math.Abs(float64(out.Mass-l.mass)) > 1e-6 {
			t.Errorf("line %d: selected %v with mass %v, want %v with %v", i, sel, out.Mass, l.want, l.mass)
		}
		if !slices.Equal(r.Counters(0), l.after) {
			t.Errorf("line %d: counters %v, want %v", i, r.Counters(0), l.after)
		}
	}
}

// The guarantees of the rule over random scores, counters and parameters.
func TestRouteGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.IntRange(2, 24).Draw(t, "experts")
		k := rapid.IntRange(1, e).Draw(t, "k")
		spec := Spec{Experts: e, TopK: k}
		p := Params{EpsHigh: rapid.Float32Range(0, 1).Draw(t, "eps"), Tau: rapid.Float32Range(.05, 1).Draw(t, "tau"), Pool: rapid.IntRange(k, e).Draw(t, "pool")}
		a, err := NewRouter(spec, []Params{p})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := NewRouter(spec, []Params{p})
		placed := rapid.Bool().Draw(t, "placed")
		if placed {
			homes := make([][]int32, e)
			for i := range homes {
				homes[i] = []int32{int32(i % 3), 3}
			}
			if a.Place(0, homes, []float64{1, 2, 1, .5}) != nil || b.Place(0, homes, []float64{1, 2, 1, .5}) != nil {
				t.Fatal("cannot place")
			}
		}
		for range 6 {
			scores := make([]float32, e)
			for i := range scores {
				scores[i] = rapid.Float32Range(0.001, 1).Draw(t, "score")
			}
			sel, own, out := a.Route(0, nil, scores, nil)
			again, _, _ := b.Route(0, nil, scores, nil)
			if !slices.Equal(sel, again) {
				t.Fatal("the same state and token gave two selections")
			}
			checkRoute(t, spec, p, scores, sel, own, out)
		}
	})
}

func checkRoute(t *rapid.T, spec Spec, p Params, scores []float32, sel, own []int32, out Outcome) {
	distinct := slices.Clone(sel)
	slices.Sort(distinct)
	if len(sel) != spec.TopK || len(slices.Compact(distinct)) != spec.TopK {
		t.Fatalf("%v is not %d distinct experts", sel, spec.TopK)
	}
	g, _ := New(spec)
	top := g.TopK(nil, scores, nil)
	if !slices.Equal(top, own) {
		t.Fatalf("own choice %v, top-k %v", own, top)
	}
	if (out.Mass >= p.EpsHigh || p.Tau == 1 && scores[top[len(top)-1]] > secondBest(scores, top)) && !slices.Equal(sel, top) {
		t.Fatalf("selected %v although mass %v or tau %v allows no change of %v", sel, out.Mass, p.Tau, top)
	}
	kth := scores[top[len(top)-1]]
	sum, kept := 0.0, 0.0
	for i, e := range sel {
		if scores[e] < p.Tau*kth {
			t.Fatalf("expert %d scores %v, below %v of the k-th %v", e, scores[e], p.Tau, kth)
		}
		if i > 0 && scores[sel[i-1]] < scores[e] {
			t.Fatalf("%v is not in order of score", sel)
		}
		kept += float64(scores[e])
	}
	for _, e := range top {
		sum += float64(scores[e])
	}
	if limit := sum - float64(spec.TopK)*float64(p.Tau)*float64(kth); sum-kept > max(0, limit)+1e-6 {
		t.Fatalf("lost %v of mass, more than %v", sum-kept, limit)
	}
}

// secondBest is the best score outside sel.
func secondBest(scores []float32, sel []int32) float32 {
	best := float32(-1)
	for e, x := range scores {
		if !contains(sel, int32(e)) {
			best = max(best, x)
		}
	}
	return best
}

func TestPoolStaysInGroups(t *testing.T) {
	spec := Spec{Experts: 6, TopK: 1, Groups: 2, TopGroups: 1}
	r, _ := NewRouter(spec, []Params{{EpsHigh: 1, Tau: .1, Pool: 6}})
	for range 9 {
		sel, _, _ := r.Route(0, nil, []float32{.2, .1, .1, .19, .19, .19}, nil)
		if sel[0] > 2 {
			t.Fatalf("selected expert %d outside the chosen group", sel[0])
		}
	}
	if c := r.Counters(0); c[0] != 3 || c[1] != 3 || c[2] != 3 {
		t.Errorf("counters %v, want 3 each within the group", c)
	}
}

func TestDecayAndReset(t *testing.T) {
	r, _ := NewRouter(Spec{Experts: 2, TopK: 1}, []Params{{EpsHigh: 1, Tau: 1, Pool: 1}})
	r.Route(0, nil, []float32{1, 0}, nil)
	r.Decay(100, 100)
	if r.Counters(0)[0] != .5 {
		t.Errorf("after one half-life: %v", r.Counters(0))
	}
	r.Reset()
	if r.Counters(0)[0] != 0 {
		t.Errorf("after reset: %v", r.Counters(0))
	}
}

func TestRouteDoesNotAllocate(t *testing.T) {
	r, _ := NewRouter(Spec{Experts: 64, TopK: 8}, []Params{{EpsHigh: 1, Tau: .5, Pool: 16}})
	scores := gaussian(1, 64, 1)[0]
	sel := make([]int32, 0, 8)
	if n := testing.AllocsPerRun(100, func() { sel, _, _ = r.Route(0, sel, scores, nil) }); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

// gaussian makes softmax scores of skewed gaussian logits, [token][expert].
func gaussian(tokens, experts int, seed uint64) [][]float32 {
	g, _ := New(Spec{Experts: experts, TopK: 1})
	state := seed
	uniform := func() float64 {
		state = state*6364136223846793005 + 1442695040888963407
		return (float64(state>>11) + .5) / (1 << 53)
	}
	normal := func() float64 {
		return math.Sqrt(-2*math.Log(uniform())) * math.Cos(2*math.Pi*uniform())
	}
	skew := make([]float64, experts)
	for e := range skew {
		skew[e] = .7 * normal()
	}
	out := make([][]float32, tokens)
	for i := range out {
		logits := make([]float32, experts)
		for e := range logits {
			logits[e] = float32(skew[e] + normal())
		}
		out[i] = make([]float32, experts)
		g.Scores(out[i], logits)
	}
	return out
}

func TestCalibrate(t *testing.T) {
	spec := Spec{Experts: 16, TopK: 2}
	scores := gaussian(3000, 16, 7)
	start := Params{EpsHigh: .9, Pool: 8}
	last := 0.0
	for _, budget := range []float64{.02, .05, .15} {
		p, rep, err := Calibrate(spec, start, scores, nil, budget)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("budget %.2f: tau %.3f lost %.4f changed %.2f rigid %.2f imbalance %.3f to %.3f", budget, p.Tau, rep.Lost, rep.Changed, rep.Rigid, rep.Before, rep.After)
		if rep.Lost > budget || rep.Lost < budget/2 {
			t.Errorf("budget %v: lost %v", budget, rep.Lost)
		}
		if gain := rep.Before - rep.After; gain <= last {
			t.Errorf("budget %v wins %v of imbalance, not more than the smaller budget's %v", budget, gain, last)
		} else {
			last = gain
		}
	}
	p, rep, err := Calibrate(spec, start, scores, nil, 0)
	if err != nil || p.Tau < .94 || rep.Lost > 0 {
		t.Errorf("budget 0: %+v lost %v, %v", p, rep.Lost, err)
	}
	if _, _, err := Calibrate(spec, start, [][]float32{{1}}, nil, .1); !errors.Is(err, ErrSpec) {
		t.Errorf("one score for 16 experts: %v", err)
	}
}

func BenchmarkRoute(b *testing.B) {
	r, _ := NewRouter(Spec{Experts: 256, TopK: 8}, []Params{{EpsHigh: .9, Tau: .7, Pool: 24}})
	scores := gaussian(64, 256, 3)
	sel := make([]int32, 0, 8)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		sel, _, _ = r.Route(0, sel, scores[i&63], nil)
		i++
	}
}

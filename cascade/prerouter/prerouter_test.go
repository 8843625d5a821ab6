package prerouter

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestFeaturesAreStable(t *testing.T) {
	p := Prompt{Text: "Turn ON the kitchen light, 5 times ```x```", System: "hub", Turns: 2, Tools: 1, Image: true}
	a, b := Features(nil, p), Features(nil, p)
	if len(a) != len(b) {
		t.Fatal("lengths differ")
	}
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("feature %d: %v and %v", i, a[i], b[i])
		}
		if a[i].Index >= dimension {
			t.Fatalf("index %d out of range", a[i].Index)
		}
	}
	lower := p
	lower.Text = strings.ToLower(p.Text)
	if c := Features(nil, lower); c[len(c)-2] != a[len(a)-2] {
		t.Error("case changes the words")
	}
	if ru := textStats("включи свет"); ru.script == 0 {
		t.Error("cyrillic text counts as ASCII")
	}
}

func FuzzFeatures(f *testing.F) {
	f.Add("a b c", "")
	f.Add("\xff\xfe 12{};``` 漢字", "s")
	f.Fuzz(func(t *testing.T, text, system string) {
		for _, x := range Features(nil, Prompt{Text: text, System: system}) {
			if x.Index >= dimension || math.IsNaN(x.Value) || math.IsInf(x.Value, 0) {
				t.Fatalf("feature %+v", x)
			}
		}
	})
}

func TestRouterLearnsWords(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	r := NewRouter()
	easy, hard := []string{"turn", "light", "kitchen", "off"}, []string{"prove", "integral", "theorem", "matrix"}
	prompt := func(words []string) Prompt {
		return Prompt{Text: words[rng.IntN(4)] + " " + words[rng.IntN(4)] + " the " + words[rng.IntN(4)]}
	}
	for range 300 {
		for k, words := range [][]string{easy, hard} {
			x := Features(nil, prompt(words))
			r.Count(x)
			r.Observe(x, float64(1-k), 1, 1)
		}
	}
	pe, ph := r.Predict(Features(nil, prompt(easy))), r.Predict(Features(nil, prompt(hard)))
	if pe.Edge < .8 || ph.Edge > .2 || pe.Benefit > .2 || ph.Benefit < .8 {
		t.Errorf("easy %+v, hard %+v", pe, ph)
	}
}

func TestPriorShrinks(t *testing.T) {
	p := NewPrior()
	for range 100 {
		p.Observe("a", 1, 1, 1)
	}
	p.Observe("b", 0, 1, 1)
	if e, c := p.Predict("b"); e < .8 || c != 1 {
		t.Errorf("one label moves b to %v, %v", e, c)
	}
	for range 100 {
		p.Observe("b", 0, 1, 1)
	}
	if e, _ := p.Predict("b"); e > .2 {
		t.Errorf("100 labels leave b at %v", e)
	}
	if e, _ := p.Predict("new"); math.Abs(e-100./201) > .01 {
		t.Errorf("a new subject gets %v, want the mean", e)
	}
}

func goOn() bool { return false }

func TestSimilar(t *testing.T) {
	s, prior := NewSimilar(2), Prediction{.7, .2}
	if p, _, ok := s.P([]float64{1, 0}, prior, goOn); !ok || math.Abs(p.Edge-.7) > 1e-12 || math.Abs(p.Benefit-.2) > 1e-12 {
		t.Errorf("empty memory says %v", p)
	}
	for range 30 {
		s.Observe([]float64{1, .01}, Prediction{1, 0})
		s.Observe([]float64{.01, 1}, Prediction{math.NaN(), 1})
	}
	s.Observe([]float64{0, 0}, Prediction{1, 1})
	s.Observe([]float64{1, 2, 3}, Prediction{1, 1})
	if s.Len() != 60 {
		t.Errorf("%d vectors kept, want 60", s.Len())
	}
	for range 2 {
		a, wa, _ := s.P([]float64{2, 0}, prior, goOn)
		b, wb, _ := s.P([]float64{0, .3}, prior, goOn)
		if a.Edge < .9 || a.Benefit > .1 || b.Benefit < .9 || math.Abs(b.Edge-.7) > .01 || wa.Edge < 29 || wb.Edge > .01 || wb.Benefit < 29 {
			t.Errorf("neighbours of right answers %v by %v, of others %v by %v", a, wa, b, wb)
		}
		var err error
		if s, err = RestoreSimilar(s.State()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, ok := s.P([]float64{1, 0}, prior, func() bool { return true }); ok {
		t.Error("it does not stop")
	}
	if _, err := RestoreSimilar(SimilarState{Dimension: 2, Vectors: []byte{1}, Labels: [][2]float64{{0, 0}}}); err == nil {
		t.Error("half a vector is restored")
	}
}

// The ring forgets the oldest, and the nearest are found among many.
func TestSimilarRing(t *testing.T) {
	s, rng := NewSimilar(3), rand.New(rand.NewPCG(1, 1))
	vector := func(k float64) []float64 { return []float64{k, 1 + .01*rng.Float64(), -k} }
	for i := range similarRing + 100 {
		y := 0.0
		if i < 200 || i%100 == 7 {
			y = 1
		}
		s.Observe(vector(y), Prediction{y, y})
	}
	p, w, _ := s.P(vector(1), Prediction{.5, .5}, goOn)
	if s.Len() != similarRing || p.Edge < .95 || w.Edge < similarTop*.9 || s.next != 100 {
		t.Errorf("%d vectors, %v by %v", s.Len(), p, w)
	}
	again, err := RestoreSimilar(s.State())
	if q, _, _ := again.P(vector(1), Prediction{.5, .5}, goOn); err != nil || math.Abs(q.Edge-p.Edge) > .02 {
		t.Errorf("restored: %v, want %v (%v)", q, p, err)
	}
}

// A restored router predicts as the kept one.
func TestRouterState(t *testing.T) {
	rng, r := rand.New(rand.NewPCG(3, 4)), NewRouter()
	words := []string{"turn", "light", "prove", "integral", "kitchen"}
	prompt := func() []Feature {
		return Features(nil, Prompt{Text: words[rng.IntN(5)] + " " + words[rng.IntN(5)], System: "hub"})
	}
	for range 200 {
		x := prompt()
		r.Count(x)
		r.Observe(x, float64(rng.IntN(2)), 1, 1)
	}
	raw, err := json.Marshal(r.State())
	if err != nil {
		t.Fatal(err)
	}
	var st State
	if err := json.Unmarshal(raw, &st); err != nil {
		t.Fatal(err)
	}
	again, err := RestoreRouter(st)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if x := prompt(); again.Predict(x) != r.Predict(x) {
			t.Fatalf("%v, want %v", again.Predict(x), r.Predict(x))
		}
	}
}

// No state, whatever it holds, makes a router or a memory that predicts nonsense.
func FuzzRestore(f *testing.F) {
	f.Add([]byte(`{"documents":3,"features":[{"i":7,"p":1,"e":[1,2],"b":[0,-1]}]}`), []byte(`{"dimension":1,"vectors":"fw==","labels":[[1,-1]]}`))
	f.Add([]byte(`{"features":[{"i":99999999}]}`), []byte(`{"dimension":-1,"labels":[[5,0]]}`))
	f.Fuzz(func(t *testing.T, router, similar []byte) {
		var a State
		if json.Unmarshal(router, &a) == nil {
			if r, err := RestoreRouter(a); err == nil {
				if p := r.Predict(Features(nil, Prompt{Text: "turn on"})); !(p.Edge >= 0 && p.Edge <= 1) {
					t.Errorf("router says %v", p)
				}
			}
		}
		var b SimilarState
		if json.Unmarshal(similar, &b) == nil {
			if s, err := RestoreSimilar(b); err == nil {
				v := make([]float64, s.Dimension())
				v[0] = 1
				if p, _, _ := s.P(v, Prediction{.5, .5}, goOn); !(p.Edge >= 0 && p.Edge <= 1) {
					t.Errorf("memory says %v", p)
				}
			}
		}
	})
}

func TestSkipAndHedge(t *testing.T) {
	slowEdge := Times{EdgeSeconds: 2, CloudSeconds: 3, CloudCost: 1, PerSecond: .1}
	if SkipEdge(.1, slowEdge) || !SkipEdge(.9, slowEdge) {
		t.Error("the edge pass is skipped at the wrong rate")
	}
	if Hedge(.9, 0, slowEdge) || Hedge(.4, 4, slowEdge) || Hedge(.9, 60, slowEdge) || Hedge(.9, 1, slowEdge) || !Hedge(.9, 4, slowEdge) {
		t.Error("hedges in the wrong cases")
	}
}

func BenchmarkPredict(b *testing.B) {
	b.ReportAllocs()
	r := NewRouter()
	var x []Feature
	p := Prompt{Text: strings.Repeat("turn on the light in the kitchen ", 8)}
	for b.Loop() {
		x = Features(x[:0], p)
		r.Predict(x)
	}
}

func BenchmarkSimilar(b *testing.B) {
	b.ReportAllocs()
	s, rng, v := NewSimilar(768), rand.New(rand.NewPCG(1, 2)), make([]float64, 768)
	for range similarRing {
		for j := range v {
			v[j] = rng.NormFloat64()
		}
		s.Observe(v, Prediction{1, 0})
	}
	for b.Loop() {
		s.P(v, Prediction{.5, .5}, goOn)
	}
}

package prerouter

import (
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

func TestSimilar(t *testing.T) {
	s := NewSimilar(2)
	if p := s.P([]float64{1, 0}, .7); math.Abs(p-.7) > 1e-12 {
		t.Errorf("empty memory says %v", p)
	}
	for range 30 {
		s.Observe([]float64{1, .01}, 1)
		s.Observe([]float64{.01, 1}, 0)
	}
	s.Observe([]float64{0, 0}, 1)
	s.Observe([]float64{1, 2, 3}, 1)
	if s.size != 60 {
		t.Errorf("%d vectors kept, want 60", s.size)
	}
	if a, b := s.P([]float64{2, 0}, .5), s.P([]float64{0, .3}, .5); a < .9 || b > .1 {
		t.Errorf("neighbours of right answers %v, of wrong ones %v", a, b)
	}
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

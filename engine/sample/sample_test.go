package sample

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/engine"
	"pgregory.net/rapid"
)

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

func TestGreedy(t *testing.T) {
	tests := []struct {
		name   string
		logits []float32
		want   engine.Token
		ok     bool
	}{
		{"highest", []float32{1, 3, 2}, 1, true},
		{"lowest of equals", []float32{1, 3, 3}, 1, true},
		{"NaN never wins", []float32{nan, -5, nan}, 1, true},
		{"all NaN", []float32{nan, nan}, 0, false},
		{"infinite", []float32{1, inf}, 0, false},
		{"all masked", []float32{-inf, -inf}, 0, false},
		{"empty", nil, 0, false},
	}
	for _, tt := range tests {
		if got, ok := New(Params{}).Next(tt.logits, &Scratch{}); got != tt.want || ok != tt.ok {
			t.Errorf("%s: got %d %v, want %d %v", tt.name, got, ok, tt.want, tt.ok)
		}
	}
}

// TestDistribution compares frequencies with the exact probabilities after the
// filters: a chi-square test at a level that fails once in 10^6 by chance, and
// never changes because the seed is fixed.
func TestDistribution(t *testing.T) {
	logits := []float32{2, 1, 0, -1, 1.5, nan, -inf, 0.5}
	for _, p := range []Params{
		{Temperature: 1}, {Temperature: 0.5}, {Temperature: 2, TopK: 3}, {Temperature: 1, TopP: 0.8},
		{Temperature: 1, MinP: 0.3}, {Temperature: 1.3, TopK: 5, TopP: 0.9, MinP: 0.05},
	} {
		p.Seed = 7
		want := expected(logits, p)
		s, sc, n := New(p), &Scratch{}, 20000
		count := make([]float64, len(logits))
		for range n {
			tok, _ := s.Next(logits, sc)
			count[tok]++
		}
		chi := 0.0
		for i, w := range want {
			if w == 0 && count[i] > 0 {
				t.Errorf("%+v: token %d was filtered but chosen", p, i)
			} else if w > 0 {
				d := count[i] - w*float64(n)
				chi += d * d / (w * float64(n))
			}
		}
		if chi > 40 {
			t.Errorf("%+v: chi-square %.1f, counts %v, want %v", p, chi, count, want)
		}
	}
}

// expected is a plain implementation by full sort.
func expected(logits []float32, p Params) []float64 {
	best, _ := Greedy(logits)
	type cw struct {
		i int
		w float64
	}
	var all []cw
	for i, x := range logits {
		w := math.Exp((float64(x) - float64(logits[best])) / p.Temperature)
		if x == x && w > 0 && w >= p.MinP {
			all = append(all, cw{i, w})
		}
	}
	slices.SortStableFunc(all, func(a, b cw) int { // by logit: weights of different logits may round to one
		return cmp.Compare(logits[b.i], logits[a.i])
	})
	if p.TopK > 0 && p.TopK < len(all) {
		all = all[:p.TopK]
	}
	sum := func() (s float64) {
		for _, c := range all {
			s += c.w
		}
		return s
	}
	if p.TopP > 0 && p.TopP < 1 {
		limit, acc := p.TopP*sum(), 0.0
		for n, c := range all {
			if acc += c.w; acc >= limit {
				all = all[:n+1]
				break
			}
		}
	}
	total := sum()
	out := make([]float64, len(logits))
	for _, c := range all {
		out[c.i] = c.w / total
	}
	return out
}

func TestKeepsWhatAFullSortKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// In steps that weights can tell apart: which of two logits goes first
		// whose weights round to one number is nobody's business (TestRoundedTie).
		step := rapid.Map(rapid.IntRange(-10<<10, 10<<10), func(n int) float32 { return float32(n) / (1 << 10) })
		logits := rapid.SliceOfN(step, 1, 60).Draw(t, "logits")
		p := Params{Temperature: rapid.Float64Range(0.1, 2).Draw(t, "t"), TopK: rapid.IntRange(0, 20).Draw(t, "k"),
			TopP: rapid.Float64Range(0, 1).Draw(t, "p"), MinP: rapid.Float64Range(0, 0.9).Draw(t, "m"),
			Seed: rapid.Uint64().Draw(t, "seed")}
		want := expected(logits, p)
		a, b, sc := New(p), New(p), &Scratch{}
		for range 20 {
			x, ok := a.Next(logits, sc)
			y, _ := b.Next(logits, &Scratch{})
			if !ok || x != y || want[x] == 0 {
				t.Fatalf("token %d and %d (probability %g)", x, y, want[x])
			}
		}
	})
}

// Two logits whose weights are equal as numbers are still in order.
func TestRoundedTie(t *testing.T) {
	s := New(Params{Temperature: 2, TopK: 2, TopP: 1, MinP: .25})
	for range 20 {
		if x, _ := s.Next([]float32{1, -2.220446e-16, 1.110223e-16}, &Scratch{}); x == 1 {
			t.Fatal("the third best of two")
		}
	}
}

func TestLogprobs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		logits := rapid.SliceOfN(rapid.Float32Range(-30, 30), 1, 300).Draw(t, "logits")
		n := rapid.IntRange(0, 20).Draw(t, "n")
		lse, sum := LogSumExp(logits), 0.0
		for _, x := range logits {
			sum += math.Exp(float64(x) - lse)
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Fatalf("probabilities sum to %g", sum)
		}
		top := Top([]Logprob{{Token: -1}}, logits, lse, n)[1:]
		if len(top) != min(n, len(logits)) {
			t.Fatalf("%d entries, want %d", len(top), min(n, len(logits)))
		}
		sorted := slices.Clone(logits)
		slices.Sort(sorted)
		slices.Reverse(sorted)
		for i, e := range top {
			if logits[e.Token] != sorted[i] || math.Abs(float64(e.Logprob)-(float64(sorted[i])-lse)) > 1e-4 {
				t.Fatalf("entry %d is %+v, want logit %g", i, e, sorted[i])
			}
		}
	})
}

func TestNoAllocation(t *testing.T) {
	logits := gaussian(5000)
	s, sc := New(Params{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.01}), &Scratch{}
	var top []Logprob
	s.Next(logits, sc)
	top = Top(top, logits, 0, 20)
	if n := testing.AllocsPerRun(50, func() {
		s.Next(logits, sc)
		top = Top(top[:0], logits, LogSumExp(logits), 20)
	}); n != 0 {
		t.Errorf("%v allocations per token", n)
	}
}

func gaussian(n int) []float32 {
	r := rand.New(rand.NewPCG(1, 2))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * 3)
	}
	return v
}

func BenchmarkNext(b *testing.B) {
	for _, bb := range []struct {
		name  string
		vocab int
		p     Params
	}{
		{"greedy/259", 259, Params{}}, {"greedy/150k", 150_000, Params{}},
		{"temperature/150k", 150_000, Params{Temperature: 1}},
		{"top_k+top_p/259", 259, Params{Temperature: 0.8, TopK: 40, TopP: 0.95}},
		{"top_k+top_p/150k", 150_000, Params{Temperature: 0.8, TopK: 40, TopP: 0.95}},
		{"top_p/150k", 150_000, Params{Temperature: 0.8, TopP: 0.95}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			logits, s, sc := gaussian(bb.vocab), New(bb.p), &Scratch{}
			b.ReportAllocs()
			for b.Loop() {
				s.Next(logits, sc)
			}
		})
	}
}

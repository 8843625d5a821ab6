package control

import (
	"math/rand/v2"
	"testing"
)

// LTT stops exactly where the Clopper-Pearson bound of the kept losses leaves
// alpha, also in a window of which a walk that bounds each loss anew would
// never see the end.
func TestLTTStopsAtTheBound(t *testing.T) {
	const alpha, delta = .05, .1
	for _, n := range []int{200, 1000, 20_000, 200_000} {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		items := make([]RiskItem, n)
		losses := make([]int, n+1) // among the first k kept
		for i := range items {
			score := float64(i) / float64(n)
			items[i] = RiskItem{Score: score, Loss: float64(b2i(rng.Float64() < .6*score*score))}
			losses[i+1] = losses[i] + int(items[i].Loss)
		}
		b, err := LTT(items, alpha, delta)
		if err != nil {
			t.Fatalf("%d: %v", n, err)
		}
		kept := n - int(b.Escalate*float64(n)+.5)
		if got := ClopperPearsonUpper(losses[kept], n, delta); got != b.UCB || got > alpha+1e-9 {
			t.Errorf("%d: the bound is %v, of %d losses %v", n, b.UCB, losses[kept], got)
		}
		if next := ClopperPearsonUpper(losses[kept+1], n, delta); next < alpha-1e-9 {
			t.Errorf("%d: the next request could be kept at %v", n, next)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// 200,000 labels, as of a file without a split.
func BenchmarkLTT(b *testing.B) {
	rng, items := rand.New(rand.NewPCG(4, 4)), make([]RiskItem, 200_000)
	for i := range items {
		s := rng.Float64()
		items[i] = RiskItem{Score: s, Loss: float64(b2i(rng.Float64() < .6*s*s))}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LTT(items, .05, .1); err != nil {
			b.Fatal(err)
		}
	}
}

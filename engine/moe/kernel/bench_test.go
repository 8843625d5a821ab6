package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirhq/weir/engine/gguf"
)

// BenchmarkMul is a product with a matrix of the size of hub-cloud's.
func BenchmarkMul(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	const size = 128
	for _, kind := range []gguf.Type{gguf.F32, gguf.Q8_0} {
		m := pack(b, kind, size, size, random(rng, size*size))
		for _, n := range []int{1, 4, 32} {
			b.Run(fmt.Sprintf("%s/rows=%d", kind, n), func(b *testing.B) {
				x, dst, rows := input(rng, n, size), make([]float32, n*size), all(n)
				b.ReportAllocs()
				for b.Loop() {
					m.Mul(dst, size, x, rows)
				}
				b.ReportMetric(float64(b.N)*float64(n*size*size)/b.Elapsed().Seconds()/1e9, "GMAC/s")
			})
		}
	}
}

func BenchmarkQuantise(b *testing.B) {
	x := input(rand.New(rand.NewPCG(1, 1)), 1, 128)
	for b.Loop() {
		x.Quantise(0)
	}
}

func BenchmarkGate(b *testing.B) {
	x := random(rand.New(rand.NewPCG(1, 1)), 128)
	dst := make([]float32, 128)
	for b.Loop() {
		Gate(dst, x, x)
	}
}

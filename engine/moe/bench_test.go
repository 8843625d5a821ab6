package moe_test

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/engine/moe/evaluate"
)

// BenchmarkStep is this runner alone, for its allocations.
func BenchmarkStep(b *testing.B) {
	own := open(b, moe.Options{Name: "hub-cloud", MaxSeqs: 32})
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
			d, err := evaluate.NewDecoder(own, n)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Step(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n*b.N)/b.Elapsed().Seconds(), "tok/s")
			if err := d.Close(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkPrefill steps 256 tokens of one sequence.
func BenchmarkPrefill(b *testing.B) {
	for _, name := range models.Names() {
		b.Run(name+"/moe", func(b *testing.B) { benchPrefill(b, open(b, moe.Options{Name: name, MaxSeqs: 1})) })
		b.Run(name+"/llama", func(b *testing.B) {
			benchPrefill(b, llamatest.Load(b, llama.Options{Name: name, MaxSeqs: 1}))
		})
	}
}

func benchPrefill(b *testing.B, r engine.Runner) {
	tokens := make([]engine.Token, 256)
	for i := range tokens {
		tokens[i] = engine.Token(3 + 97 + i%26)
	}
	for b.Loop() {
		if _, err := r.Step([]engine.Span{{Tokens: tokens, Logits: true}}); err != nil {
			b.Fatal(err)
		}
		if err := r.Forget(0, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(tokens))/b.Elapsed().Seconds(), "tok/s")
}

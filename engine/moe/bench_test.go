package moe_test

import (
	"fmt"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models"
	"github.com/weirhq/weir/engine/moe"
)

const benchPrompt = 32

// BenchmarkDecode steps n sequences by one token each, in this runner and in
// llama.cpp on the same file, one thread each.
func BenchmarkDecode(b *testing.B) {
	for _, name := range models.Names() {
		own := open(b, moe.Options{Name: name, MaxSeqs: 32})
		other := llamatest.Load(b, llama.Options{Name: name, MaxSeqs: 32})
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/batch=%d/moe", name, n), func(b *testing.B) { benchDecode(b, own, n) })
			b.Run(fmt.Sprintf("%s/batch=%d/llama", name, n), func(b *testing.B) { benchDecode(b, other, n) })
		}
	}
}

func benchDecode(b *testing.B, r engine.Runner, n int) {
	b.ReportAllocs()
	spans, next := make([]engine.Span, n), make([]engine.Token, n)
	for s := range spans {
		seq := engine.Seq(s)
		enginetest.Step(b, r, engine.Span{Seq: seq, Tokens: make([]engine.Token, benchPrompt)})
		spans[s] = engine.Span{Seq: seq, Pos: benchPrompt, Tokens: next[s : s+1], Logits: true}
	}
	tokens := 0
	for b.Loop() {
		if spans[0].Pos == 256 {
			b.StopTimer()
			for s := range spans {
				if err := r.Forget(spans[s].Seq, benchPrompt); err != nil {
					b.Fatal(err)
				}
				spans[s].Pos = benchPrompt
			}
			b.StartTimer()
		}
		rows, err := r.Step(spans)
		if err != nil {
			b.Fatal(err)
		}
		for s := range spans {
			next[s] = enginetest.Argmax(rows[s])
			spans[s].Pos++
		}
		tokens += n
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tok/s")
	for s := range spans {
		if err := r.Forget(spans[s].Seq, 0); err != nil {
			b.Fatal(err)
		}
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

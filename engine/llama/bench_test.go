package llama_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
)

func argmax(_ int, row []float32) engine.Token { return enginetest.Argmax(row) }

// benchRunners opens what the decode benchmarks run on: both bundled models and
// 100 M random parameters, dense and mixture of experts.
func benchRunners(b *testing.B, run func(b *testing.B, r *llama.Runner)) {
	cases := []struct {
		name string
		o    llama.Options
	}{
		{"hub-edge", llama.Options{Name: "hub-edge", MaxSeqs: 32}},
		{"hub-cloud", llama.Options{Name: "hub-cloud", MaxSeqs: 32}},
	}
	for _, arch := range []string{"llama", "qwen3moe"} {
		path := filepath.Join(b.TempDir(), arch+".gguf")
		if _, err := random.WriteFile(path, random.Options{Arch: arch, Params: 100e6, Context: 8192, Type: gguf.Q8_0, Seed: 1}); err != nil {
			b.Fatal(err)
		}
		cases = append(cases, struct {
			name string
			o    llama.Options
		}{"100M-" + arch, llama.Options{Path: path, MaxSeqs: 32, Context: 512}})
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) { run(b, llamatest.Load(b, c.o)) })
	}
}

const benchPrompt = 32

// BenchmarkRawDecode is llama_decode with greedy sampling, without Step.
func BenchmarkRawDecode(b *testing.B) {
	benchRunners(b, func(b *testing.B, r *llama.Runner) {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) {
				steps := min(b.N, r.Info().Context-benchPrompt)
				d, err := r.RawDecode(n, benchPrompt, steps, argmax)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(n*steps)/d.Seconds(), "tok/s")
			})
		}
	})
}

// BenchmarkStep is the same through Step.
func BenchmarkStep(b *testing.B) {
	benchRunners(b, func(b *testing.B, r *llama.Runner) {
		for _, n := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("batch=%d", n), func(b *testing.B) { benchStep(b, r, n) })
		}
	})
}

func benchStep(b *testing.B, r *llama.Runner, n int) {
	b.ReportAllocs()
	spans := make([]engine.Span, n)
	next := make([]engine.Token, n)
	for s := range spans {
		seq := engine.Seq(s)
		if err := r.Forget(seq, 0); err != nil {
			b.Fatal(err)
		}
		enginetest.Step(b, r, engine.Span{Seq: seq, Tokens: make([]engine.Token, benchPrompt)})
		spans[s] = engine.Span{Seq: seq, Pos: benchPrompt, Tokens: next[s : s+1], Logits: true}
	}
	tokens := 0
	for b.Loop() {
		if spans[0].Pos == r.Info().Context {
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

// BenchmarkKV moves 256 tokens of hub-cloud.
func BenchmarkKV(b *testing.B) {
	r := llamatest.Load(b, llama.Options{Name: "hub-cloud", MaxSeqs: 2})
	enginetest.Step(b, r, engine.Span{Tokens: make([]engine.Token, 256)})
	b.ReportAllocs()
	var kv []byte
	for b.Loop() {
		var err error
		if kv, err = r.ExportKV(kv[:0], 0, 0); err != nil {
			b.Fatal(err)
		}
		if _, err := r.ImportKV(1, kv); err != nil {
			b.Fatal(err)
		}
		if err := r.Forget(1, 0); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(kv)))
}

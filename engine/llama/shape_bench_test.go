package llama_test

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/enginetest"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/llama/llamatest"
	"github.com/weirhq/weir/engine/models/heldout"
)

// BenchmarkShape tells how far llama.cpp's kernels for other shapes of a batch
// move logits: those after eight prompts, and after one more token each, computed
// alone against all in one batch. Answers may part where the two best lie closer
// together.
func BenchmarkShape(b *testing.B) {
	file := filepath.Join(b.TempDir(), "random.gguf")
	if _, err := random.WriteFile(file, random.Options{Arch: "llama", Params: 5e6, Context: 2048, Type: gguf.F32, Seed: 1}); err != nil {
		b.Fatal(err)
	}
	for name, o := range map[string]llama.Options{"hub-edge": {Name: "hub-edge"}, "hub-cloud": {Name: "hub-cloud"}, "random-f32": {Path: file}} {
		b.Run(name, func(b *testing.B) {
			o.CacheDir, o.MaxSeqs, o.Context, o.MaxBatch = b.TempDir(), 8, 512, 2048
			r := llamatest.Load(b, o)
			for b.Loop() {
				prompts, tokens := shapeMoves(b, r, "")
				b.ReportMetric(prompts, "prompt-diff")
				b.ReportMetric(tokens, "token-diff")
				_, tokens = shapeMoves(b, r, strings.Repeat(" and then", 20))
				b.ReportMetric(tokens, "odd-token-diff")
			}
		})
	}
}

// shapeMoves gives the greatest difference of a logit after held-out prompts, with
// more text behind them, and after one more token each.
func shapeMoves(b *testing.B, r engine.Runner, more string) (prompts, tokens float64) {
	examples, err := heldout.Test()
	if err != nil {
		b.Fatal(err)
	}
	n := r.Info().MaxSeqs
	steps := [2][]engine.Span{make([]engine.Span, n), make([]engine.Span, n)}
	var alone [2][][]float32
	for i := range n {
		text, err := r.Tokenize(fmt.Sprintf("%.40s%s", examples[i*len(examples)/n].Prompt, more), false)
		if err != nil {
			b.Fatal(err)
		}
		for k, part := range [][]engine.Token{text[:len(text)-1], text[len(text)-1:]} {
			s := engine.Span{Seq: engine.Seq(i), Pos: k * (len(text) - 1), Tokens: part, Logits: true}
			steps[k][i] = s
			alone[k] = append(alone[k], enginetest.Step(b, r, s)[0])
		}
		forget(b, r, engine.Seq(i))
	}
	prompts = apart(enginetest.Step(b, r, steps[0]...), alone[0])
	tokens = apart(enginetest.Step(b, r, steps[1]...), alone[1])
	for i := range n {
		forget(b, r, engine.Seq(i))
	}
	return prompts, tokens
}

// apart is the greatest difference of two values in the same place.
func apart(x, y [][]float32) (most float64) {
	for i := range x {
		for t := range x[i] {
			most = max(most, math.Abs(float64(x[i][t]-y[i][t])))
		}
	}
	return most
}

func forget(b *testing.B, r engine.Runner, s engine.Seq) {
	b.Helper()
	if err := r.Forget(s, 0); err != nil {
		b.Fatal(err)
	}
}

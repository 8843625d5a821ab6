package llama_test

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
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
// together: odd-parted are those of eight answers of 500 tokens to odd text that do
// in one batch, without any move, and odd-gap is how far apart the two best were
// where they did.
func BenchmarkShape(b *testing.B) {
	file := filepath.Join(b.TempDir(), "random.gguf")
	if _, err := random.WriteFile(file, random.Options{Arch: "llama", Params: 5e6, Context: 2048, Type: gguf.F32, Seed: 1}); err != nil {
		b.Fatal(err)
	}
	for name, o := range map[string]llama.Options{"hub-edge": {Name: "hub-edge"}, "hub-cloud": {Name: "hub-cloud"}, "random-f32": {Path: file}} {
		b.Run(name, func(b *testing.B) {
			o.CacheDir, o.MaxSeqs, o.Context, o.MaxBatch = b.TempDir(), 8, 1024, 2048
			r := llamatest.Load(b, o)
			for b.Loop() {
				prompts, tokens := shapeMoves(b, r, "")
				b.ReportMetric(prompts, "prompt-diff")
				b.ReportMetric(tokens, "token-diff")
				odd := strings.Repeat(" and then", 20)
				_, tokens = shapeMoves(b, r, odd)
				b.ReportMetric(tokens, "odd-token-diff")
				parted, gap := shapeParts(b, r, odd)
				b.ReportMetric(float64(parted), "odd-parted")
				b.ReportMetric(gap, "odd-gap")
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

// shapeParts counts the answers that part when they are made in one batch from what
// they are alone, and tells the widest gap between the two best where one did.
func shapeParts(b *testing.B, r engine.Runner, odd string) (parted int, widest float64) {
	const length = 500
	n := r.Info().MaxSeqs
	crowd := make([]engine.Span, n)
	alone, gaps := make([][]engine.Token, n), make([][]float64, n)
	for i := range crowd {
		text, err := r.Tokenize(fmt.Sprint(i, " tell me all about it", odd), false)
		if err != nil {
			b.Fatal(err)
		}
		crowd[i] = engine.Span{Seq: engine.Seq(i), Tokens: text, Logits: true}
		s := crowd[i]
		for range length {
			row := enginetest.Step(b, r, s)[0]
			s = follow(s, row)
			alone[i], gaps[i] = append(alone[i], s.Tokens[0]), append(gaps[i], gapOf(row))
		}
		forget(b, r, s.Seq)
	}
	for k := range length {
		for j, row := range enginetest.Step(b, r, crowd...) {
			i := int(crowd[j].Seq)
			if crowd[j] = follow(crowd[j], row); crowd[j].Tokens[0] != alone[i][k] {
				parted, widest = parted+1, max(widest, gaps[i][k])
			}
		}
		crowd = slices.DeleteFunc(crowd, func(s engine.Span) bool { return s.Tokens[0] != alone[s.Seq][k] })
	}
	for i := range n {
		forget(b, r, engine.Seq(i))
	}
	return parted, widest
}

// gapOf is how far apart the two best of a row are.
func gapOf(row []float32) float64 {
	s := slices.Sorted(slices.Values(row))
	return float64(s[len(s)-1] - s[len(s)-2])
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

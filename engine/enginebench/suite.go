// Package enginebench measures Weir's step loop beside the bare llama_decode:
// the same file, the same context, the same sampling, in turns within one run.
package enginebench

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/bench"
)

// least is the share of llama_decode's tokens per second that the loop keeps.
const least = 0.85

const (
	params      = 100_000_000
	fileContext = 8192
	seqContext  = 512 // what a sequence of the measurement can hold
	promptLen   = 16  // 32 prompts fit one step, so all decode together from the start
	rounds      = 7
)

// sizes are the batch sizes with the decode steps of one slice: long enough to
// outweigh the clock, short enough to take turns often.
var sizes = []struct{ batch, steps int }{{1, 48}, {8, 24}, {32, 12}}

var archs = []string{"llama", "qwen3moe"}

// sampling is what both sides do with a row of logits.
var sampling = sample.Params{Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 1}

// Suite is the engine's part of weir bench.
func Suite() bench.Suite {
	return bench.Suite{Name: "engine", Short: "step loop against llama_decode, random-weight models of 100 M parameters", Run: run}
}

func run(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	libDir, err := llama.FindLibrary(env.Lib, env.Getenv)
	if err != nil {
		return nil, err
	}
	var bars []bench.Bar
	for _, arch := range archs {
		path := filepath.Join(env.Dir, arch+".gguf")
		if _, err := random.WriteFile(path, random.Options{Arch: arch, Params: params, Context: fileContext, Type: gguf.Q8_0, Seed: 1}); err != nil {
			return nil, err
		}
		got, err := measure(ctx, env, arch, path, libDir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arch, err)
		}
		bars = append(bars, got...)
		overHTTP, err := httpRate(ctx, env, arch, path, libDir)
		if err != nil {
			return nil, fmt.Errorf("%s over HTTP: %w", arch, err)
		}
		bars = append(bars, overHTTP)
	}
	return bars, nil
}

func measure(ctx context.Context, env bench.Env, arch, path, libDir string) ([]bench.Bar, error) {
	most := sizes[len(sizes)-1].batch
	r, err := llama.Load(llama.Options{Path: path, Name: arch, LibDir: libDir, Threads: 1, Context: seqContext, MaxSeqs: most, MaxBatch: 512})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var bars []bench.Bar
	for _, s := range sizes {
		var ratios, raws, loops []float64
		for range rounds {
			raw, err := rawRate(r, s.batch, s.steps)
			if err != nil {
				return nil, err
			}
			looped, err := loopRate(ctx, r, s.batch, s.steps)
			if err != nil {
				return nil, err
			}
			raws, loops, ratios = append(raws, raw), append(loops, looped), append(ratios, looped/raw)
		}
		fmt.Fprintf(env.Out, "%-9s batch %2d: llama_decode %7.1f tok/s, loop %7.1f tok/s, ratio %.3f (medians of %d turns)\n",
			arch, s.batch, median(raws), median(loops), median(ratios), rounds)
		name := fmt.Sprintf("engine.%s.b%d", arch, s.batch)
		bars = append(bars,
			bench.Bar{Name: name + ".loop_over_decode", Measured: median(ratios), Want: bench.AtLeast, Bound: least},
			bench.Bar{Name: name + ".loop", Measured: median(loops), Unit: "tok/s"})
	}
	return bars, nil
}

// rawRate is llama_decode's rate in tokens per second over all sequences.
func rawRate(r *llama.Runner, batch, steps int) (float64, error) {
	samplers := make([]*sample.Sampler, batch)
	for i := range samplers {
		samplers[i] = sample.New(sampling)
	}
	var scratch sample.Scratch
	took, err := r.RawDecode(batch, promptLen, steps, func(seq int, row []float32) engine.Token {
		t, _ := samplers[seq].Next(row, &scratch)
		return t
	})
	return float64(batch*steps) / took.Seconds(), err
}

// loopRate runs the requests through the step loop. The last to arrive decides:
// from its first token to its last, every sequence decodes, because the others
// are longer.
func loopRate(ctx context.Context, r *llama.Runner, batch, steps int) (float64, error) {
	l, err := loop.New(loop.Options{Runner: r, Pieces: loop.NewPieces(r), Metrics: metrics.New("bench", r.Info().KVTokens), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	prompt := make([]engine.Token, promptLen)
	for i := range prompt {
		prompt[i] = engine.Token(i % r.Info().Vocab)
	}
	streams := make([]*loop.Stream, batch)
	for i := range streams {
		most := steps + 1
		if i < batch-1 {
			most += 8
		}
		if streams[i], err = l.Submit(ctx, loop.Request{Prompt: prompt, Sample: sampling, MaxTokens: most, IgnoreEOS: true}); err != nil {
			return 0, err
		}
	}
	var b loop.Batch
	for _, s := range streams {
		for {
			if err := s.Next(ctx, &b); err != nil {
				return 0, err
			}
			if b.Finish != "" {
				break
			}
		}
	}
	t := streams[batch-1].Result().Timing
	return float64(batch*steps) / t.Last.Sub(t.First).Seconds(), nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// waitUntil polls ok each 20 ms.
func waitUntil(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

package poolbench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/bench"
)

const (
	longPrompt  = 4096
	coldPrompts = 3
)

// repeatedPrompt asks with prompts of 4k tokens that begin differently, each
// twice.
func repeatedPrompt(ctx context.Context, env bench.Env, path, lib string) ([]bench.Bar, error) {
	r, err := llama.Load(llama.Options{Path: path, LibDir: lib, Context: longPrompt + 64, MaxSeqs: 4})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	l, err := loop.New(loop.Options{Runner: r, Pieces: loop.NewPieces(r), Metrics: metrics.New("bench", r.Info().KVTokens),
		Log: slog.New(slog.DiscardHandler), PrefixCache: true})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	var cold, again, ratios []float64
	for i := range coldPrompts {
		prompt := make([]engine.Token, longPrompt)
		for at := range prompt {
			prompt[at] = engine.Token(3 + (at*(i+1)+i)%200)
		}
		first, err1 := ttft(ctx, l, prompt)
		second, err2 := ttft(ctx, l, prompt)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		cold, again, ratios = append(cold, first), append(again, second), append(ratios, second/first)
	}
	fmt.Fprintf(env.Out, "prompt of %d tokens: first token after %.1f ms, when repeated after %.1f ms (medians of %d)\n",
		longPrompt, median(cold), median(again), coldPrompts)
	return []bench.Bar{{Name: "pools.cached_ttft_over_cold", Measured: median(ratios), Want: bench.AtMost, Bound: mostCachedTTFT}}, nil
}

// ttft is the time to a request's first token in milliseconds.
func ttft(ctx context.Context, l *loop.Loop, prompt []engine.Token) (float64, error) {
	s, err := l.Submit(ctx, loop.Request{Prompt: prompt, MaxTokens: 2, IgnoreEOS: true})
	if err != nil {
		return 0, err
	}
	var b loop.Batch
	for b.Finish == "" {
		if err := s.Next(ctx, &b); err != nil {
			return 0, err
		}
	}
	t := s.Result().Timing
	return float64(t.First.Sub(t.Arrived)) / float64(time.Millisecond), nil
}

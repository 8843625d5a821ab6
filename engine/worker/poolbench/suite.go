// Package poolbench measures what workers do for each other and for requests
// that begin alike: the hand-off of KV, the prefix cache, and prefill/decode
// against mixed workers.
package poolbench

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/weirhq/weir/engine/gguf"
	"github.com/weirhq/weir/engine/gguf/random"
	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/internal/bench"
)

// The bars of this suite.
const (
	leastOverQUIC  = 0.7 // hand-off over a bare QUIC stream
	mostCachedTTFT = 0.2 // TTFT of a repeated prompt over a cold one
	mostITL        = 0.7 // p99 between tokens, prefill/decode over mixed
)

// Suite is the workers' part of weir bench.
func Suite() bench.Suite {
	return bench.Suite{Name: "pools", Short: "hand-off of KV, prefix cache, prefill/decode against mixed workers", Run: run}
}

func run(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	bars, err := handoffs(ctx, env)
	if err != nil {
		return nil, err
	}
	lib, err := llama.FindLibrary(env.Lib, env.Getenv)
	if err != nil {
		return nil, err
	}
	small, err := model(env, "small", 5_000_000)
	if err != nil {
		return nil, err
	}
	more, err := repeatedPrompt(ctx, env, small, lib)
	if err != nil {
		return nil, err
	}
	bars = append(bars, more...)
	large, err := model(env, "large", 20_000_000)
	if err != nil {
		return nil, err
	}
	more, err = splitAgainstMixed(ctx, env, large, lib)
	return append(bars, more...), err
}

// model writes a model with random weights.
func model(env bench.Env, name string, params int64) (string, error) {
	path := filepath.Join(env.Dir, name+".gguf")
	_, err := random.WriteFile(path, random.Options{Arch: "llama", Params: params, Context: 8192, Type: gguf.Q8_0, Seed: 1})
	return path, err
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

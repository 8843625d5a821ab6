package evaluate

import (
	"context"
	"fmt"

	"github.com/weirhq/weir/engine/llama"
	"github.com/weirhq/weir/engine/models/heldout"
	"github.com/weirhq/weir/engine/moe"
	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/internal/bench"
)

// least is the share of llama.cpp's rate that the runner must reach to be used.
const least = 0.3

var batches = []int{1, 8, 32}

// Suite is the moe runner's part of weir bench.
func Suite() bench.Suite {
	return bench.Suite{Name: "moe", Short: "hub-cloud in Weir's runner beside llama.cpp, and a change of topic under live balancing", Run: runSuite}
}

func runSuite(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	bars, err := speedBars(env)
	if err != nil {
		return nil, err
	}
	r, err := Live(ctx, LiveOptions{CacheDir: env.Dir, Seen: func(w LiveWindow) { printWindow(env.Out, w) }})
	if err != nil {
		return nil, err
	}
	r.Print(env.Out)
	bars = append(bars, r.bars()...)
	routed, err := routingBars(ctx, env)
	return append(bars, routed...), err
}

// routingBars answer all held-out prompts as the model chooses its experts and
// by the recommended setting. Accuracy is held; imbalance is what it buys.
func routingBars(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	bar := bench.Bar{Name: "moe.routing.points", Want: bench.AtLeast, Bound: -0.5}
	if !moe.Fast() {
		return bench.Unmeasured("routing needs a build with vector kernels (GOEXPERIMENT=simd)", bar), nil
	}
	examples, err := heldout.Test()
	if err != nil {
		return nil, err
	}
	settings := []Setting{{Name: "off"}, {"tau", "0.7, recommended", []gate.Params{Recommended}}}
	rows, err := Routing(ctx, env.Dir, examples, settings, func(r Routed) { printRouted(env.Out, r) })
	if err != nil {
		return nil, err
	}
	bar.Measured = rows[1].Points
	return []bench.Bar{bar,
		{Name: "moe.routing.points.low", Measured: rows[1].Low},
		{Name: "moe.routing.points.high", Measured: rows[1].High},
		{Name: "moe.routing.ir.off", Measured: rows[0].Imbalance},
		{Name: "moe.routing.ir", Measured: rows[1].Imbalance},
	}, nil
}

// speedBars decode in turns on the same file, one thread each. A build without
// vector kernels is only told: weir worker does not choose this runner then.
func speedBars(env bench.Env) ([]bench.Bar, error) {
	lib, err := llama.FindLibrary(env.Lib, env.Getenv)
	if err != nil {
		return nil, err
	}
	seqs := batches[len(batches)-1]
	own, err := moe.Load(moe.Options{Name: "hub-cloud", CacheDir: env.Dir, MaxSeqs: seqs})
	if err != nil {
		return nil, err
	}
	defer own.Close()
	other, err := llama.Load(llama.Options{Name: "hub-cloud", CacheDir: env.Dir, LibDir: lib, MaxSeqs: seqs})
	if err != nil {
		return nil, err
	}
	defer other.Close()
	want := bench.AtLeast
	if !moe.Fast() {
		want = bench.Info
	}
	var bars []bench.Bar
	for _, n := range batches {
		p, err := Compare(own, other, n)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(env.Out, "hub-cloud, batch %2d: moe %6.0f tok/s, llama.cpp %6.0f tok/s, ratio %.2f (medians of %d turns, vector kernels: %v)\n",
			n, p.Own, p.Other, p.Ratio, turns, moe.Fast())
		name := fmt.Sprintf("moe.hub-cloud.b%d", n)
		bars = append(bars, bench.Bar{Name: name + ".over_llama", Measured: p.Ratio, Want: want, Bound: least},
			bench.Bar{Name: name, Measured: p.Own, Unit: "tok/s"})
	}
	for i, s := range own.Experts().Shards {
		bars = append(bars, bench.Bar{Name: fmt.Sprintf("moe.hub-cloud.shard%d", i), Measured: float64(s.Bytes) / 1e6, Unit: "MB"})
	}
	return bars, nil
}

func (r LiveReport) bars() []bench.Bar {
	decided := float64(r.Decided)
	if r.Decided == 0 {
		decided = 99 // never within the three windows that are waited for
	}
	return []bench.Bar{
		{Name: "moe.live.shifted.ir", Measured: r.Shifted, Want: bench.AtLeast, Bound: 1.10},
		{Name: "moe.live.decided.windows", Measured: decided, Want: bench.AtMost, Bound: 3},
		{Name: "moe.live.final.ir", Measured: r.Final, Want: bench.AtMost, Bound: r.Limit()},
		{Name: "moe.live.changed", Measured: float64(r.Changed), Want: bench.AtMost, Bound: 0},
		{Name: "moe.live.failed", Measured: float64(r.Failed), Want: bench.AtMost, Bound: 0},
		{Name: "moe.live.before", Measured: r.Before, Unit: "tok/s"},
		{Name: "moe.live.during", Measured: r.During, Unit: "tok/s"},
		{Name: "moe.live.later", Measured: r.Later, Unit: "tok/s"},
	}
}

package experts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/weirhq/weir/experts/format"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
	"github.com/weirhq/weir/internal/bench"
)

// BenchSuite measures planning: quality on recorded loads where --data holds
// them, in experts/deepseek-r1-sglang and experts/olmoe, and time in any case.
func BenchSuite() bench.Suite {
	return bench.Suite{Name: "experts", Short: "expert placement: balance, moves, planning time", Run: runBench}
}

func runBench(_ context.Context, env bench.Env) ([]bench.Bar, error) {
	bars, err := vectorBars()
	if err != nil {
		return nil, err
	}
	prefill, err := benchLoads(env, "deepseek-r1-sglang/prefill_in4096.json")
	if errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(env.Out, "no recorded loads in --data: only planning time on made-up loads")
		timed, err := timeBars(zipf(1), zipf(2))
		return append(bars, timed...), err
	}
	if err != nil {
		return nil, err
	}
	decode, err := benchLoads(env, "deepseek-r1-sglang/decode_in1000out1000.json")
	if err != nil {
		return nil, err
	}
	for _, f := range []func() ([]bench.Bar, error){
		func() ([]bench.Bar, error) { return staticBars(prefill, decode) },
		func() ([]bench.Bar, error) { return shiftBars(prefill, decode) },
		func() ([]bench.Bar, error) { return hysteresisBars(prefill, decode) },
		func() ([]bench.Bar, error) { return timeBars(moeRows(prefill), moeRows(decode)) },
	} {
		more, err := f()
		if err != nil {
			return nil, err
		}
		bars = append(bars, more...)
	}
	return bars, nil
}

func benchLoads(env bench.Env, name string) (load.Counts, error) {
	if env.Data == "" {
		return nil, fs.ErrNotExist
	}
	l, err := format.ReadLoads(filepath.Join(env.Data, "experts", name))
	return l.Counts, err
}

// moeRows drops dense layers, which take no time to plan.
func moeRows(c load.Counts) load.Counts {
	var out load.Counts
	for _, l := range c.MoE() {
		out = append(out, c[l])
	}
	return out
}

// zipf is 58 layers of 256 experts whose load falls as a power, in an order
// that follows the seed.
func zipf(seed uint64) load.Counts {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := load.NewCounts(58, 256)
	for _, row := range out {
		for i, e := range rng.Perm(len(row)) {
			row[e] = math.Round(1e6 * math.Pow(float64(i+1), -0.8))
		}
	}
	return out
}

// vectorBars is the example of FlashLB (vllm-ascend#3042).
func vectorBars() ([]bench.Bar, error) {
	w := []float64{600, 560, 120, 120, 20, 10, 10, 10}
	r, err := plan.Solve(plan.Problem{Loads: [][]float64{w}, Fleet: plan.Uniform(8, 2)})
	if err != nil {
		return nil, err
	}
	top := slices.Max(r.Placement.DeviceLoads(0, w))
	return []bench.Bar{{Name: "experts.flashlb.max", Measured: top, Want: bench.AtMost, Bound: 196.7}}, nil
}

// place plans E+32 slots on the devices, from old when it is not nil.
func place(c load.Counts, devices int, old *plan.Placement, moves int) (plan.Result, error) {
	f, err := plan.Even(c.Experts(), devices, 32)
	if err != nil {
		return plan.Result{}, err
	}
	return plan.Solve(plan.Problem{Loads: c, Fleet: f, Old: old, Moves: moves})
}

func staticBars(prefill, decode load.Counts) ([]bench.Bar, error) {
	var bars []bench.Bar
	for _, x := range []struct {
		name string
		c    load.Counts
	}{{"experts.prefill.ir", prefill}, {"experts.decode.ir", decode}} {
		r, err := place(x.c, 32, nil, 0)
		if err != nil {
			return nil, err
		}
		mean := 0.0
		for _, l := range r.MoE {
			mean += r.Layers[l].After / float64(len(r.MoE))
		}
		bars = append(bars, bench.Bar{Name: x.name, Measured: mean, Want: bench.AtMost, Bound: 1.001})
	}
	return bars, nil
}

// shiftBars face the decode placement with prefill loads and allow K transfers
// per layer; the mean is over every fourth layer from 3.
func shiftBars(prefill, decode load.Counts) ([]bench.Bar, error) {
	old, err := place(decode, 32, nil, 0)
	if err != nil {
		return nil, err
	}
	var bars []bench.Bar
	for _, x := range []struct {
		moves int
		bound float64
	}{{8, 1.16}, {32, 1.05}} {
		r, err := place(prefill, 32, &old.Placement, x.moves)
		if err != nil {
			return nil, err
		}
		sum, n := 0.0, 0.0
		for l := 3; l < len(prefill); l += 4 {
			sum, n = sum+r.Layers[l].After, n+1
		}
		bars = append(bars, bench.Bar{Name: fmt.Sprintf("experts.shift.k%d.ir", x.moves), Measured: sum / n, Want: bench.AtMost, Bound: x.bound})
	}
	return bars, nil
}

// hysteresisBars count what 100 windows of noise move, and the windows until a
// change of traffic does.
func hysteresisBars(prefill, decode load.Counts) ([]bench.Bar, error) {
	start, err := place(decode, 32, nil, 0)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	window := func(c load.Counts) rebalance.Observation {
		demand := resample(c, 50_000*8, rng)
		return rebalance.Observation{Window: load.Window{TopK: 8, Tokens: 50_000, Demand: demand, Served: demand}}
	}
	c, s := rebalance.Default(), rebalance.NewState(start.Placement)
	moves, after := 0, 0
	for range 100 {
		var d rebalance.Decision
		if s, d = rebalance.Decide(c, s, window(decode)); d.Action != rebalance.Stay {
			moves++
		}
	}
	for d := (rebalance.Decision{}); d.Action != rebalance.Move && after < 10; after++ {
		s, d = rebalance.Decide(c, s, window(prefill))
	}
	return []bench.Bar{
		{Name: "experts.hysteresis.noise.moves", Measured: float64(moves), Want: bench.AtMost, Bound: 0},
		{Name: "experts.hysteresis.shift.windows", Measured: float64(after), Want: bench.AtMost, Bound: 3},
	}, nil
}

// timeBars plan on one core: 72 devices with 32 spares from nothing, and a step
// of 8 transfers per layer.
func timeBars(a, b load.Counts) ([]bench.Bar, error) {
	old, err := place(b, 72, nil, 0)
	if err != nil {
		return nil, err
	}
	fresh, err := fastest(func() error { _, err := place(a, 72, nil, 0); return err })
	if err != nil {
		return nil, err
	}
	step, err := fastest(func() error { _, err := place(a, 72, &old.Placement, 8); return err })
	return []bench.Bar{
		{Name: "experts.plan.fresh72", Measured: fresh, Unit: "ms", Want: bench.AtMost, Bound: 50},
		{Name: "experts.plan.step72", Measured: step, Unit: "ms", Want: bench.AtMost, Bound: 10},
	}, err
}

// fastest is the shortest of 15 runs in milliseconds: planning has no I/O, so
// what a run takes beyond that is the rest of the machine.
func fastest(f func() error) (float64, error) {
	best := math.Inf(1)
	for range 15 {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		best = min(best, float64(time.Since(start).Microseconds())/1000)
	}
	return best, nil
}

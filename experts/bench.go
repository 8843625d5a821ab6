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

// recorded are the bars on recorded loads.
var recorded = []bench.Bar{
	{Name: "experts.prefill.ir", Want: bench.AtMost, Bound: 1.001},
	{Name: "experts.decode.ir", Want: bench.AtMost, Bound: 1.001},
	{Name: "experts.shift.k8.ir", Want: bench.AtMost, Bound: 1.16},
	{Name: "experts.shift.k32.ir", Want: bench.AtMost, Bound: 1.05},
	{Name: "experts.hysteresis.noise.moves", Want: bench.AtMost, Bound: 0},
	{Name: "experts.hysteresis.shift.windows", Want: bench.AtMost, Bound: 3},
	{Name: "experts.olmoe.worst_of_staying", Unit: "ratio", Want: bench.AtMost, Bound: 0.999},
}

const needsLoads = "balance on recorded loads needs --data with experts/deepseek-r1-sglang and experts/olmoe"

func runBench(_ context.Context, env bench.Env) ([]bench.Bar, error) {
	bars, err := vectorBars()
	if err != nil {
		return nil, err
	}
	a, b := zipf(1), zipf(2)
	prefill, decode, err := recordings(env)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		bars = append(bars, bench.Unmeasured(needsLoads, slices.Clone(recorded)...)...)
	case err != nil:
		return bars, err
	default:
		figures, err := onRecorded(env, prefill, decode)
		if err != nil {
			return bars, err
		}
		for _, b := range recorded {
			b.Measured = figures[b.Name]
			bars = append(bars, b)
		}
		a, b = moeRows(prefill), moeRows(decode)
	}
	timed, err := timeBars(a, b)
	return append(bars, timed...), err
}

// recordings reads DeepSeek-R1's loads, or fails with fs.ErrNotExist.
func recordings(env bench.Env) (prefill, decode load.Counts, err error) {
	if prefill, err = benchLoads(env, "deepseek-r1-sglang/prefill_in4096.json"); err != nil {
		return nil, nil, err
	}
	decode, err = benchLoads(env, "deepseek-r1-sglang/decode_in1000out1000.json")
	return prefill, decode, err
}

// onRecorded returns the figures of the recorded bars.
func onRecorded(env bench.Env, prefill, decode load.Counts) (map[string]float64, error) {
	out := map[string]float64{}
	for _, f := range []func() error{
		func() error { return static(out, prefill, decode) },
		func() error { return shift(out, prefill, decode) },
		func() error { return hysteresis(out, prefill, decode) },
		func() error { return domains(env, out) },
	} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	return out, nil
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

// static places prefill and decode loads afresh.
func static(out map[string]float64, prefill, decode load.Counts) error {
	for name, c := range map[string]load.Counts{"experts.prefill.ir": prefill, "experts.decode.ir": decode} {
		r, err := place(c, 32, nil, 0)
		if err != nil {
			return err
		}
		out[name] = meanAfter(r)
	}
	return nil
}

func meanAfter(r plan.Result) (mean float64) {
	for _, l := range r.MoE {
		mean += r.Layers[l].After / float64(len(r.MoE))
	}
	return mean
}

// shift faces the decode placement with prefill loads and allows K transfers
// per layer; the mean is over every fourth layer from 3.
func shift(out map[string]float64, prefill, decode load.Counts) error {
	old, err := place(decode, 32, nil, 0)
	if err != nil {
		return err
	}
	for _, moves := range []int{8, 32} {
		r, err := place(prefill, 32, &old.Placement, moves)
		if err != nil {
			return err
		}
		sum, n := 0.0, 0.0
		for l := 3; l < len(prefill); l += 4 {
			sum, n = sum+r.Layers[l].After, n+1
		}
		out[fmt.Sprintf("experts.shift.k%d.ir", moves)] = sum / n
	}
	return nil
}

// domains places OLMoE's 64 experts for the text of one domain on 8 devices
// with 8 spares, and allows 4 transfers per layer for another's: the worst of
// the six ratios to staying put.
func domains(env bench.Env, out map[string]float64) error {
	loads := map[string]load.Counts{}
	for _, name := range []string{"arxiv", "c4", "github"} {
		c, err := benchLoads(env, "olmoe/olmoe-expert_counts-"+name+".json")
		if err != nil {
			return err
		}
		loads[name] = c
	}
	f, err := plan.Even(64, 8, 8)
	if err != nil {
		return err
	}
	for from, a := range loads {
		old, err := plan.Solve(plan.Problem{Loads: a, Fleet: f})
		if err != nil {
			return err
		}
		for to, b := range loads {
			if from == to {
				continue
			}
			r, err := plan.Solve(plan.Problem{Loads: b, Fleet: f, Old: &old.Placement, Moves: 4})
			if err != nil {
				return err
			}
			put, moved := 0.0, meanAfter(r)
			for _, l := range r.MoE {
				put += r.Layers[l].Before / float64(len(r.MoE))
			}
			fmt.Fprintf(env.Out, "OLMoE, placed for %s, serving %s: staying put %.3f, after 4 transfers per layer %.3f\n", from, to, put, moved)
			out["experts.olmoe.worst_of_staying"] = max(out["experts.olmoe.worst_of_staying"], moved/put)
		}
	}
	return nil
}

// hysteresis counts what 100 windows of noise move, and the windows until a
// change of traffic does.
func hysteresis(out map[string]float64, prefill, decode load.Counts) error {
	start, err := place(decode, 32, nil, 0)
	if err != nil {
		return err
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
	out["experts.hysteresis.noise.moves"], out["experts.hysteresis.shift.windows"] = float64(moves), float64(after)
	return nil
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

package replay

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/internal/bench"
)

// BenchSuite measures what a decision costs: after an answer, per token, and in
// the replayer.
func BenchSuite() bench.Suite {
	return bench.Suite{Name: "cascade", Short: "cost of a decision, per answer, per token and replayed", Run: runBench}
}

func runBench(ctx context.Context, env bench.Env) ([]bench.Bar, error) {
	token, _ := timed(tokenUpdates)
	decision, allocs := timed(postHocDecisions)
	replayed, _ := timed(replayedDecisions())
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fmt.Fprintf(env.Out, "cascade: %.1f ns a token, %.0f ns a decision, %.1f ns a replayed decision\n", token, decision, replayed)
	return []bench.Bar{
		{Name: "cascade.posthoc", Measured: decision / 1e3, Unit: "µs", Want: bench.AtMost, Bound: 5},
		{Name: "cascade.posthoc.allocs", Measured: allocs, Want: bench.AtMost, Bound: 0},
		{Name: "cascade.token", Measured: token, Unit: "ns", Want: bench.AtMost, Bound: 100},
		{Name: "cascade.replay", Measured: 1e9 / replayed, Unit: "/s", Want: bench.AtLeast, Bound: 1e6},
	}, nil
}

// timed returns the median time of one operation, ns, over seven runs, and
// the least number of allocations per operation.
func timed(run func(n int)) (ns, allocs float64) {
	const n = 200_000
	run(n / 10)
	var times []float64
	for i := range 7 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		run(n)
		times = append(times, float64(time.Since(start).Nanoseconds())/n)
		runtime.ReadMemStats(&after)
		// Whole allocations only: the runtime makes a few of its own.
		a := float64((after.Mallocs - before.Mallocs) / n)
		if i == 0 || a < allocs {
			allocs = a
		}
	}
	slices.Sort(times)
	return times[len(times)/2], allocs
}

func tokenUpdates(n int) {
	var acc cascade.Accumulator
	for i := range n {
		acc.Add(-float64(i&63)/32, 3)
	}
	if !acc.Signals().Usable {
		panic("unusable signals of usable tokens")
	}
}

func postHocDecisions(n int) {
	cal := cascade.Calibration{Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}}
	tracker := control.NewTracker(.3, 0)
	request, node := cascade.Request{}, cascade.Node{EdgeReady: true}
	var acc cascade.Accumulator
	for i := range 40 {
		acc.Add(-float64(i)/400, 3)
	}
	answer := cascade.Answer{}
	for range n {
		answer.Signals = acc.Signals()
		pol := cascade.GainPolicy(tracker.Theta(), .98)
		v := cascade.After(&request, &answer, &cal, &pol, &node)
		tracker.Observe(v.Wanted)
	}
}

// replayedDecisions replays n records with a rate target.
func replayedDecisions() func(n int) {
	const size = 10_000
	d := &Data{Records: make([]Record, size)}
	rows, priority := make([]int, size), make([]float64, size)
	for i := range d.Records {
		d.Records[i] = newRecord()
		d.Records[i].Set, d.Records[i].Edge, d.Records[i].Cloud = "set", float64(i&1), 1
		rows[i], priority[i] = i, -float64(i*7919%size)/size
	}
	return func(n int) {
		for ; n > 0; n -= size {
			runStream(d, rows[:min(n, size)], priority, threshold{kind: controlRate, spread: 1}, streamOptions{rate: .3})
		}
	}
}

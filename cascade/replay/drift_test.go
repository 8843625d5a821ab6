package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/weirhq/weir/cascade/measure"
)

// Drift on real tasks: a shift of .3 sd or more is found within 160 requests in
// the mean, at no more than one false alarm per 2,000. Each task is followed by
// each other one whose mean is that far away, by a mixture with it whose mean is
// exactly .3 sd away, and by itself moved by .3 sd either way.
func TestDriftDelay(t *testing.T) {
	slowest, false2000 := driftCase{}, 0.0
	for _, file := range []string{qwen, llama} {
		d := openShared(t, file)
		for _, sig := range []Signal{SignalMargin, SignalP1, SignalNegEnt} {
			tasks := map[string][]float64{}
			for i := range d.Records {
				r := &d.Records[i]
				tasks[r.Cell] = append(tasks[r.Cell], r.Signals[sig])
			}
			for name, before := range tasks {
				alarms := falseAlarms(before)
				if false2000 = max(false2000, alarms); alarms > 1 {
					t.Errorf("%s %v %s: %.2f false alarms per 2,000", file, sig, name, alarms)
				}
				for _, c := range driftCases(before, tasks) {
					c.name = fmt.Sprintf("%s signal %v, %s to %s", file, sig, name, c.name)
					if c.delay = driftDelay(before, c.after); c.delay > 160 {
						t.Errorf("%s: found after %.0f requests", c.name, c.delay)
					}
					if c.delay > slowest.delay {
						slowest = c
					}
				}
			}
		}
	}
	t.Logf("slowest mean delay %.0f (%s), most false alarms %.2f per 2,000", slowest.delay, slowest.name, false2000)
}

// driftCase is what follows a task.
type driftCase struct {
	name  string
	after func(*rand.Rand) float64
	delay float64
}

func driftCases(before []float64, tasks map[string][]float64) []driftCase {
	const least = .3
	m, sd := measure.MeanSD(before)
	var out []driftCase
	for _, by := range []float64{least, -least} {
		out = append(out, driftCase{name: fmt.Sprintf("itself %+.1f sd", by), after: func(r *rand.Rand) float64 { return oneOf(r, before) + by*sd }})
	}
	for name, after := range tasks {
		other, _ := measure.MeanSD(after)
		shift := math.Abs(other-m) / sd
		if shift < least {
			continue
		}
		out = append(out, driftCase{name: name, after: func(r *rand.Rand) float64 { return oneOf(r, after) }},
			driftCase{name: "a mixture with " + name, after: func(r *rand.Rand) float64 {
				if r.Float64() < least/shift {
					return oneOf(r, after)
				}
				return oneOf(r, before)
			}})
	}
	return out
}

const barRuns = 40

// falseAlarms is the mean number of alarms in 2,000 requests without a change.
func falseAlarms(before []float64) float64 {
	n := 0.0
	for seed := range uint64(barRuns) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := referred(rng, before)
		for range 2000 {
			if d.Observe(oneOf(rng, before)) {
				n++
			}
		}
	}
	return n / barRuns
}

// driftDelay is the mean number of requests until the change is noticed.
func driftDelay(before []float64, after func(*rand.Rand) float64) float64 {
	n := 0.0
	for seed := range uint64(barRuns) {
		rng := rand.New(rand.NewPCG(seed, 3))
		d := referred(rng, before)
		for n++; !d.Observe(after(rng)); n++ {
		}
	}
	return n / barRuns
}

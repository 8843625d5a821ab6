package replay

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/measure"
)

// Drift is how a node's detector does on a set's main signal, as log-odds. What
// needs more rows or tasks than there are is NaN.
type Drift struct {
	Alarms float64 // in 10,000 rows of the stream as it is, changes of task included
	// FalseAlarms are those in 10,000 rows drawn from one task at random, where
	// nothing changes; the mean over the tasks.
	FalseAlarms float64
	// Delay and SlowestDelay are rows until a switch from one task to another
	// whose mean lies at least leastShift away is noticed: the mean over the
	// pairs, and of the slowest pair.
	Delay, SlowestDelay float64
	// AfterFault is rows from the first task switch or edge swap that was asked
	// for to the next alarm. Faults count the stream's rows: NaN for a set that is
	// a part of it.
	AfterFault float64
}

// What drift is measured on: the largest tasks that have rows enough to be drawn
// from, each switch driftRuns times.
const (
	leastShift   = .3 // standard deviations
	driftTasks   = 10
	driftRows    = 500
	driftRuns    = 20
	driftQuiet   = 2000   // rows without a change in a run
	slowestAlarm = 10_000 // rows after which a switch counts as noticed
)

func drift(s *setData, faults []Fault) Drift {
	nan := math.NaN()
	out := Drift{nan, nan, nan, nan, nan}
	x, ok := s.features()
	if !ok {
		return out
	}
	values := pick(x, s.test)
	if len(values) > control.NewPageHinkley().Warmup {
		at := measure.Alarms(control.NewPageHinkley(), values)
		out.Alarms = float64(len(at)) / float64(len(values)) * 1e4
		if len(values) == len(s.d.stream()) {
			out.AfterFault = afterFault(at, faults)
		}
	}
	tasks := largestTasks(s, x)
	rng := rand.New(rand.NewPCG(s.seed, 8))
	alarms := 0
	var delays []float64
	for _, before := range tasks {
		for range driftRuns {
			d := referred(rng, before)
			for range driftQuiet {
				alarms += b2n(d.Observe(oneOf(rng, before)))
			}
		}
		for _, after := range tasks {
			if apart(before, after) {
				delays = append(delays, meanDelay(rng, before, after))
			}
		}
	}
	if len(tasks) > 0 {
		out.FalseAlarms = float64(alarms) / float64(len(tasks)*driftRuns*driftQuiet) * 1e4
	}
	if len(delays) > 0 {
		out.Delay, out.SlowestDelay = mean(delays), slices.Max(delays)
	}
	return out
}

// afterFault is the distance of the first change that was asked for to the next
// alarm.
func afterFault(alarms []int, faults []Fault) float64 {
	for _, f := range faults {
		if !f.changesEdge() {
			continue
		}
		for _, at := range alarms {
			if at >= f.From {
				return float64(at - f.From + 1)
			}
		}
		break
	}
	return math.NaN()
}

// largestTasks are the values of the largest tasks among the test rows.
func largestTasks(s *setData, x []float64) [][]float64 {
	at := map[string]int{}
	var tasks [][]float64
	for _, k := range s.test {
		if math.IsNaN(x[k]) {
			continue
		}
		cell := s.record(k).Cell
		i, ok := at[cell]
		if !ok {
			i = len(tasks)
			at[cell], tasks = i, append(tasks, nil)
		}
		tasks[i] = append(tasks[i], x[k])
	}
	slices.SortStableFunc(tasks, func(a, b []float64) int { return cmp.Compare(len(b), len(a)) })
	tasks = tasks[:min(driftTasks, len(tasks))]
	return slices.DeleteFunc(tasks, func(v []float64) bool { return len(v) < driftRows })
}

// apart reports whether a switch between the tasks is a change of leastShift or more.
func apart(before, after []float64) bool {
	m, sd := measure.MeanSD(before)
	other, _ := measure.MeanSD(after)
	return math.Abs(other-m) >= leastShift*sd && other != m
}

func meanDelay(rng *rand.Rand, before, after []float64) float64 {
	n := 0
	for range driftRuns {
		k, _ := measure.Delay(referred(rng, before), func() float64 { return oneOf(rng, after) }, slowestAlarm)
		n += k
	}
	return float64(n) / driftRuns
}

// referred returns a detector that has its reference.
func referred(rng *rand.Rand, before []float64) *control.PageHinkley {
	d := control.NewPageHinkley()
	for !d.Ready() {
		d.Observe(oneOf(rng, before))
	}
	return d
}

func oneOf(rng *rand.Rand, v []float64) float64 { return v[rng.IntN(len(v))] }

func b2n(b bool) int {
	if b {
		return 1
	}
	return 0
}

// json is nil where there is no signal.
func (d Drift) json() map[string]number {
	if math.IsNaN(d.Alarms) && math.IsNaN(d.FalseAlarms) {
		return nil
	}
	return map[string]number{"alarms_per_10k": number(d.Alarms), "false_alarms_per_10k": number(d.FalseAlarms), "delay": number(d.Delay),
		"slowest_delay": number(d.SlowestDelay), "after_fault": number(d.AfterFault)}
}

func (d Drift) String() string {
	return fmt.Sprintf("%s alarms in 10,000 rows, %s where nothing changes; a switch of task is noticed after %s rows, at the slowest %s; the fault after %s",
		show(d.Alarms), show(d.FalseAlarms), whole(d.Delay), whole(d.SlowestDelay), whole(d.AfterFault))
}

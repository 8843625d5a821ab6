package replay

import (
	"math"
	"slices"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
)

// window is the length of the sliding window in which the rate is watched.
const window = 1000

// Realised is what a policy's decisions came to.
type Realised struct {
	Rate     float64 // share of escalations
	Risk     float64 // share of rows kept with the edge wrong and the cloud right
	Accuracy float64
	n        float64
}

func (a *Realised) add(r *Record, escalated bool) {
	a.n++
	if escalated {
		a.Rate++
		a.Accuracy += r.Cloud
		return
	}
	a.Accuracy += r.Edge
	a.Risk += math.Max(0, r.Cloud-r.Edge)
}

// means turns sums into means.
func (a *Realised) means() {
	n := math.Max(1, a.n)
	a.Rate, a.Risk, a.Accuracy = a.Rate/n, a.Risk/n, a.Accuracy/n
}

// Stream is what happened when a policy ran over the test rows in file order.
type Stream struct {
	Realised
	WorstWindow float64 // largest distance from the target in a window
	Theta       float64 // last threshold on the priority
	Feasible    bool    // false: risk control found no threshold and escalates all
	// Rates is the rate in consecutive windows, for drawing.
	Rates []float64
	BySet map[string]*Realised
	// Reasons counts the verdicts by reason.
	Reasons map[cascade.Reason]int

	rows      []int  // records, in order
	escalated []bool // of them
}

// streamOptions are the targets of the controllers.
type streamOptions struct {
	rate, alpha, delta float64
	faults             []Fault
	deadlineMS         float64 // 0 is none
}

// runStream decides on the rows (indices of records, in order) by their
// priorities. calibration holds the rows from which a fixed threshold is taken.
func runStream(d *Data, rows []int, priority []float64, c threshold, o streamOptions) Stream {
	st := Stream{Feasible: true, BySet: map[string]*Realised{}, Reasons: map[cascade.Reason]int{}}
	theta, feasible := c.start(d, o)
	st.Feasible = feasible
	tracker := control.NewTracker(o.rate, theta)
	if c.warm {
		tracker = control.NewWarmTracker(o.rate, theta)
	}
	tracker.Scale = c.spread
	request, node := cascade.Request{}, nodeAt(nil, 0)
	slowest := cloudP90(d, c.calibration)
	node.CloudP90 = slowest
	learning := riskWindow{alpha: o.alpha, delta: o.delta}
	pol := cascade.Policy{Rule: cascade.RuleThreshold, Risk: c.kind == controlRisk}
	escalated := make([]bool, len(rows))
	confident, doubtful := 0, 0
	for k, i := range rows {
		if c.kind == controlRate {
			theta = tracker.Theta()
		}
		if c.prequential() {
			theta, st.Feasible = learning.theta(theta, st.Feasible)
			learning.add(control.RiskItem{Score: priority[k], Loss: math.Max(0, d.Records[i].Cloud-d.Records[i].Edge)})
		}
		pol.Threshold = -theta
		if len(o.faults) > 0 {
			node = nodeAt(o.faults, k)
			node.CloudP90 = slowest
		}
		if o.deadlineMS > 0 {
			request.Remaining = remaining(o.deadlineMS, d.Records[i].EdgeMS)
		}
		v := cascade.Judge(&request, -priority[k], true, false, &pol, &node)
		if c.kind == controlRate {
			tracker.Observe(v.Wanted)
		}
		switch v.Reason { // the common ones without the map
		case cascade.ReasonConfident:
			confident++
		case cascade.ReasonLowConfidence:
			doubtful++
		default:
			st.Reasons[v.Reason]++
		}
		r := &d.Records[i]
		escalated[k] = v.Escalate
		set := st.BySet[r.Set]
		if set == nil {
			set = &Realised{}
			st.BySet[r.Set] = set
		}
		set.add(r, v.Escalate)
		st.add(r, v.Escalate)
	}
	st.Reasons[cascade.ReasonConfident], st.Reasons[cascade.ReasonLowConfidence] = confident, doubtful
	st.Theta = theta
	st.means()
	for _, r := range st.BySet {
		r.means()
	}
	st.Rates, st.WorstWindow = windows(escalated, o.rate)
	st.rows, st.escalated = rows, escalated
	return st
}

// windows returns the rate in consecutive windows and the largest distance of
// any sliding window from the target.
func windows(escalated []bool, target float64) (rates []float64, worst float64) {
	size := min(window, len(escalated))
	count := 0
	for k, e := range escalated {
		if e {
			count++
		}
		if k >= size && escalated[k-size] {
			count--
		}
		if k >= size-1 {
			worst = math.Max(worst, math.Abs(float64(count)/float64(size)-target))
		}
		if (k+1)%size == 0 {
			rates = append(rates, float64(count)/float64(size))
		}
	}
	return rates, worst
}

// threshold is a policy's control with what it is fixed on.
type threshold struct {
	kind        steering
	calibration []int     // records
	priority    []float64 // of them
	spread      float64   // of the priorities, for the tracker's step
	warm        bool      // the calibration rows are not rows of the stream
}

// prequential reports whether the risk is bounded on the rows decided before.
func (c threshold) prequential() bool { return c.kind == controlRisk && !c.warm }

// start returns the first threshold on the priority.
func (c threshold) start(d *Data, o streamOptions) (theta float64, feasible bool) {
	switch c.kind {
	case controlNever:
		return math.Inf(1), true
	case controlAlways:
		return math.Inf(-1), true
	case controlRisk:
		if c.prequential() {
			return math.Inf(-1), false
		}
		items := make([]control.RiskItem, len(c.calibration))
		for k, i := range c.calibration {
			r := &d.Records[i]
			items[k] = control.RiskItem{Score: c.priority[k], Loss: math.Max(0, r.Cloud-r.Edge)}
		}
		b, err := control.LTT(items, o.alpha, o.delta)
		if err != nil {
			return math.Inf(-1), false
		}
		return b.Theta, true
	}
	return quantile(c.priority, 1-o.rate), true
}

// quantile of the values that are numbers, the nearest finite one where it is
// infinite; 0 when none is finite.
func quantile(values []float64, q float64) float64 {
	v := slices.DeleteFunc(slices.Clone(values), math.IsNaN)
	slices.Sort(v)
	low, high := 0, len(v)-1
	for low <= high && math.IsInf(v[low], -1) {
		low++
	}
	for low <= high && math.IsInf(v[high], 1) {
		high--
	}
	if low > high {
		return 0
	}
	return v[max(low, min(high, int(math.Ceil(q*float64(len(v))))-1))]
}

// spreadOf returns a step scale for priorities: one where they look like
// probabilities or gains, their own spread where they do not. It looks at all
// rows of a stream: the unit of a score is known before it runs.
func spreadOf(priority []float64) float64 {
	s := quantile(priority, .98) - quantile(priority, .02)
	if s > 1 || (s > 0 && s < .02) {
		return s
	}
	return 1
}

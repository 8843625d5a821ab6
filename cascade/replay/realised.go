package replay

import (
	"math"
	"slices"

	"github.com/weirhq/weir/cascade/measure"
)

// Outcome is what a policy's decisions on a set's rows of the stream came to.
// What the file lacks the columns for is NaN.
type Outcome struct {
	Rates      []float64 // escalated share of consecutive blocks of 1,000 rows
	WorstBlock float64   // their largest distance from the target
	Violations float64   // share of the blocks whose risk exceeds alpha
	// Random is the accuracy of as many escalations at random, Over what the
	// policy has more, OverLow and OverHigh its paired 95 % interval.
	Random, Over, OverLow, OverHigh float64
	// IBC is the lift per dollar over mixing the tiers, IBCFree with a free edge.
	IBC, IBCFree float64
	Times
	// WastedEdgeMS is the edge's time on escalated rows, WastedCloud the dollars
	// of escalated rows where the edge was no worse; both mean per row.
	WastedEdgeMS, WastedCloud float64
}

// decided are the rows of a set that a policy decided on.
type decided struct {
	rows []*Record
	measure.Choice
}

// decided returns a set's part of the stream; all is the pool's.
func (st *Stream) decided(d *Data, set string) decided {
	var out decided
	for k, i := range st.rows {
		r := &d.Records[i]
		if set != d.Pool && r.Set != set {
			continue
		}
		out.rows = append(out.rows, r)
		out.Escalated = append(out.Escalated, st.escalated[k])
		out.Gain = append(out.Gain, r.Cloud-r.Edge)
	}
	return out
}

// outcome needs at least one row.
func (c decided) outcome(o Options) Outcome {
	escalated, loss := make([]float64, len(c.rows)), make([]float64, len(c.rows))
	edge := 0.0
	for i, r := range c.rows {
		edge += r.Edge
		if escalated[i] = b2f(c.Escalated[i]); !c.Escalated[i] {
			loss[i] = math.Max(0, c.Gain[i])
		}
	}
	out := Outcome{Rates: measure.Blocks(escalated, window), Over: c.OverRandom(), OverLow: math.NaN(), OverHigh: math.NaN(),
		Random: edge/float64(len(c.rows)) + mean(escalated)*mean(c.Gain), IBC: c.lift(true), IBCFree: c.lift(false), Times: c.times(o.DeadlineMS),
		WastedEdgeMS: c.wasted(func(r *Record) (float64, bool) { return r.EdgeMS, price(r.EdgeMS) }),
		WastedCloud: c.wasted(func(r *Record) (float64, bool) {
			return r.CloudCost * b2f(r.Edge >= r.Cloud), price(r.CloudCost)
		})}
	out.WorstBlock = measure.Farthest(out.Rates, o.Rate)
	out.Violations = measure.Exceeding(measure.Blocks(loss, window), o.Alpha)
	return out
}

// wasted is the mean of f over the rows whose f is known, those that were kept
// counting zero.
func (c decided) wasted(f func(*Record) (float64, bool)) float64 {
	sum, n := 0.0, 0.0
	for i, r := range c.rows {
		v, known := f(r)
		if !known {
			continue
		}
		n++
		if c.Escalated[i] {
			sum += v
		}
	}
	return sum / n
}

// lift is the IBC lift over the rows whose costs are known.
func (c decided) lift(payEdge bool) float64 {
	var own, edge, cloud measure.Point
	n := 0.0
	for i, r := range c.rows {
		if !price(r.CloudCost) || (payEdge && !price(r.EdgeCost)) {
			continue
		}
		n++
		pay := 0.0
		if payEdge {
			pay = r.EdgeCost
		}
		edge = measure.Point{Cost: edge.Cost + pay, Accuracy: edge.Accuracy + r.Edge}
		cloud = measure.Point{Cost: cloud.Cost + r.CloudCost, Accuracy: cloud.Accuracy + r.Cloud}
		own = measure.Point{Cost: own.Cost + pay, Accuracy: own.Accuracy + r.Edge}
		if c.Escalated[i] {
			own = measure.Point{Cost: own.Cost + r.CloudCost, Accuracy: own.Accuracy + c.Gain[i]}
		}
	}
	per := func(p measure.Point) measure.Point { return measure.Point{Cost: p.Cost / n, Accuracy: p.Accuracy / n} }
	return measure.IBCLift(per(own), per(edge), per(cloud))
}

// addOutcomes fills in what the policies' decisions on a set came to.
func (set *SetResult) addOutcomes(d *Data, streams map[string]Stream, o Options) {
	var names []string
	var choices []measure.Choice
	for _, name := range o.Policies {
		m, ok := set.Policies[name]
		st := streams[name]
		c := st.decided(d, set.Name)
		if !ok || len(c.rows) == 0 || slices.Contains(names, name) {
			continue
		}
		m.Outcome = c.outcome(o)
		set.Policies[name] = m
		if len(c.rows) == set.N { // resamples are shared
			names, choices = append(names, name), append(choices, c.Choice)
		}
	}
	if o.Bootstrap <= 0 {
		return
	}
	for j, sample := range measure.BootstrapOverRandom(choices, o.Bootstrap, o.Seed) {
		m := set.Policies[names[j]]
		m.OverLow, m.OverHigh = measure.Interval(sample, .95)
		set.Policies[names[j]] = m
	}
}

package replay

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/measure"
)

// Options say how to evaluate.
type Options struct {
	Policies []string
	// Rate is the target share of escalations, Alpha and Delta are the level
	// and the error probability of the risk policy.
	Rate, Alpha, Delta float64
	// Bootstrap is the number of paired resamples; 0 leaves intervals out.
	Bootstrap int
	Seed      uint64
	Faults    []Fault
	// DeadlineMS is what each request allows, milliseconds; 0 is no deadline.
	DeadlineMS float64
}

// DefaultOptions are a 30 % rate, a risk of 5 % with 90 % confidence and 1,000
// resamples.
func DefaultOptions() Options {
	return Options{Policies: []string{"static", "gain"}, Rate: .30, Alpha: .05, Delta: .10, Bootstrap: 1000, Seed: 1}
}

// Metrics are the numbers of one policy on one set. Those that are undefined
// are NaN.
type Metrics struct {
	APGR, AUC              float64
	CPT50, CPT80, CPT95    float64
	AUROCEdge, AUROCHelps  float64
	ECE                    float64
	Rate, Risk, Accuracy   float64 // of the set's rows in the stream
	Brier, LogLoss         float64
	Dollars                CostMetrics
	FreeEdge               CostMetrics // with an edge that costs nothing
	BestAccuracy, BestRate float64
	// Low and High bound APGR, DiffLow and DiffHigh its difference to the first
	// policy, both at 95 %.
	Low, High, DiffLow, DiffHigh float64
	Grade                        learn.Grade
	Stream                       Stream
	Outcome
	Redraws Redraws
}

// SetResult holds what was found on one set.
type SetResult struct {
	Name        string
	N, Train    int
	Edge, Cloud float64 // accuracies
	Policies    map[string]Metrics
	Baselines   Baselines
	Curves      map[string]measure.Curve
	Reliability map[string][]measure.Bin
	Latency     Latency
	Drift       Drift
	// Unpriced counts the test rows that lack a cost, which the figures in dollars
	// and those with a free edge leave out; 0 where all do.
	Unpriced [2]int
	// EdgeDearer says that the cloud costs no more than the edge.
	EdgeDearer bool
}

// Result is a whole evaluation.
type Result struct {
	Options Options
	Sets    []SetResult
	Streams map[string]Stream
	Summary []SummaryVerdict
	// Skipped says why a policy is missing in a set, or a row everywhere.
	Skipped []string
	// Lacking says which figures the data has no columns for.
	Lacking []string
	// Columns and Notes are the data's, and what was noticed since.
	Columns, Notes []string
}

// ranked is a policy's work on one set.
type ranked struct {
	policy
	scores
	order measure.Order
}

// Evaluate runs the policies over the data.
func Evaluate(d *Data, o Options) (*Result, error) {
	res := &Result{Options: o, Streams: map[string]Stream{}, Skipped: slices.Clone(d.LeftOut),
		Columns: d.Columns, Notes: slices.Clone(d.Notes)}
	if d.Summary != nil {
		res.Summary = GradeSummary(d.Summary)
		return res, nil
	}
	d, err := d.played(o.Faults)
	if err != nil {
		return nil, err
	}
	res.Notes = slices.Clone(d.Notes)
	var chosen []policy
	for _, name := range o.Policies {
		p, err := policyByName(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, p)
	}
	all := map[string][]float64{} // priorities over all records, by policy
	names, each := sets(d, o.Seed)
	for i, s := range each {
		name := names[i]
		if len(s.test) == 0 {
			res.Skipped = append(res.Skipped, fmt.Sprintf("%s: no test rows", name))
			continue
		}
		work, err := rank(s, chosen, name, res)
		if err != nil {
			return nil, err
		}
		collect(all, s, work, name == d.Pool)
		set := evaluateSet(s, name, work, o)
		res.Sets = append(res.Sets, set)
		res.Notes = append(res.Notes, set.notes()...)
	}
	runStreams(d, chosen, all, o, res)
	for i := range res.Sets {
		res.Sets[i].addOutcomes(d, res.Streams, o)
	}
	res.Lacking = d.lacking(o)
	return res, nil
}

func rank(s *setData, chosen []policy, name string, res *Result) ([]ranked, error) {
	var work []ranked
	for _, p := range chosen {
		sc, err := p.score(s)
		if errors.Is(err, ErrNotApplicable) {
			res.Skipped = append(res.Skipped, fmt.Sprintf("%s: %s: %v", name, p.name, err))
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", name, p.name, err)
		}
		if sc.note != "" {
			res.Notes = append(res.Notes, name+": "+sc.note)
		}
		work = append(work, ranked{policy: p, scores: sc, order: measure.Rank(pick(sc.priority, s.test))})
	}
	return work, nil
}

// collect adds a set's priorities to those of all records. The pool comes last
// and gives what policies have that need more than one task.
func collect(all map[string][]float64, s *setData, work []ranked, pool bool) {
	for _, w := range work {
		if pool && all[w.name] != nil {
			continue
		}
		if all[w.name] == nil {
			all[w.name] = make([]float64, len(s.d.Records))
			for i := range all[w.name] {
				all[w.name][i] = math.NaN()
			}
		}
		for k, i := range s.rows {
			all[w.name][i] = w.priority[k]
		}
	}
}

func pick(v []float64, at []int) []float64 {
	out := make([]float64, len(at))
	for i, k := range at {
		out[i] = v[k]
	}
	return out
}

func evaluateSet(s *setData, name string, work []ranked, o Options) SetResult {
	edge := pick(s.column(func(r *Record) float64 { return r.Edge }), s.test)
	cloud := pick(s.column(func(r *Record) float64 { return r.Cloud }), s.test)
	r := SetResult{Name: name, N: len(s.test), Train: len(s.train), Edge: mean(edge), Cloud: mean(cloud),
		Policies: map[string]Metrics{}, Curves: map[string]measure.Curve{}, Reliability: map[string][]measure.Bin{}}
	helps := make([]bool, len(edge))
	for i := range edge {
		helps[i] = cloud[i] > edge[i]
	}
	paid, free := newCosted(s, true), newCosted(s, false)
	r.Unpriced, r.EdgeDearer = [2]int{paid.missing(), free.missing()}, paid.edgeDearer()
	orders := make([]measure.Order, len(work))
	for j, w := range work {
		orders[j] = w.order
		m, curve := rankMetrics(pick(w.priority, s.test), w.order, edge, cloud, helps)
		m.Dollars, m.FreeEdge = paid.metrics(w), free.metrics(w)
		m.Redraws = redrawn(s, w, o)
		if w.edge != nil {
			p, y := known(pick(w.edge, s.test), edge)
			bins := measure.Reliability(p, y, nil, 10)
			m.ECE, m.Brier, m.LogLoss = measure.ECE(bins), measure.Brier(p, y), measure.LogLoss(p, y)
			r.Reliability[w.name] = bins
		}
		r.Policies[w.name], r.Curves[w.name] = m, curve
	}
	addIntervals(r.Policies, work, orders, edge, cloud, o)
	r.Baselines = baselines(s, edge, cloud, o)
	r.Latency, r.Drift = latency(s, o.Rate), drift(s, o.Faults)
	return r
}

// contrary is the AUROC below which a signal runs against the truth.
const contrary = .4

// notes warn of a signal that is probably an uncertainty, and of missing costs
// and latencies.
func (r *SetResult) notes() (notes []string) {
	for i, n := range r.Unpriced {
		if n > 0 {
			what := [2]string{"costs in dollars", "costs with a free edge"}[i]
			notes = append(notes, fmt.Sprintf("%s: %d of %d row(s) lack a cost: the figures of %s are of the others", r.Name, n, r.N, what))
		}
	}
	if r.EdgeDearer {
		notes = append(notes, r.Name+": the cloud costs no more than the edge: figures in dollars are given with a free edge only")
	}
	if n := r.Latency.Untimed; n > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d of %d row(s) lack a latency: the figures of time are of the others", r.Name, n, r.N))
	}
	if a := r.Baselines.SignalAUROC; r.N >= 100 && a < contrary {
		notes = append(notes, fmt.Sprintf("%s: the confidence is higher on wrong answers (AUROC %.2f): name an uncertainty's column with --entropy", r.Name, a))
	}
	return notes
}

func rankMetrics(priority []float64, order measure.Order, edge, cloud []float64, helps []bool) (Metrics, measure.Curve) {
	c := measure.NewCurve(order, edge, cloud)
	nan := math.NaN()
	m := Metrics{APGR: c.APGR(), AUC: c.Area(), CPT50: c.CPT(.5), CPT80: c.CPT(.8), CPT95: c.CPT(.95),
		ECE: nan, Rate: nan, Risk: nan, Accuracy: nan, Brier: nan, LogLoss: nan, Low: nan, High: nan, DiffLow: nan, DiffHigh: nan}
	m.BestAccuracy, m.BestRate = c.Best()
	m.AUROCEdge = edgeAUROC(priority, edge)
	m.AUROCHelps = measure.AUROC(priority, helps)
	m.Grade, _, _ = learn.Viability(priority, helps, nil)
	return m, c
}

// known drops the rows whose probability is not known.
func known(p, y []float64) (kp, ky []float64) {
	for i := range p {
		if !math.IsNaN(p[i]) {
			kp, ky = append(kp, p[i]), append(ky, y[i])
		}
	}
	return kp, ky
}

func addIntervals(to map[string]Metrics, work []ranked, orders []measure.Order, edge, cloud []float64, o Options) {
	if o.Bootstrap <= 0 || len(work) == 0 {
		return
	}
	samples := measure.BootstrapAPGR(orders, edge, cloud, o.Bootstrap, o.Seed)
	for j, w := range work {
		m := to[w.name]
		m.Low, m.High = measure.Interval(samples[j], .95)
		if j > 0 {
			m.DiffLow, m.DiffHigh = measure.Interval(measure.Difference(samples[j], samples[0]), .95)
		}
		to[w.name] = m
	}
}

// runStreams runs each policy over all test rows in file order and fills in
// the realised rates.
func runStreams(d *Data, chosen []policy, all map[string][]float64, o Options, res *Result) {
	split := d.HasSplit()
	for _, p := range chosen {
		priority := all[p.name]
		if priority == nil {
			continue
		}
		var rows, calibration []int
		for i := range d.Records {
			switch {
			case math.IsNaN(priority[i]):
			case split && d.Records[i].Split == SplitTrain:
				calibration = append(calibration, i)
			case !split || d.Records[i].Split == SplitTest:
				rows = append(rows, i)
			}
		}
		if !split { // the first rows of a stream stand for yesterday's traffic
			calibration = rows[:min(window, len(rows))]
		}
		t := threshold{kind: p.control, calibration: calibration, priority: pick(priority, calibration), warm: split}
		t.spread = spreadOf(priority)
		st := runStream(d, rows, pick(priority, rows), t, streamOptions{o.Rate, o.Alpha, o.Delta, o.Faults, o.DeadlineMS})
		res.Streams[p.name] = st
		if !st.Feasible {
			n := len(calibration)
			if !split {
				n = len(rows)
			}
			res.Notes = append(res.Notes, fmt.Sprintf("%s: %d rows to learn from show no threshold that keeps a risk of %v: all are escalated", p.name, n, o.Alpha))
		}
		for i := range res.Sets {
			set := &res.Sets[i]
			m, ok := set.Policies[p.name]
			if !ok {
				continue
			}
			was := &st.Realised
			if r, ok := st.BySet[set.Name]; ok {
				was = r
			}
			m.Rate, m.Risk, m.Accuracy = was.Rate, was.Risk, was.Accuracy
			m.Stream = st
			set.Policies[p.name] = m
		}
	}
}

func mean(v []float64) float64 {
	s := 0.0
	for _, x := range v {
		s += x
	}
	return s / float64(len(v))
}

package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/prerouter"
)

// scoreGain calibrates the main signal per cell and ranks by the cloud's expected
// score less the edge's. With a split it fits on the train rows; without one it
// predicts each row before it learns its label.
func scoreGain(s *setData) (scores, error) {
	if s.gain != nil {
		return *s.gain, nil
	}
	x, ok := s.features()
	if !ok {
		return scores{}, lacks("confidence")
	}
	var out scores
	if len(s.train) > 0 {
		out = gainFitted(s, x)
	} else {
		out = gainOnline(s, x)
	}
	s.gain = &out
	return out, nil
}

// features returns the log-odds of the main signal, NaN where it is missing.
// More signals at once were tried and ranked no better than the main one.
func (s *setData) features() ([]float64, bool) {
	sig, ok := mainSignal(s.d, s.rows)
	if !ok {
		return nil, false
	}
	x := s.column(func(r *Record) float64 { return r.Signals[sig] })
	sc := fitScale(x)
	for k, v := range x {
		x[k] = sc.feature(v)
	}
	return x, true
}

// scoreAdaptive is scoreGain for data with a split that is learned from as a
// stream: train rows first, then each test row after it was predicted.
func scoreAdaptive(s *setData) (scores, error) {
	x, ok := s.features()
	if !ok {
		return scores{}, lacks("confidence")
	}
	return gainOnline(s, x), nil
}

// gainOnline predicts each row before it learns its label, train rows first.
func gainOnline(s *setData, x []float64) scores {
	out := scores{priority: make([]float64, len(s.rows)), edge: make([]float64, len(s.rows))}
	t := learn.NewTable(learn.DefaultOptions(), "", cascade.FeatureProduct)
	for _, k := range append(slices.Clone(s.train), s.test...) {
		r, row := s.record(k), x[k:k+1]
		if math.IsNaN(x[k]) {
			out.priority[k], out.edge[k] = math.Inf(1), math.NaN()
			continue
		}
		pe, qc := t.Predict(r.Cell, row)
		out.priority[k], out.edge[k] = qc-pe, pe
		t.Observe(learn.Outcome{Cell: r.Cell, X: row, Edge: r.Edge, Cloud: r.Cloud, CloudKnown: true, Propensity: 1})
	}
	return out
}

// gainFitted is a two-level fit: all train rows give the prior of the cells,
// worth 20 pseudo-labels.
func gainFitted(s *setData, x []float64) scores {
	const tau = 20
	cells := map[string][]int{}
	var all []int
	for _, k := range s.train {
		if !math.IsNaN(x[k]) {
			cells[s.record(k).Cell] = append(cells[s.record(k).Cell], k)
			all = append(all, k)
		}
	}
	start := cascade.Logistic{W: []float64{1}}
	prior := s.fit(all, x, &start, 1)
	var cloud learn.Quality
	fits, quality := map[string]cascade.Logistic{}, map[string]learn.Quality{}
	for name, rows := range cells {
		fits[name] = s.fit(rows, x, &prior, tau)
		var q learn.Quality
		for _, k := range rows {
			q.Right += s.record(k).Cloud
			q.Weight++
		}
		quality[name] = q
		cloud.Right += q.Right
		cloud.Weight += q.Weight
	}
	mean := cloud.Mean(1)
	out := scores{priority: make([]float64, len(s.rows)), edge: make([]float64, len(s.rows))}
	for k := range s.rows {
		if math.IsNaN(x[k]) {
			out.priority[k], out.edge[k] = math.Inf(1), math.NaN()
			continue
		}
		name := s.record(k).Cell
		fit, ok := fits[name]
		if !ok {
			fit = prior
		}
		out.edge[k] = fit.P(x[k : k+1])
		out.priority[k] = quality[name].Mean(mean) - out.edge[k]
	}
	return out
}

// fit is Platt's method. A signal that runs against the labels is no signal: its
// slope is then zero, and the rows keep the mean of their cell.
func (s *setData) fit(rows []int, x []float64, prior *cascade.Logistic, tau float64) cascade.Logistic {
	rx, ry := make([]float64, len(rows)), make([]float64, len(rows))
	for i, k := range rows {
		rx[i], ry[i] = x[k], s.record(k).Edge
	}
	l := cascade.FitLogistic(rx, 1, ry, nil, prior, tau)
	l.FloorSlope(0, rx, 1, ry, nil)
	return l
}

// crossFit calls fit for each way to split the rows: learn from some, predict
// others. With train rows there is one such way.
func (s *setData) crossFit(fit func(learnFrom, predict []int)) {
	if len(s.train) > 0 {
		all := make([]int, len(s.rows))
		for k := range all {
			all[k] = k
		}
		fit(s.train, all)
		return
	}
	const n = 5
	fold := s.folds(n)
	for f := range n {
		var from, to []int
		for k := range s.rows {
			if fold[k] == f {
				to = append(to, k)
			} else {
				from = append(from, k)
			}
		}
		fit(from, to)
	}
}

func scoreSubject(s *setData) (scores, error) {
	cells := map[string]bool{}
	for k := range s.rows {
		cells[s.record(k).subject()] = true
	}
	if len(cells) < 2 {
		return scores{}, fmt.Errorf("%w: all rows have one subject (--subject names its column)", ErrNotApplicable)
	}
	out := scores{priority: make([]float64, len(s.rows)), edge: make([]float64, len(s.rows))}
	s.crossFit(func(from, to []int) {
		p := prerouter.NewPrior()
		for _, k := range from {
			r := s.record(k)
			p.Observe(r.subject(), r.Edge, r.Cloud, 1)
		}
		for _, k := range to {
			e, c := p.Predict(s.record(k).subject())
			out.priority[k], out.edge[k] = c-e, e
		}
	})
	return out, nil
}

// hashedPasses over the learning rows: an offline set is small, and a few
// passes stand for the longer stream that a node sees.
const hashedPasses = 3

func scoreHashed(s *setData) (scores, error) {
	x := make([][]prerouter.Feature, len(s.rows))
	texts := false
	for k := range s.rows {
		r := s.record(k)
		texts = texts || r.Prompt != ""
		// The subject is the identity of the route, as a system prompt would be.
		x[k] = prerouter.Features(nil, prerouter.Prompt{Text: r.Prompt, System: r.subject()})
	}
	if !texts {
		return scores{}, lacks("prompt")
	}
	out := scores{priority: make([]float64, len(s.rows)), edge: make([]float64, len(s.rows))}
	s.crossFit(func(from, to []int) {
		router := prerouter.NewRouter()
		rng := rand.New(rand.NewPCG(s.seed, 6))
		for _, k := range from {
			router.Count(x[k])
		}
		for range hashedPasses {
			for _, i := range rng.Perm(len(from)) {
				r := s.record(from[i])
				router.Observe(x[from[i]], r.Edge, r.Cloud, 1)
			}
		}
		for _, k := range to {
			p := router.Predict(x[k])
			out.priority[k], out.edge[k] = p.Benefit, p.Edge
		}
	})
	return out, nil
}

package replay

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// ErrNotApplicable says that a set lacks what a policy reads, for example a
// confidence or the prompts.
var ErrNotApplicable = errors.New("the set lacks what the policy reads")

// ErrPolicy says that a policy does not exist.
var ErrPolicy = errors.New("unknown policy")

// scores are a policy's opinions on the rows of a set, in their order.
type scores struct {
	// priority: the higher, the earlier a row is escalated.
	priority []float64
	// edge is the probability that the edge is right, nil when the policy
	// claims none.
	edge []float64
	// note is what the reader of the figures should know, "" for nothing.
	note string
}

// steering says how a policy's threshold is set when it runs over a stream.
type steering uint8

const (
	controlRate   steering = iota // the rate tracker holds the target rate
	controlStatic                 // fixed on the train rows for the target rate
	controlRisk                   // fixed by learn-then-test for the risk level
	controlNever                  // always the edge
	controlAlways                 // always the cloud
)

// policy is a named way to rank requests, and to set its threshold.
type policy struct {
	name    string
	about   string
	control steering
	score   func(s *setData) (scores, error)
}

var policies = []policy{
	{"static", "raw confidence, threshold fixed beforehand", controlStatic, scoreRaw},
	{"gain", "calibrated per task, less the cloud's accuracy there", controlRate, scoreGain},
	{"adaptive", "gain that goes on learning from every test row it has decided", controlRate, scoreAdaptive},
	{"pomdp", "gain after the edge model's votes on its own answers, where those are usable", controlRate, scorePOMDP},
	{"risk", "gain, threshold by risk control", controlRisk, scoreGain},
	{"confidence", "raw confidence column", controlRate, scoreSignal(SignalConfidence)},
	{"p1", "probability of the chosen option", controlRate, scoreSignal(SignalP1)},
	{"margin", "probability of the best minus the second", controlRate, scoreSignal(SignalMargin)},
	{"negent", "negative entropy", controlRate, scoreSignal(SignalNegEnt)},
	{"agree", "agreement of a second sample", controlRate, scoreSignal(SignalAgree)},
	{"length", "longer prompts go to the cloud", controlRate, scoreLength},
	{"subject-prior", "mean gain of the subject, cross-fitted", controlRate, scoreSubject},
	{"hashed", "hashed words of the prompt, cross-fitted", controlRate, scoreHashed},
	{"oracle", "the true gain: a bound, not a policy", controlRate, scoreOracle},
	{"random", "any order", controlRate, scoreConstant},
	{"always-edge", "never escalates", controlNever, scoreConstant},
	{"always-cloud", "always escalates", controlAlways, scoreConstant},
}

// PolicyNames lists the policies.
func PolicyNames() []string {
	var names []string
	for _, p := range policies {
		names = append(names, p.name)
	}
	return names
}

func policyByName(name string) (policy, error) {
	i := slices.IndexFunc(policies, func(p policy) bool { return p.name == name })
	if i < 0 {
		return policy{}, fmt.Errorf("%w %q: use %s", ErrPolicy, name, strings.Join(PolicyNames(), ", "))
	}
	return policies[i], nil
}

// setData is one set as a policy sees it.
type setData struct {
	d    *Data
	rows []int // all records of the set, in file order
	// train and test are positions in rows. Without a split train is empty and
	// test holds all.
	train, test []int
	seed        uint64
	votes       int     // the most of any row of all sets, 0 where there are none
	gain        *scores // of scoreGain, once computed
}

// sets gathers the rows of every set in one pass, in the order of Data.Sets.
func sets(d *Data, seed uint64) (names []string, all []*setData) {
	names = d.Sets()
	votes := 0.0
	for i := range d.Records {
		if v := d.Records[i].Votes; v > votes { // NaN is none
			votes = v
		}
	}
	at := make(map[string]*setData, len(names))
	for _, name := range names {
		s := &setData{d: d, seed: seed, votes: int(votes)}
		at[name] = s
		all = append(all, s)
	}
	split, pool := d.HasSplit(), at[d.Pool]
	for i := range d.Records {
		own := at[d.Records[i].Set]
		own.add(i, split)
		if pool != nil && pool != own {
			pool.add(i, split)
		}
	}
	return names, all
}

// add takes the next row.
func (s *setData) add(i int, split bool) {
	k := len(s.rows)
	s.rows = append(s.rows, i)
	switch at := s.d.Records[i].Split; {
	case !split || at == SplitTest:
		s.test = append(s.test, k)
	case at == SplitTrain:
		s.train = append(s.train, k)
	}
}

func (s *setData) record(k int) *Record { return &s.d.Records[s.rows[k]] }

func (s *setData) column(f func(*Record) float64) []float64 { return column(s.d, s.rows, f) }

// folds numbers the rows 0..n-1 at random, balanced, the same for every policy.
func (s *setData) folds(n int) []int {
	rng := rand.New(rand.NewPCG(s.seed, 5))
	fold := make([]int, len(s.rows))
	for i, k := range rng.Perm(len(s.rows)) {
		fold[k] = i % n
	}
	return fold
}

func scoreSignal(sig Signal) func(*setData) (scores, error) {
	return func(s *setData) (scores, error) {
		values := s.column(func(r *Record) float64 { return r.Signals[sig] })
		if !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }) {
			return scores{}, lacks(signalNames[sig])
		}
		sc := fitScale(values)
		out := scores{priority: make([]float64, len(values))}
		asProbability := sig == SignalConfidence || sig == SignalP1
		if _, ok := sc.probability(.5); ok && asProbability {
			out.edge = make([]float64, len(values))
		}
		for k, v := range values {
			out.priority[k] = -v
			if math.IsNaN(v) { // no signal is not a good answer
				out.priority[k] = math.Inf(1)
			}
			if out.edge != nil {
				out.edge[k], _ = sc.probability(v)
			}
		}
		return out, nil
	}
}

// lacks is ErrNotApplicable with what a set has not, and the flag that names it.
func lacks(what string) error {
	return fmt.Errorf("%w: no %s (--%s names its column)", ErrNotApplicable, what, what)
}

func scoreRaw(s *setData) (scores, error) {
	sig, ok := mainSignal(s.d, s.rows)
	if !ok {
		return scores{}, lacks("confidence")
	}
	return scoreSignal(sig)(s)
}

func scoreLength(s *setData) (scores, error) {
	chars := s.column(func(r *Record) float64 { return r.Chars })
	sum, n := 0.0, 0.0
	for _, c := range chars {
		if !math.IsNaN(c) {
			sum += c
			n++
		}
	}
	if n == 0 {
		return scores{}, lacks("prompt-chars")
	}
	for k, c := range chars {
		if math.IsNaN(c) {
			chars[k] = sum / n
		}
	}
	return scores{priority: chars}, nil
}

func scoreOracle(s *setData) (scores, error) {
	return scores{priority: s.column(func(r *Record) float64 { return r.Cloud - r.Edge })}, nil
}

func scoreConstant(s *setData) (scores, error) {
	return scores{priority: make([]float64, len(s.rows))}, nil
}

package experts

import (
	"fmt"
	"math/rand/v2"

	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// Combination is what transfers do to the imbalance of devices after a change
// of topic, by placement alone and together with LASER-style routing: the
// flexible part of the load is given to routing, the rigid part to replicas.
// Scores are synthetic: experts are unevenly popular, each topic in its way.
type Combination struct {
	Topics []TopicChange
	// Alone and Together are the imbalance after 0, 1, 2, ... transfers, means
	// over topics. Together is measured by routing the tokens.
	Alone, Together []float64
}

// TopicChange is one change of topic.
type TopicChange struct {
	Before          float64 // imbalance of the old placement on the new load
	Alone, Together int     // transfers to the target
	Tau             float32 // as calibrated
	Lost, Rigid     float64 // shares of score mass given up, of load without a choice
	Routed          float64 // imbalance that routing measures after Together transfers
}

// Sizes of the experiment.
var (
	combinedSpec  = gate.Spec{Experts: 32, TopK: 4}
	combinedFleet = plan.Uniform(8, 6)
)

const (
	combinedTarget = 1.05 // imbalance to reach
	combinedBudget = 0.05 // of score mass
	combinedTokens = 6000 // of each topic; half of them calibrate
	combinedMoves  = 64   // more than any change needs
	combinedCurve  = 10   // transfers that the curves go to
)

// Combine runs some changes of topic.
func Combine(topics int) (Combination, error) {
	c := Combination{Alone: make([]float64, combinedCurve+1), Together: make([]float64, combinedCurve+1)}
	for i := range topics {
		t, err := newTopic(uint64(i))
		if err != nil {
			return c, err
		}
		change, err := t.change()
		if err != nil {
			return c, fmt.Errorf("topic %d: %w", i, err)
		}
		c.Topics = append(c.Topics, change)
		for k := range c.Alone {
			a, b, err := t.after(k)
			if err != nil {
				return c, err
			}
			c.Alone[k] += a / float64(topics)
			c.Together[k] += b / float64(topics)
		}
	}
	return c, nil
}

// topic is a load that a placement made for another one faces.
type topic struct {
	scores [][]float32
	on     gate.Params
	report gate.Report
	old    plan.Placement
	window load.Window // with routing on
}

func newTopic(seed uint64) (*topic, error) {
	before, err := synthetic(2 * seed)
	if err != nil {
		return nil, err
	}
	t := &topic{}
	if t.scores, err = synthetic(2*seed + 1); err != nil {
		return nil, err
	}
	off := gate.Params{EpsHigh: 0, Tau: 1, Pool: combinedSpec.TopK}
	w, _, err := observe(off, before, nil)
	if err != nil {
		return nil, err
	}
	r, err := plan.Solve(plan.Problem{Loads: w.Demand, Fleet: combinedFleet})
	if err != nil {
		return nil, err
	}
	t.old = r.Placement
	start := gate.Params{EpsHigh: 0.9, Pool: 12}
	if t.on, t.report, err = gate.Calibrate(combinedSpec, start, t.scores[:combinedTokens/2], nil, combinedBudget); err != nil {
		return nil, err
	}
	t.window, _, err = observe(t.on, t.scores, nil)
	return t, err
}

// change finds the transfers to the target both ways.
func (t *topic) change() (TopicChange, error) {
	out := TopicChange{Before: t.old.Imbalance(0, t.window.Demand[0]), Tau: t.on.Tau, Lost: t.report.Lost, Rigid: t.report.Rigid}
	rigid, level := t.window.Planned(1)
	var next plan.Placement
	var err error
	if out.Alone, _, err = t.reach(t.window.Demand, nil); err != nil {
		return out, err
	}
	if out.Together, next, err = t.reach(rigid, level); err != nil {
		return out, err
	}
	_, devices, err := observe(t.on, t.scores, &next)
	out.Routed = load.Imbalance(devices)
	return out, err
}

// reach is the fewest transfers that plan the target.
func (t *topic) reach(loads load.Counts, level []float64) (int, plan.Placement, error) {
	for k := range combinedMoves {
		r, err := t.solve(loads, level, k)
		if err != nil {
			return 0, t.old, err
		}
		if r.Layers[0].After <= combinedTarget {
			return r.Moves(), r.Placement, nil
		}
	}
	return 0, t.old, fmt.Errorf("no plan of %d transfers reaches %v", combinedMoves, combinedTarget)
}

func (t *topic) solve(loads load.Counts, level []float64, moves int) (plan.Result, error) {
	return plan.Solve(plan.Problem{Loads: loads, Level: level, Fleet: t.old.Fleet, Old: &t.old, Moves: moves})
}

// after is the imbalance that k transfers leave, alone and with routing.
func (t *topic) after(k int) (alone, together float64, err error) {
	a, err := t.solve(t.window.Demand, nil, k)
	if err != nil {
		return 0, 0, err
	}
	rigid, level := t.window.Planned(1)
	b, err := t.solve(rigid, level, k)
	if err != nil {
		return 0, 0, err
	}
	_, devices, err := observe(t.on, t.scores, &b.Placement)
	return a.Layers[0].After, load.Imbalance(devices), err
}

// synthetic makes softmax scores whose experts are unevenly popular, and whose
// popularity follows the seed.
func synthetic(seed uint64) ([][]float32, error) {
	g, err := gate.New(combinedSpec)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	skew := make([]float64, combinedSpec.Experts)
	for e := range skew {
		skew[e] = 0.8 * rng.NormFloat64()
	}
	out := make([][]float32, combinedTokens)
	logits := make([]float32, combinedSpec.Experts)
	for i := range out {
		for e := range logits {
			logits[e] = float32(skew[e] + rng.NormFloat64())
		}
		out[i] = make([]float32, combinedSpec.Experts)
		g.Scores(out[i], logits)
	}
	return out, nil
}

// observe routes scores and returns the window and the load of devices; placed
// may be nil.
func observe(p gate.Params, scores [][]float32, placed *plan.Placement) (load.Window, []float64, error) {
	r, err := gate.NewRouter(combinedSpec, []gate.Params{p})
	if err != nil {
		return load.Window{}, nil, err
	}
	if placed != nil {
		homes := make([][]int32, combinedSpec.Experts)
		slots := placed.Fleet.Slots[0]
		for s, e := range placed.Layers[0] {
			homes[e] = append(homes[e], int32(s/slots))
		}
		speed := make([]float64, placed.Fleet.Devices())
		for d := range speed {
			speed[d] = 1
		}
		if err := r.Place(0, homes, speed); err != nil {
			return load.Window{}, nil, err
		}
	}
	rec := load.NewRecorder(load.Prefill, 1, combinedSpec.Experts, combinedSpec.TopK)
	var sel []int32
	for _, row := range scores {
		var own []int32
		var out gate.Outcome
		sel, own, out = r.Route(0, sel, row, nil)
		rec.Token(0, own, sel, out.Rigid)
	}
	rec.Tokens(len(scores))
	return rec.Take(), r.DeviceLoads(0), nil
}

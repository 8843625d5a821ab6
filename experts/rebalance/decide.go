// Package rebalance keeps a placement of experts right while traffic flows: it
// watches windows of load, decides by a pure function, moves a bounded number
// of experts, verifies the result and rolls back. A loop belongs to the worker
// that owns the map; prefill and decode workers each have their own.
package rebalance

import (
	"math"
	"slices"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// Config is the parameters of a loop. Imbalances are means over MoE layers of
// max/mean device load.
type Config struct {
	Start    float64 // windows above this imbalance count as skewed
	Gain     float64 // imbalance now over that of the candidate, at least
	Patience int     // skewed windows in a row before anything moves
	Cooldown int     // windows of rest after a move

	Moves     int   // transfers per layer and round
	MaxLayers int   // layers changed in a round, 0 for all
	MaxBytes  int64 // bytes copied in a round, 0 for no limit

	HalfLife int64   // tokens after which what was seen counts half
	Z        float64 // standard deviations added to the mean load
	Routed   float64 // part of flexible load that token routing levels out, 0 when off

	Cost Cost

	VerifyAfter int     // windows after which a move is judged
	VerifyShare float64 // part of the predicted gain that it must have brought
	Distortion  float64 // alarm above this share of re-routed load, 0 for none

	Objective  plan.Objective
	StepTokens int
	Work       int // see plan.Problem
}

// Cost says what a move costs and balance saves. With Bandwidth or
// SecPerToken 0 the comparison is left out.
type Cost struct {
	BytesPerExpert int64
	Bandwidth      float64 // bytes per second that copying gets
	Stall          float64 // seconds that publishing a map stops serving
	SecPerToken    float64 // seconds per token on the busiest device of a layer
	Horizon        int64   // tokens for which the new placement should last
	Ratio          float64 // saved seconds over cost, at least
}

// Default is for windows of 10k tokens and more. Noise of 400k draws over 256
// experts on 32 devices is an imbalance of about 1.02, so 1.10 is not noise.
func Default() Config {
	return Config{Start: 1.10, Gain: 1.05, Patience: 3, Cooldown: 10, Moves: 8, HalfLife: 200_000,
		VerifyAfter: 3, VerifyShare: 0.5, Distortion: 0.3, Cost: Cost{Ratio: 2}}
}

// Action is what a decision does.
type Action string

// The actions.
const (
	Stay     Action = "stay"
	Move     Action = "move"
	RollBack Action = "roll_back"
)

// Reason is why, from a closed set.
type Reason string

// The reasons.
const (
	Balanced     Reason = "balanced"
	TooFewTokens Reason = "too_few_tokens"
	EngineBusy   Reason = "engine_busy"
	CoolingDown  Reason = "cooling_down"
	Verifying    Reason = "verifying"
	Verified     Reason = "verified"
	WonLittle    Reason = "won_less_than_predicted"
	Waiting      Reason = "waiting_for_more_windows"
	NoGain       Reason = "candidate_does_not_help"
	CostsMore    Reason = "cost_exceeds_benefit"
	Skewed       Reason = "skewed"
	MadeWorse    Reason = "made_worse"
	PlanFailed   Reason = "planning_failed"
	MoveFailed   Reason = "move_failed"
	Triggered    Reason = "triggered"
)

// Observation is what a loop is told about one window.
type Observation struct {
	Window load.Window
	// Busy engines (scaling, a failed rank) are left alone.
	Busy bool
	// Trigger asks for a move without waiting and cooling down. What has no
	// gain is still refused, and a move under verification is waited for.
	Trigger bool
}

// State is all that a loop remembers. It is a value: Decide returns the next.
type State struct {
	Placement  plan.Placement
	Generation uint64
	streak     int
	cooldown   int // windows left
	rest       int // next cool-down, doubled by a bad move
	recent     *recent
	pending    *pending
}

// pending is a move that is not verified yet.
type pending struct {
	previous      plan.Placement
	predicted     float64
	windows       int
	before, after float64 // sums over windows: previous placement, present one
}

// NewState starts with a placement in force.
func NewState(p plan.Placement) State { return State{Placement: p} }

// Decision says what to do, why, and on what numbers.
type Decision struct {
	Action     Action         `json:"action"`
	Reason     Reason         `json:"reason"`
	Now        float64        `json:"imbalance"`           // of the placement in force, mean
	Worst      float64        `json:"imbalance_max"`       // the worst layer
	Target     float64        `json:"target,omitempty"`    // of the candidate, on the same window
	Bound      float64        `json:"bound,omitempty"`     // no placement can be below
	Distortion float64        `json:"distortion"`          // share of load that routing moved
	Alarm      bool           `json:"alarm,omitempty"`     // distortion is above its limit
	Transfers  int            `json:"transfers,omitempty"` // experts to copy
	Layers     int            `json:"layers,omitempty"`    // layers changed
	SavedSec   float64        `json:"saved_seconds,omitempty"`
	CostSec    float64        `json:"cost_seconds,omitempty"`
	Next       plan.Placement `json:"-"` // to be put in force, for Move and RollBack
}

// Decide judges one window. It changes neither its arguments nor anything
// else. The returned state assumes that a Move or RollBack succeeds; if it
// does not, continue with State.Failed.
func Decide(c Config, s State, o Observation) (State, Decision) {
	w := o.Window
	d := Decision{Action: Stay, Now: 1, Worst: 1, Distortion: w.Distortion()}
	d.Alarm = c.Distortion > 0 && d.Distortion > c.Distortion
	if !w.Enough() {
		d.Reason = TooFewTokens
		return s, d
	}
	f := c.demand(w)
	now := f.imbalances(s.Placement)
	sum := load.Summarise(now, f.moe)
	d.Now, d.Worst = sum.Mean, sum.Max
	if s.pending != nil {
		return c.verify(s, f, &d), d
	}
	if o.Busy {
		d.Reason = EngineBusy
		return s, d
	}
	s, earlier := s.remember(c, f, w.Tokens, sum.Mean > c.Start)
	if !o.Trigger {
		if d.Reason = s.wait(c, sum.Mean); d.Reason != "" {
			s.cooldown = max(0, s.cooldown-1)
			return s, d
		}
	}
	if earlier == nil {
		earlier = &f
	}
	s.cooldown = max(0, s.cooldown-1)
	next := c.candidate(s, *earlier, f, now, &d)
	if d.Action == Stay {
		return s, d
	}
	if o.Trigger {
		d.Reason = Triggered
	}
	return s.moved(c, next, sum.Mean-d.Target), d
}

// demand is a load as placement sees it: by expert, and what routing levels
// out, by layer.
type demand struct {
	loads load.Counts
	level []float64
	moe   []int
}

func (c Config) demand(w load.Window) demand {
	loads, level := w.Planned(c.Routed)
	return demand{loads, level, w.Demand.MoE()}
}

func (f demand) imbalances(p plan.Placement) []float64 {
	out := make([]float64, len(f.loads))
	for l, row := range f.loads {
		out[l] = plan.Levelled(p.Imbalance(l, row), load.Sum(row), f.level[l])
	}
	return out
}

// total is all load of a layer.
func (f demand) total(l int) float64 { return load.Sum(f.loads[l]) + f.level[l] }

// recent is what was seen lately, as rates per token.
type recent struct {
	loads, level *load.Average
}

func newRecent(halfLife int64) *recent {
	return &recent{load.NewAverage(halfLife), load.NewAverage(halfLife)}
}

func (r *recent) add(f demand, tokens int64) error {
	if err := r.loads.Add(f.loads, tokens); err != nil {
		return err
	}
	return r.level.Add(load.Counts{f.level}, tokens)
}

// mean is nil before any window.
func (r *recent) mean(z float64) *demand {
	loads := r.loads.Mean(z)
	if loads == nil {
		return nil
	}
	return &demand{loads, r.level.Mean(0)[0], loads.MoE()}
}

// remember folds the window into the recent load and returns what that was
// before. The first skewed window starts anew: what came before is another
// regime.
func (s State) remember(c Config, f demand, tokens int64, skewed bool) (State, *demand) {
	first := skewed && s.streak == 0
	s.streak++
	if !skewed {
		s.streak = 0
	}
	next := newRecent(c.HalfLife)
	if s.recent != nil && !first {
		next = &recent{s.recent.loads.Clone(), s.recent.level.Clone()}
	}
	earlier := next.mean(c.Z)
	if err := next.add(f, tokens); err != nil {
		// Another model shape: start over with what is served now.
		next, earlier = newRecent(c.HalfLife), nil
		_ = next.add(f, tokens)
	}
	s.recent = next
	return s, earlier
}

// wait is the hysteresis: the reason to do nothing yet, or "".
func (s State) wait(c Config, now float64) Reason {
	switch {
	case now <= c.Start:
		return Balanced
	case s.cooldown > 0:
		return CoolingDown
	case s.streak < c.Patience:
		return Waiting
	}
	return ""
}

// moved is the state after a move to next.
func (s State) moved(c Config, next plan.Placement, predicted float64) State {
	if s.rest == 0 {
		s.rest = c.Cooldown
	}
	s.pending = &pending{previous: s.Placement, predicted: predicted}
	s.Placement, s.cooldown, s.streak = next, s.rest, 0
	s.Generation++
	return s
}

// Failed is the state to continue with when the move that turned s into after
// did not happen: the old placement is in force, and the loop rests.
func (s State) Failed(c Config) State {
	s.cooldown, s.streak, s.pending = max(1, c.Cooldown), 0, nil
	return s
}

// verify judges a move on windows that came after it: both placements are
// compared on the same loads, so that a change of traffic is not taken for a
// bad move. Nothing else happens meanwhile, not even when triggered.
func (c Config) verify(s State, f demand, d *Decision) State {
	p := *s.pending
	p.windows++
	p.after += d.Now
	p.before += load.Summarise(f.imbalances(p.previous), f.moe).Mean
	s.cooldown = max(0, s.cooldown-1)
	if p.windows < c.VerifyAfter {
		s.pending, d.Reason = &p, Verifying
		return s
	}
	won := (p.before - p.after) / float64(p.windows)
	s.pending = nil
	switch {
	case won <= 0:
		// The old placement would serve these windows better.
		d.Action, d.Reason, d.Next = RollBack, MadeWorse, p.previous
		d.Transfers = len(p.previous.Transfers(s.Placement))
		d.Target = p.before / float64(p.windows)
		s.Placement = p.previous
		s.Generation++
		s = s.punish(c)
	case won < c.VerifyShare*p.predicted:
		// Better than before, so going back would only cost; but trust the
		// next prediction less.
		d.Reason = WonLittle
		s = s.punish(c)
	default:
		d.Reason = Verified
		s.rest = c.Cooldown
	}
	return s
}

// punish doubles the cool-down, up to 16 times the configured one.
func (s State) punish(c Config) State {
	s.rest = min(16*max(1, c.Cooldown), 2*max(1, s.rest))
	s.cooldown = s.rest
	return s
}

// candidate plans on the earlier windows and judges on the fresh one: what
// does not help there was noise. It sets d.Action to Move where the plan is
// worth its cost.
func (c Config) candidate(s State, earlier, fresh demand, now []float64, d *Decision) plan.Placement {
	r, err := plan.Solve(plan.Problem{Loads: earlier.loads, Level: earlier.level, Fleet: s.Placement.Fleet, Old: &s.Placement, Moves: c.Moves,
		Objective: c.Objective, StepTokens: c.StepTokens, Work: c.Work})
	if err != nil {
		d.Reason = PlanFailed
		return s.Placement
	}
	next := c.withinBudget(s.Placement, r, fresh, now)
	after := fresh.imbalances(next)
	d.Target = load.Summarise(after, fresh.moe).Mean
	bounds := make([]float64, len(after))
	for l := range bounds {
		bounds[l] = r.Layers[l].Bound
	}
	d.Bound = load.Summarise(bounds, fresh.moe).Mean
	d.Transfers = len(next.Transfers(s.Placement))
	for l := range next.Layers {
		if !slices.Equal(next.Layers[l], s.Placement.Layers[l]) {
			d.Layers++
		}
	}
	if d.Transfers == 0 || d.Target >= d.Now || d.Now/d.Target < c.Gain {
		d.Reason = NoGain
		return s.Placement
	}
	d.SavedSec, d.CostSec = c.worth(fresh, now, after, s.Placement.Fleet, d.Transfers)
	if c.Cost.Bandwidth > 0 && c.Cost.SecPerToken > 0 && d.SavedSec <= c.Cost.Ratio*d.CostSec {
		d.Reason = CostsMore
		return s.Placement
	}
	d.Action, d.Reason, d.Next = Move, Skewed, next
	return next
}

// withinBudget keeps the layers that win most per byte, within the round's
// layers and bytes; the others stay as they are.
func (c Config) withinBudget(old plan.Placement, r plan.Result, fresh demand, now []float64) plan.Placement {
	next := old
	next.Layers = slices.Clone(old.Layers)
	type gain struct {
		layer, moves int
		perMove      float64
	}
	var gains []gain
	after := fresh.imbalances(r.Placement)
	for _, l := range r.MoE {
		moves := r.Layers[l].Moves
		drop := (now[l] - after[l]) * fresh.total(l)
		if moves > 0 && drop > 0 {
			gains = append(gains, gain{l, moves, drop / float64(moves)})
		}
	}
	slices.SortStableFunc(gains, func(a, b gain) int {
		switch {
		case a.perMove > b.perMove:
			return -1
		case a.perMove < b.perMove:
			return 1
		}
		return 0
	})
	layers, bytes := 0, int64(0)
	for _, g := range gains {
		b := int64(g.moves) * c.Cost.BytesPerExpert
		if c.MaxLayers > 0 && layers == c.MaxLayers || c.MaxBytes > 0 && bytes+b > c.MaxBytes {
			continue
		}
		layers, bytes = layers+1, bytes+b
		next.Layers[g.layer] = r.Placement.Layers[g.layer]
	}
	return next
}

// worth is the seconds that the move saves over its horizon and what it costs.
func (c Config) worth(fresh demand, now, after []float64, f plan.Fleet, transfers int) (saved, cost float64) {
	perToken := 0.0 // busiest device's share of work per token, over all layers
	total := 0.0
	for l := range fresh.loads {
		sum := fresh.total(l)
		total = max(total, sum)
		perToken += (now[l] - after[l]) * sum / f.Capacity()
	}
	if total > 0 {
		perToken /= total
	}
	saved = perToken * c.Cost.SecPerToken * float64(c.Cost.Horizon)
	if c.Cost.Bandwidth > 0 {
		cost = float64(transfers) * float64(c.Cost.BytesPerExpert) / c.Cost.Bandwidth
	}
	return math.Max(0, saved), cost + c.Cost.Stall
}

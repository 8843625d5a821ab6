// Package rebalance keeps a placement of experts right while traffic flows: it
// watches windows of load, decides by a pure function, moves a bounded number
// of experts, verifies the result and rolls back. A loop belongs to the worker
// that owns the map; prefill and decode workers each have their own.
package rebalance

import (
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
	ShardLost    Reason = "shard_lost"
	NoRoom       Reason = "shards_left_have_no_room"
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
	// Lost devices serve no more. Their experts are seated elsewhere at once.
	Lost []int
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
	if lost := s.unanswered(o.Lost); len(lost) > 0 {
		return c.refill(s, lost, w, &d), d
	}
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

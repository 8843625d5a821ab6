package rebalance

import (
	"slices"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

// unanswered are the lost devices that the placement still counts on.
func (s State) unanswered(lost []int) []int {
	var out []int
	for _, d := range lost {
		if s.Placement.Fleet.Slots[d] > 0 {
			out = append(out, d)
		}
	}
	return out
}

// refill plans for the devices that are left. Every expert whose only copy is
// gone gets a seat, whatever that costs; beyond it the usual budget of moves
// holds. It waits for nothing and is not verified: there is no way back.
func (c Config) refill(s State, lost []int, w load.Window, d *Decision) State {
	fleet := s.Placement.Fleet
	fleet.Slots = slices.Clone(fleet.Slots)
	for _, g := range lost {
		fleet.Slots[g] = 0
	}
	f := c.known(s, w)
	r, err := plan.Solve(plan.Problem{Loads: f.loads, Level: f.level, Fleet: fleet, Old: &s.Placement, Moves: c.Moves,
		Objective: c.Objective, StepTokens: c.StepTokens, Work: c.Work})
	if err != nil {
		d.Reason = NoRoom
		return s
	}
	d.Action, d.Reason, d.Next = Move, ShardLost, r.Placement
	d.Transfers, d.Layers = len(r.Placement.Transfers(s.Placement)), len(r.Placement.Layers)
	d.Target = load.Summarise(f.imbalances(r.Placement), f.moe).Mean
	s.Placement, s.pending, s.streak = r.Placement, nil, 0
	s.Generation++
	return s
}

// known is the best idea of the load: what was seen lately, else the window,
// else all experts alike.
func (c Config) known(s State, w load.Window) demand {
	if s.recent != nil {
		if f := s.recent.mean(c.Z); f != nil {
			return *f
		}
	}
	if w.Enough() {
		return c.demand(w)
	}
	flat := load.NewCounts(len(s.Placement.Layers), s.Placement.Experts)
	for _, row := range flat {
		for e := range row {
			row[e] = 1
		}
	}
	return demand{flat, make([]float64, len(flat)), flat.MoE()}
}

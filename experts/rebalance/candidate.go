package rebalance

import (
	"math"
	"slices"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

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

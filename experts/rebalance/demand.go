package rebalance

import (
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
)

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

package moe

import (
	"context"
	"fmt"
	"slices"

	"github.com/weirhq/weir/experts/gate"
	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/plan"
	"github.com/weirhq/weir/experts/rebalance"
)

// Shard is one shard as Status shows it.
type Shard struct {
	Slots int    `json:"slots"` // experts per layer that fit
	Bytes int64  `json:"bytes"` // weights held, over all layers
	Lost  bool   `json:"lost"`
	Sent  uint64 `json:"sent"` // tokens computed since the start, over all layers
}

// Status is where the experts of a runner are and what is asked of them.
type Status struct {
	Layers     int     `json:"layers"`
	Experts    int     `json:"experts"` // per layer; 0 for a dense model
	TopK       int     `json:"top_k"`
	Generation uint64  `json:"generation"` // of the placement
	Placement  [][]int `json:"placement"`  // expert in each slot, [layer][slot]
	Shards     []Shard `json:"shards"`
	Copied     int64   `json:"copied_bytes"` // by moves since the start
	// Computed is the tokens that each shard has computed since the start,
	// [layer][shard].
	Computed [][]uint64 `json:"computed"`
	// Routing is the parameters of LASER-style routing by layer, none when off.
	Routing []gate.Params `json:"routing,omitempty"`

	Balance   *Settings            `json:"balance,omitempty"`        // nil where experts stay
	Window    *load.Window         `json:"window,omitempty"`         // the latest
	Imbalance []float64            `json:"imbalance,omitempty"`      // of that window under the placement, by layer
	Mean      float64              `json:"imbalance_mean,omitempty"` // over layers
	Worst     float64              `json:"imbalance_max,omitempty"`
	Decisions []rebalance.Decision `json:"decisions,omitempty"` // the latest, oldest first
	Windows   uint64               `json:"windows"`
	Moves     uint64               `json:"moves"`
	Failures  uint64               `json:"failures"`
}

// Settings are what the loop goes by, for reading.
type Settings struct {
	Phase    load.Phase `json:"phase,omitempty"` // empty: both
	Window   int64      `json:"window"`          // tokens
	Start    float64    `json:"start"`           // imbalance
	Gain     float64    `json:"gain"`            // factor
	Patience int        `json:"patience"`        // windows
	Cooldown int        `json:"cooldown"`        // windows
	Moves    int        `json:"moves"`           // transfers per layer and round
}

// Experts is the state of the shards. It may be called from any goroutine; it
// waits for the running step.
func (r *Runner) Experts() Status {
	m := r.moe
	if m == nil {
		return Status{Layers: r.shape.layers}
	}
	now := m.set.Map()
	s := Status{Layers: r.shape.layers, Experts: r.shape.experts, TopK: r.shape.topK, Generation: now.Generation,
		Placement: now.Placement.Layers, Copied: m.set.Copied()}
	if m.router != nil {
		s.Routing = m.router.params
	}
	m.mu.Lock()
	for i, bytes := range m.set.Memory() {
		sent := uint64(0)
		for _, row := range m.total {
			sent += row[i]
		}
		s.Shards = append(s.Shards, Shard{now.Placement.Fleet.Slots[i], bytes, m.set.Lost(i), sent})
	}
	for _, row := range m.total {
		s.Computed = append(s.Computed, slices.Clone(row))
	}
	m.mu.Unlock()
	if m.balance != nil {
		m.balance.describe(&s, now.Placement)
	}
	return s
}

func (c *balancer) describe(s *Status, p plan.Placement) {
	k := c.config
	s.Balance = &Settings{c.phase, c.window, k.Start, k.Gain, k.Patience, k.Cooldown, k.Moves}
	l := c.loop.Status()
	s.Decisions, s.Windows, s.Moves, s.Failures = l.Decisions, l.Windows, l.Moves, l.Failures
	if w := c.Last(); len(w.Demand) > 0 {
		s.Window = &w
		for l, row := range w.Demand {
			s.Imbalance = append(s.Imbalance, p.Imbalance(l, row))
		}
		sum := load.Summarise(s.Imbalance, w.Demand.MoE())
		s.Mean, s.Worst = sum.Mean, sum.Max
	}
}

// Place puts a placement in force that someone else has planned. It fails where
// a loop of the runner's own balances experts.
func (r *Runner) Place(ctx context.Context, next plan.Placement) error {
	if r.moe == nil {
		return ErrFixed
	}
	if r.moe.balance != nil {
		return fmt.Errorf("place experts: the runner balances them itself")
	}
	now := r.moe.set.Map()
	return r.moe.set.Apply(ctx, now.Generation+1, now.Placement, next)
}

// Placement is where the experts are; its value is never changed.
func (r *Runner) Placement() plan.Placement {
	if r.moe == nil {
		return plan.Placement{}
	}
	return r.moe.set.Map().Placement
}

// Lose takes a shard out of service, as when its process has died. Experts that
// have a replica are computed there; steps that need others fail until the
// loop, where there is one, has seated them in the shards that are left: it
// copies replicas and reads from the model file what has none.
func (r *Runner) Lose(shard int) error {
	if r.moe == nil {
		return ErrFixed
	}
	if err := r.moe.set.Lose(shard); err != nil {
		return err
	}
	if r.moe.balance != nil {
		wake(r.moe.balance.lost)
	}
	return nil
}

// TakeWindow returns what was asked of the experts in a phase since the last
// call, and starts the next window. It fails where a loop of the runner's own
// takes the windows.
func (r *Runner) TakeWindow(phase load.Phase) (load.Window, error) {
	if r.moe == nil || r.moe.load[phase] == nil {
		return load.Window{}, ErrFixed
	}
	if r.moe.balance != nil {
		return load.Window{}, fmt.Errorf("take window: the runner's own loop takes them")
	}
	r.moe.mu.Lock()
	defer r.moe.mu.Unlock()
	return r.moe.load[phase].Take(), nil
}

package plan

import "fmt"

// Work that is done where Problem.Work is 0. They plan 58 layers of 256 experts
// on 72 devices in about 22 ms, and change 8 slots a layer in about 5 ms.
const (
	DefaultWork        = 900_000
	DefaultBoundedWork = 180_000
)

// Problem is what Solve plans.
type Problem struct {
	Loads [][]float64 // [layer][expert], tokens; rows of zeros are dense layers
	Fleet Fleet
	// Level is load per layer, in tokens, that token routing spreads over
	// devices as it likes; nil means none. It fills up the less loaded devices,
	// so a device may carry as much of Loads as an even share of both.
	Level []float64

	// Old is the placement in force, nil for none. It may have been made for
	// other devices: one that is gone has no slots in Fleet.
	Old *Placement
	// Moves is how many transfers per layer Old may be changed by; below 0
	// there is no limit. More are made only to seat experts whose device is
	// gone.
	Moves int
	// Target is an imbalance that is good enough: fewer transfers are made
	// where it can be had. 0 and 1 ask for the best.
	Target float64

	Objective  Objective
	StepTokens int // tokens per step, for Activated
	TopK       int // experts per token, for Activated

	// Work bounds the search, in evaluated changes over all layers; 0 means
	// DefaultWork, or where Moves is limited DefaultBoundedWork, in proportion
	// more above 8 moves, and at least what spends the moves of each layer. The same problem and work give the same plan.
	Work int
	// Stop is asked between layers; true abandons planning.
	Stop func() bool
}

// LayerResult judges one layer. Imbalance and bound are relative to the ideal
// device time and in terms of the objective; 1 for dense layers.
type LayerResult struct {
	Before float64 // of the old placement, or of the trivial one without
	After  float64
	Bound  float64 // no placement can be below
	Moves  int     // transfers from the old placement, 0 without
}

// Gap is how far the layer is above the bound, 0 at best.
func (r LayerResult) Gap() float64 { return r.After/r.Bound - 1 }

// Result is a plan. Expired says that planning was stopped and Placement is
// the old one.
type Result struct {
	Placement Placement
	Layers    []LayerResult
	MoE       []int // layers with load
	Expired   bool
}

// Moves is the number of transfers in all layers.
func (r Result) Moves() int {
	n := 0
	for _, l := range r.Layers {
		n += l.Moves
	}
	return n
}

// enough is the gap to the bound at which search ends.
const enough = 5e-5

// Solve plans every layer. Errors are ErrLoad, ErrFleet, ErrPlacement,
// ErrMoves, and ErrExpired when it was stopped without an old plan to keep.
func Solve(p Problem) (Result, error) {
	if err := p.check(); err != nil {
		return Result{}, err
	}
	experts := len(p.Loads[0])
	res := Result{
		Placement: Placement{Experts: experts, Fleet: p.Fleet, Layers: make([][]int, len(p.Loads))},
		Layers:    make([]LayerResult, len(p.Loads)),
	}
	for l, row := range p.Loads {
		if sum(row) > 0 {
			res.MoE = append(res.MoE, l)
		}
	}
	s := newSolver(p, len(res.MoE))
	for l := range p.Loads {
		if p.Stop != nil && p.Stop() {
			return p.expired(res)
		}
		row, lr, err := s.layer(l)
		if err != nil {
			return Result{}, fmt.Errorf("layer %d: %w", l, err)
		}
		res.Placement.Layers[l], res.Layers[l] = row, lr
	}
	return res, nil
}

func sum(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v
	}
	return s
}

func (p Problem) check() error {
	if len(p.Loads) == 0 || len(p.Loads[0]) == 0 {
		return fmt.Errorf("%w: no layers or no experts", ErrLoad)
	}
	experts := len(p.Loads[0])
	for l, row := range p.Loads {
		if len(row) != experts {
			return fmt.Errorf("%w: layer %d has %d experts, layer 0 has %d", ErrLoad, l, len(row), experts)
		}
		for e, x := range row {
			if !(x >= 0 && x <= 1<<53) {
				return fmt.Errorf("%w: layer %d expert %d is %v", ErrLoad, l, e, x)
			}
		}
	}
	if p.Level != nil && len(p.Level) != len(p.Loads) {
		return fmt.Errorf("%w: %d levels for %d layers", ErrLoad, len(p.Level), len(p.Loads))
	}
	for l, x := range p.Level {
		if !(x >= 0 && x <= 1<<53) || p.Objective == Activated && x > 0 {
			return fmt.Errorf("%w: level %v of layer %d (tokens only)", ErrLoad, x, l)
		}
	}
	if p.Objective == Activated && (p.StepTokens < 1 || p.TopK < 1) {
		return fmt.Errorf("%w: objective activated needs tokens per step and experts per token", ErrLoad)
	}
	if err := p.Fleet.Validate(experts); err != nil || p.Old == nil {
		return err
	}
	if p.Old.Experts != experts || len(p.Old.Layers) != len(p.Loads) {
		return fmt.Errorf("%w: old plan has %d layers of %d experts, loads have %d of %d",
			ErrPlacement, len(p.Old.Layers), p.Old.Experts, len(p.Loads), experts)
	}
	return p.Old.validate()
}

// expired keeps the old plan whole: half of a new plan would mix windows.
func (p Problem) expired(res Result) (Result, error) {
	if p.Old == nil || !p.Old.Fleet.same(p.Fleet) {
		return Result{}, ErrExpired
	}
	old := *p.Old
	old.Fleet = p.Fleet
	for l := range p.Loads {
		w := p.Weights(l)
		ir := p.levelled(l, w, old.Imbalance(l, w))
		res.Layers[l] = LayerResult{Before: ir, After: ir, Bound: p.levelled(l, w, Relative(Bound(w, p.Fleet), w, p.Fleet))}
	}
	res.Placement, res.Expired = old, true
	return res, nil
}

// Weights is one layer's load in terms of the objective.
func (p Problem) Weights(l int) []float64 {
	if p.Objective == Activated {
		return activation(p.Loads[l], p.StepTokens, p.TopK)
	}
	return p.Loads[l]
}

// levelled is the imbalance when routing spreads Level: the busiest device
// against an even share of all load.
func (p Problem) levelled(l int, w []float64, imbalance float64) float64 {
	if p.Level == nil {
		return imbalance
	}
	return Levelled(imbalance, sum(w), p.Level[l])
}

// Levelled is the imbalance of a layer whose placed load is out of balance by
// imbalance, when routing levels out more load of the given amount.
func Levelled(imbalance, placed, level float64) float64 {
	if level <= 0 {
		return imbalance
	}
	return max(1, imbalance*placed/(placed+level))
}

// Relative turns a device time into an imbalance.
func Relative(time float64, w []float64, f Fleet) float64 {
	if s := sum(w); s > 0 {
		return time * f.Capacity() / s
	}
	return 1
}

// solver keeps the tables that layers share.
type solver struct {
	p    Problem
	work int // per layer
	t    *table
	m    *migration
}

func newSolver(p Problem, moe int) *solver {
	work := p.Work
	bounded := p.Old != nil && p.Moves >= 0
	switch {
	case work > 0:
	case bounded:
		work = DefaultBoundedWork
		if p.Moves > 8 {
			work = DefaultBoundedWork * p.Moves / 5
		}
	default:
		work = DefaultWork
	}
	s := &solver{p: p, work: max(1000, work/max(1, moe)), t: newTable(len(p.Loads[0]), p.Fleet)}
	if bounded && p.Work == 0 {
		s.work = max(s.work, spendable(p.Fleet, p.Moves))
	}
	if bounded {
		s.m = newMigrator(s.t)
	}
	return s
}

// spendable is the work that lets a layer spend its moves. A step compares at
// most the slots of the hottest device with all others; most look at far fewer,
// so that a third of that for each move pays for several rounds.
func spendable(f Fleet, moves int) int {
	return f.Total() * f.Total() / f.active() * max(5, moves) * 3 / 10
}

// layer plans one layer.
func (s *solver) layer(l int) ([]int, LayerResult, error) {
	w, f := s.p.Weights(l), s.p.Fleet
	bound := Bound(w, f)
	lr := LayerResult{Before: 1, After: 1, Bound: s.p.levelled(l, w, Relative(bound, w, f))}
	goal := bound * (1 + enough)
	if total := sum(w); total > 0 {
		if s.p.Level != nil {
			total += s.p.Level[l]
		}
		if target := max(1, s.p.Target); target > 1 || s.p.Level != nil {
			goal = max(goal, target*total/f.Capacity())
		}
	}
	row, err := s.place(l, w, goal)
	if err != nil {
		return nil, lr, err
	}
	one := Placement{Experts: len(w), Fleet: f, Layers: [][]int{row}}
	lr.After = s.p.levelled(l, w, one.Imbalance(0, w))
	if s.p.Old == nil {
		lr.Before = s.p.levelled(l, w, Trivial(1, len(w), f).Imbalance(0, w))
		return row, lr, nil
	}
	old := s.oldLayer(l)
	lr.Before = s.p.levelled(l, w, old.Imbalance(0, w)) // on its own devices
	if old.Fleet.same(f) {
		old.Fleet = f
		lr.Before = s.p.levelled(l, w, old.Imbalance(0, w))
		if lr.Before <= lr.After && one.Duplicates() == old.Duplicates() {
			// Nothing won: stay.
			row, lr.After = old.Layers[0], lr.Before
			one.Layers[0] = row
		}
	}
	lr.Moves = one.Incoming(0, old)
	return row, lr, nil
}

// oldLayer is the old placement of one layer.
func (s *solver) oldLayer(l int) Placement {
	return Placement{Experts: s.p.Old.Experts, Fleet: s.p.Old.Fleet, Layers: s.p.Old.Layers[l : l+1]}
}

// place chooses between a fresh plan, a bounded change and, where there is no
// load to plan for, the least change.
func (s *solver) place(l int, w []float64, goal float64) ([]int, error) {
	f := s.p.Fleet
	idle := sum(w) <= 0
	if s.p.Old == nil {
		if idle {
			return trivialRow(len(w), f.Total()), nil
		}
		return s.fresh(w, goal), nil
	}
	old := s.oldLayer(l)
	if s.p.Moves < 0 && !idle {
		row := s.fresh(w, goal)
		return alignSlots(alignDevices(row, f, old), f, old), nil
	}
	if s.m == nil {
		s.m = newMigrator(s.t)
	}
	s.t.start(w, s.work)
	if err := s.m.start(old.sets(0), max(0, s.p.Moves)); err != nil {
		return nil, err
	}
	if !idle {
		s.m.migrate(max(0, s.p.Moves), goal)
	}
	return alignSlots(s.m.row(), f, old), nil
}

// fresh plans a layer with no regard to an old placement.
func (s *solver) fresh(w []float64, goal float64) []int {
	s.t.start(w, settleWork)
	s.t.pack(replicas(w, s.p.Fleet))
	s.t.settle(goal)
	s.t.work = s.work
	s.t.joint(s.p.Fleet, goal)
	return s.t.row()
}

// settleWork bounds one swap search; it converges far earlier.
const settleWork = 20_000_000

// sets lists the experts of each device in one layer.
func (p Placement) sets(layer int) [][]int32 {
	flat := make([]int32, len(p.Layers[layer]))
	for s, e := range p.Layers[layer] {
		flat[s] = int32(e)
	}
	out := make([][]int32, len(p.Fleet.Slots))
	at := 0
	for d, n := range p.Fleet.Slots {
		out[d] = flat[at : at+n : at+n]
		at += n
	}
	return out
}

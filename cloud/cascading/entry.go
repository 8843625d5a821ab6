// Package cascading lets a model of the cloud be a cascade: a small pool is
// asked first, its answer is judged by package cascade as an edge node judges
// its own, and a larger pool answers where that one is wanting.
package cascading

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
)

// Options of an Entry.
type Options struct {
	// Pools are asked in this order: the small one first, the large one, whose
	// answers are not judged, last.
	Pools  []string
	Policy policy.Settings
	// Calibration is that of the small pool's model.
	Calibration cascade.Calibration
	// Continues says that the large pool's servers go on with a begun answer.
	Continues bool
}

// Entry is one such model. It is safe for concurrent use. Its controller is
// this gateway's alone: each of several holds a rate, and spends a budget, for
// the requests that it sees.
type Entry struct {
	o Options

	mu       sync.Mutex
	ctl      *policy.Controller
	reserved int64   // nano-dollars of requests under way
	mean     float64 // moving mean of what the large pool's answers cost, nano-dollars
}

// New makes an entry. Settings that need an edge node, or labels, which a
// gateway does not collect, are refused with the reason.
func New(o Options) (*Entry, error) {
	if len(o.Pools) != 2 || slices.Contains(o.Pools, "") || o.Pools[0] == o.Pools[1] {
		return nil, errors.New("a cascade needs two pools, the small one first")
	}
	if err := o.Calibration.Validate(); err != nil {
		return nil, err
	}
	if err := o.Policy.Validate(); err != nil {
		return nil, err
	}
	if err := o.refuse(); err != nil {
		return nil, err
	}
	return &Entry{o: o, ctl: policy.NewController(o.Policy, o.Calibration)}, nil
}

// refuse names the first setting that would have no effect.
func (o *Options) refuse() error {
	set := &o.Policy
	for _, bad := range []struct {
		set      bool
		key, why string
	}{
		{set.Mode != "", "mode", edgeOnly}, {set.Privacy != "", "privacy", edgeOnly}, {set.Hedge, "hedge", edgeOnly},
		{set.SkipEdge, "skip_edge", edgeOnly}, {set.Sticky, "sticky", edgeOnly}, {set.Checks != nil, "validate", edgeOnly},
		{set.Risk != nil, "risk", noLabels}, {set.Shadow != nil, "shadow", noLabels},
		{set.Handoff == stream.HandoffContinue && !o.Continues, "handoff", "continue needs a large pool that goes on with a begun answer: declare continues: true"},
	} {
		if bad.set {
			return fmt.Errorf("%w: %s has no effect on a cascade in the cloud: %s", policy.ErrSettings, bad.key, bad.why)
		}
	}
	return nil
}

const (
	edgeOnly = "it is an edge node's"
	noLabels = "a gateway collects no labels of the answers that it keeps"
)

// First is the pool that is asked first.
func (e *Entry) First() string { return e.o.Pools[0] }

// Pools are all pools, the large one last.
func (e *Entry) Pools() []string { return e.o.Pools }

// Restore takes over what an earlier process has saved.
func (e *Entry) Restore(s policy.Saved) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ctl.Restore(s)
}

// Saved is what the entry has to remember over a restart. Money that is promised
// to requests under way counts as spent: if this process dies they may still
// cost it.
func (e *Entry) Saved() policy.Saved {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.ctl.Saved()
	s.Spent += e.reserved
	return s
}

// left is what the budget still holds, in nano-dollars; ok is false without one.
func (e *Entry) left(now time.Time) (nano int64, ok bool) {
	nano, ok = e.ctl.BudgetLeft(now)
	return max(0, nano-e.reserved), ok
}

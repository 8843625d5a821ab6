// Package cascading lets a model of the cloud be a cascade: a small pool is
// asked first, its answer is judged by package cascade as an edge node judges
// its own, and a larger pool answers where that one is wanting. Of several equal
// pools one is chosen for each request, by what their answers have earned.
package cascading

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/tiers"
)

// Tier is a pool of a cascade.
type Tier struct {
	Pool string
	// Calibration is that of the pool's model; of the last tier, whose answers are
	// not judged, it is not looked at.
	Calibration cascade.Calibration
	// Quality is the share of requests that the pool is expected to answer rightly,
	// 0 to 1; 0 leaves what the calibrations say.
	Quality float64
}

// Options of an Entry.
type Options struct {
	Tiers []Tier // at most tiers.Most, the small one first
	// Equals is how many of the last pools are one tier, of which each request asks
	// one; 0 is 1.
	Equals int
	Policy policy.Settings
	// Continues says that the last pool's servers go on with a begun answer.
	Continues bool
}

// Entry is one such model. It is safe for concurrent use. Its controller is
// this gateway's alone: each of several holds a rate, and spends a budget, for
// the requests that it sees.
type Entry struct {
	o      Options
	pools  []string
	drafts int    // pools whose answers are judged; those after them are equals
	votes  []bool // of these, those whose votes on their own answers may change a verdict
	arms   atomic.Pointer[Arms]
	pins   pins

	mu       sync.Mutex
	ctl      *policy.Controller
	expects  []expectation
	reserved int64     // nano-dollars of requests under way
	mean     []float64 // moving means of what answers of the pools cost, nano-dollars
	took     []float64 // and of how long whole answers took, seconds
}

// CheckCount refuses numbers of pools, and of equals among them, that no entry
// can have.
func CheckCount(pools, equals int) error {
	switch {
	case pools < 2 || pools > tiers.Most:
		return fmt.Errorf("a cascade needs two to %d pools, the small one first", tiers.Most)
	case equals < 1 || equals > pools:
		return fmt.Errorf("%d of %d pools cannot be equals", equals, pools)
	}
	return nil
}

// New makes an entry. Settings that need an edge node, or labels, which a
// gateway does not collect, are refused with the reason.
func New(o Options) (*Entry, error) {
	o.Equals = max(1, o.Equals)
	if err := CheckCount(len(o.Tiers), o.Equals); err != nil {
		return nil, err
	}
	e := &Entry{o: o, drafts: len(o.Tiers) - o.Equals, mean: make([]float64, len(o.Tiers)), took: make([]float64, len(o.Tiers))}
	for _, t := range o.Tiers {
		if t.Pool == "" || slices.Contains(e.pools, t.Pool) {
			return nil, errors.New("the pools of a cascade need names of their own")
		}
		e.pools = append(e.pools, t.Pool)
	}
	for _, t := range o.Tiers[:e.drafts] {
		if err := t.Calibration.Validate(); err != nil {
			return nil, fmt.Errorf("pool %s: %w", t.Pool, err)
		}
	}
	if err := o.Policy.Validate(); err != nil {
		return nil, err
	}
	if err := o.refuse(); err != nil {
		return nil, err
	}
	e.SetArms(nil)
	e.gradeVotes()
	e.ctl = policy.NewController(o.Policy, o.Tiers[0].Calibration)
	return e, e.expect()
}

// refuse names the first setting that would have no effect.
func (o *Options) refuse() error {
	set, many, alone, equal := &o.Policy, len(o.Tiers)-o.Equals > 1, len(o.Tiers) == o.Equals, o.Equals > 1
	for _, bad := range []struct {
		set      bool
		key, why string
	}{
		{set.Mode != "", "mode", edgeOnly}, {set.Privacy != "", "privacy", edgeOnly}, {set.Hedge, "hedge", edgeOnly},
		{set.SkipEdge, "skip_edge", edgeOnly}, {set.Sticky, "sticky", edgeOnly}, {set.Checks != nil, "validate", edgeOnly},
		{set.Risk != nil, "risk", noLabels}, {set.Shadow != nil && (!equal || *set.Shadow > 0), "shadow", noLabels},
		{set.Threshold != nil && alone, "threshold", noDraft}, {set.Rate != nil && alone, "rate", noDraft}, {set.Budget != nil && alone, "budget", noDraft},
		{set.Window != nil && alone, "window", noDraft}, {set.Verify != nil && alone, "verify", noDraft}, {o.lacksVotes(), "verify", noTable}, {set.Handoff != "" && alone, "handoff", noDraft},
		{set.Threshold != nil && many, "threshold", byWorth}, {set.Rate != nil && many, "rate", byWorth},
		{set.Handoff != "" && set.Handoff != stream.HandoffFinish && many, "handoff", "of three and more pools one finishes what was shown"},
		{set.Handoff == stream.HandoffContinue && !o.Continues, "handoff", "continue needs a large pool that goes on with a begun answer: declare continues: true"},
	} {
		if bad.set {
			return fmt.Errorf("%w: %s has no effect on a cascade in the cloud: %s", policy.ErrSettings, bad.key, bad.why)
		}
	}
	if many && set.Value == nil && set.Budget == nil {
		return fmt.Errorf("%w: a cascade of three and more pools %s", policy.ErrSettings, byWorth)
	}
	return nil
}

const (
	edgeOnly = "it is an edge node's"
	noDraft  = "without a small pool nothing is judged"
	noTable  = "no calibration of its small pools has a verifier of that many samples: make one with 'weir cascade calibrate --verify-samples'"
	noLabels = "a gateway collects no labels of the answers that it keeps"
	byWorth  = "weighs what an answer is worth against its price: set value or budget"
)

// Pools are all pools, the large ones last.
func (e *Entry) Pools() []string { return e.pools }

// Drafts are the pools whose answers are judged.
func (e *Entry) Drafts() []string { return e.pools[:e.drafts] }

// Equals are the pools of which each request that gets so far asks one.
func (e *Entry) Equals() []string { return e.pools[e.drafts:] }

// Restore takes over what an earlier process has saved.
func (e *Entry) Restore(s policy.Saved) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ctl.Restore(s)
}

// Exhaust counts what the day's budget still holds as spent.
func (e *Entry) Exhaust(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if left, ok := e.ctl.BudgetLeft(now); ok {
		e.ctl.Charge(left, now)
	}
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

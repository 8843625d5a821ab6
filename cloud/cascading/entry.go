// Package cascading lets a model of the cloud be a cascade: a small pool
// answers, its answer is judged by package cascade as an edge node judges its
// own, and a large pool answers where that one is wanting.
package cascading

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
)

// Entry is one such model. It is safe for concurrent use. Its controller is
// this gateway's alone: each of several holds a rate for the requests that it
// sees.
type Entry struct {
	small string
	cal   cascade.Calibration
	set   policy.Settings

	mu  sync.Mutex
	ctl *policy.Controller
}

// New makes an entry over a small pool. cal calibrates the small pool's model.
// Settings that need an edge node, or labels, which a gateway does not collect,
// are refused.
func New(small string, set policy.Settings, cal cascade.Calibration) (*Entry, error) {
	if err := cal.Validate(); err != nil {
		return nil, err
	}
	if err := set.Validate(); err != nil {
		return nil, err
	}
	for _, bad := range []struct {
		set bool
		key string
	}{
		{set.Mode != "", "mode"}, {set.Privacy != "", "privacy"}, {set.Budget != nil, "budget"}, {set.Risk != nil, "risk"}, {set.Shadow != nil, "shadow"},
		{set.Hedge, "hedge"}, {set.SkipEdge, "skip_edge"}, {set.Checks != nil, "validate"}, {set.Window != nil, "window"}, {set.Handoff != "", "handoff"}, {set.Sticky, "sticky"},
	} {
		if bad.set {
			return nil, fmt.Errorf("%w: %s has no effect on a cascade in the cloud: use name and one of threshold, rate and value", policy.ErrSettings, bad.key)
		}
	}
	if small == "" {
		return nil, errors.New("a cascade needs the name of its small pool")
	}
	return &Entry{small: small, cal: cal, set: set, ctl: policy.NewController(set, cal)}, nil
}

// Small is the pool that is asked first.
func (e *Entry) Small() string { return e.small }

// Ask is what a judgement looks at beside the answer.
type Ask struct {
	Fingerprint string        // of the instance that answered, as package pool tells it
	Remaining   time.Duration // until the deadline; 0 without one, negative once it has passed
	LargeNano   int64         // bound of what asking the large pool costs
}

// Judge judges an answer of the small pool, and notes what the policy wanted.
func (e *Entry) Judge(a *Answer, ask Ask, now time.Time) (v cascade.Verdict, policyName string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.ctl.Policy(policy.Costs{CloudNano: ask.LargeNano})
	cal := &e.cal
	if !strings.HasPrefix(ask.Fingerprint, cal.Fingerprint+":") {
		cal = nil // another model: nothing is known of its answers
	}
	req := cascade.Request{Remaining: ask.Remaining}
	node := cascade.Node{EdgeReady: true, Link: cascade.LinkUp}
	v = cascade.After(&req, &cascade.Answer{Signals: a.Signals, Failed: a.Empty()}, cal, &p, &node)
	if v.Known {
		e.ctl.Observe(policy.Decided{Verdict: v}, now)
	}
	return v, p.Name
}

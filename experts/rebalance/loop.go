package rebalance

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/weirhq/weir/experts/plan"
)

// Mover puts placements in force.
type Mover interface {
	// Apply copies what next needs into free buffers, verifies checksums, and
	// only then publishes next under the generation. On error the old map is
	// still valid and in force. It never overwrites the only copy of an
	// expert, nor a slot that a batch of the old generation may still read.
	Apply(ctx context.Context, generation uint64, old, next plan.Placement) error
}

// ErrMove wraps what a Mover returned.
var ErrMove = errors.New("experts could not be moved")

// history is the number of decisions that Status keeps.
const history = 64

// Loop runs Decide on windows and carries decisions out. Observe is called
// from one goroutine; Status from any.
type Loop struct {
	config Config
	mover  Mover
	log    *slog.Logger
	state  State

	mu     sync.Mutex // guards status
	status Status
}

// Status is what others may see of a loop.
type Status struct {
	Placement  plan.Placement `json:"placement"`
	Generation uint64         `json:"generation"`
	Windows    uint64         `json:"windows"`
	Moves      uint64         `json:"moves"` // put in force, roll-backs included
	Transfers  uint64         `json:"transfers"`
	Failures   uint64         `json:"failures"`
	Decisions  []Decision     `json:"decisions"` // the latest, oldest first
}

// NewLoop makes a loop with a placement in force.
func NewLoop(c Config, p plan.Placement, m Mover, log *slog.Logger) *Loop {
	l := &Loop{config: c, mover: m, log: log, state: NewState(p)}
	l.status.Placement = p
	return l
}

// Observe decides on one window, acts, and logs one line. The error wraps
// ErrMove when a move failed; the loop goes on with the old placement then.
func (l *Loop) Observe(ctx context.Context, o Observation) (Decision, error) {
	next, d := Decide(l.config, l.state, o)
	var err error
	if d.Action != Stay {
		if err = l.mover.Apply(ctx, next.Generation, l.state.Placement, d.Next); err != nil {
			next, d.Reason = l.state.Failed(l.config), MoveFailed
			err = fmt.Errorf("%w: generation %d: %w", ErrMove, l.state.Generation+1, err)
		}
	}
	l.state = next
	l.publish(d, err)
	l.logDecision(ctx, o, d, err)
	return d, err
}

// Propose is what Observe would decide; nothing is done, remembered or logged.
// It is called from the goroutine of Observe.
func (l *Loop) Propose(o Observation) Decision {
	_, d := Decide(l.config, l.state, o)
	return d
}

func (l *Loop) publish(d Decision, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.status
	s.Placement, s.Generation = l.state.Placement, l.state.Generation
	s.Windows++
	switch {
	case err != nil:
		s.Failures++
	case d.Action != Stay:
		s.Moves++
		s.Transfers += uint64(d.Transfers)
	}
	if len(s.Decisions) == history {
		s.Decisions = slices.Delete(s.Decisions, 0, 1)
	}
	s.Decisions = append(s.Decisions, d)
}

// Status is a copy; placements are never changed in place.
func (l *Loop) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.status
	s.Decisions = slices.Clone(s.Decisions)
	return s
}

// logDecision writes one line per window, for doing nothing as well.
func (l *Loop) logDecision(ctx context.Context, o Observation, d Decision, err error) {
	level := slog.LevelInfo
	if err != nil || d.Alarm {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{
		slog.String("action", string(d.Action)), slog.String("reason", string(d.Reason)),
		slog.String("phase", string(o.Window.Phase)), slog.Int64("tokens", o.Window.Tokens),
		slog.Float64("imbalance", d.Now), slog.Float64("imbalance_max", d.Worst),
		slog.Float64("target", d.Target), slog.Float64("bound", d.Bound),
		slog.Float64("distortion", d.Distortion), slog.Int("transfers", d.Transfers),
		slog.Uint64("generation", l.state.Generation),
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", err.Error()))
	}
	l.log.LogAttrs(ctx, level, "expert placement", attrs...)
}

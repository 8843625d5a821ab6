package moe

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/weirhq/weir/experts/load"
	"github.com/weirhq/weir/experts/rebalance"
)

// Errors of Rebalance.
var (
	// ErrFixed says that the model's experts are not balanced: it is dense, or
	// Options.Balance was not given.
	ErrFixed = errors.New("experts of this runner are not balanced")
	// ErrClosed says that the runner is closed.
	ErrClosed = errors.New("runner is closed")
)

// Balance says how experts follow what is asked of them.
type Balance struct {
	Config rebalance.Config
	// Window is the tokens after which the loop decides; default 2,500.
	Window int64
	// Phase restricts the loop to prefill or decode, for a worker that does only
	// one; empty counts both, as their experts share one placement.
	Phase load.Phase
}

// DefaultBalance is for models as small as the bundled one. Windows of 2,500
// tokens have an imbalance by chance of about 1.03 over four shards, so that
// 1.10 in two of them is not chance; moving is cheap, so it is not waited long.
func DefaultBalance() Balance {
	c := rebalance.Default()
	c.Patience, c.Cooldown, c.HalfLife = 2, 3, 8_000
	return Balance{Config: c, Window: 2_500}
}

// balancer runs the loop beside steps. Its goroutine is the only one that
// moves experts.
type balancer struct {
	loop    *rebalance.Loop
	config  rebalance.Config
	window  int64
	phase   load.Phase
	moe     *mixture
	log     *slog.Logger
	due     chan struct{} // a window is full
	lost    chan struct{} // a shard is lost
	trigger chan trigger
	ctx     context.Context
	stop    context.CancelFunc
	done    sync.WaitGroup

	mu   sync.Mutex
	last load.Window // the latest whole window
}

// trigger asks for a decision now.
type trigger struct {
	act   bool // else it is only told
	reply chan outcome
}

type outcome struct {
	decision rebalance.Decision
	err      error
}

func newBalancer(b Balance, m *mixture, log *slog.Logger) *balancer {
	if b.Window == 0 {
		b.Window = DefaultBalance().Window
	}
	c := &balancer{loop: rebalance.NewLoop(b.Config, m.set.Map().Placement, m.set, log), config: b.Config, window: b.Window, phase: b.Phase,
		moe: m, log: log, due: make(chan struct{}, 1), lost: make(chan struct{}, 1), trigger: make(chan trigger)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.done.Go(c.run)
	return c
}

func (c *balancer) close() {
	c.stop()
	c.done.Wait()
}

func (m *mixture) close() {
	if m.balance != nil {
		m.balance.close()
	}
}

// pending is the tokens since the last window.
func (c *balancer) pending(rec map[load.Phase]*load.Recorder) int64 {
	n := int64(0)
	for phase, r := range rec {
		if c.phase == "" || phase == c.phase {
			n += r.Pending()
		}
	}
	return n
}

// notice wakes the loop when a window is full.
func (c *balancer) notice(rec map[load.Phase]*load.Recorder) {
	if c.pending(rec) >= c.window {
		wake(c.due)
	}
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it will wake up anyway
	}
}

func (c *balancer) run() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-c.due:
			if w, ok := c.take(c.window); ok {
				_, _ = c.observe(w, false) // logged by the loop
			}
		case <-c.lost:
			w, _ := c.take(0)
			_, _ = c.observe(w, false)
		case t := <-c.trigger:
			t.reply <- c.answer(t.act)
		}
	}
}

// answer decides on what was seen since the last window or, where that is too
// little, on that window.
func (c *balancer) answer(act bool) outcome {
	if !act {
		return outcome{decision: c.loop.Propose(c.observation(c.Last(), true))}
	}
	w, _ := c.take(0)
	if last := c.Last(); !w.Enough() && last.Enough() {
		w = last
	}
	d, err := c.observe(w, true)
	return outcome{d, err}
}

// take ends the window if it has at least n tokens.
func (c *balancer) take(n int64) (load.Window, bool) {
	c.moe.mu.Lock()
	defer c.moe.mu.Unlock()
	if c.pending(c.moe.load) < n {
		return load.Window{}, false
	}
	if c.phase != "" {
		return c.moe.load[c.phase].Take(), true
	}
	return both(c.moe.load[load.Prefill].Take(), c.moe.load[load.Decode].Take()), true
}

// both adds two windows of one model.
func both(a, b load.Window) load.Window {
	a.Phase, a.Tokens = "both", a.Tokens+b.Tokens
	for l := range a.Demand {
		for e := range a.Demand[l] {
			a.Demand[l][e] += b.Demand[l][e]
			a.Served[l][e] += b.Served[l][e]
			a.Rigid[l][e] += b.Rigid[l][e]
		}
		a.Shapes[l].Add(b.Shapes[l])
	}
	return a
}

func (c *balancer) observe(w load.Window, trigger bool) (rebalance.Decision, error) {
	if w.Enough() {
		c.mu.Lock()
		c.last = w
		c.mu.Unlock()
	}
	return c.loop.Observe(c.ctx, c.observation(w, trigger))
}

func (c *balancer) observation(w load.Window, trigger bool) rebalance.Observation {
	return rebalance.Observation{Window: w, Lost: c.moe.set.AllLost(), Trigger: trigger}
}

// Last is the latest window that had enough tokens.
func (c *balancer) Last() load.Window {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Rebalance asks the loop to move experts now, by the tokens since the last
// window or, where they are too few, by that window. The decision says what
// was done and why; the error wraps rebalance.ErrMove where a move failed. It
// may be called from any goroutine.
func (r *Runner) Rebalance(ctx context.Context) (rebalance.Decision, error) {
	return r.decide(ctx, true)
}

// Propose is what Rebalance would do by the latest whole window. Nothing moves.
func (r *Runner) Propose(ctx context.Context) (rebalance.Decision, error) {
	return r.decide(ctx, false)
}

func (r *Runner) decide(ctx context.Context, act bool) (rebalance.Decision, error) {
	if r.moe == nil || r.moe.balance == nil {
		return rebalance.Decision{}, ErrFixed
	}
	c, t := r.moe.balance, trigger{act, make(chan outcome, 1)}
	select {
	case c.trigger <- t:
	case <-ctx.Done():
		return rebalance.Decision{}, ctx.Err()
	case <-c.ctx.Done():
		return rebalance.Decision{}, ErrClosed
	}
	select {
	case o := <-t.reply:
		return o.decision, o.err
	case <-ctx.Done():
		return rebalance.Decision{}, ctx.Err()
	}
}

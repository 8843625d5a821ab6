package proc

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Backoff is how long a Supervisor waits before it restarts a child: the base
// doubled per failure in a row up to Max, less up to a quarter at random. A
// child that lived for Reset counts as healthy and clears the row.
type Backoff struct{ Base, Max, Reset time.Duration }

// DefaultBackoff restarts within a second at first, so that one crash is a
// short gap, and at most each half minute when a child cannot stay up.
var DefaultBackoff = Backoff{Base: 250 * time.Millisecond, Max: 30 * time.Second, Reset: 30 * time.Second}

// Delay returns the wait before restart number n in a row (n >= 1). unit is a
// random number in [0, 1).
func (b Backoff) Delay(n int, unit float64) time.Duration {
	d := b.Base
	for range n - 1 {
		if d *= 2; d >= b.Max {
			d = b.Max
			break
		}
	}
	return d - time.Duration(unit*float64(d)/4)
}

// Supervisor keeps one child running.
type Supervisor struct {
	Spec    Spec
	Backoff Backoff
	Grace   time.Duration // for Child.Stop
	Log     *slog.Logger
	// OnStart, when set, is told of each start.
	OnStart func(*Child)

	mu    sync.Mutex
	child *Child
}

// Run starts the child and restarts it until ctx ends; then it stops it and
// returns nil. The error of a failing first start is returned at once: a
// program that cannot be started needs its operator, not a retry.
func (s *Supervisor) Run(ctx context.Context) error {
	failures := 0
	for first := true; ; first = false {
		began := time.Now()
		c, err := Start(s.Spec)
		if err != nil && first {
			return err
		}
		if err == nil {
			s.set(c)
			if s.OnStart != nil {
				s.OnStart(c)
			}
			select {
			case <-ctx.Done():
				c.Stop(s.Grace)
				s.set(nil)
				return nil
			case <-c.Done():
				s.set(nil)
				err = c.Err()
			}
		}
		if time.Since(began) >= s.Backoff.Reset {
			failures = 0
		}
		failures++
		wait := s.Backoff.Delay(failures, rand.Float64())
		s.Log.Warn("child ended, restarting", "child", s.Spec.Name, "error", err, "in", wait.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// Child returns the running child, or nil.
func (s *Supervisor) Child() *Child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

func (s *Supervisor) set(c *Child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child = c
}

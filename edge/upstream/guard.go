// Package upstream reads the streams of the two tiers behind an edge node: it
// collects a worker's answer with the log-probabilities of its tokens, and
// bounds how long a silent upstream is waited for.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Causes with which a Guard ends a context.
var (
	ErrFirstByte = errors.New("no byte came in time")
	ErrStall     = errors.New("the stream stalled")
)

// Guard cancels a context when the upstream is silent for too long: first
// until the first sign of life, then between any two.
type Guard struct {
	timer  *time.Timer
	stall  time.Duration
	cancel context.CancelCauseFunc
	first  chan struct{}
}

// NewGuard returns a context that ends with ErrFirstByte or ErrStall. Stop
// must be called.
func NewGuard(ctx context.Context, firstByte, stall time.Duration) (context.Context, *Guard) {
	ctx, cancel := context.WithCancelCause(ctx)
	g := &Guard{stall: stall, cancel: cancel, first: make(chan struct{})}
	g.timer = time.AfterFunc(firstByte, func() {
		select {
		case <-g.first:
			cancel(ErrStall)
		default:
			cancel(ErrFirstByte)
		}
	})
	return ctx, g
}

// Progress tells the guard of a sign of life. It is called from one goroutine.
func (g *Guard) Progress() {
	select {
	case <-g.first:
	default:
		close(g.first)
	}
	g.timer.Reset(g.stall)
}

// Stop ends the guard and its context.
func (g *Guard) Stop() {
	g.timer.Stop()
	g.cancel(context.Canceled)
}

// because wraps err with the cause for which ctx ended, if it did.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// Package loop drives a runner: one goroutine owns it, composes each step from
// the requests (engine/batch), samples (engine/sample) and hands tokens to
// streams. Requests arrive over a channel; nothing that a request's reader does
// can delay a step. What sequences hold is kept as a prefix cache
// (engine/worker/kvcache), what gateways need to know lies on a board
// (engine/worker/state).
package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/cost"
	"github.com/weirhq/weir/engine/worker/kvcache"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/state"
)

// Options make a Loop.
type Options struct {
	Runner  engine.Runner
	Pieces  *Pieces
	Metrics *metrics.Set
	Board   *state.Board // nil: nobody looks
	Log     *slog.Logger
	// PrefixCache keeps the KV of requests for those that begin alike.
	PrefixCache bool
	// Chunk and Headroom are those of batch.Limits.
	Chunk, Headroom int
	// Cost, where the machine has been measured, makes chunks smaller than Chunk
	// when streams would be late.
	Cost *cost.Model
	// MaxWaiting is how many requests may wait; 1024 when 0.
	MaxWaiting int
}

// Loop is the owner of a runner. Only Run's goroutine touches the runner's
// state and all fields below the channel.
type Loop struct {
	o       Options
	runner  guard // of o.Runner
	info    engine.Info
	limits  batch.Limits
	start   time.Time
	serial  atomic.Uint64
	inbox   chan *job
	wakeup  chan struct{}
	waiting atomic.Int64 // in inbox and queue, for Submit's bound
	closed  atomic.Bool

	queue   []*job // waiting, in order
	running []*job // in order
	sorted  time.Duration
	unsure  bool // the order may have changed
	free    []engine.Seq
	cache   *kvcache.Cache
	load    state.Load
	state   batch.State
	spans   []batch.Span
	feed    []engine.Span
	scratch sample.Scratch
	badRow  int  // failed steps in a row
	hold    bool // nobody is admitted until a sequence is freed

	whom []*Stream // of the step's requests
	stop stopper
}

// New returns a Loop over o.Runner, whose sequences must be empty.
func New(o Options) (*Loop, error) {
	info := o.Runner.Info()
	l := &Loop{o: o, runner: guard{Runner: o.Runner}, info: info, start: time.Now(), wakeup: make(chan struct{}, 1),
		limits: batch.Limits{MaxBatch: info.MaxBatch, MaxSeqs: info.MaxSeqs, KVTokens: info.KVTokens, Chunk: o.Chunk, Headroom: o.Headroom}}
	if err := l.limits.Validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", info.Name, err)
	}
	if l.o.MaxWaiting == 0 {
		l.o.MaxWaiting = 1024
	}
	if l.o.Board == nil {
		l.o.Board = state.NewBoard()
	}
	l.cache = kvcache.New(l.o.Board)
	if r, ok := o.Runner.(engine.Stopper); ok {
		r.StopAt(&l.stop.flag)
	}
	l.inbox = make(chan *job, l.o.MaxWaiting)
	for s := info.MaxSeqs - 1; s >= 0; s-- {
		l.free = append(l.free, engine.Seq(s))
	}
	l.tell()
	return l, nil
}

// Submit queues a request. The end of ctx cancels it. Errors: ErrContext,
// ErrResumed, ErrBusy, ErrClosed.
func (l *Loop) Submit(ctx context.Context, r Request) (*Stream, error) {
	if err := r.check(l.info); err != nil {
		return nil, err
	}
	j, err := l.newJob(r)
	if err != nil {
		return nil, err
	}
	n := l.waiting.Add(1) // before the look at closed: close waits until it is 0
	if l.closed.Load() {
		l.leave()
		return nil, ErrClosed
	}
	if n > int64(l.o.MaxWaiting) {
		l.leave()
		return nil, ErrBusy
	}
	j.ticket = l.o.Board.Begin(r.Operation, len(r.Prompt))
	j.stream.unwatch = context.AfterFunc(ctx, j.stream.Cancel)
	l.inbox <- j // has room: waiting counts what is in it
	if l.closed.Load() {
		l.wake() // Run may have looked for the last time: it drains the inbox again
	}
	return j.stream, nil
}

func (l *Loop) leave() {
	l.waiting.Add(-1)
	l.wake()
}

// left is told by a stream that is cancelled.
func (l *Loop) left() {
	l.stop.left()
	l.wake()
}

func (l *Loop) wake() {
	select {
	case l.wakeup <- struct{}{}:
	default:
	}
}

// maxBadRow is how many steps may fail one after another before the loop gives
// up: then the model is broken and its process should start anew.
const maxBadRow = 3

// Run steps until ctx ends, then ends all requests with FinishAbort. It returns
// an error only when the runner panics or keeps failing. Requests that Submit
// accepted always get a Finish.
func (l *Loop) Run(ctx context.Context) error {
	var err error
	for err == nil && l.collect(ctx) {
		l.reap()
		if err = l.step(); l.runner.lost != nil {
			err = l.runner.lost
		}
		l.tell()
	}
	l.close(err)
	return err
}

// collect takes new requests in, waiting when there is nothing to do. It is
// false when ctx has ended.
func (l *Loop) collect(ctx context.Context) bool {
	if len(l.queue)+len(l.running) == 0 {
		select {
		case <-ctx.Done():
		case j := <-l.inbox:
			l.enqueue(j)
		case <-l.wakeup:
		}
	}
	for {
		select {
		case j := <-l.inbox:
			l.enqueue(j)
		default:
			return ctx.Err() == nil
		}
	}
}

func (l *Loop) enqueue(j *job) {
	l.queue = append(l.queue, j)
	l.unsure = true
}

// reap ends cancelled requests.
func (l *Loop) reap() {
	for _, j := range l.queue {
		if j.stream.cancelled.Load() {
			l.waiting.Add(-1)
			l.finish(j, FinishAbort, nil)
		}
	}
	for _, j := range l.running {
		if j.stream.cancelled.Load() {
			l.keep(j)
			l.finish(j, FinishAbort, nil)
		}
	}
	l.sweep()
}

// sweep drops ended jobs from the lists.
func (l *Loop) sweep() {
	ended := func(j *job) bool { return j.done }
	l.queue = slices.DeleteFunc(l.queue, ended)
	l.running = slices.DeleteFunc(l.running, ended)
}

func (l *Loop) close(cause error) {
	l.closed.Store(true)
	finish, err := FinishAbort, ErrClosed
	if cause != nil {
		finish, err = FinishError, fmt.Errorf("%w: %w", ErrRunner, cause)
	}
	for {
		l.collectRest()
		for _, j := range l.running {
			l.drop(j)
			l.finish(j, finish, err)
		}
		for _, j := range l.queue {
			l.waiting.Add(-1)
			l.finish(j, finish, err)
		}
		l.sweep()
		if l.waiting.Load() == 0 {
			break
		}
		<-l.wakeup // a Submit that has passed the closed check is about to send
	}
	for l.evict(nil) {
	}
	l.tell()
}

func (l *Loop) collectRest() {
	for {
		select {
		case j := <-l.inbox:
			l.enqueue(j)
		default:
			return
		}
	}
}

// Package loop drives a runner: one goroutine owns it, composes each step from
// the requests (engine/batch), samples (engine/sample) and hands tokens to
// streams. Requests arrive over a channel; nothing that a request's reader does
// can delay a step.
package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/engine"
	"github.com/weirhq/weir/engine/batch"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/engine/worker/text"
)

// Options make a Loop.
type Options struct {
	Runner  engine.Runner
	Pieces  *Pieces
	Metrics *metrics.Set
	Log     *slog.Logger
	// Chunk is batch.Limits.Chunk.
	Chunk int
	// MaxWaiting is how many requests may wait; 1024 when 0.
	MaxWaiting int
}

// Loop is the owner of a runner. Only Run's goroutine touches the runner's
// state and all fields below the channel.
type Loop struct {
	o       Options
	info    engine.Info
	limits  batch.Limits
	inbox   chan *job
	wakeup  chan struct{}
	waiting atomic.Int64 // in inbox and queue, for Submit's bound
	closed  atomic.Bool

	queue   []*job // waiting, in order
	running []*job // in order of admission
	free    []engine.Seq
	state   batch.State
	spans   []batch.Span
	feed    []engine.Span
	scratch sample.Scratch
	badRow  int  // failed steps in a row
	hold    bool // nobody is admitted until a sequence is freed
}

// job is one request inside the loop.
type job struct {
	req     Request
	stream  *Stream
	sampler *sample.Sampler
	filter  *text.Filter
	seq     engine.Seq
	tokens  []engine.Token // prompt and generated
	pos     int            // how many of them the KV cache holds
	reserve int
	made    int // generated
	done    bool
	time    Timing
	result  *Handoff
}

func (j *job) pending() int { return len(j.tokens) - j.pos }

// New returns a Loop over o.Runner, whose sequences must be empty.
func New(o Options) (*Loop, error) {
	info := o.Runner.Info()
	l := &Loop{o: o, info: info, wakeup: make(chan struct{}, 1),
		limits: batch.Limits{MaxBatch: info.MaxBatch, MaxSeqs: info.MaxSeqs, KVTokens: info.KVTokens, Chunk: o.Chunk}}
	if err := l.limits.Validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", info.Name, err)
	}
	if l.o.MaxWaiting == 0 {
		l.o.MaxWaiting = 1024
	}
	l.inbox = make(chan *job, l.o.MaxWaiting)
	for s := info.MaxSeqs - 1; s >= 0; s-- {
		l.free = append(l.free, engine.Seq(s))
	}
	return l, nil
}

// Submit queues a request. The end of ctx cancels it. Errors: ErrContext,
// ErrBusy, ErrClosed.
func (l *Loop) Submit(ctx context.Context, r Request) (*Stream, error) {
	if err := r.check(l.info); err != nil {
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
	s := &Stream{ready: make(chan struct{}, 1), wake: l.wake}
	j := &job{req: r, stream: s, sampler: sample.New(r.Sample), filter: text.NewFilter(r.Stop),
		tokens: slices.Clone(r.Prompt), reserve: len(r.Prompt) + r.MaxTokens, time: Timing{Arrived: time.Now()}}
	s.result = Result{PromptTokens: len(r.Prompt), Timing: j.time}
	s.unwatch = context.AfterFunc(ctx, s.Cancel)
	l.inbox <- j // has room: waiting counts what is in it
	if l.closed.Load() {
		l.wake() // Run may have looked for the last time: it drains the inbox again
	}
	return s, nil
}

func (l *Loop) leave() {
	l.waiting.Add(-1)
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
// an error only when the runner keeps failing. Requests that Submit accepted
// always get a Finish.
func (l *Loop) Run(ctx context.Context) error {
	var err error
	for err == nil && l.collect(ctx) {
		l.reap()
		err = l.step()
		l.gauges()
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
			l.queue = append(l.queue, j)
		case <-l.wakeup:
		}
	}
	for {
		select {
		case j := <-l.inbox:
			l.queue = append(l.queue, j)
		default:
			return ctx.Err() == nil
		}
	}
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
			l.release(j)
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

// release empties a running job's sequence.
func (l *Loop) release(j *job) {
	if err := l.o.Runner.Forget(j.seq, 0); err != nil {
		// The number is not used again: a sequence that cannot be emptied must
		// not be given to another request.
		l.o.Log.Error("sequence cannot be freed", "seq", j.seq, "error", err)
		return
	}
	l.free = append(l.free, j.seq)
	l.hold = false
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
			l.release(j)
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
	l.gauges()
}

func (l *Loop) collectRest() {
	for {
		select {
		case j := <-l.inbox:
			l.queue = append(l.queue, j)
		default:
			return
		}
	}
}

// step composes and runs one step.
func (l *Loop) step() error {
	l.state.Running, l.state.Waiting = l.state.Running[:0], l.state.Waiting[:0]
	for _, j := range l.running {
		l.state.Running = append(l.state.Running, batch.Running{Pending: j.pending(), Reserve: j.reserve})
	}
	candidates := l.queue[:min(len(l.queue), l.info.MaxSeqs)]
	if l.hold {
		candidates = nil
	}
	for _, j := range candidates {
		w := batch.Waiting{Pending: j.pending(), Reserve: j.reserve}
		if j.req.Import != nil {
			w.Pending = 0
		}
		l.state.Waiting = append(l.state.Waiting, w)
	}
	limits := l.limits
	limits.MaxSeqs = len(l.running) + len(l.free) // fewer when one could not be freed
	step := batch.Compose(l.state, limits, l.spans)
	l.spans = step.Spans
	l.blocked(step.Blocked)
	l.admit(step.Admit)
	if len(step.Spans) == 0 {
		l.sweep() // imports may have ended at their first token
		if len(l.free) == 0 && len(l.running) == 0 {
			return errors.New("no sequence can be used any more")
		}
		return nil
	}
	err := l.compute(step.Spans)
	l.sweep()
	return err
}

// admit gives the first n waiting requests a sequence.
func (l *Loop) admit(n int) {
	if n == 0 {
		return
	}
	now := time.Now()
	for _, j := range l.queue[:n] {
		l.waiting.Add(-1)
		last := len(l.free) - 1
		j.seq, l.free = l.free[last], l.free[:last]
		if j.time.Admitted.IsZero() {
			j.time.Admitted = now
			l.o.Metrics.Queue.Observe(now.Sub(j.time.Arrived).Seconds())
			l.o.Metrics.PromptTokens.Add(float64(len(j.req.Prompt)))
			l.o.Metrics.PromptSize.Observe(float64(len(j.req.Prompt)))
		}
		l.running = append(l.running, j)
		l.state.Running = append(l.state.Running, batch.Running{Pending: j.pending(), Reserve: j.reserve})
		if j.req.Import != nil {
			l.importKV(j)
		}
	}
	l.queue = slices.Delete(l.queue, 0, n)
}

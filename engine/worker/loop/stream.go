package loop

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirhq/weir/engine"
)

// Stream is the answer of one request. The loop never waits for its reader:
// what is not read yet lies in a buffer, which Request.MaxTokens bounds.
type Stream struct {
	ready     chan struct{} // one slot: something is new
	left      func()        // tells the loop of a cancellation
	cancelled atomic.Bool
	begun     atomic.Bool
	orders    atomic.Pointer[order]
	ended     chan struct{} // closed with the finish
	unwatch   func() bool

	mu      sync.Mutex
	pending Batch
	err     error
	result  Result
}

// Result is complete when Next has given a Finish.
type Result struct {
	PromptTokens     int
	CompletionTokens int
	// CachedTokens are prompt tokens that this worker had already.
	CachedTokens int
	// Handoff is set for a request with Export that ended well, and for one that
	// was migrated.
	Handoff *Handoff
	// Generated are the tokens of a migrated request, resumed ones included, and
	// Unshown how many bytes at the end of their text have not been shown.
	Generated []engine.Token
	Unshown   int
	// Rerouted is what the runner did with the tokens that were computed here.
	Rerouted engine.Rerouted
	Timing   Timing
}

// Timing holds the moments of a request's life; zero when not reached.
type Timing struct{ Arrived, Admitted, First, Last time.Time }

// Next waits for something new and moves it into b, whose memory it reuses.
// After a Finish there is nothing more. It returns ctx's error, or what made
// the generation fail; both times what came before the failure is in b.
func (s *Stream) Next(ctx context.Context, b *Batch) error {
	select {
	case <-s.ready:
	default:
		select {
		case <-s.ready:
		case <-ctx.Done():
			b.reset()
			return ctx.Err()
		}
	}
	b.reset()
	s.mu.Lock()
	defer s.mu.Unlock()
	*b, s.pending = s.pending, *b
	return s.err
}

// Result returns what is known of the request.
func (s *Stream) Result() Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// Cancel frees the request's sequence before the loop's next step, and stops the
// step that runs where it is for nobody else. It may be called at any time and
// more than once.
func (s *Stream) Cancel() {
	if s.cancelled.CompareAndSwap(false, true) {
		s.left()
	}
}

// order asks for a running request's state from a position on.
type order struct {
	from  int
	leave bool          // the generation ends with it
	state chan *Handoff // one slot; nil where it cannot be exported
	stays func()        // told when the state of one that leaves cannot be exported
}

// Migrate ends the generation before its next token with FinishMigrated and the
// state from a position on in Result, from which another worker goes on. Where
// the state cannot be exported the generation goes on here, and stays, which must
// not wait, is called unless it is nil.
func (s *Stream) Migrate(from int, stays func()) {
	s.orders.Store(&order{from: from, leave: true, stays: stays})
}

// Stage copies the state from a position on before the next token, while the
// generation goes on. It is nil where the request has ended or its state cannot
// be exported.
func (s *Stream) Stage(ctx context.Context, from int) *Handoff {
	o := &order{from: from, state: make(chan *Handoff, 1)}
	s.orders.Store(o)
	select {
	case h := <-o.state:
		return h
	case <-s.ended:
	case <-ctx.Done():
	}
	return nil
}

// Begun reports whether a token has been generated, here or before.
func (s *Stream) Begun() bool { return s.begun.Load() }

// notify tells the reader; the loop calls it without waiting.
func (s *Stream) notify() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

package loop

import (
	"sync"
	"sync/atomic"
)

// stopper stops a step when all whom it is for have left. A step that somebody
// waits for goes to its end: clients that come and leave must not keep others
// from getting on.
type stopper struct {
	flag atomic.Uint32 // the runner's: see engine.Stopper

	mu   sync.Mutex
	whom []*Stream // whom the step that runs is for
}

// begin says whom the next step is for.
func (s *stopper) begin(whom []*Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.whom = whom
	s.look()
}

// end says that the step is over.
func (s *stopper) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.whom) // or they would be kept until the next step
	s.whom = nil
	s.flag.Store(0)
}

// left says that somebody has left.
func (s *stopper) left() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look()
}

// look is for who holds the lock.
func (s *stopper) look() {
	for _, w := range s.whom {
		if !w.cancelled.Load() {
			return
		}
	}
	if len(s.whom) > 0 {
		s.flag.Store(1)
	}
}

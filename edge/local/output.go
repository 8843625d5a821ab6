package local

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// output writes one answer. For a streaming client it sends heartbeats while
// the answer is held; the response's head waits for the first of them or for
// the decision, whichever comes first, so that quick answers carry the whole
// contract in their headers and quick failures their status.
type output struct {
	w        http.ResponseWriter
	c        *call
	stream   bool
	patience time.Duration // for one write

	mu     sync.Mutex
	sse    *sse.Writer // nil until the head of a stream has left
	done   chan struct{}
	ended  sync.WaitGroup
	timing *contract.Timing
}

func newOutput(w http.ResponseWriter, c *call, patience time.Duration) *output {
	return &output{w: w, c: c, patience: patience}
}

// hold starts the heartbeats of a stream. release must follow.
func (o *output) hold(every time.Duration) {
	if !o.stream {
		return
	}
	o.done = make(chan struct{})
	o.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-o.done:
				return
			case <-tick.C:
				o.beat()
			}
		}
	})
}

func (o *output) beat() {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.done: // released while waiting for the lock
		return
	default:
	}
	if o.sse == nil {
		o.head(&contract.Result{})
		o.sse = sse.Start(o.w)
	}
	o.allowWrite()
	_ = o.sse.Comment("weir is thinking") // a client that left is seen by its context
}

// release ends the heartbeats. It may be called more than once.
func (o *output) release() {
	o.mu.Lock()
	done := o.done
	o.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	default:
		close(done)
	}
	o.ended.Wait()
}

// allowWrite gives a client that does not read a while for the next write: it
// would hold its place for ever.
func (o *output) allowWrite() {
	_ = http.NewResponseController(o.w).SetWriteDeadline(time.Now().Add(o.patience)) // not every writer can
}

// end forgets the last write's time, for the connection's next request.
func (o *output) end() { _ = http.NewResponseController(o.w).SetWriteDeadline(time.Time{}) }

func (o *output) head(r *contract.Result) {
	h := o.w.Header()
	r.WriteHeaders(h)
	if o.timing != nil {
		o.timing.Write(h)
	}
}

// data sends one event of a stream.
func (o *output) data(event []byte) error {
	if o.sse == nil {
		o.head(&o.c.result)
		o.sse = sse.Start(o.w)
	}
	o.allowWrite()
	if err := o.sse.Data(event); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// json sends a whole answer.
func (o *output) json(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	o.head(&o.c.result)
	o.w.Header().Set("Content-Type", "application/json")
	o.allowWrite()
	o.w.WriteHeader(http.StatusOK)
	if _, err = o.w.Write(raw); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// fail ends the answer with an error: a response of its own, or the last event
// of a stream that has begun, which then has no [DONE].
func (o *output) fail(e *openai.Error) {
	o.release()
	o.allowWrite()
	if o.sse != nil {
		_ = o.sse.Data(e.Body(&o.c.result)) // the client may be gone
		return
	}
	o.head(&o.c.result)
	e.Write(o.w, &o.c.result)
}

package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// output writes one answer. For a streaming client it sends heartbeats while
// nothing else is sent; the response's head waits for the first of them or for
// the first event, whichever comes first, so that quick answers carry the whole
// contract in their headers and quick failures their status.
type output struct {
	w        http.ResponseWriter
	c        *call
	stream   bool
	patience time.Duration // for one write

	mu       sync.Mutex
	sse      *sse.Writer // nil until the head of a stream has left
	last     time.Time   // of the last event
	writable time.Time   // until when the connection waits for the next write
	quit     chan struct{}
	ended    sync.WaitGroup
	timing   *contract.Timing
	early    bool // the head leaves before it is known what the answer costs
}

func newOutput(w http.ResponseWriter, c *call, patience time.Duration) *output {
	return &output{w: w, c: c, patience: patience}
}

// hold starts the heartbeats of a stream. release must follow.
func (o *output) hold(every time.Duration) {
	if !o.stream {
		return
	}
	o.quit, o.last = make(chan struct{}), time.Now()
	o.ended.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-o.quit:
				return
			case <-tick.C:
				o.beat(every)
			}
		}
	})
}

func (o *output) beat(every time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.quit: // released while waiting for the lock
		return
	default:
	}
	if time.Since(o.last) < every {
		return
	}
	if o.sse == nil {
		o.sse = sse.Start(o.w)
	}
	o.allowWrite(time.Now())
	_ = o.sse.Comment("weir is thinking") // a client that left is seen by its context
}

// release ends the heartbeats. It may be called more than once.
func (o *output) release() {
	if o.quit == nil {
		return
	}
	select {
	case <-o.quit:
	default:
		close(o.quit)
	}
	o.ended.Wait()
}

// allowWrite gives a client that does not read a while for the next write: it
// would hold its place for ever. The deadline moves in steps, because setting
// it costs more than a token does.
func (o *output) allowWrite(now time.Time) {
	if until := now.Add(o.patience); until.Sub(o.writable) > o.patience/16 {
		o.writable = until
		_ = http.NewResponseController(o.w).SetWriteDeadline(until) // not every writer can
	}
}

// end forgets the last write's time, for the connection's next request.
func (o *output) end() { _ = http.NewResponseController(o.w).SetWriteDeadline(time.Time{}) }

// prepare sets the head's part that is not of the contract; nil changes nothing.
func (o *output) prepare(t *contract.Timing, early bool, more http.Header) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timing, o.early = t, early
	maps.Copy(o.w.Header(), more)
}

// setHeader sets headers of the head that has not left yet.
func (o *output) setHeader(h http.Header) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.Copy(o.w.Header(), h)
}

func (o *output) head(r *contract.Result) {
	h := o.w.Header()
	r.WriteHeaders(h)
	if o.early {
		h.Del(contract.HeaderCost)
	}
	if o.timing != nil {
		o.timing.Write(h)
	}
}

// data sends one event of a stream.
func (o *output) data(event []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sse == nil {
		o.head(&o.c.result)
		o.sse = sse.Start(o.w)
	}
	o.last = time.Now()
	o.allowWrite(o.last)
	if err := o.sse.Data(event); err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	return nil
}

// done sends the end mark of a complete stream.
func (o *output) done() error { return o.data([]byte(sse.Done)) }

// json sends a whole answer.
func (o *output) json(v any) error {
	o.release()
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	o.head(&o.c.result)
	o.w.Header().Set("Content-Type", "application/json")
	o.allowWrite(time.Now())
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
	o.allowWrite(time.Now())
	if o.sse != nil {
		_ = o.sse.Data(e.Body(&o.c.result)) // the client may be gone
		return
	}
	o.head(&o.c.result)
	e.Write(o.w, &o.c.result)
}

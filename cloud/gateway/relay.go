package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/tenants"
)

// relay hands a stream on, event by event. Until the first token nothing is
// written, so that a failing instance can be replaced unseen. The last event
// is held back until the next one comes, because the weir object belongs into
// the one before [DONE].
type relay struct {
	*attempt
	in    *sse.Reader
	out   *sse.Writer // nil until the first token
	watch *watchdog

	early    [][]byte // events before the first token
	held     []byte
	holding  bool
	scratch  []byte
	finished bool // a finish reason has come
	writable time.Time
}

// maxEarly is how many events may come before the first token: a role chunk,
// a heartbeat or two.
const maxEarly = 16

// run returns nil when the client was answered at least in part.
func (r *relay) run(ctx context.Context) *legError {
	// The deadline is the connection's: it must not outlive this answer.
	defer func() { _ = http.NewResponseController(r.gin.Writer).SetWriteDeadline(time.Time{}) }()
	for {
		data, err := r.in.Next()
		if err != nil {
			if errors.Is(err, io.EOF) && r.finished {
				return r.finish()
			}
			return r.broke(r.legFailure(ctx, route.StageDecode, r.sel.Decode, err))
		}
		if string(data) == sse.Done {
			return r.finish()
		}
		c := chunk.Read(data)
		if c.Bad || c.Failed() {
			return r.broke(engineFailure(r.sel.Decode, &c))
		}
		if err := r.pass(data, &c); err != nil {
			if over := (*openai.Error)(nil); errors.As(err, &over) {
				return r.broke(&legError{ended: tenants.OutcomeQuotaExceeded, leg: r.sel.Decode, api: over})
			}
			r.outcome = tenants.OutcomeClientCancelled
			return nil
		}
	}
}

// pass hands one event on. The error is the client's connection's, or an
// *openai.Error of a budget that has no room for the event.
func (r *relay) pass(data []byte, c *chunk.Event) error {
	if c.Token {
		if err := r.grant.Delivered(r.used.delivered + 1); err != nil {
			return err
		}
		r.used.delivered++
		r.firstToken()
	}
	if r.out != nil {
		r.watch.feed()
	}
	if r.result.Tier == "" {
		r.answeredBy(c.Model)
	}
	if c.Usage != nil {
		r.used.take(readUsage(c.Usage))
	}
	hide := !r.ask.req.IncludeUsage
	if hide && c.Usage != nil && c.Empty {
		return nil // the client did not ask for this event
	}
	if c.Inner || hide && (c.NullUsage || c.Usage != nil) {
		r.scratch = chunk.AppendWithout(r.scratch[:0], data, hide)
		data = r.scratch
	}
	if err := r.release(); err != nil {
		return err
	}
	if c.Finish != nil || c.Usage != nil {
		r.finished = r.finished || c.Finish != nil
		r.held, r.holding = append(r.held[:0], data...), true
		return nil
	}
	return r.emit(data, c.Token)
}

// release sends the event that was held back.
func (r *relay) release() error {
	if !r.holding {
		return nil
	}
	r.holding = false
	return r.emit(r.held, true)
}

// emit sends an event, or keeps it while no token has come.
func (r *relay) emit(data []byte, token bool) error {
	if r.out == nil {
		if !token && len(r.early) < maxEarly {
			r.early = append(r.early, append([]byte(nil), data...))
			return nil
		}
		if err := r.start(); err != nil {
			return err
		}
	}
	r.allowWrite()
	return r.out.Data(data)
}

// start commits to this attempt: the head and the early events leave.
func (r *relay) start() error {
	h := r.gin.Writer.Header()
	r.setTimes()
	r.result.WriteHeaders(h)
	h.Del(contract.HeaderCost) // not known yet: the weir object tells
	r.grant.SetHeaders(h)
	r.timing().Write(h)
	r.wrote = true
	r.allowWrite()
	r.out = sse.Start(r.gin.Writer)
	r.watch.replace(r.g.opts.Timeouts.Stall, errStall)
	for _, data := range r.early {
		if err := r.out.Data(data); err != nil {
			return err
		}
	}
	r.early = nil
	return nil
}

// allowWrite moves the write deadline, at most once a second: a client that
// stops reading must not hold an instance.
func (r *relay) allowWrite() {
	now := time.Now()
	if patience := r.g.opts.Timeouts.Write; now.Add(patience).Sub(r.writable) > time.Second {
		r.writable = now.Add(patience)
		_ = http.NewResponseController(r.gin.Writer).SetWriteDeadline(r.writable) // not every transport has one
	}
}

// finish ends a complete stream: the last event carries the weir object.
func (r *relay) finish() *legError {
	if !r.finished && r.used.delivered == 0 && !r.holding {
		return r.broke(broken(route.StageDecode, r.sel.Decode, "the model server's stream was empty"))
	}
	r.outcome = tenants.OutcomeOK
	r.price(r.outcome)
	r.conclude(r.outcome, nil)
	r.setTimes()
	last := r.held
	if !r.holding {
		last = r.bareChunk()
	}
	r.holding = false
	r.scratch = chunk.AppendWeir(r.scratch[:0], last, mustJSON(&r.result))
	// The answer is complete and settled: a client that leaves now has had it.
	if r.emit(r.scratch, true) == nil {
		_ = r.out.Done()
	}
	return nil
}

// bareChunk is an event for the weir object where the upstream's stream had no
// last event of its own.
func (r *relay) bareChunk() []byte {
	object := openai.ObjectChatChunk
	if r.ask.kind == kindText {
		object = openai.ObjectCompletion
	}
	return mustJSON(openai.Response{ID: "weir-" + r.op, Object: object, Created: r.exchange.began.Unix(), Model: r.result.Model, Choices: []openai.Choice{}})
}

// broke ends a stream that failed. Before the first token the failure goes
// back to the attempt; after it the client gets an error event and no [DONE],
// and nothing is ever replayed.
func (r *relay) broke(f *legError) *legError {
	if r.out == nil {
		return f
	}
	r.outcome, r.failure = tenants.OutcomeUpstreamTruncated, f.api
	switch f.ended {
	case tenants.OutcomeClientCancelled:
		r.outcome = f.ended
		return nil
	case tenants.OutcomeDeadline, tenants.OutcomeQuotaExceeded:
		r.outcome = f.ended
	default:
		r.failure = &openai.Error{Status: f.api.Status, Type: f.api.Type, Code: openai.CodeUpstreamCut, Cause: f.api,
			Message: "the answer was cut off: " + f.api.Message}
		if f.Kind != route.FailedStatus {
			r.g.opts.Pool.Suspect(f.leg, f.api.Message)
		}
	}
	r.price(r.outcome)
	r.conclude(r.outcome, r.failure)
	r.setTimes()
	r.allowWrite()
	if err := r.release(); err != nil {
		return nil
	}
	_ = r.out.Data(r.failure.Body(&r.result)) // the client may be gone
	return nil
}

// engineFailure reads what an engine says of its own failure inside a stream
// or an answer with status 200.
func engineFailure(leg *pool.Leg, c *chunk.Event) *legError {
	if c.Bad {
		return broken(route.StageDecode, leg, "the model server's answer cannot be read")
	}
	if status := faultStatus(c.Fault); status >= 400 && status <= 599 {
		return statusFailure(route.StageDecode, leg, status, append(append([]byte(`{"error":`), c.Fault...), '}'))
	}
	return broken(route.StageDecode, leg, "the model server could not finish its answer")
}

// faultStatus returns the HTTP status that vLLM writes as an error's code.
func faultStatus(fault []byte) int {
	var e struct {
		Code json.RawMessage `json:"code"`
	}
	if fault == nil || json.Unmarshal(fault, &e) != nil {
		return 0
	}
	status, err := strconv.Atoi(string(e.Code))
	if err != nil {
		return 0
	}
	return status
}

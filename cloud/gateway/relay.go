package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/tenants"
)

// relay hands one leg's stream on, event by event.
type relay struct {
	*attempt
	in        *sse.Reader
	watch     *watchdog
	continued bool // the answer's head has come from an earlier leg
	hideIDs   bool // the gateway asked for token_ids, not the client
	scratch   []byte
	finished  bool // a finish reason has come
}

// run returns nil when the client was answered to the end, or is gone.
func (r *relay) run(ctx context.Context) *legError {
	for {
		data, err := r.next()
		if err != nil {
			return r.broke(r.legFailure(ctx, route.StageDecode, r.sel.Decode, err))
		}
		if string(data) == sse.Done {
			return r.finish()
		}
		c := chunk.Read(data)
		if c.Bad || c.Failed() {
			return r.broke(engineFailure(r.sel.Decode, &c))
		}
		if c.Moved != nil {
			r.used.take(readUsage(c.Usage)) // of more than was shown
			return r.moved(c.Moved)
		}
		if most := r.most(); most > 0 && c.Token && r.stream.shown.generated >= most {
			return r.broke(endless(r.sel.Decode))
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

// next waits for the next event. Once the answer runs only this wait counts as
// silence: a client that is slow to read is not the instance's fault.
func (r *relay) next() ([]byte, error) {
	if r.ttft > 0 {
		r.watch.feed()
		defer r.watch.stop()
	}
	return r.in.Next()
}

// pass hands one event on. The error is the client's connection's, or an
// *openai.Error of a budget that has no room for the event.
func (r *relay) pass(data []byte, c *chunk.Event) error {
	s := r.stream
	if c.Token {
		if err := r.grant.Delivered(s.shown.generated + tokens(c)); err != nil {
			return err
		}
		r.used.delivered += tokens(c)
		if r.ttft == 0 {
			r.sel.Decode.Stood(s.shown.last)
			r.watch.replace(r.g.opts.Timeouts.Stall, errStall)
			r.watch.stop() // until next
		}
		s.shown.note(c, r.sel.Decode.Weights)
		r.firstToken()
	}
	r.choice.event(data)
	s.shown.identity.learn(c)
	if r.result.Tier == "" {
		r.answeredBy(c.Model)
	}
	if c.Usage != nil {
		r.used.take(readUsage(c.Usage))
	}
	if r.continued && !c.Token && c.Finish == nil && c.Usage == nil {
		return nil // the client has had an answer's beginning
	}
	hide := !r.ask.req.IncludeUsage
	if hide && c.Usage != nil && c.Empty {
		return nil // the client did not ask for this event
	}
	data = r.rewrite(data, c, hide)
	if err := s.release(); err != nil {
		return err
	}
	if c.Finish != nil || c.Usage != nil {
		r.finished = r.finished || c.Finish != nil
		s.hold(data)
		return nil
	}
	return s.emit(data, c.Token)
}

// rewrite takes out what stays inside, and makes a continued leg speak as the
// first did.
func (r *relay) rewrite(data []byte, c *chunk.Event, hide bool) []byte {
	ids := r.hideIDs && c.IDs != nil
	if !c.Inner && !ids && !r.continued && !(hide && (c.NullUsage || c.Usage != nil)) {
		return data
	}
	w := chunk.Rewrite{HideUsage: hide, HideIDs: ids}
	if r.continued {
		w.ID, w.Created = r.stream.shown.id, r.stream.shown.created
		if c.Usage != nil && r.used.reported != nil {
			w.Usage = r.wholeUsage(r.used.reported)
		}
	}
	r.scratch = w.Append(r.scratch[:0], data)
	return r.scratch
}

// finish ends a complete stream.
func (r *relay) finish() *legError {
	if !r.finished && r.used.delivered == 0 && !r.stream.holding {
		return r.broke(broken(route.StageDecode, r.sel.Decode, "the model server's stream was empty"))
	}
	r.sel.Decode.Good()
	r.outcome = tenants.OutcomeOK
	r.conclude(r.outcome, nil)
	r.stream.complete()
	return nil
}

// broke says how far a stream that failed has come. One that has told its finish
// reason is whole: to go on with it would repeat its end.
func (r *relay) broke(f *legError) *legError {
	if r.finished && f.ended == "" {
		return r.finish()
	}
	if f.Shown = r.stream.begun(); f.Shown {
		f.Resumable = r.continuable()
	}
	return f
}

// moved ends a leg whose worker gave the answer away: the next one takes it
// over with the worker's words.
func (r *relay) moved(raw []byte) *legError {
	f := movedFailure(r.sel.Decode, raw)
	if f.moved == nil {
		return r.broke(f)
	}
	return f
}

// movedFailure reads the words of a worker that gave the answer away.
func movedFailure(leg *pool.Leg, raw []byte) *legError {
	var m movedAnswer
	if json.Unmarshal(raw, &m) != nil || m.Resume == nil {
		return broken(route.StageDecode, leg, "the model server's migration cannot be read")
	}
	return &legError{leg: leg, moved: &m, api: upstreamError("the answer was given to another model server", nil)}
}

// movedAnswer is the member weir_migrated of a worker's last event.
type movedAnswer struct {
	To     string          `json:"to"` // who has been sent all KV but the last tokens'
	Params json.RawMessage `json:"kv_transfer_params"`
	Resume json.RawMessage `json:"weir_resume"`
}

// engineFailure reads what an engine says of its own failure inside a stream
// or an answer with status 200.
func engineFailure(leg *pool.Leg, c *chunk.Event) *legError {
	if c.Bad {
		return broken(route.StageDecode, leg, "the model server's answer cannot be read")
	}
	return faultFailure(route.StageDecode, leg, c.Fault)
}

// faultFailure explains the error object of an answer with status 200.
func faultFailure(stage route.Stage, leg *pool.Leg, fault []byte) *legError {
	status := faultStatus(fault)
	if status < 400 || status > 599 {
		status = 500 // vLLM's finish reason "error" says no more
	}
	return statusFailure(stage, leg, status, append(append([]byte(`{"error":`), fault...), '}'))
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

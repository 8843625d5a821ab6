package gateway

import (
	"context"
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// cascades reports whether the model's small pool is asked first: not for what
// another cascade has let over or asks a label for, and not for several answers,
// of which only one could be judged.
func (x *exchange) cascades() bool {
	return x.ask.model.Cascade != nil && x.ask.opts.Draft == nil && x.ask.req.N <= 1
}

// draft asks the small pool and reports whether the request is over: the answer
// was kept and sent, or the request ended meanwhile. Otherwise the large pool
// answers next, for the reason in the result. Nothing is shown before the whole
// answer is judged.
func (a *admitted) draft() (done bool) {
	entry, large := a.ask.model.Cascade, a.ask.model.Pool
	a.inPool(entry.Small())
	defer func() {
		if !done {
			a.inPool(large)
		}
	}()
	ask := a.poolAsk()
	ask.Movable = false // the draft is not streamed, whatever the client asked for
	sel, decision := a.g.opts.Pool.Select(a.g.opts.Policy, route.Arrival, ask, a.seed())
	if sel.Decode == nil {
		a.story.addDecision(decision)
		a.result.Reason = cascade.ReasonEdgeUnavailable
		return false
	}
	defer sel.Release()
	a.tries.drafts = 1
	a.result.Attempts = 1
	at := &attempt{admitted: a, id: contract.NewID(), began: time.Now(), sel: sel}
	at.describe(decision)
	if err := at.begin(); err != nil {
		a.outcome = tenants.OutcomeRejected
		a.refuse(err)
		return true
	}
	answer, failed := at.askSmall()
	switch {
	case failed == nil:
		return at.judged(answer, large)
	case failed.ended != "":
		at.endedBy(failed)
		return true
	}
	at.lostDraft(failed)
	return false
}

// inPool makes the request one for a pool. Its prefixes have other keys there.
func (a *admitted) inPool(name string) { a.ask.model.Pool, a.keys = name, nil }

// askSmall runs the legs of the attempt and reads the whole answer.
func (a *attempt) askSmall() (*cascading.Answer, *legError) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	// A small pool that hangs must not use up the large one's time.
	watch := newWatchdog(cancel, a.g.opts.Timeouts.FirstByte+a.g.opts.Timeouts.Stall, errFirstByte)
	defer watch.stop()
	var h *handoff
	if a.sel.Prefill != nil {
		var failed *legError
		if h, failed = a.runPrefill(ctx); failed != nil {
			return nil, failed
		}
	}
	ctx, endSpan := a.legSpan(ctx, route.StageDecode, a.sel.Decode)
	answer, failed := a.smallLeg(ctx, h)
	endSpan(failed)
	return answer, failed
}

func (a *attempt) smallLeg(ctx context.Context, h *handoff) (*cascading.Answer, *legError) {
	leg, body := a.sel.Decode, a.cloneBody(a.sel.Decode.Served)
	cascading.AskLogprobs(body, a.ask.kind == kindText)
	if h != nil && h.params != nil {
		body["kv_transfer_params"] = h.params
	}
	resp, failed := a.call(ctx, route.StageDecode, leg, body.JSON())
	if failed != nil {
		return nil, failed
	}
	defer resp.Body.Close()
	data, failed := a.readAll(ctx, route.StageDecode, leg, resp.Body, maxAnswerBody)
	if failed != nil {
		return nil, failed
	}
	c := chunk.Read(data)
	if c.Bad || c.Failed() {
		return nil, engineFailure(leg, &c)
	}
	if c.Moved != nil { // half an answer
		return nil, statusFailure(route.StageDecode, leg, http.StatusServiceUnavailable, nil)
	}
	answer, err := cascading.Read(data)
	if err != nil {
		return nil, broken(route.StageDecode, leg, "the model server's answer cannot be read")
	}
	leg.Good()
	a.firstToken()
	a.used.take(readUsage(c.Usage))
	a.used.countWhole(c.Usage == nil, data)
	a.answeredBy(c.Model)
	return answer, nil
}

// judged keeps the small pool's answer and sends it, or lets the request over.
// It reports whether the request is over.
func (a *attempt) judged(answer *cascading.Answer, large string) (done bool) {
	ask := cascading.Ask{Fingerprint: a.sel.Decode.Fingerprint, LargeNano: a.bound(large)}
	if !a.ask.deadline.IsZero() {
		if ask.Remaining = time.Until(a.ask.deadline); ask.Remaining <= 0 {
			ask.Remaining = -1
		}
	}
	v, policy := a.ask.model.Cascade.Judge(answer, ask, time.Now())
	a.g.meter.judged(a.ask.req.Model, v)
	a.result.Reason, a.result.Policy = v.Reason, policy
	if a.result.Confidence = nil; v.Known {
		p := v.Confidence
		a.result.Confidence = &p
	}
	if v.Escalate {
		a.settle(tenants.OutcomeEscalated, nil)
		a.tries.draft = a.last
		a.story.note("judged: " + string(v.Reason))
		return false
	}
	a.outcome = tenants.OutcomeOK
	a.conclude(a.outcome, nil)
	if err := a.sendKept(answer); err != nil { // what was read and priced cannot be written: a fault of ours
		a.refuse(openai.Internal(err))
	}
	return true
}

func (a *attempt) sendKept(answer *cascading.Answer) error {
	if !a.ask.req.Stream {
		data, err := answer.Whole(a.ask.req.Logprobs)
		if err != nil {
			return err
		}
		a.setTimes()
		a.sendWhole(data)
		return nil
	}
	events, err := answer.Events(cascading.Stream{Text: a.ask.kind == kindText, Logprobs: a.ask.req.Logprobs, Usage: a.ask.req.IncludeUsage})
	if err != nil {
		return err
	}
	for _, e := range events {
		if a.stream.release() != nil {
			return nil // the client is gone and has been answered
		}
		a.stream.hold(e)
	}
	a.stream.complete()
	return nil
}

// bound is the most that a pool's answer may cost, nano-dollars; 0 without a
// price.
func (a *attempt) bound(pool string) int64 {
	out := maxAnswer
	if n := a.ask.req.MaxTokens; n != nil {
		out = *n
	} else if _, context := a.g.opts.Pool.Serves(pool); context > 0 {
		out = context
	}
	p, _ := a.g.tenancy().book.At(tenants.Cloud, pool, a.exchange.began)
	cost, err := price.Cost(p, price.Tokens{Input: int64(a.ask.promptBytes + templateTokens), Output: int64(out)})
	if err != nil {
		return 1<<63 - 1 // beyond counting
	}
	return cost
}

// lostDraft settles an attempt at the small pool that brought no answer: what it
// cannot take the large pool may.
func (a *attempt) lostDraft(f *legError) {
	verdict := route.AfterFailure(f.Failure)
	if verdict.Counts {
		f.leg.Bad(f.api.Message, verdict.Suspect)
	}
	a.result.Reason = cascade.ReasonEdgeUnavailable
	if verdict.Next == route.NextRefuse {
		a.result.Reason = cascade.ReasonCapability
	}
	a.settle(a.outcomeOf(verdict), f.api)
	a.g.opts.Log.Warn("small pool gave no answer", "operation", a.op, "stage", f.Stage, "instance", f.leg.ID, "kind", f.Kind, "status", f.Status, "error", f.api)
}

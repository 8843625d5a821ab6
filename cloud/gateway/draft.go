package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/tenants"
)

// draft is an attempt at a cascade's small pool, on its way to the client.
// cascading.Draft decides; here is the acting. While the next pool is asked it
// waits, its connection open and unread, until that one has begun or failed: no
// second goroutine is needed for it.
type draft struct {
	*attempt
	judge *cascading.Draft
	form  cascading.Form
	tier  int
	posed ask // the request as this draft was asked

	ctx     context.Context
	cancel  context.CancelCauseFunc
	watch   *watchdog
	endSpan func(*legError)
	body    io.Closer
	in      *sse.Reader // nil for an answer that comes at once
	closed  bool

	answer  *cascading.Answer // that came at once
	model   []byte            // the upstream's word, with its quotes
	held    [][]byte          // events that the client has not seen
	tail    [][]byte          // the last ones, from the finish reason on
	text    bool              // something was said
	finish  bool              // a finish reason has come
	sure    float64           // confidence of the verdict
	lost    bool              // the answer broke off unseen
	kept    bool              // the answer is the client's, to its end
	aside   bool              // the next pool is asked
	counted bool              // the verdict is in the metrics
	told    *explainedDraft   // what the explanation says of it
	asked   cascades.Ask      // what the next pool is asked for
	scratch []byte
	shown   shown // of the stream, when it was asked
}

// begin writes the attempt down and reports whether it may run. The request is
// over where it may not.
func (d *draft) begin() bool {
	if err := d.attempt.begin(); err != nil {
		if d.standsIn(cascade.ReasonCloudError) {
			return false
		}
		d.outcome = tenants.OutcomeRejected
		d.refuse(err)
		return false
	}
	return true
}

// run takes the answer as far as it goes. It returns true when the request is
// over, and false when further attempts are to be made.
func (d *draft) run() (over bool) {
	if d.ctx == nil {
		if failed := d.open(); failed != nil {
			return d.broke(failed)
		}
	}
	for !d.aside {
		out, failed := d.step()
		if failed != nil {
			return d.broke(failed)
		}
		if d.act(out) {
			return true
		}
	}
	return false
}

// open runs the prefill leg and asks for the answer.
func (d *draft) open() *legError {
	d.ctx, d.cancel = context.WithCancelCause(d.attempt.ctx)
	patience := d.g.opts.Timeouts.FirstByte
	if !d.ask.req.Stream { // a small pool that hangs must not use up the large one's time
		patience += d.g.opts.Timeouts.Stall
	}
	d.watch = newWatchdog(d.cancel, patience, errFirstByte)
	var h *handoff
	if d.sel.Prefill != nil {
		var failed *legError
		if h, failed = d.runPrefill(d.ctx); failed != nil {
			return failed
		}
	}
	d.ctx, d.endSpan = d.legSpan(d.ctx, route.StageDecode, d.sel.Decode)
	body := d.decodeBody(h)
	cascading.AskLogprobs(body, d.ask.kind == kindText)
	resp, failed := d.call(d.ctx, route.StageDecode, d.sel.Decode, body.JSON())
	if failed != nil {
		return failed
	}
	d.body = resp.Body
	d.read(resp)
	if !d.ask.req.Stream {
		return d.readWhole(resp)
	}
	if !isEventStream(resp) {
		return broken(route.StageDecode, d.sel.Decode, "the model server did not stream")
	}
	d.in = sse.NewReader(resp.Body)
	return nil
}

// readWhole reads an answer that comes at once.
func (d *draft) readWhole(resp *http.Response) *legError {
	leg := d.sel.Decode
	data, failed := d.readAll(d.ctx, route.StageDecode, leg, resp.Body, maxAnswerBody)
	if failed != nil {
		return failed
	}
	c := chunk.Read(data)
	if c.Bad || c.Failed() {
		return engineFailure(leg, &c)
	}
	if c.Moved != nil { // half an answer
		return statusFailure(route.StageDecode, leg, http.StatusServiceUnavailable, nil)
	}
	var err error
	if d.answer, err = cascading.Read(data); err != nil {
		return broken(route.StageDecode, leg, "the model server's answer cannot be read")
	}
	leg.Good()
	d.firstToken()
	d.used.take(readUsage(c.Usage))
	d.used.countWhole(c.Usage == nil, data)
	d.model = c.Model
	return nil
}

// step takes the next event, or the whole answer.
func (d *draft) step() (cascades.Output, *legError) {
	if d.answer != nil {
		return d.judged(!d.judge.Score(d.answer), d.answer.Said), nil
	}
	leg := d.sel.Decode
	if d.ttft > 0 {
		d.watch.feed()
	}
	data, err := d.in.Next()
	if d.ttft > 0 {
		d.watch.stop()
	}
	if err != nil {
		if d.finish { // all of it has come
			return d.end(), nil
		}
		return cascades.Output{}, d.legFailure(d.ctx, route.StageDecode, leg, err)
	}
	if string(data) == sse.Done {
		if !d.finish && d.used.delivered == 0 {
			return cascades.Output{}, broken(route.StageDecode, leg, "the model server's stream was empty")
		}
		return d.end(), nil
	}
	c := chunk.Read(data)
	switch most := d.most(); {
	case c.Bad || c.Failed():
		return cascades.Output{}, engineFailure(leg, &c)
	case c.Moved != nil:
		return cascades.Output{}, movedFailure(leg, c.Moved)
	case most > 0 && c.Token && d.used.delivered >= most:
		return cascades.Output{}, endless(leg)
	}
	if err := d.pass(data, &c); err != nil {
		return cascades.Output{}, d.undelivered(err)
	}
	return d.judge.Event(&c, d.now, time.Now()), nil
}

func (d *draft) end() cascades.Output {
	d.sel.Decode.Good()
	return d.judged(d.text, func() validate.Answer { return cascading.Said(slices.Concat(d.held, d.tail)) })
}

// judged is the end of an answer; some says that it says something.
func (d *draft) judged(some bool, said func() validate.Answer) cascades.Output {
	failed := !some || d.form.Checked() && d.form.Broken(said(), d.made())
	d.poll(failed, said)
	return d.judge.End(failed, d.now())
}

// made is how many tokens the answer has.
func (d *draft) made() int {
	if r := d.used.reported; r != nil {
		return r.CompletionTokens
	}
	return d.used.delivered
}

// act does what the machine says and reports whether the request is over.
func (d *draft) act(out cascades.Output) (over bool) {
	if out.Done {
		return d.keep(out.End)
	}
	if out.Flush {
		if err := d.flush(); err != nil {
			return d.broke(d.undelivered(err))
		}
	}
	if out.Ask != cascades.AskNone {
		d.giveWay(out)
	}
	return false
}

// giveWay lets the next pool be asked. The draft waits.
func (d *draft) giveWay(out cascades.Output) {
	d.asked, d.gaveWay, d.aside = out.Ask, true, true
	d.adopt(out.Reason)
	if d.watch != nil {
		d.watch.stop()
	}
	if s := d.stream; s != nil {
		d.shown = s.shown
		if s.begun() {
			d.handTo()
		}
	}
	if !d.lost {
		d.tries.waits = append(d.tries.waits, d)
	}
}

// keep makes the answer the client's, to its end.
func (d *draft) keep(end cascades.End) (over bool) {
	d.kept = true
	d.overtaken()
	d.adopt(end.Reason)
	d.answeredBy(d.model)
	if d.answer != nil {
		return d.sendKept()
	}
	if err := errors.Join(d.flush(), d.emitAll(d.tail)); err != nil {
		return d.broke(d.undelivered(err))
	}
	d.outcome = tenants.OutcomeOK
	d.conclude(d.outcome, nil)
	d.stream.complete()
	return true
}

// sendKept sends an answer that came at once.
func (d *draft) sendKept() (over bool) {
	d.outcome = tenants.OutcomeOK
	d.conclude(d.outcome, nil)
	data, err := d.answer.Whole(d.ask.req.Logprobs)
	if err != nil { // what was read and priced cannot be written: a fault of ours
		d.refuse(openai.Internal(err))
		return true
	}
	d.setTimes()
	d.sendWhole(data)
	return true
}

// broke takes the loss of the answer. It returns true when the request is over.
func (d *draft) broke(f *legError) (over bool) {
	switch {
	case f.ended != "":
		d.endedBy(f)
		return true
	case f.moved != nil && d.stream.begun():
		d.result.Reason, d.tries.err = d.judge.Verdict().Reason, f.api
		d.handOver(f.moved)
		return false
	case f.moved != nil: // what nobody has seen is not worth the move
		f = statusFailure(route.StageDecode, f.leg, http.StatusServiceUnavailable, nil)
	}
	verdict := route.AfterFailure(f.Failure)
	why := cascade.ReasonEdgeUnavailable
	if verdict.Next == route.NextRefuse {
		why = cascade.ReasonCapability
	}
	if !d.stream.begun() { // nobody has had anything of it
		d.used.delivered = 0
	}
	out := d.judge.Fail(why, d.now())
	if out.Ask == cascades.AskNone { // nobody else may be asked: the pool's other instances may go on
		d.result.Reason = out.End.Reason
		return d.failed(f)
	}
	d.lost = true
	if verdict.Counts {
		f.leg.Bad(f.api.Message, verdict.Suspect)
	}
	d.tries.err = f.api
	d.giveWay(out)
	d.settle(d.outcomeOf(verdict), f.api)
	d.g.opts.Log.Warn("pool of a cascade gave no answer", "operation", d.op, "stage", f.Stage, "instance", f.leg.ID, "kind", f.Kind, "status", f.Status, "error", f.api)
	return false
}

// undelivered says what ended the way to the client.
func (d *draft) undelivered(err error) *legError {
	if over := (*openai.Error)(nil); errors.As(err, &over) {
		return &legError{ended: tenants.OutcomeQuotaExceeded, leg: d.sel.Decode, api: over}
	}
	return &legError{ended: tenants.OutcomeClientCancelled, leg: d.sel.Decode,
		api: &openai.Error{Status: 499, Type: openai.TypeInvalidRequest, Code: "client_closed_request", Message: "the client has gone", NoRetry: true}}
}

// close ends the legs, once.
func (d *draft) close() {
	if d.closed {
		return
	}
	d.closed = true
	if d.cancel != nil {
		d.cancel(nil)
		d.watch.stop()
	}
	if d.body != nil {
		_ = d.body.Close()
	}
	if d.endSpan != nil {
		d.endSpan(nil)
	}
	d.sel.Release()
}

package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// tries is what the attempts of a request have taught it.
type tries struct {
	n             int
	retries       int // attempts that followed a failure
	began         time.Time
	failedPrefill []string
	failedDecode  []string
	handoff       *handoff            // unread, from an earlier attempt
	moved         *movedAnswer        // a worker gave the answer away: the next attempt takes it
	carried       tenants.UsageRecord // what earlier attempts delivered of the answer
	err           *openai.Error       // of the last one
}

// attempt is one try at one pair of instances: one ledger row.
type attempt struct {
	*admitted
	id    string
	began time.Time
	sel   pool.Selection
	used  used
	ttft  time.Duration // since the attempt began
	entry Entry
	ended bool // settled
}

// legError is why a leg did not answer. Exactly one of its forms is meant:
// ended is set when the request itself is over (client gone, deadline); else
// the failure is the instance's and failover decides.
type legError struct {
	route.Failure
	ended tenants.Outcome
	moved *movedAnswer // no failure: the worker gave the answer away
	leg   *pool.Leg
	api   *openai.Error // what the client is told if nothing else can be tried
}

// Causes that end a leg's context.
var (
	errFirstByte = errors.New("no token came in time")
	errStall     = errors.New("the stream stood still")
)

// complete runs attempts until one has answered or none is left to try.
func (g *Gateway) complete(c *gin.Context) {
	a := of(c).admitted
	a.story = a.newStory()
	a.tries.began = time.Now()
	if a.ask.req.Stream {
		a.stream = &stream{exchange: a.exchange}
		defer a.stream.close()
	}
	g.budget(a.ask.model.Pool).arrived(a.tries.began)
	for {
		done := a.try()
		if done {
			return
		}
	}
}

// try makes one attempt. It returns true when the request is over.
func (a *admitted) try() bool {
	g := a.g
	trigger := route.Arrival
	if a.tries.n > 0 {
		trigger = route.Retry
	}
	sel, decision := g.opts.Pool.Select(g.opts.Policy, trigger, a.poolAsk(), a.seed())
	if sel.Decode == nil {
		a.noInstance(decision)
		return true
	}
	a.tries.n++
	a.result.Attempts = a.tries.n
	at := &attempt{admitted: a, id: contract.NewID(), began: time.Now(), sel: sel}
	at.describe(decision)
	if err := at.begin(); err != nil {
		sel.Release()
		a.outcome = tenants.OutcomeRejected
		if a.stream.begun() {
			a.outcome = tenants.OutcomeUpstreamTruncated
		}
		a.giveUp("", err)
		return true
	}
	failed := at.run()
	defer sel.Release()
	switch {
	case failed == nil:
		at.conclude(a.outcome, a.failure)
		return true
	case failed.moved != nil:
		at.handOver(failed.moved)
		return false
	case failed.ended != "":
		at.endedBy(failed)
		return true
	}
	return at.failed(failed)
}

// run does the legs of the attempt. A nil error means that the client has been
// answered or is gone, and outcome says how.
func (a *attempt) run() *legError {
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	watch := newWatchdog(cancel, a.g.opts.Timeouts.FirstByte, errFirstByte)
	defer watch.stop()
	h := a.tries.handoff
	if !a.sel.Reused {
		h = nil
	}
	a.tries.handoff = nil
	if m := a.tries.moved; m != nil {
		h = &handoff{params: m.Params, until: time.Now().Add(handoffLife)}
	} else if a.sel.Prefill != nil {
		var failed *legError
		if h, failed = a.runPrefill(ctx); failed != nil {
			return failed
		}
	}
	failed := a.runDecode(ctx, h, watch)
	a.tries.moved = nil
	if failed != nil && failed.ended == "" && failed.moved == nil && route.AfterFailure(failed.Failure).KeepHandoff && h.usable(time.Now()) {
		a.tries.handoff = h
	}
	return failed
}

// failed settles an attempt that did not bring the answer to its end, and
// either lets the next one go or tells the client. It returns true when the
// request is over.
func (a *attempt) failed(f *legError) bool {
	if a.stream.begun() && !f.Shown { // the prefill leg of an attempt to continue
		f.Shown, f.Resumable = true, true
	}
	verdict := route.AfterFailure(f.Failure)
	if verdict.Counts {
		f.leg.Bad(f.api.Message, verdict.Suspect)
	}
	again := (verdict.Next == route.NextElsewhere || verdict.Next == route.NextContinue) && a.mayRetry()
	told := f.api
	if f.Shown {
		told = cutOff(f.api)
	}
	a.settle(a.outcomeOf(verdict), told)
	a.g.opts.Log.Warn("attempt failed", "operation", a.op, "attempt", a.tries.n, "stage", f.Stage, "instance", f.leg.ID,
		"kind", f.Kind, "status", f.Status, "next", verdict.Next, "again", again, "error", f.api)
	a.forget(f)
	if again {
		a.tries.err = f.api
		a.carry()
		return false
	}
	a.outcome = a.last.Outcome
	reason := cascade.ReasonCloudError
	if verdict.Next == route.NextRefuse {
		reason = ""
	}
	if f.Shown {
		a.outcome = tenants.OutcomeUpstreamTruncated
	}
	a.settleGrant()
	a.giveUp(reason, told)
	return true
}

// outcomeOf is the ledger's word for an attempt that failed.
func (a *attempt) outcomeOf(v route.Verdict) tenants.Outcome {
	switch {
	case a.used.delivered > 0:
		return tenants.OutcomeUpstreamTruncated
	case v.Next == route.NextRefuse: // the request's own fault: the instance's words hold
		return tenants.OutcomeRejected
	}
	return tenants.OutcomeUpstreamError
}

// forget leaves the failed instance out of this request's further attempts.
func (a *attempt) forget(f *legError) {
	if f.Stage == route.StagePrefill {
		a.tries.failedPrefill = append(a.tries.failedPrefill, f.leg.ID)
	} else {
		a.tries.failedDecode = append(a.tries.failedDecode, f.leg.ID)
	}
}

// handOver settles an attempt whose worker gave the answer to another.
func (a *attempt) handOver(m *movedAnswer) {
	a.settle(tenants.OutcomeSuperseded, nil)
	a.tries.failedDecode = append(a.tries.failedDecode, a.sel.Decode.ID)
	a.tries.moved = m
	a.stream.shown.took(m.Resume)
	a.carry()
	a.story.note("the answer moves to another instance")
}

// carry keeps what the attempt has delivered of the answer, for the sums that
// the client is told and the grant is settled with.
func (a *attempt) carry() {
	if a.used.delivered > 0 {
		a.tries.carried = a.last
		a.story.note("continued by the next attempt")
	}
}

// endedBy ends a request that is over for its own reasons: its client has
// gone, its deadline has passed, its budget is used up.
func (a *attempt) endedBy(f *legError) {
	a.outcome = f.ended
	a.conclude(f.ended, f.api)
	switch {
	case f.ended == tenants.OutcomeClientCancelled && a.stream.begun():
	case f.ended == tenants.OutcomeDeadline:
		a.giveUp(cascade.ReasonDeadline, f.api)
	default:
		a.giveUp("", f.api)
	}
}

// giveUp tells the client that there will be no answer, or no more of it.
func (a *admitted) giveUp(reason cascade.Reason, err *openai.Error) {
	if !a.stream.begun() {
		if reason != "" {
			a.result.Reason = reason
		}
		a.refuse(err)
		return
	}
	a.failure = err
	a.stream.cut(err)
}

// cutOff is what the client is told of a stream that broke.
func cutOff(err *openai.Error) *openai.Error {
	return &openai.Error{Status: err.Status, Type: err.Type, Code: openai.CodeUpstreamCut, Cause: err,
		Message: "the answer was cut off: " + err.Message}
}

// noInstance ends a request that nobody can take.
func (a *admitted) noInstance(d route.Decision) {
	cause := d.Action.(route.Reject).Cause
	a.story.addDecision(d)
	a.outcome = tenants.OutcomeUpstreamError
	switch {
	case a.stream.begun():
		a.outcome = tenants.OutcomeUpstreamTruncated
		a.settleGrant()
		a.giveUp("", cutOff(a.tries.err))
	case cause == route.ReasonTooLong:
		param := "messages"
		if a.ask.kind == kindText {
			param = "prompt"
		}
		a.outcome = tenants.OutcomeRejected
		a.refuse(openai.BadRequest(param, openai.CodeContextLength, "%s has %d bytes, far beyond the model's context", param, a.ask.promptBytes))
	case cause == route.ReasonAllFailed && a.tries.err != nil:
		a.refuseFor(cascade.ReasonCloudError, a.tries.err)
	default:
		a.refuseFor(cascade.ReasonCloudError, openai.Unavailable(openai.CodeNoInstance, time.Second,
			"no instance of model %s is ready: try again shortly", a.ask.model.Pool))
	}
}

// poolAsk is the request as the pool and the routing policy see it.
func (a *admitted) poolAsk() pool.Ask {
	v := route.RequestView{Model: a.ask.model.Pool, PromptBytes: a.ask.promptBytes, Session: a.ask.opts.Session,
		FailedPrefill: a.tries.failedPrefill, FailedDecode: a.tries.failedDecode,
		Resume: a.stream.begun() || a.tries.moved != nil}
	if a.ask.req.MaxTokens != nil {
		v.MaxTokens = *a.ask.req.MaxTokens
	}
	if c := a.ask.slo; c != nil {
		v.TPOT = time.Duration(c.TPOTMillis) * time.Millisecond
	}
	if h := a.tries.handoff; h.usable(time.Now()) {
		v.Handoff = h.from
	}
	return pool.Ask{RequestView: v, Operation: a.op, Keys: a.prefixKeys()}
}

func (a *admitted) seed() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.op))
	return h.Sum64() + uint64(a.tries.n)
}

// legFailure explains why a call to an instance failed, from the call's
// context and error.
func (a *admitted) legFailure(ctx context.Context, stage route.Stage, leg *pool.Leg, err error) *legError {
	f := &legError{Failure: route.Failure{Stage: stage, Kind: route.FailedBroken}, leg: leg}
	var dial *net.OpError
	cause := context.Cause(ctx)
	switch {
	case cause == errFirstByte:
		f.Kind = route.FailedTimeout
		f.api = &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeServer, Code: "upstream_timeout",
			Message: "the model gave no token in time", Cause: err, RetryAfter: time.Second}
	case cause == errStall:
		f.Kind = route.FailedStall
		f.api = upstreamError("the model server stood still", err)
	case cause == errDeadline:
		f.ended, f.api = tenants.OutcomeDeadline, deadlineError()
	case ctx.Err() != nil:
		f.ended = tenants.OutcomeClientCancelled
		f.api = &openai.Error{Status: 499, Type: openai.TypeInvalidRequest, Code: "client_closed_request", Message: "the client has gone", NoRetry: true}
	case errors.As(err, &dial) && dial.Op == "dial":
		f.Kind = route.FailedConnect
		f.api = upstreamError("the model server cannot be reached", err)
	default:
		f.api = upstreamError("the model server broke off its answer", err)
	}
	return f
}

// statusFailure explains an error status of an instance.
func statusFailure(stage route.Stage, leg *pool.Leg, status int, body []byte) *legError {
	f := &legError{Failure: route.Failure{Stage: stage, Kind: route.FailedStatus, Status: status}, leg: leg}
	told := openai.ParseError(status, body)
	if route.AfterFailure(f.Failure).Next == route.NextRefuse {
		told.NoRetry = true
		f.api = told
		return f
	}
	f.api = upstreamError("the model server refused", fmt.Errorf("status %d: %s", status, told.Message))
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		f.api = openai.Unavailable(openai.CodeNoInstance, time.Second, "the model's instances are busy: try again shortly")
		f.api.Cause = told
	}
	return f
}

func upstreamError(message string, cause error) *openai.Error {
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: openai.CodeUpstream, Message: message,
		RetryAfter: time.Second, Cause: cause}
}

func deadlineError() *openai.Error {
	return &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeServer, Code: openai.CodeDeadline, NoRetry: true,
		Message: "the request's deadline passed before the answer was ready"}
}

// cloneBody is the client's body as an instance may see it.
func (a *admitted) cloneBody(served string) openai.Body {
	b := a.ask.body.Clone()
	b.Set("model", served)
	return b
}

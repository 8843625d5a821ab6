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
	failedPrefill []string
	failedDecode  []string
	handoff       *handoff      // unread, from an earlier attempt
	err           *openai.Error // of the last one
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
	sel, decision := g.opts.Pool.Select(g.opts.Policy, trigger, a.routeView(), a.seed())
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
		a.refuse(err)
		return true
	}
	failed := at.run()
	sel.Release()
	if failed == nil {
		at.conclude(a.outcome, a.failure)
		return true
	}
	return at.failed(failed)
}

// run does the legs of the attempt. A nil error means that the client has been
// answered, in whole or in part, and outcome says how.
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
	if a.sel.Prefill != nil {
		var failed *legError
		if h, failed = a.runPrefill(ctx); failed != nil {
			return failed
		}
	}
	failed := a.runDecode(ctx, h, watch)
	if failed != nil && failed.ended == "" && route.AfterFailure(failed.Failure).KeepHandoff && h.usable(time.Now()) {
		a.tries.handoff = h
	}
	return failed
}

// failed settles an attempt that gave the client nothing, and either lets the
// next one go or tells the client. It returns true when the request is over.
func (a *attempt) failed(f *legError) bool {
	if f.ended != "" {
		a.outcome = f.ended
		a.conclude(f.ended, f.api)
		a.refuseEnded(f)
		return true
	}
	verdict := route.AfterFailure(f.Failure)
	outcome := tenants.OutcomeUpstreamError
	if verdict.Next == route.NextRefuse { // the request's own fault: the instance's words hold
		outcome = tenants.OutcomeRejected
	}
	a.settle(outcome, f.api)
	if verdict.Suspect {
		a.g.opts.Pool.Suspect(f.leg, f.api.Message)
	}
	a.g.opts.Log.Warn("attempt failed", "operation", a.op, "attempt", a.tries.n, "stage", f.Stage, "instance", f.leg.ID,
		"kind", f.Kind, "status", f.Status, "next", verdict.Next, "error", f.api)
	if f.Stage == route.StagePrefill {
		a.tries.failedPrefill = append(a.tries.failedPrefill, f.leg.ID)
	} else {
		a.tries.failedDecode = append(a.tries.failedDecode, f.leg.ID)
	}
	if verdict.Next == route.NextElsewhere && a.tries.n < a.g.opts.MaxAttempts {
		a.tries.err = f.api
		return false
	}
	a.outcome = outcome
	a.settleGrant()
	if verdict.Next == route.NextRefuse {
		a.refuse(f.api)
		return true
	}
	a.refuseFor(cascade.ReasonCloudError, f.api)
	return true
}

func (a *attempt) refuseEnded(f *legError) {
	if f.ended == tenants.OutcomeDeadline {
		a.refuseFor(cascade.ReasonDeadline, f.api)
		return
	}
	a.refuse(f.api)
}

// noInstance ends a request that nobody can take.
func (a *admitted) noInstance(d route.Decision) {
	cause := d.Action.(route.Reject).Cause
	a.story.addDecision(d)
	a.outcome = tenants.OutcomeUpstreamError
	switch cause {
	case route.ReasonTooLong:
		param := "messages"
		if a.ask.kind == kindText {
			param = "prompt"
		}
		a.outcome = tenants.OutcomeRejected
		a.refuse(openai.BadRequest(param, openai.CodeContextLength, "%s has %d bytes, far beyond the model's context", param, a.ask.promptBytes))
	case route.ReasonAllFailed:
		a.refuseFor(cascade.ReasonCloudError, a.tries.err)
	default:
		a.refuseFor(cascade.ReasonCloudError, openai.Unavailable(openai.CodeNoInstance, time.Second,
			"no instance of model %s is ready: try again shortly", a.ask.model.Pool))
	}
}

func (a *admitted) routeView() route.RequestView {
	v := route.RequestView{Model: a.ask.model.Pool, PromptBytes: a.ask.promptBytes, Session: a.ask.opts.Session,
		FailedPrefill: a.tries.failedPrefill, FailedDecode: a.tries.failedDecode}
	if a.ask.req.MaxTokens != nil {
		v.MaxTokens = *a.ask.req.MaxTokens
	}
	if h := a.tries.handoff; h.usable(time.Now()) {
		v.Handoff = h.from
	}
	return v
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

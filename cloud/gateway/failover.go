package gateway

import (
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// failed settles an attempt that did not bring the answer to its end, and
// either lets the next one go or tells the client. It returns true when the
// request is over.
func (a *attempt) failed(f *legError) bool {
	if a.stream.begun() && !f.Shown { // the prefill leg of an attempt to continue
		f.Shown, f.Resumable = true, a.continuable()
	}
	if before := a.tries.err; before != nil && before.RetryAfter > 0 {
		f.api.RetryAfter = min(f.api.RetryAfter, before.RetryAfter) // who is well first may be asked again
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
		a.another(true)
		return false
	}
	if a.standsIn(cascade.ReasonCloudError) {
		return true
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

// forget leaves the failed process out of this request's further attempts.
func (a *attempt) forget(f *legError) {
	if f.Stage == route.StagePrefill {
		a.tries.failedPrefill = append(a.tries.failedPrefill, f.leg.Process())
	} else {
		a.tries.failedDecode = append(a.tries.failedDecode, f.leg.Process())
	}
}

// handOver settles an attempt whose worker gave the answer to another.
func (a *attempt) handOver(m *movedAnswer) {
	a.settle(tenants.OutcomeSuperseded, nil)
	a.tries.left = a.sel.Decode.Process()
	a.tries.moved = m
	a.hold(a.sel.Decode, m.Params)
	a.stream.shown.took(m.Resume, a.sel.Decode.Weights)
	if a.carry(); a.used.reported != nil { // also of what was not shown yet
		a.tries.carried = a.sum
	}
	a.story.note("the answer moves to another instance")
}

// carry keeps what the attempt has delivered of the answer, for the sums that
// the client is told and the grant is settled with.
func (a *attempt) carry() {
	if a.used.delivered > 0 {
		a.tries.carried = a.sum
		a.story.note("continued by the next attempt")
	}
}

// endedBy ends a request that is over for its own reasons: its client has
// gone, its deadline has passed, its budget is used up.
func (a *attempt) endedBy(f *legError) {
	a.outcome = f.ended
	if f.ended == tenants.OutcomeDeadline && len(a.tries.waits) > 0 {
		a.settle(f.ended, f.api)
		if a.standsIn(cascade.ReasonDeadline) {
			return
		}
	}
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

// noInstance ends a request that nobody can take, as the decision d says.
func (a *admitted) noInstance(d route.Decision) {
	rejected := d.Action.(route.Reject)
	cause := rejected.Cause
	if a.standsIn(cascade.ReasonCloudError) {
		return
	}
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
		if err := a.tries.err; rejected.After > 0 {
			err.RetryAfter = min(err.RetryAfter, rejected.After)
		}
		a.refuseFor(cascade.ReasonCloudError, a.tries.err)
	case cause == route.ReasonAllBusy:
		a.refuseFor(cascade.ReasonCloudError, openai.Unavailable(openai.CodeNoInstance, rejected.After,
			"the instances of model %s are busy: try again shortly", a.ask.model.Pool))
	default:
		a.refuseFor(cascade.ReasonCloudError, openai.Unavailable(openai.CodeNoInstance, time.Second,
			"no instance of model %s is ready: try again shortly", a.ask.model.Pool))
	}
}

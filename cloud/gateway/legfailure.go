package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

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

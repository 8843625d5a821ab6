package local

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// refusal is the error of a plan that asks nobody.
func (s *Server) refusal(c *call, why cascade.Reason) error {
	c.result.Reason = why
	switch why {
	case cascade.ReasonClientMode:
		return openai.BadRequest("model", openai.CodeInvalidValue, "the model %q contradicts the mode %q: use the model auto, or the mode auto", c.req.Model, c.opt.Mode)
	case cascade.ReasonCapability:
		return c.tooMuch()
	case cascade.ReasonDeadline:
		return s.deadlineError(c)
	case cascade.ReasonCostCap:
		return openai.BadRequest(contract.HeaderMaxCost, openai.CodeInvalidValue, "asking the cloud may cost more than the request allows")
	case cascade.ReasonBudget:
		return &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeQuota, Code: openai.CodeQuotaExhausted,
			Message: "the budget is used up", NoRetry: true}
	case cascade.ReasonOffline:
		return openai.Unavailable(string(why), 2*time.Second, "the cloud cannot be reached and the edge may not answer this request")
	case cascade.ReasonLocalOnlyUnavailable:
		if c.named == cascade.TierCloud || c.opt.Mode == cascade.ModeCloudOnly {
			e := openai.Unavailable(string(why), 0, "the request is local-only, but its model or mode asks for the cloud")
			e.Param, e.NoRetry = contract.HeaderPrivacy, true
			return e
		}
		return openai.Unavailable(string(why), 2*time.Second, "the request is local-only and the local model cannot answer it now")
	}
	return openai.Unavailable(string(why), 2*time.Second, "no model can answer now")
}

// tooMuch names what no model that may be asked can take.
func (c *call) tooMuch() error {
	for _, name := range []string{"tools", "functions"} {
		if form.Present(c.body[name]) {
			return openai.BadRequest(name, openai.CodeUnsupported, "%s is not supported by any model that may be asked", name)
		}
	}
	return c.req.TooLong()
}

func (s *Server) deadlineError(c *call) error {
	c.result.Reason, c.outcome = cascade.ReasonDeadline, tenants.OutcomeDeadline
	return &openai.Error{Status: http.StatusGatewayTimeout, Type: openai.TypeServer, Code: openai.CodeDeadline,
		Param: contract.HeaderDeadline, Message: "no answer within the request's deadline", NoRetry: true}
}

// fallbackReason says why the cloud, asked for the reason why, did not answer.
// A request that is wrong keeps that reason, because then the cloud did not
// fail; what the tenant's limits refused is no failure either.
func fallbackReason(ctx context.Context, why cascade.Reason, err error) cascade.Reason {
	e, answered := errors.AsType[*openai.Error](err)
	switch {
	case errors.Is(context.Cause(ctx), errDeadline):
		return cascade.ReasonDeadline
	case answered && e.Status == http.StatusTooManyRequests:
		return cascade.ReasonBudget
	case !worthAnother(err):
		return why
	case answered, errors.Is(err, errCloudSilent):
		return cascade.ReasonCloudError
	}
	return cascade.ReasonOffline
}

// worthAnother reports whether another tier may do better than this answer of
// the cloud: not where the request itself is wrong.
func worthAnother(err error) bool {
	e, answered := errors.AsType[*openai.Error](err)
	return !answered || e.Status >= 500 || e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout
}

// cloudFailure is what a client hears when only the cloud could have answered,
// which was asked for the reason why.
func (s *Server) cloudFailure(ctx context.Context, c *call, out *output, why cascade.Reason, err error) error {
	if gone := s.gone(ctx); gone != nil {
		return gone
	}
	if errors.Is(context.Cause(ctx), errDeadline) {
		return s.deadlineError(c)
	}
	c.result.Reason = fallbackReason(ctx, why, err)
	c.outcome = tenants.OutcomeUpstreamError
	if e, answered := errors.AsType[*openai.Error](err); answered {
		if e.Status < 500 {
			c.outcome = tenants.OutcomeRejected
		}
		if refused, ok := errors.AsType[*refusedError](err); ok {
			out.setHeader(refused.header)
		}
		return e
	}
	msg := "the cloud did not answer"
	if errors.Is(err, uplink.ErrDown) {
		msg = "the cloud cannot be reached"
	}
	e := openai.Unavailable(string(c.result.Reason), 2*time.Second, "%s", msg)
	e.Cause = err
	return e
}

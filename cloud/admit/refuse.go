package admit

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/quota"
)

func notReady() error {
	return openai.Unavailable("not_ready", 2*time.Second, "the gateway has not loaded its tenants yet")
}

// refusal makes an API error of a verdict, with the limits as they stand.
func (g *grant) refusal(v quota.Verdict) error {
	header := http.Header{}
	g.SetHeaders(header)
	return &gateway.Refused{Err: verdictError(v), Outcome: tenants.OutcomeRejected, Header: header}
}

func verdictError(v quota.Verdict) *openai.Error {
	e := &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: v.Reason.String(), RetryAfter: v.RetryAfter}
	what := fmt.Sprintf("%s %s", v.Kind, per(v.Window))
	switch v.Reason {
	case quota.RateLimited:
		e.Message = fmt.Sprintf("the limit %s of %s is reached", v.LimitID, what)
	case quota.ConcurrencyFull:
		e.Message = fmt.Sprintf("the limit %s of requests at the same time is reached", v.LimitID)
	case quota.QuotaExhausted:
		e.Type = openai.TypeQuota
		e.Message = fmt.Sprintf("the budget %s of %s is used up or held by requests under way", v.LimitID, what)
	case quota.TooLarge:
		e.NoRetry = true
		e.Message = fmt.Sprintf("the request needs more than the whole limit %s of %s: send a shorter prompt or lower max_tokens", v.LimitID, what)
	case quota.LeaseWanted:
		e = openai.Unavailable(v.Reason.String(), max(v.RetryAfter, time.Second), "the budget %s of %s cannot be checked: its store is away", v.LimitID, what)
	case quota.InvalidRequest:
		e = openai.BadRequest("max_tokens", openai.CodeInvalidValue, "the request's size is absurd: lower max_tokens or n")
	default: // too many limits: the operator's mistake
		e = openai.Internal(fmt.Errorf("admission: %s", v.Reason))
	}
	return e
}

func per(w quota.Window) string {
	switch w {
	case quota.AtOnce:
		return "at once"
	default:
		return "per " + w.String()
	}
}

// overrunError ends a strict tenant's stream.
func overrunError(v quota.Verdict) *openai.Error {
	e := verdictError(v)
	e.Code = string(tenants.OutcomeQuotaExceeded)
	e.Message = "the answer was ended: " + e.Message
	return e
}

// turnedAway makes an API error of the fair queue's refusal.
func (g *grant) turnedAway(r fair.Refusal) error {
	header := http.Header{}
	g.SetHeaders(header)
	out := &gateway.Refused{Outcome: tenants.OutcomeShed, Header: header}
	switch r {
	case fair.TenantFull:
		out.Err = &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: r.String(), RetryAfter: 2 * time.Second,
			Message: "too many requests of this tenant are waiting"}
	case fair.QueueTimedOut:
		out.Err = openai.Unavailable(r.String(), 2*time.Second, "the request has waited as long as its SLO class allows: the model is busy")
	case fair.Shed:
		out.Err = openai.Unavailable(r.String(), 5*time.Second, "requests of this SLO class are shed: the model is busy with more important ones")
	default:
		out.Err = openai.Unavailable(r.String(), 2*time.Second, "too many requests are waiting for the model")
	}
	return out
}

// setHeaders sets X-RateLimit-* for requests and for tokens, each by the limit
// with the least left.
func setHeaders(h http.Header, account *quota.Account, r *quota.Request) {
	var room [8]quota.Status
	all := account.Status(r, time.Now(), room[:0])
	for _, group := range [...]struct {
		name  string
		kinds []quota.Kind
	}{{"Requests", []quota.Kind{quota.Requests}}, {"Tokens", []quota.Kind{quota.Total, quota.Input, quota.Output}}} {
		st, ok := quota.Headline(all, group.kinds...)
		if !ok {
			continue
		}
		h.Set("X-Ratelimit-Limit-"+group.name, strconv.FormatInt(st.Limit.Max, 10))
		h.Set("X-Ratelimit-Remaining-"+group.name, strconv.FormatInt(st.Remaining, 10))
		h.Set("X-Ratelimit-Reset-"+group.name, st.Reset.Round(time.Millisecond).String())
	}
}

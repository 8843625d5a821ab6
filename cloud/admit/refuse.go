package admit

import (
	"net/http"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/refusal"
)

func notReady() error {
	return openai.Unavailable("not_ready", 2*time.Second, "the gateway has not loaded its tenants yet")
}

// refusal makes an API error of a verdict, with the limits as they stand.
func (g *grant) refusal(v quota.Verdict) error {
	header := http.Header{}
	g.SetHeaders(header)
	return &gateway.Refused{Err: refusal.Error(v), Outcome: tenants.OutcomeRejected, Header: header}
}

// overrunError ends a strict tenant's stream.
func overrunError(v quota.Verdict) *openai.Error {
	e := refusal.Error(v)
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

// Package refusal tells clients what tenants/quota decided: the error of a
// refused request, and the X-RateLimit headers of any.
package refusal

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/quota"
)

// Error is the API's error for a verdict that is not OK: 429 for the tenant's
// own limits, 503 where a budget cannot be checked. Its code is the verdict's
// reason.
func Error(v quota.Verdict) *openai.Error {
	e := &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeRateLimit, Code: v.Reason.String(), RetryAfter: v.RetryAfter}
	what := fmt.Sprintf("%s per %s", v.Kind, v.Window)
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
		if v.Window == quota.AtOnce {
			e.Message = fmt.Sprintf("the limit %s allows no requests", v.LimitID)
			break
		}
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

// groups are the X-RateLimit header groups and the kinds that each shows.
var groups = [...]struct {
	name  string
	kinds []quota.Kind
}{{"Requests", []quota.Kind{quota.Requests}}, {"Tokens", []quota.Kind{quota.Total, quota.Input, quota.Output}}}

// SetHeaders sets X-RateLimit-{Limit,Remaining,Reset}-{Requests,Tokens}, each
// group by the limit with the least left; a group without a limit is left out.
func SetHeaders(h http.Header, all []quota.Status) {
	for _, group := range groups {
		st, ok := quota.Headline(all, group.kinds...)
		if !ok {
			continue
		}
		h.Set("X-Ratelimit-Limit-"+group.name, strconv.FormatInt(st.Limit.Max, 10))
		h.Set("X-Ratelimit-Remaining-"+group.name, strconv.FormatInt(st.Remaining, 10))
		h.Set("X-Ratelimit-Reset-"+group.name, st.Reset.Round(time.Millisecond).String())
	}
}

package refusal

import (
	"net/http"
	"testing"
	"time"

	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants/quota"
)

// TestError: each refusal has the status, type and code that clients act on,
// and names the limit.
func TestError(t *testing.T) {
	for _, c := range []struct {
		reason quota.Reason
		status int
		kind   string
		code   string
		again  bool // a retry makes sense
	}{
		{quota.RateLimited, 429, openai.TypeRateLimit, "rate_limited", true},
		{quota.ConcurrencyFull, 429, openai.TypeRateLimit, "concurrency_full", true},
		{quota.QuotaExhausted, 429, openai.TypeQuota, "quota_exhausted", true},
		{quota.TooLarge, 429, openai.TypeRateLimit, "too_large", false},
		{quota.LeaseWanted, 503, openai.TypeUnavailable, "lease_wanted", true},
		{quota.InvalidRequest, 400, openai.TypeInvalidRequest, openai.CodeInvalidValue, false},
		{quota.TooManyLimits, 500, openai.TypeServer, openai.CodeInternal, true},
	} {
		e := Error(quota.Verdict{Reason: c.reason, LimitID: "l1", Kind: quota.Requests, Window: quota.Minute, RetryAfter: time.Second})
		if e.Status != c.status || e.Type != c.kind || e.Code != c.code || e.NoRetry == c.again || e.Message == "" {
			t.Errorf("%s: %+v", c.reason, e)
		}
	}
}

func TestSetHeaders(t *testing.T) {
	h := http.Header{}
	SetHeaders(h, []quota.Status{
		{Limit: quota.Limit{Kind: quota.Requests, Max: 60}, Remaining: 12, Reset: 1500 * time.Millisecond},
		{Limit: quota.Limit{Kind: quota.Requests, Max: 5}, Remaining: 3},
		{Limit: quota.Limit{Kind: quota.Requests, Max: 1, Shadow: true}},
		{Limit: quota.Limit{Kind: quota.Concurrent, Max: 1}},
	})
	if h.Get("X-RateLimit-Limit-Requests") != "5" || h.Get("X-RateLimit-Remaining-Requests") != "3" || h.Get("X-RateLimit-Reset-Requests") != "0s" || len(h) != 3 {
		t.Errorf("headers %v", h)
	}
}

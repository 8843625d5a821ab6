package local_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/weirhq/weir/edge/internal/workertest"
	"github.com/weirhq/weir/edge/local"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// limit gives the node's tenant these limits and no others.
func (n *node) limit(version int64, limits ...tenants.Limit) {
	n.t.Helper()
	snap := n.cloud.DefaultSnapshot(version)
	for i, l := range limits {
		l.ID, l.TenantID = "l"+strconv.Itoa(i), snap.Tenants[0].ID
		snap.Limits = append(snap.Limits, l)
	}
	n.cloud.SetSnapshot(n.t, snap)
	n.poll()
}

func requestsPerMinute(limit, burst int64) tenants.Limit {
	return tenants.Limit{Kind: tenants.LimitRequests, Window: tenants.PerMinute, Limit: limit, Burst: burst}
}

// TestLimitOfLocalAnswers: a device keeps its tenant's requests per minute for
// its own model, with the headers that the cloud sends.
func TestLimitOfLocalAnswers(t *testing.T) {
	for _, tier := range []tenants.Tier{"", tenants.Edge} {
		t.Run("tier "+string(tier), func(t *testing.T) {
			n := startNode(t, nil)
			l := requestsPerMinute(1, 3)
			l.Tier = tier
			n.limit(2, l)
			for left := 2; left >= 0; left-- {
				a := n.chat([]string{"", `,"stream":true`}[left%2])
				if a.status != 200 || a.header.Get("X-RateLimit-Limit-Requests") != "1" || a.header.Get("X-RateLimit-Remaining-Requests") != strconv.Itoa(left) {
					t.Fatalf("%d left: status %d, headers %v", left, a.status, a.header)
				}
			}
			rows := len(n.rows.all())
			for _, more := range []string{"", `,"stream":true`} {
				a := n.chat(more)
				if a.status != 429 || a.errCode != "rate_limited" || a.weir.Reason != "budget" || a.header.Get("X-RateLimit-Remaining-Requests") != "0" || a.header.Get("Retry-After") == "" {
					t.Errorf("beyond the limit: status %d, code %s, weir %+v, headers %v", a.status, a.errCode, a.weir, a.header)
				}
			}
			if len(n.rows.all()) != rows || len(n.cloud.Seen()) != 0 || len(n.worker.Seen()) != 3 {
				t.Error("a refused request reached a model or has a row")
			}
			if a := n.chat("", "X-Weir-Mode", "cloud-only"); a.status != 200 {
				t.Errorf("the cloud has its own limits: %d", a.status)
			}
			l.Burst = 5
			n.limit(3, l)
			if a := n.chat(""); a.status != 429 {
				t.Errorf("a raised limit has minted requests: %d", a.status)
			}
			n.limit(4)
			if a := n.chat(""); a.status != 200 {
				t.Errorf("without a limit: %d", a.status)
			}
		})
	}
}

// TestLocalAnswersAtOnce: a slot is held while the local model runs, and free
// before the answer's last byte leaves.
func TestLocalAnswersAtOnce(t *testing.T) {
	n := startNode(t, nil)
	n.limit(2, tenants.Limit{Kind: tenants.LimitConcurrent, Window: tenants.AtOnce, Limit: 1, Tier: tenants.Edge})
	gate := make(chan struct{})
	n.worker.Set(workertest.Reply{Text: "from the edge", Logprob: -.001, Gate: gate})
	var wg sync.WaitGroup
	wg.Go(func() {
		if a := n.chat(""); a.status != 200 {
			t.Errorf("the first: %d", a.status)
		}
	})
	eventually(t, "the first runs", func() bool { return len(n.worker.Seen()) == 1 })
	if a := n.chat(""); a.status != 429 || a.errCode != "concurrency_full" || a.header.Get("Retry-After") != "1" {
		t.Errorf("the second: %d %s", a.status, a.errCode)
	}
	close(gate)
	wg.Wait()
	n.worker.Set(workertest.Reply{Text: "from the edge", Logprob: -.001})
	for i := range 50 {
		if a := n.chat([]string{"", `,"stream":true`}[i%2]); a.status != 200 {
			t.Fatalf("call %d, one at a time: %d %s", i, a.status, a.errCode)
		}
	}
	for range 5 {
		n.worker.Set(workertest.Reply{Status: 500})
		n.chat("")
	}
	n.worker.Set(workertest.Reply{Text: "from the edge", Logprob: -.001, Gate: make(chan struct{})})
	before := len(n.worker.Seen())
	n.abandon(func() bool { return len(n.worker.Seen()) > before })
	n.worker.Set(workertest.Reply{Text: "from the edge", Logprob: -.001})
	eventually(t, "failures and aborts leave no slot in use", func() bool { return n.chat("").status == 200 })
}

// TestWhatDevicesDoNotLimit: tokens, money and budgets are the cloud's, as are
// limits of its tier and shadow limits refuse nobody.
func TestWhatDevicesDoNotLimit(t *testing.T) {
	var tel *telemetry.Telemetry
	n := startNode(t, func(o *local.Options) { tel = o.Telemetry })
	cloud, shadow := requestsPerMinute(0, 0), requestsPerMinute(0, 0)
	cloud.Tier, shadow.Shadow = tenants.Cloud, true
	n.limit(2, cloud, shadow,
		tenants.Limit{Kind: tenants.LimitOutput, Window: tenants.PerMinute},
		tenants.Limit{Kind: tenants.LimitRequests, Window: tenants.PerDay},
		tenants.Limit{Kind: tenants.LimitCost, Window: tenants.PerMonth},
		tenants.Limit{Kind: tenants.LimitEscalations, Window: tenants.PerMinute})
	if a := n.chat(""); a.status != 200 || a.weir.Tier != "edge" {
		t.Errorf("status %d, weir %+v", a.status, a.weir)
	}
	w := httptest.NewRecorder()
	tel.MetricsHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains(w.Body.String(), "weir_edge_shadow_refusals_total 1\n") {
		t.Error("the refusal in shadow is not counted")
	}
}

// TestTheCloudsLimits: what the tenant's limits refuse in the cloud is no fault
// of the cloud, and its headers reach the client.
func TestTheCloudsLimits(t *testing.T) {
	n := startNode(t, nil)
	for _, code := range []string{"rate_limited", "concurrency_full", "quota_exhausted", "too_large"} {
		n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h.Set("X-RateLimit-Limit-Requests", "60")
			h.Set("X-RateLimit-Remaining-Requests", "0")
			h.Set("X-RateLimit-Reset-Tokens", "1.5s")
			(&openai.Error{Status: 429, Type: openai.TypeRateLimit, Code: code, Message: "no", RetryAfter: 1500e6, NoRetry: code == "too_large"}).Write(w, nil)
		})
		n.worker.Set(unsure)
		for _, stream := range []string{"", `,"stream":true`} {
			a := n.send("/v1/chat/completions", `{"model":"hub-cloud",`+hello+stream+`}`)
			h := a.header
			if a.status != 429 || a.errCode != code || a.weir.Reason != "budget" || h.Get("Retry-After-Ms") != "1500" || (h.Get("X-Should-Retry") == "false") != (code == "too_large") {
				t.Errorf("%s%s: status %d, code %s, reason %s, headers %v", code, stream, a.status, a.errCode, a.weir.Reason, h)
			}
			if h.Get("X-RateLimit-Limit-Requests") != "60" || h.Get("X-RateLimit-Remaining-Requests") != "0" || h.Get("X-RateLimit-Reset-Tokens") != "1.5s" {
				t.Errorf("%s%s: the limits are lost: %v", code, stream, h)
			}
			if a := n.chat(stream); a.status != 200 || a.weir.Tier != "edge" || a.weir.Reason != "budget" {
				t.Errorf("%s%s with a local answer: %d %+v", code, stream, a.status, a.weir)
			}
		}
	}
}

// TestWrongRequestsAreNotTheCloudsFault: an answer 4xx of the cloud keeps the
// reason for which it was asked.
func TestWrongRequestsAreNotTheCloudsFault(t *testing.T) {
	n := startNode(t, nil)
	n.cloud.Answer(func(w http.ResponseWriter, _ *http.Request) {
		openai.BadRequest("messages", openai.CodeContextLength, "too long").Write(w, nil)
	})
	for _, stream := range []string{"", `,"stream":true`} {
		for _, mode := range []string{"auto", "prefer-edge"} {
			n.worker.Set(workertest.Reply{Status: 400, Code: openai.CodeContextLength})
			if a := n.chat(stream, "X-Weir-Mode", mode); a.status != 400 || a.errCode != openai.CodeContextLength || a.weir.Reason != "capability" {
				t.Errorf("%s%s, too long for both: %d %s %+v", mode, stream, a.status, a.errCode, a.weir)
			}
		}
		n.worker.Set(unsure)
		if a := n.chat(stream); a.status != 200 || a.weir.Tier != "edge" || a.weir.Reason != "low_confidence" {
			t.Errorf("%s too long for the cloud: %d %+v", stream, a.status, a.weir)
		}
	}
}

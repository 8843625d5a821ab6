package gateway

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// listed is every path of the gateway and whether it may reach a model. A new
// path that is not listed here fails TestRouteTable.
var listed = map[string]bool{
	"POST /v1/chat/completions": true,
	"POST /v1/completions":      true,
	"GET /v1/models":            false,
	"GET /v1/models/:id":        false,
	"GET /v1/usage":             false,
	"GET /v1/weir/requests/:id": false,

	"PUT /v1/weir/requests/:id/feedback": false,

	"GET /admin/v1/only-in-a-test": false,
}

// gate is an Admission that a test scripts.
type gate struct {
	admit   func(context.Context, Work) (Grant, error)
	settled chan tenants.UsageRecord
	room    func(Work) bool   // nil: there is
	moves   func(string) bool // nil: it does
}

func (g gate) Admit(ctx context.Context, w Work) (Grant, error) { return g.admit(ctx, w) }
func (g gate) Correct(int)                                      {}
func (g gate) Delivered(int) error                              { return nil }
func (g gate) SetHeaders(http.Header)                           {}
func (g gate) Room(w Work) bool                                 { return g.room == nil || g.room(w) }
func (g gate) Moves(pool string) bool                           { return g.moves == nil || g.moves(pool) }
func (g gate) Settle(r tenants.UsageRecord)                     { g.settled <- r }

// TestRouteTable: every path is listed, and what may reach a model does not
// when admission says no.
func TestRouteTable(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	shut := gate{admit: func(context.Context, Work) (Grant, error) {
		return nil, &openai.Error{Status: 429, Type: openai.TypeRateLimit, Code: "closed", Message: "closed"}
	}}
	r := newRig(t, func(o *Options) {
		o.Admission = shut
		o.Mount = func(g gin.IRouter) { g.GET("/admin/v1/only-in-a-test", func(c *gin.Context) { c.Status(204) }) }
	}, d)
	var paths []string
	for _, rt := range r.engine.Routes() {
		path := rt.Method + " " + rt.Path
		paths = append(paths, path)
		model, ok := listed[path]
		if !ok {
			t.Errorf("%s is not listed: say in seam_test.go whether it reaches a model", path)
			continue
		}
		got := r.do(t, rt.Method, strings.Replace(rt.Path, ":id", "x", 1), r.key,
			map[string]string{"/v1/chat/completions": ask1, "/v1/completions": `{"model":"auto","prompt":"x"}`}[rt.Path])
		if model && (got.status != 429 || errorOf(t, got.body)["code"] != "closed") {
			t.Errorf("%s went past admission: %d %s", path, got.status, got.body)
		}
	}
	for path := range listed {
		if !slices.Contains(paths, path) {
			t.Errorf("%s is listed but not served", path)
		}
	}
	if body, _ := d.last(); body != nil {
		t.Errorf("an instance was asked %v", body)
	}
}

func TestAdmission(t *testing.T) {
	works := make(chan Work, 1)
	g := gate{settled: make(chan tenants.UsageRecord, 1)}
	g.admit = func(_ context.Context, w Work) (Grant, error) { works <- w; return g, nil }
	r := newRig(t, func(o *Options) { o.Admission = g }, newInstance(t, "d", "mixed"))
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}],"max_tokens":9}`)
	w := <-works
	if w.Operation != got.header.Get(contract.HeaderRequestID) || w.Identity.TenantID != tenantA || w.Model != "auto" || w.Pool != "big" ||
		w.MaxTokens != 9 || w.PromptBytes != len(`[{"role":"user","content":"hi"}]`) || w.Class != "gold" {
		t.Errorf("work %+v", w)
	}
	if u := <-g.settled; u.Outcome != tenants.OutcomeOK || u.OutputTokens != 4 {
		t.Errorf("settled with %+v", u)
	}
}

// TestQueue: a request that waits for admission leaves with its deadline.
func TestQueue(t *testing.T) {
	g := gate{admit: func(ctx context.Context, _ Work) (Grant, error) { <-ctx.Done(); return nil, ctx.Err() }}
	r := newRig(t, func(o *Options) { o.Admission = g }, newInstance(t, "d", "mixed"))
	got := r.chat(t, ask1, contract.HeaderDeadline, "2000")
	if got.status != 504 || errorOf(t, got.body)["code"] != "deadline_exceeded" || weirOf(t, got.body)["queue_ms"].(float64) < 1 {
		t.Errorf("answer %d %s", got.status, got.body)
	}
}

func TestOverload(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, func(o *Options) { o.MaxInFlight = 1 }, d)
	reached, leave := d.holds(t)
	done := r.later(t, ask1)
	take(t, "the request at the instance", reached)
	got := r.chat(t, ask1)
	if got.status != 503 || got.header.Get("Retry-After") == "" || got.header.Get("Retry-After-Ms") == "" || errorOf(t, got.body)["code"] != "overloaded" {
		t.Errorf("answer %d %s", got.status, got.body)
	}
	leave()
	if first := take(t, "the first answer", done); first.status != 200 {
		t.Errorf("the first request got %d %s", first.status, first.body)
	}
}

func TestPanic(t *testing.T) {
	g := gate{admit: func(context.Context, Work) (Grant, error) { panic("secret detail") }}
	r := newRig(t, func(o *Options) { o.Admission = g }, newInstance(t, "d", "mixed"))
	got := r.chat(t, ask1)
	if got.status != 500 || errorOf(t, got.body)["code"] != "internal_error" || strings.Contains(got.body, "secret detail") {
		t.Errorf("answer %d %s", got.status, got.body)
	}
	if n := strings.Count(r.log.String(), "panic in a handler"); n != 1 {
		t.Errorf("logged %d times", n)
	}
	if r.InFlight() != 0 {
		t.Error("the request is still counted")
	}
}

func TestExplain(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, func(o *Options) { o.ExplainSize = 2 }, p, d)
	p.on(func(w http.ResponseWriter, rq *http.Request, body map[string]any) bool {
		p.on(nil)
		return dies(w, rq, body)
	})
	id := r.chat(t, ask1).header.Get(contract.HeaderRequestID)
	path := "/v1/weir/requests/" + id
	got := r.do(t, http.MethodGet, path, r.key, "")
	e := decode(t, got.body)
	tries := e["attempts"].([]any)
	if got.status != 200 || e["outcome"] != "ok" || len(tries) != 2 || tries[0].(map[string]any)["outcome"] != "upstream_error" || tries[1].(map[string]any)["candidates"] == nil {
		t.Errorf("explanation %s", got.body)
	}
	if strings.Contains(got.body, `"d"`) || strings.Contains(got.body, `"p"`) || strings.Contains(got.body, "the light") {
		t.Errorf("it names an instance or shows the prompt: %s", got.body)
	}
	if got = r.do(t, http.MethodGet, path, r.narrow, ""); got.status != 200 || strings.Contains(got.body, "candidates") {
		t.Errorf("without scope explain: %d %s", got.status, got.body)
	}
	if got = r.do(t, http.MethodGet, path, r.other, ""); got.status != 404 {
		t.Errorf("another tenant: %d %s", got.status, got.body)
	}
	r.chat(t, ask1)
	r.chat(t, ask1)
	if got = r.do(t, http.MethodGet, path, r.key, ""); got.status != 404 {
		t.Errorf("after the ring has turned: %d", got.status)
	}
}

type usageFake struct{ got UsageQuery }

func (u *usageFake) Usage(_ context.Context, q UsageQuery) (any, error) {
	u.got = q
	return map[string]any{"data": []int{}}, nil
}

func TestUsage(t *testing.T) {
	u := &usageFake{}
	r := newRig(t, func(o *Options) { o.Usage = u }, newInstance(t, "d", "mixed"))
	got := r.do(t, http.MethodGet, "/v1/usage?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&limit=5&key_id=abcd", r.key, "")
	if got.status != 200 || u.got.TenantID != tenantA || u.got.KeyID != "abcd" || u.got.Limit != 5 || u.got.To.Sub(u.got.From) != 24*time.Hour {
		t.Errorf("%d %s %+v", got.status, got.body, u.got)
	}
	for _, q := range []string{"from=x", "limit=0", "limit=1001", "tenant_id=" + tenantB, "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z"} {
		if got := r.do(t, http.MethodGet, "/v1/usage?"+q, r.key, ""); got.status != 400 {
			t.Errorf("?%s: %d %s", q, got.status, got.body)
		}
	}
}

func TestAccessLog(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "d", "mixed"))
	got := r.chat(t, ask1, "X-Request-Id", "my-label")
	await(t, "the log line", func() bool { return strings.Contains(r.log.String(), "msg=request") })
	line := ""
	for l := range strings.Lines(r.log.String()) {
		if strings.Contains(l, "msg=request") {
			line = l
		}
	}
	for _, want := range []string{"operation=" + got.header.Get(contract.HeaderRequestID), "tenant=" + tenantA, "model=auto", "outcome=ok",
		"input_tokens=7", "output_tokens=4", "ttft=", "total=", "client_request_id=my-label", "status=200"} {
		if !strings.Contains(line, want) {
			t.Errorf("the line %q lacks %s", line, want)
		}
	}
}

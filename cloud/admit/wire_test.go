package admit_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirhq/weir/engine/fake"
	"github.com/weirhq/weir/internal/testpg"
)

// script is an engine in whose way a test stands.
type script struct {
	engine http.Handler
	act    atomic.Value // func(http.ResponseWriter, *http.Request) bool: true where it has answered
}

func (s *script) set(act func(http.ResponseWriter, *http.Request) bool) { s.act.Store(act) }

func (s *script) plain() { s.set(func(http.ResponseWriter, *http.Request) bool { return false }) }

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if act, ok := s.act.Load().(func(http.ResponseWriter, *http.Request) bool); ok && r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body) // the server tells that the client has left only when the body is read
		r.Body = io.NopCloser(bytes.NewReader(body))
		if act(w, r) {
			return
		}
	}
	s.engine.ServeHTTP(w, r)
}

// says sends the beginning of a stream: n tokens.
func says(w http.ResponseWriter, n int) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	for i := range n {
		fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"w%d "}}]}`+"\n\n", i)
	}
	_ = http.NewResponseController(w).Flush()
}

// TestOverTheWire holds requirements on gateway processes, each for a tenant of
// its own.
func TestOverTheWire(t *testing.T) {
	s := &script{engine: fake.New(fake.Options{Model: "m", MaxTokens: 4})}
	f := newFleetOn(t, testpg.Start(t), 0, s, true)
	f.second = httptest.NewServer(s)
	t.Cleanup(f.second.Close)
	f.start(1)
	// The first comes before the gateway has learned how long answers are.
	t.Run("tokens are reserved", func(t *testing.T) { tokensAreReserved(t, f, s) })
	t.Run("a key's first requests", func(t *testing.T) { firstRequestsOfAKey(t, f) })
	t.Run("headers", func(t *testing.T) { headersOfEveryAnswer(t, f) })
	t.Run("nothing for no token", func(t *testing.T) { nothingForNoToken(t, f, s) })
	t.Run("relayed tokens", func(t *testing.T) { relayedTokens(t, f, s) })
	t.Run("operations", func(t *testing.T) { requestsAreOperations(t, f, s) })
	t.Run("dimensions", func(t *testing.T) { dimensions(t, f) })
	t.Run("shadow", func(t *testing.T) { shadowOverGateways(t, f) })
}

// tokensAreReserved: of 100 parallel calls of 200 tokens each, 1,000 tokens a
// minute let 5 be under way (requirement 10).
func tokensAreReserved(t *testing.T, f *fleet, s *script) {
	f = f.of(t, false, limit{kind: "output_tokens", window: "minute", max: 1000})
	var in, out, refused atomic.Int64
	gate := make(chan struct{})
	s.set(func(_ http.ResponseWriter, r *http.Request) bool {
		in.Add(1)
		select {
		case <-gate:
		case <-r.Context().Done():
		}
		return false
	})
	defer s.plain()
	began := time.Now()
	for range 100 {
		go func() {
			r := f.nodes[0].ask(context.Background(), `,"max_tokens":200`)
			if r.status == 429 && r.code() == "rate_limited" && r.header.Get("X-RateLimit-Limit-Tokens") == "1000" && r.header.Get("Retry-After-Ms") != "" {
				refused.Add(1)
			}
			out.Add(1)
		}()
	}
	eventually(t, "each call is refused or under way", func() bool { return refused.Load()+in.Load() == 100 })
	refilled := int64(time.Since(began)/time.Second) * 1000 / 60 / 200
	if n := in.Load(); n < 5 || n > 5+refilled {
		t.Errorf("%d calls are under way: want 5, and %d for the time that passed", n, refilled)
	}
	close(gate)
	eventually(t, "all are answered", func() bool { return out.Load() == 100 })
}

// firstRequestsOfAKey: 8 parallel first requests of a key that nobody has seen
// meet its limit (requirement 2).
func firstRequestsOfAKey(t *testing.T, f *fleet) {
	f = f.of(t, true, limit{kind: "requests", window: "day", max: 3, key: "*"})
	for range 2 {
		_, key := f.newKey()
		f.nodes[0].awaitKey(key)
		got := make(chan int, 8)
		for range 8 {
			go func() { got <- f.nodes[0].askAs(context.Background(), key, "").status }()
		}
		count := map[int]int{}
		for range 8 {
			count[<-got]++
		}
		if count[200] != 3 || count[429] != 5 {
			t.Errorf("statuses %v: want 3 of 8", count)
		}
	}
}

// headersOfEveryAnswer: limit, remaining and reset are on each answer and each
// refusal, and what remains never rises within the period (requirement 11). A
// stream's head leaves while its tokens are reserved, so it tells less.
func headersOfEveryAnswer(t *testing.T, f *fleet) {
	f = f.of(t, true, limit{kind: "requests", window: "month", max: 6}, limit{kind: "total_tokens", window: "month", max: 1_000_000})
	n := f.nodes[0]
	left := map[string]int{"Requests": 6, "Tokens": 1_000_000, "Tokens of streams": 1_000_000}
	for i := range 8 {
		if i == 3 {
			eventually(t, "the unspent block goes back", func() bool {
				return f.number(`select coalesce(sum(returned), 0) from weir.budget_leases where tenant_id = $1`, f.tenant) > 0
			})
		}
		r := n.ask(t.Context(), []string{"", `,"stream":true`}[i%2])
		want := map[bool]int{true: 200, false: 429}[i < 6]
		if r.status != want || want == 429 && (r.code() != "quota_exhausted" || r.header.Get("Retry-After") == "") {
			t.Fatalf("call %d: %d %s", i, r.status, r.body)
		}
		for _, group := range []string{"Requests", "Tokens"} {
			kept := group
			if group == "Tokens" && i < 6 && i%2 == 1 {
				kept = "Tokens of streams"
			}
			before := left[kept]
			remaining, err := strconv.Atoi(r.header.Get("X-RateLimit-Remaining-" + group))
			reset, err2 := time.ParseDuration(r.header.Get("X-RateLimit-Reset-" + group))
			if err != nil || err2 != nil || remaining > before || reset <= 0 || r.header.Get("X-RateLimit-Limit-"+group) == "" {
				t.Errorf("call %d: %s: %d before, headers %v", i, group, before, r.header)
			}
			left[kept] = remaining
		}
		if want := max(5-i, 0); left["Requests"] != want {
			t.Errorf("call %d: %d requests remain, want %d", i, left["Requests"], want)
		}
	}
}

// nothingForNoToken: what failed before its first token costs nothing, and what
// failed later costs what came (requirement 6).
func nothingForNoToken(t *testing.T, f *fleet, s *script) {
	f = f.of(t, true, limit{kind: "cost_nanousd", window: "month", max: 1 << 50}, limit{kind: "output_tokens", window: "month", max: 1 << 40})
	defer s.plain()
	s.set(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	f.nodes[0].ask(t.Context(), "")
	s.set(func(w http.ResponseWriter, _ *http.Request) bool { says(w, 0); panic(http.ErrAbortHandler) })
	f.nodes[0].ask(t.Context(), `,"stream":true`)
	ctx, leave := context.WithCancel(t.Context())
	s.set(func(w http.ResponseWriter, r *http.Request) bool { leave(); <-r.Context().Done(); return true })
	f.nodes[0].ask(ctx, `,"stream":true`)
	eventually(t, "failures and the abort have their rows", func() bool {
		return f.ledgered("(outcome = 'client_cancelled')::int") == 1 && f.ledgered("(outcome in ('upstream_error', 'upstream_truncated'))::int") >= 2
	})
	eventually(t, "nothing is charged", func() bool { return f.reserved() == 0 })
	if f.ledgered("cost_nanousd") != 0 || f.ledgered("output_tokens") != 0 || f.used("cost_nanousd") != 0 || f.used("output_tokens") != 0 {
		t.Errorf("charged %d nano-dollars, budget %d", f.ledgered("cost_nanousd"), f.used("cost_nanousd"))
	}
	s.set(func(w http.ResponseWriter, _ *http.Request) bool { says(w, 2); panic(http.ErrAbortHandler) })
	if r := f.nodes[0].ask(t.Context(), `,"stream":true`); strings.Contains(r.body, "[DONE]") {
		t.Errorf("a cut answer ended well: %s", r.body)
	}
	eventually(t, "what came is charged", func() bool {
		return f.ledgered("output_tokens") == 2 && f.ledgered("cost_nanousd") > 0 && f.reserved() == 0 && f.used("cost_nanousd") == f.ledgered("cost_nanousd")
	})
}

// relayedTokens: the row of a stream that its client left has as many tokens as
// were relayed, give or take one (requirement 5).
func relayedTokens(t *testing.T, f *fleet, s *script) {
	f = f.of(t, true)
	defer s.plain()
	for i, k := range []int{1, 7, 40} {
		s.set(func(w http.ResponseWriter, r *http.Request) bool { says(w, k); <-r.Context().Done(); return true })
		relayed := f.nodes[0].leaveAfter(t, k)
		eventually(t, "the abort has its row", func() bool { return f.ledgered("(outcome = 'client_cancelled')::int") == int64(i+1) })
		got := f.number(`select output_tokens from weir.usage_ledger where tenant_id = $1 order by started_at desc limit 1`, f.tenant)
		if relayed != k || got < int64(k-1) || got > int64(k+1) {
			t.Errorf("%d of %d tokens relayed, %d in the ledger", relayed, k, got)
		}
	}
	if n := f.ledgered("1"); n != 3 {
		t.Errorf("%d rows of 3 requests", n)
	}
}

// leaveAfter asks for a stream, leaves after so many tokens, and returns how many
// came.
func (n *node) leaveAfter(t *testing.T, tokens int) (relayed int) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.api+"/v1/chat/completions", strings.NewReader(`{"model":"m","stream":true,`+hi+`}`))
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+n.f.key)
	resp, err := n.f.client.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); relayed < tokens && lines.Scan(); {
		if text := lines.Text(); strings.Contains(text, `"content":"`) && !strings.Contains(text, `"content":""`) {
			relayed++
		}
	}
	return relayed
}

// requestsAreOperations: a request that took two attempts has two rows and
// counts once (requirement 9).
func requestsAreOperations(t *testing.T, f *fleet, s *script) {
	f = f.of(t, true, limit{kind: "requests", window: "month", max: 100})
	var asked atomic.Int64
	s.set(func(w http.ResponseWriter, _ *http.Request) bool {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	defer s.plain()
	if r := f.nodes[0].ask(t.Context(), ""); r.status != 200 || r.header.Get("X-Weir-Attempts") != "2" {
		t.Fatalf("%d %s, %v", r.status, r.body, r.header)
	}
	eventually(t, "both attempts have their rows", func() bool { return f.ledgered("1") == 2 })
	if n := f.number(`select count(distinct operation_id) from weir.usage_ledger where tenant_id = $1`, f.tenant); n != 1 {
		t.Errorf("%d operations", n)
	}
	if n := f.number(`select sum(requests) from weir.usage_hour where tenant_id = $1`, f.tenant); n != 1 {
		t.Errorf("%d requests in the sums", n)
	}
	eventually(t, "the budget counts one", func() bool { return f.reserved() == 0 && f.used("requests") == 1 })
	if u := f.usage(); u.Totals.Requests != 1 || u.Totals.Attempts != 2 || *u.Limits[0].Used != 1 {
		t.Errorf("usage %+v", u)
	}
}

// dimensions: a limit counts what its class, model, tier and kind say and
// nothing else (requirement 34).
func dimensions(t *testing.T, f *fleet) {
	batch, other := `,"weir":{"slo":"batch"}`, ""
	for _, c := range []struct {
		name  string
		limit limit
		asks  []string
		want  string // codes; "" is an answer
	}{
		{"class", limit{kind: "requests", window: "month", max: 1, class: "batch"}, []string{batch, batch, other}, " quota_exhausted "},
		{"model", limit{kind: "requests", window: "month", max: 1, model: "m"}, []string{other, other}, " quota_exhausted"},
		{"another model", limit{kind: "requests", window: "month", model: "n"}, []string{other}, ""},
		{"cloud", limit{kind: "requests", window: "month", max: 1, tier: "cloud"}, []string{other, other}, " quota_exhausted"},
		{"edge", limit{kind: "requests", window: "minute", tier: "edge"}, []string{other}, ""},
		{"output", limit{kind: "output_tokens", window: "month", max: 50}, []string{`,"max_tokens":51`, `,"max_tokens":50`}, "too_large "},
		{"input", limit{kind: "input_tokens", window: "month", max: 50}, []string{other}, "too_large"},
		{"total", limit{kind: "total_tokens", window: "month", max: 500}, []string{`,"max_tokens":500`, `,"max_tokens":50`}, "too_large "},
		{"money", limit{kind: "cost_nanousd", window: "month"}, []string{other}, "too_large"},
		{"escalations", limit{kind: "escalations", window: "minute"}, []string{other}, ""},
		{"at once", limit{kind: "concurrent", window: "at_once"}, []string{other}, "too_large"},
	} {
		g := f.of(t, true, c.limit)
		var got []string
		for _, more := range c.asks {
			got = append(got, g.nodes[0].ask(t.Context(), more).code())
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// shadowOverGateways: a limit in shadow refuses nobody; what it would have
// refused is counted over all gateways, and can be read.
func shadowOverGateways(t *testing.T, f *fleet) {
	f.start(1)
	g := f.of(t, true, limit{kind: "requests", window: "minute", max: 2, burst: 2, shadow: true})
	for i := range 20 {
		if r := g.nodes[i%2].ask(t.Context(), ""); r.status != 200 || r.header.Get("X-RateLimit-Limit-Requests") != "" {
			t.Fatalf("%d %s, headers %v", r.status, r.body, r.header)
		}
	}
	eventually(t, "the tenant reads what would have been refused", func() bool {
		var told int64
		for _, n := range f.nodes {
			v, _ := strconv.ParseFloat(n.metric("weir_admission_shadow_refusals_total"), 64)
			told += int64(v)
		}
		limits := g.usage().Limits
		return len(limits) == 1 && limits[0].WouldHaveRefused >= 12 && limits[0].WouldHaveRefused == told
	})
}

// usageAnswer is what the tests read of /v1/usage.
type usageAnswer struct {
	Totals struct{ Requests, Attempts int64 }
	Limits []struct {
		Used             *int64
		WouldHaveRefused int64 `json:"would_have_refused"`
	}
}

func (f *fleet) usage() (u usageAnswer) {
	f.t.Helper()
	req, err := http.NewRequest(http.MethodGet, "http://"+f.nodes[0].api+"/v1/usage", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+f.key)
	resp, err := f.client.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&u); err != nil || resp.StatusCode != http.StatusOK {
		f.t.Fatalf("usage: %d, %v", resp.StatusCode, err)
	}
	return u
}

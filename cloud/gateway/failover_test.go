package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

func outcomes(rows []tenants.UsageRecord) []tenants.Outcome {
	var out []tenants.Outcome
	for _, r := range rows {
		out = append(out, r.Outcome)
	}
	return out
}

// TestFailover breaks one instance of each stage in every way and looks at
// what the client gets.
func TestFailover(t *testing.T) {
	type hook = func(http.ResponseWriter, *http.Request, map[string]any) bool
	tests := []struct {
		name       string
		prefill    hook
		decode     hook
		bothDecode bool // the second decode instance fails in the same way
		status     int
		code       string
		rows       int
	}{
		{name: "prefill dies", prefill: dies, status: 200, rows: 2},
		{name: "prefill answers 500", prefill: says(500, `{"error":{"message":"boom"}}`), status: 200, rows: 2},
		{name: "prefill drains", prefill: says(503, "bye"), status: 200, rows: 2},
		{name: "prefill is full", prefill: says(429, ""), status: 200, rows: 2},
		{name: "prefill answers rubbish", prefill: says(200, "<html>"), status: 200, rows: 2},
		{name: "prefill refuses the request", prefill: says(400, `{"error":{"message":"messages is too long","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}`),
			status: 400, code: "context_length_exceeded", rows: 1},
		{name: "prefill distrusts the gateway", prefill: says(403, ""), status: 200, rows: 2},
		{name: "decode dies", decode: dies, status: 200, rows: 2},
		{name: "decode answers 502", decode: says(502, ""), status: 200, rows: 2},
		{name: "decode refuses the request", decode: says(422, `{"object":"error","message":"n is too big","param":"n","code":422}`), status: 422, code: "upstream_error", rows: 1},
		{name: "decode answers rubbish", decode: says(200, `{"choices":[}`), status: 200, rows: 2},
		{name: "decode fails its transfer", decode: says(200, `{"id":"c","choices":[{"index":0,"message":{"content":""},"finish_reason":"error"}]}`), status: 200, rows: 2},
		{name: "all decode instances die", decode: dies, bothDecode: true, status: 502, code: "upstream_error", rows: 2},
		{name: "all decode instances are full", decode: says(429, ""), bothDecode: true, status: 503, code: "no_instance_available", rows: 2},
	}
	for _, tt := range tests {
		for _, stream := range []bool{false, true} {
			t.Run(tt.name+map[bool]string{true: ", streamed"}[stream], func(t *testing.T) {
				p1, p2 := newInstance(t, "p1", "prefill"), newInstance(t, "p2", "prefill")
				d1, d2 := newInstance(t, "d1", "decode"), newInstance(t, "d2", "decode")
				r := newRig(t, nil, p1, p2, d1, d2)
				// Whichever comes first fails: the hook disarms the other.
				arm := func(hook hook, both bool, a, b *instanceFake) {
					if hook == nil {
						return
					}
					for _, pair := range [][2]*instanceFake{{a, b}, {b, a}} {
						pair[0].on(func(w http.ResponseWriter, rq *http.Request, body map[string]any) bool {
							if !both {
								pair[1].on(nil)
							}
							return hook(w, rq, body)
						})
					}
				}
				arm(tt.prefill, false, p1, p2)
				arm(tt.decode, tt.bothDecode, d1, d2)
				body := ask1
				if stream {
					body = ask1s
				}
				got := r.chat(t, body)
				if got.status != tt.status {
					t.Fatalf("answer %d %s, want %d", got.status, got.body, tt.status)
				}
				if tt.status == 200 && stream {
					if ev := events(got.body); ev[len(ev)-1] != "[DONE]" || strings.Count(got.body, `"role":"assistant"`) != 1 {
						t.Errorf("stream %s", got.body)
					}
				}
				if tt.code != "" {
					e := errorOf(t, got.body)
					if e["code"] != tt.code {
						t.Errorf("code %v, want %s", e["code"], tt.code)
					}
					retry := got.header.Get("X-Should-Retry") != "false"
					if retry != (tt.status >= 500) {
						t.Errorf("status %d, retry %v", tt.status, retry)
					}
				}
				rows := r.ledger(t)
				if len(rows) != tt.rows {
					t.Fatalf("ledger %v, want %d rows", outcomes(rows), tt.rows)
				}
				if tt.status == 200 && (rows[len(rows)-1].Outcome != tenants.OutcomeOK || rows[0].CostNanoUSD != 0 || rows[0].OperationID != rows[1].OperationID || rows[0].AttemptID == rows[1].AttemptID) {
					t.Errorf("ledger %+v", rows)
				}
				await(t, "every leg given back", func() bool {
					for _, s := range r.opts.Pool.Status() {
						if s.InFlight != (route.InFlight{}) {
							return false
						}
					}
					return true
				})
			})
		}
	}
}

// TestStreamFailsBeforeFirstToken: a role chunk is no token, so another
// instance may still take over, and the client sees one stream.
func TestStreamFailsBeforeFirstToken(t *testing.T) {
	for name, hook := range map[string]func(f *instanceFake) func(http.ResponseWriter, *http.Request, map[string]any) bool{
		"dies after the role chunk": func(f *instanceFake) func(http.ResponseWriter, *http.Request, map[string]any) bool {
			return f.diesAfter(0)
		},
		"error event": func(*instanceFake) func(http.ResponseWriter, *http.Request, map[string]any) bool {
			return func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\ndata: [DONE]\n\n")
				return true
			}
		},
		"empty stream": func(*instanceFake) func(http.ResponseWriter, *http.Request, map[string]any) bool {
			return func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
				return true
			}
		},
		"not a stream": func(*instanceFake) func(http.ResponseWriter, *http.Request, map[string]any) bool {
			return says(200, `{}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")
			r := newRig(t, nil, a, b)
			a.on(hook(a))
			for range 4 {
				if got := r.chat(t, ask1s); got.status != 200 || !strings.HasSuffix(got.body, "data: [DONE]\n\n") || strings.Count(got.body, `"role":"assistant"`) != 1 {
					t.Fatalf("answer %d %s", got.status, got.body)
				}
			}
		})
	}
}

func TestPrefillWithoutHandoff(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	p.on(says(200, `{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}}`))
	if got := r.chat(t, ask1); got.status != 200 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	if body, _ := d.last(); body["kv_transfer_params"] != nil {
		t.Errorf("decode leg asked with %v", body["kv_transfer_params"])
	}
	if got := r.metric(t, `weir_gateway_pd_fallback_total{reason="no_params"}`); got != "1" {
		t.Errorf("fallbacks %q, want 1", got)
	}
}

// TestLastResort: without any prefill instance the decode instance serves.
func TestLastResort(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	p.on(dies)
	got := r.chat(t, ask1)
	if got.status != 200 || got.header.Get(contract.HeaderAttempts) != "2" {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	if rows := r.ledger(t); len(rows) != 2 || rows[0].Outcome != tenants.OutcomeUpstreamError || rows[1].Outcome != tenants.OutcomeOK {
		t.Errorf("ledger %v", outcomes(rows))
	}
	if got := r.metric(t, `weir_gateway_pd_fallback_total{reason="no_prefill"}`); got != "1" {
		t.Errorf("fallbacks %q, want 1", got)
	}
}

// TestHandoffOutlivesRefusedDecode: a decode instance that cannot be reached
// has not read the KV, so the next one gets it without a second prefill.
func TestHandoffOutlivesRefusedDecode(t *testing.T) {
	p, d1, d2 := newInstance(t, "p", "prefill"), newInstance(t, "d1", "decode"), newInstance(t, "d2", "decode")
	r := newRig(t, func(o *Options) { o.Policy = preferring("d1") }, p, d1, d2)
	d1.CloseClientConnections()
	d1.Listener.Close()
	r.opts.Client.CloseIdleConnections()
	got := r.chat(t, ask1)
	if got.status != 200 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	if n := p.prefills.Load(); n != 1 {
		t.Errorf("%d prefills, want 1", n)
	}
	if body, _ := d2.last(); body["kv_transfer_params"].(map[string]any)["remote_request_id"] != "h1" {
		t.Errorf("decode leg asked with %v", body["kv_transfer_params"])
	}
}

// preferring is LeastInFlight with one instance always the idlest and always
// taken for ready, whatever probes say.
type preferring string

func (preferring) Spec() route.Spec { return route.LeastInFlight{}.Spec() }

func (p preferring) Decide(o *route.Observation) route.Decision {
	for i := range o.Inst {
		if o.Inst[i].ID == string(p) {
			o.Inst[i].InFlight.Requests, o.Inst[i].Ready = -1, true
		}
	}
	return route.LeastInFlight{}.Decide(o)
}

func TestMidStreamDeath(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	d.on(d.diesAfter(2))
	got := r.chat(t, ask1s)
	ev := events(got.body)
	last := ev[len(ev)-1]
	if got.status != 200 || strings.Contains(got.body, "[DONE]") || errorOf(t, last)["code"] != "upstream_truncated" {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	if w := weirOf(t, last); w["cloud_tokens"] != 2.0 || w["tier"] != "cloud" {
		t.Errorf("weir object %v", w)
	}
	rows := r.ledger(t)
	if len(rows) != 1 || rows[0].Outcome != tenants.OutcomeUpstreamTruncated || rows[0].OutputTokens != 2 || rows[0].InputTokens != 7 ||
		rows[0].UsageSource != tenants.UsageCounted || rows[0].ErrorCode != "upstream_truncated" || rows[0].CostNanoUSD != 11000 {
		t.Errorf("ledger %+v", rows)
	}
}

// A leg that breaks is charged for its tokens, several of which may come in one
// event. Each leg has the tenant's cache salt, whatever the engine.
func TestEventOfManyTokens(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	d.on(func(w http.ResponseWriter, _ *http.Request, _ map[string]any) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"id":"c","model":"big","choices":[{"index":0,"delta":{"content":"a b c"},"token_ids":[1,2,3]}]}`+"\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	r.chat(t, ask1s)
	if rows := r.ledger(t); len(rows) != 1 || rows[0].OutputTokens != 3 {
		t.Errorf("ledger %+v", rows)
	}
	if _, head := d.last(); head.Get(contract.HeaderCacheSalt) == "" {
		t.Error("the leg has no cache salt")
	}
}

func TestStall(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, func(o *Options) { o.Timeouts.Stall = 3 * time.Second }, d)
	d.on(d.hangsAfter(2))
	got := r.chat(t, ask1s)
	ev := events(got.body)
	if e := errorOf(t, ev[len(ev)-1]); e["code"] != "upstream_truncated" || !strings.Contains(e["message"].(string), "stood still") {
		t.Errorf("answer %s", got.body)
	}
	await(t, "the instance saw the cancel", func() bool { return d.cancelled.Load() > 0 })
}

func TestFirstByteTimeout(t *testing.T) {
	t.Parallel()
	a, b := newInstance(t, "a", "mixed"), newInstance(t, "b", "mixed")
	a.on(a.hangsAfter(0))
	r := newRig(t, func(o *Options) { o.Timeouts.FirstByte = 6 * time.Second; o.Policy = preferring("a") }, a, b)
	if got := r.chat(t, ask1s); got.status != 200 || got.header.Get(contract.HeaderAttempts) != "2" {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	b.on(b.hangsAfter(0))
	r = newRig(t, func(o *Options) { o.Timeouts.FirstByte = 100 * time.Millisecond }, a, b)
	if got := r.chat(t, ask1s); got.status != 504 || errorOf(t, got.body)["code"] != "upstream_timeout" {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 2} {
		d := newInstance(t, "d", "mixed")
		r := newRig(t, nil, d)
		d.on(d.hangsAfter(n))
		got := r.chat(t, ask1s, contract.HeaderDeadline, "5000") // the leg begins, or two tokens come, in time
		code := ""
		if n == 0 {
			if got.status != 504 || got.header.Get(contract.HeaderReason) != "deadline" {
				t.Errorf("answer %d %v %s", got.status, got.header, got.body)
			}
			code = errorOf(t, got.body)["code"].(string)
		} else {
			ev := events(got.body)
			code = errorOf(t, ev[len(ev)-1])["code"].(string)
		}
		if code != "deadline_exceeded" {
			t.Errorf("code %s", code)
		}
		if rows := r.ledger(t); len(rows) != 1 || rows[0].Outcome != tenants.OutcomeDeadline || rows[0].OutputTokens != int64(n) {
			t.Errorf("ledger %+v", rows)
		}
	}
}

// TestDisconnect: a client that leaves cancels the leg, at each stage.
func TestDisconnect(t *testing.T) {
	tests := []struct {
		name    string
		stage   string
		n       int
		body    string
		decided func(p, d *instanceFake) *instanceFake
	}{
		{"during prefill", "p", 0, ask1s, func(p, _ *instanceFake) *instanceFake { return p }},
		{"before the first token", "d", 0, ask1s, func(_, d *instanceFake) *instanceFake { return d }},
		{"during the stream", "d", 2, ask1s, func(_, d *instanceFake) *instanceFake { return d }},
		{"during a whole answer", "d", 0, ask1, func(_, d *instanceFake) *instanceFake { return d }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
			r := newRig(t, nil, p, d)
			hangs := tt.decided(p, d)
			hangs.on(hangs.hangsAfter(tt.n))
			leave := r.visit(t, tt.body)
			await(t, "the request at the instance", func() bool { body, _ := hangs.last(); return body != nil })
			leave()
			await(t, "the instance saw the cancel", func() bool { return hangs.cancelled.Load() > 0 })
			await(t, "the ledger row", func() bool { return len(r.ledger(t)) == 1 })
			if row := r.ledger(t)[0]; row.Outcome != tenants.OutcomeClientCancelled {
				t.Errorf("ledger row %+v", row)
			}
			await(t, "nothing in flight", func() bool { return r.InFlight() == 0 })
		})
	}
}

package gateway

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
)

func TestChatThroughPrefillAndDecode(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	got := r.chat(t, ask1)
	if got.status != 200 || !strings.Contains(got.body, "the light is on") {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	w := weirOf(t, got.body)
	// 5 uncached, 2 cached, 4 generated tokens at 1, 0.5 and 2 dollars a million.
	if w["tier"] != "cloud" || w["model"] != "big" || w["reason"] != "edge_unavailable" || w["cost_usd"] != 14e-6 || w["cloud_tokens"] != 4.0 || w["attempts"] != 1.0 {
		t.Errorf("weir object %v", w)
	}
	for name, want := range map[string]string{contract.HeaderTier: "cloud", contract.HeaderModel: "big", contract.HeaderReason: "edge_unavailable",
		contract.HeaderAttempts: "1", contract.HeaderPolicy: "measured", contract.HeaderCost: "0.000014"} {
		if got.header.Get(name) != want {
			t.Errorf("%s is %q, want %q", name, got.header.Get(name), want)
		}
	}
	if id := got.header.Get(contract.HeaderRequestID); len(id) != 36 {
		t.Errorf("X-Request-Id %q", id)
	}
	if name := got.header.Get(contract.HeaderInstance); name == "" || strings.Contains(name, "d ") || name == "d" {
		t.Errorf("X-Weir-Instance %q is not opaque", name)
	}
	if !strings.Contains(got.header.Get(contract.HeaderTiming), "prefill;dur=") {
		t.Errorf("Server-Timing %q", got.header.Get(contract.HeaderTiming))
	}
	if strings.Contains(got.body, "kv_transfer_params") {
		t.Error("the answer shows kv_transfer_params")
	}
	rows := r.ledger(t)
	if len(rows) != 1 || rows[0].Outcome != tenants.OutcomeOK || rows[0].InputTokens != 7 || rows[0].CachedTokens != 2 ||
		rows[0].OutputTokens != 4 || rows[0].CostNanoUSD != 14000 || rows[0].PriceVersion != 3 || rows[0].UsageSource != tenants.UsageUpstream {
		t.Errorf("ledger %+v", rows)
	}
}

// TestLegs looks at what each instance is asked.
func TestLegs(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	got := r.chat(t, `{"model":"auto","messages":[{"role":"user","content":"hi"}],"stream":true,"max_completion_tokens":9,"logprobs":true,
		"user":"u","kv_transfer_params":{"remote_host":"10.0.0.1"},"priority":9,"cache_salt":"x","weir":{"mode":"auto"}}`)
	if got.status != 200 {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
	body, head := p.last()
	if body["stream"] != false || body["max_tokens"] != 1.0 || body["max_completion_tokens"] != 1.0 || body["logprobs"] != nil || body["model"] != "big" {
		t.Errorf("prefill leg asked %v", body)
	}
	if kv := body["kv_transfer_params"].(map[string]any); kv["do_remote_decode"] != true || kv["remote_host"] != nil {
		t.Errorf("prefill leg's kv_transfer_params %v", kv)
	}
	for _, name := range []string{"priority", "cache_salt", "weir"} {
		if _, ok := body[name]; ok {
			t.Errorf("%s went inside", name)
		}
	}
	if head.Get("Authorization") != "" || head.Get(contract.HeaderOperation) != got.header.Get(contract.HeaderRequestID) || head.Get("Traceparent") == "" {
		t.Errorf("prefill leg's headers %v", head)
	}
	attempt := head.Get(contract.HeaderAttempt)
	body, head = d.last()
	if kv := body["kv_transfer_params"].(map[string]any); kv["remote_request_id"] != "h1" || kv["do_remote_prefill"] != true {
		t.Errorf("decode leg's kv_transfer_params %v", kv)
	}
	if body["max_completion_tokens"] != 9.0 || body["user"] != "u" || body["stream_options"].(map[string]any)["include_usage"] != true {
		t.Errorf("decode leg asked %v", body)
	}
	if head.Get(contract.HeaderAttempt) != attempt || r.ledger(t)[0].AttemptID != attempt {
		t.Error("the two legs are not one attempt")
	}
}

func TestStream(t *testing.T) {
	p, d := newInstance(t, "p", "prefill"), newInstance(t, "d", "decode")
	r := newRig(t, nil, p, d)
	tests := []struct {
		name, body, reason string
		usage              bool
	}{
		{"plain", ask1s, "edge_unavailable", false},
		{"with usage", ask1su, "client_mode", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := r.chat(t, tt.body)
			ev := events(got.body)
			if got.status != 200 || ev[len(ev)-1] != "[DONE]" {
				t.Fatalf("answer %d %s", got.status, got.body)
			}
			if strings.Contains(got.body, `"usage"`) != tt.usage {
				t.Errorf("usage shown: %v, asked for: %v\n%s", !tt.usage, tt.usage, got.body)
			}
			last := ev[len(ev)-2]
			if w := weirOf(t, last); w["reason"] != tt.reason || w["cloud_tokens"] != 4.0 || w["cost_usd"] != 15e-6 || w["ttft_ms"].(float64) <= 0 {
				t.Errorf("weir object %v", w)
			}
			if tt.usage && decode(t, last)["usage"] == nil {
				t.Errorf("the last event %s has no usage", last)
			}
			if n := strings.Count(got.body, `"weir"`); n != 1 {
				t.Errorf("%d weir objects", n)
			}
			text := ""
			for _, e := range ev[:len(ev)-1] {
				for _, c := range decode(t, e)["choices"].([]any) {
					s, _ := c.(map[string]any)["delta"].(map[string]any)["content"].(string)
					text += s
				}
			}
			if text != "the light is on" {
				t.Errorf("text %q", text)
			}
			if got.header.Get("Content-Type") != "text/event-stream" || got.header.Get(contract.HeaderTier) != "cloud" || got.header.Get(contract.HeaderCost) != "" {
				t.Errorf("headers %v", got.header)
			}
		})
	}
}

func TestTextCompletion(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "m", "mixed"))
	got := r.do(t, http.MethodPost, "/v1/completions", r.key, `{"model":"big","prompt":"is the light"}`)
	if got.status != 200 || decode(t, got.body)["object"] != "text_completion" || weirOf(t, got.body)["reason"] != "client_mode" {
		t.Fatalf("answer %d %s", got.status, got.body)
	}
}

func TestModels(t *testing.T) {
	r := newRig(t, nil, newInstance(t, "m", "mixed"))
	got := r.do(t, http.MethodGet, "/v1/models", r.key, "")
	if n := len(decode(t, got.body)["data"].([]any)); n != 2 {
		t.Errorf("models %s", got.body)
	}
	got = r.do(t, http.MethodGet, "/v1/models", r.narrow, "")
	if n := len(decode(t, got.body)["data"].([]any)); n != 1 || !strings.Contains(got.body, `"max_model_len":2048`) {
		t.Errorf("models of the narrow key %s", got.body)
	}
	if got = r.do(t, http.MethodGet, "/v1/models/auto", r.narrow, ""); got.status != 404 || errorOf(t, got.body)["code"] != "model_not_found" {
		t.Errorf("GET of a model that is not allowed: %d %s", got.status, got.body)
	}
	if got = r.do(t, http.MethodGet, "/v1/models/big", r.narrow, ""); got.status != 200 {
		t.Errorf("GET of a model: %d %s", got.status, got.body)
	}
}

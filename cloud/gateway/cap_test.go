package gateway

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

func TestCostCap(t *testing.T) {
	d := newInstance(t, "d", "mixed")
	r := newRig(t, nil, d)
	// A prompt of 47 bytes and 64 tokens of template at 1000 nano-dollars each.
	const prompt = (len(`[{"role":"user","content":"is the light on"}]`) + templateTokens) * 1000
	tests := []struct {
		nano   int
		body   string
		status int
		bound  any
	}{
		{prompt - 1, ask1, 400, nil},
		{prompt + 1999, ask1, 400, nil},
		{prompt + 2000, ask1, 200, 1.0},
		{prompt + 20_000, ask1, 200, 10.0},
		{prompt + 20_000, `{"model":"auto","messages":[{"role":"user","content":"is the light on"}],"max_tokens":4}`, 200, 4.0},
		{prompt + 20_000, `{"model":"auto","messages":[{"role":"user","content":"is the light on"}],"max_tokens":99}`, 200, 10.0},
	}
	for _, tt := range tests {
		usd := strconv.FormatFloat(float64(tt.nano)/1e9+1e-13, 'f', -1, 64)
		got := r.chat(t, tt.body, contract.HeaderMaxCost, usd)
		if got.status != tt.status {
			t.Errorf("cap %s: %d %s", usd, got.status, got.body)
			continue
		}
		if tt.status == 400 {
			if errorOf(t, got.body)["code"] != "cost_cap" || got.header.Get(contract.HeaderReason) != "cost_cap" {
				t.Errorf("cap %s: %s", usd, got.body)
			}
		} else if body, _ := d.last(); body["max_tokens"] != tt.bound {
			t.Errorf("cap %s: max_tokens %v, want %v", usd, body["max_tokens"], tt.bound)
		}
	}
}

// TestAnswerTokens: what it affords fits, one token more does not.
func TestAnswerTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nano := rapid.Int64Range(0, 1<<50).Draw(t, "nano")
		p := tenants.Price{Output: rapid.Int64Range(1, 1<<40).Draw(t, "price")}
		n := answerTokens(nano, p.Output)
		if cost, err := price.Cost(p, price.Tokens{Output: n}); err != nil || cost > nano {
			t.Fatalf("%d tokens cost %d (%v), more than %d", n, cost, err, nano)
		}
		if n == maxAnswer {
			return
		}
		if cost, err := price.Cost(p, price.Tokens{Output: n + 1}); err == nil && cost <= nano {
			t.Fatalf("%d tokens cost %d and fit in %d too", n+1, cost, nano)
		}
	})
}

package price

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/tenants"
)

func TestCost(t *testing.T) {
	cases := []struct {
		p    tenants.Price
		t    Tokens
		want int64
	}{
		{tenants.Price{}, Tokens{1000, 10, 1000}, 0},
		{tenants.Price{Input: 150_000}, Tokens{Input: 1_000_000}, 150_000_000}, // 15 cents
		{tenants.Price{Input: 1}, Tokens{Input: 499}, 0},
		{tenants.Price{Input: 1}, Tokens{Input: 500}, 1},                         // half goes up
		{tenants.Price{Input: 1, Output: 1}, Tokens{Input: 250, Output: 250}, 1}, // rounded once, not per part
		{tenants.Price{Input: 1000, CachedInput: 100, Output: 2000}, Tokens{100, 40, 10}, 60 + 4 + 20},
		{tenants.Price{Input: 1000}, Tokens{Input: math.MaxInt64}, math.MaxInt64},
	}
	for _, c := range cases {
		got, err := Cost(c.p, c.t)
		if err != nil || got != c.want {
			t.Errorf("Cost(%+v, %+v) = %d, %v, want %d", c.p, c.t, got, err, c.want)
		}
	}
	if _, err := Cost(tenants.Price{Input: 1001}, Tokens{Input: math.MaxInt64}); !errors.Is(err, ErrOverflow) {
		t.Errorf("overflow: %v", err)
	}
	for _, bad := range []Tokens{{-1, 0, 0}, {0, 1, 0}, {1, -1, 0}, {0, 0, -1}} {
		if _, err := Cost(tenants.Price{}, bad); err == nil {
			t.Errorf("Cost of %+v succeeded", bad)
		}
	}
	if _, err := Cost(tenants.Price{Output: -1}, Tokens{}); err == nil {
		t.Error("negative price accepted")
	}
}

func TestCostEqualsBigIntegers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, math.MaxInt64)
		p := tenants.Price{Input: n.Draw(t, "pi"), CachedInput: n.Draw(t, "pc"), Output: n.Draw(t, "po")}
		u := Tokens{Input: n.Draw(t, "in"), Output: n.Draw(t, "out")}
		u.Cached = rapid.Int64Range(0, u.Input).Draw(t, "cached")
		sum := new(big.Int)
		for _, m := range [][2]int64{{u.Input - u.Cached, p.Input}, {u.Cached, p.CachedInput}, {u.Output, p.Output}} {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(m[0]), big.NewInt(m[1])))
		}
		want := sum.Add(sum, big.NewInt(500)).Div(sum, big.NewInt(1000))
		got, err := Cost(p, u)
		if want.IsInt64() != (err == nil) || err == nil && got != want.Int64() {
			t.Fatalf("Cost(%+v, %+v) = %d, %v, want %s", p, u, got, err, want)
		}
	})
}

func TestBook(t *testing.T) {
	may := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	june := may.AddDate(0, 1, 0)
	b, err := NewBook([]tenants.Price{
		{Version: 3, Tier: tenants.Cloud, Model: "big", EffectiveFrom: june, Input: 2},
		{Version: 2, Tier: tenants.Cloud, Model: "big", EffectiveFrom: may, Input: 1},
		{Version: 1, Tier: tenants.Cloud, Model: AnyModel, Input: 9},
	})
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		tier  tenants.Tier
		model string
		at    time.Time
		want  int64
	}{
		{tenants.Cloud, "big", june, 3},
		{tenants.Cloud, "big", june.Add(-1), 2},
		{tenants.Cloud, "big", may.Add(-1), 1}, // before its own rows
		{tenants.Cloud, "other", june, 1},
		{tenants.Edge, "big", june, 0},
	}
	for _, c := range cases {
		if p, ok := b.At(c.tier, c.model, c.at); p.Version != c.want || ok != (c.want != 0) {
			t.Errorf("At(%s, %s, %s) = version %d, %v, want %d", c.tier, c.model, c.at, p.Version, ok, c.want)
		}
	}
	twice := []tenants.Price{{Version: 1, Model: "m"}, {Version: 2, Model: "m"}}
	if _, err := NewBook(twice); err == nil {
		t.Error("two prices for one time accepted")
	}
	if _, err := NewBook([]tenants.Price{{Output: -1}}); err == nil {
		t.Error("negative price accepted")
	}
}

func TestBillingPerOutcome(t *testing.T) {
	book, err := NewBook([]tenants.Price{{Version: 4, Tier: tenants.Cloud, Model: "m", Input: 1000, Output: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	// Cost of 10 input tokens with no output, and with 5.
	want := map[tenants.Outcome][2]int64{
		tenants.OutcomeOK:                {10, 15},
		tenants.OutcomeClientCancelled:   {0, 15},
		tenants.OutcomeUpstreamTruncated: {0, 15},
		tenants.OutcomeUpstreamError:     {0, 0},
		tenants.OutcomeDeadline:          {0, 15},
		tenants.OutcomeQuotaExceeded:     {0, 15},
		tenants.OutcomeRejected:          {0, 0},
		tenants.OutcomeShed:              {0, 0},
		tenants.OutcomeEscalated:         {10, 15},
		tenants.OutcomeSuperseded:        {0, 0},
		tenants.OutcomeGatewayLost:       {0, 0},
	}
	billing := DefaultBilling()
	for _, o := range tenants.Outcomes() {
		if _, ok := billing[o]; !ok {
			t.Errorf("no rule for outcome %s", o)
		}
		for i, out := range []int64{0, 5} {
			r := tenants.UsageRecord{Tier: tenants.Cloud, Model: "m", Outcome: o, InputTokens: 10, OutputTokens: out}
			if err := billing.Settle(&r, book); err != nil {
				t.Fatal(err)
			}
			if r.CostNanoUSD != want[o][i] || r.PriceVersion != 4 {
				t.Errorf("%s with %d output tokens costs %d at version %d, want %d", o, out, r.CostNanoUSD, r.PriceVersion, want[o][i])
			}
		}
	}
}

func BenchmarkCost(b *testing.B) {
	p := tenants.Price{Input: 150_000, CachedInput: 75_000, Output: 600_000}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Cost(p, Tokens{1000, 300, 200}); err != nil {
			b.Fatal(err)
		}
	}
}

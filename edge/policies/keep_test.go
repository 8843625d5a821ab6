package policies_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/tenants"
)

const budgeted = `{"budget":{"per_day_nano":10000,"right_nano":5000}}`

// A day's budget is not given out again by a restart or by new settings, and
// what was promised to requests under way counts as spent when the node dies.
func TestBudgetOutlivesRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "controllers.json")
	now := time.Unix(1_700_000_000, 0)
	s := newSet(io.Discard)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Keep(ctx, path, time.Hour) }()
	c := s.For(spec(budgeted))
	c.Settle(policies.Settlement{Spent: 3000}, now)
	if !c.Reserve(2000, now) {
		t.Fatal("5000 do not hold 2000")
	}
	c.Charge(0, 1000, now) // a shadow label
	changed := s.For(spec(`{"name":"other","budget":{"per_day_nano":10000,"right_nano":9000}}`))
	if left, _ := changed.Budget(now); left != 4000 {
		t.Errorf("new settings have %d left of 10000 after 4000 and a promise of 2000", left)
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	again := newSet(io.Discard)
	if err := again.Restore(path); err != nil {
		t.Fatal(err)
	}
	if left, _ := again.For(spec(budgeted)).Budget(now); left != 4000 {
		t.Errorf("after the restart %d are left", left)
	}
	fresh := again.For(&tenants.Policy{TenantID: "t", Class: "other", Spec: []byte(budgeted)})
	if left, _ := fresh.Budget(now); left != 10000 {
		t.Errorf("another class has %d left", left)
	}
}

// Requests that end under settings without a budget give back no promise.
func TestBudgetOutlivesOtherSettings(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	s := newSet(io.Discard)
	s.For(spec(budgeted)).Settle(policies.Settlement{Spent: 3000}, now)
	rated := s.For(spec(`{"rate":0.2}`))
	for range 5 {
		if !rated.Reserve(1000, now) {
			t.Fatal("a rate has no budget")
		}
		rated.Settle(policies.Settlement{Reserved: 1000, Spent: 10}, now)
	}
	again := s.For(spec(budgeted))
	if left, _ := again.Budget(now); left != 7000 {
		t.Errorf("%d are left of 10000 after 3000", left)
	}
	if left, _ := again.Budget(now.AddDate(0, 0, 1)); left != 10000 {
		t.Errorf("%d are left of 10000 on the next day", left)
	}
}

func TestRestoreRefusesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "controllers.json")
	if err := newSet(io.Discard).Restore(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	for _, bad := range []string{"", "{", `{"version":9}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := newSet(io.Discard).Restore(path); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

// A risk target escalates all until its cells have the labels for a bound; a
// drift alarm holds the bound; labels of losses lower the threshold.
func TestRiskIsBoundedOnLabels(t *testing.T) {
	var log bytes.Buffer
	s := newSet(&log)
	c := s.For(spec(`{"risk":{"alpha":0.05,"delta":0.1,"max_rate":0.5}}`))
	own := s.For(&tenants.Policy{TenantID: "t", Class: "own", Spec: []byte(`{"rate":0.2}`)})
	if p := c.Policy(policy.Costs{}); p.Rule != cascade.RuleAlwaysCloud {
		t.Fatalf("before any label %+v", p)
	}
	items := func(n int) []control.RiskItem {
		out := make([]control.RiskItem, n)
		for i := range out {
			out[i].Score = float64(i) / float64(n)
			if i > n*7/10 {
				out[i].Loss = 1
			}
		}
		return out
	}
	s.Bound(map[string][]control.RiskItem{"a": items(150), "own": items(500)})
	if p := c.Policy(policy.Costs{}); p.Rule != cascade.RuleAlwaysCloud {
		t.Errorf("150 labels bound it: %+v", p)
	}
	s.Bound(map[string][]control.RiskItem{"a": items(150), "b": items(450)})
	p := c.Policy(policy.Costs{})
	if p.Rule != cascade.RuleGain || p.Theta < .6 || p.Theta > .75 {
		t.Fatalf("bounded: %+v", p)
	}
	if got := own.Policy(policy.Costs{}); got.Risk {
		t.Errorf("a class with its own policy is bounded too: %+v", got)
	}
	s.Label("b", 1, .05)
	if got := c.Policy(policy.Costs{}).Theta; got >= p.Theta {
		t.Errorf("a loss leaves theta at %v", got)
	}
	s.Drifted("b", true)
	s.Label("b", 1, .05)
	if got := c.Policy(policy.Costs{}).Theta; got != p.Theta {
		t.Errorf("after an alarm theta is %v, the bound's is %v", got, p.Theta)
	}
	bad := items(600)
	for i := range bad {
		bad[i].Loss = 1
	}
	s.Bound(map[string][]control.RiskItem{"a": bad})
	if !strings.Contains(log.String(), "max_rate") {
		t.Errorf("nobody hears that max_rate does not hold: %s", log.String())
	}
}

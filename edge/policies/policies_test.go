package policies_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/tenants"
)

func newSet(log io.Writer) *policies.Set {
	quantiles := make([]float64, 21)
	for i := range quantiles {
		quantiles[i] = float64(i) / 20
	}
	cal := &cascade.Calibration{Version: 1, Terms: []cascade.Term{{Feature: cascade.FeatureProduct, Weight: 1}}, Threshold: .75, CloudAccuracy: .98, Quantiles: quantiles}
	return policies.New(cascade.ThresholdPolicy(.75), cal, slog.New(slog.NewTextHandler(log, nil)))
}

func spec(s string) *tenants.Policy {
	return &tenants.Policy{TenantID: "t", Spec: json.RawMessage(s)}
}

// judge runs n answers whose confidence is uniform through the class and
// returns the escalated share of the last half.
func judge(c *policies.Class, n int) float64 {
	rng := rand.New(rand.NewPCG(3, 4))
	r, node, escalated := cascade.Request{}, cascade.Node{EdgeReady: true}, 0
	for i := range n {
		p := c.Policy(policy.Costs{CloudNano: 1000})
		v := cascade.Judge(&r, rng.Float64(), true, false, &p, &node)
		if v.Escalate && i >= n/2 {
			escalated++
		}
		c.Settle(policies.Settlement{Verdict: v, Judged: true}, time.Unix(int64(i), 0))
	}
	return float64(escalated) / float64(n-n/2)
}

func TestSettingsInForce(t *testing.T) {
	tau := .4
	for _, tt := range []struct {
		name  string
		p     *tenants.Policy
		share float64
		title string
	}{
		{"nothing set", &tenants.Policy{TenantID: "t"}, .75, "static"},
		{"threshold of the row", &tenants.Policy{TenantID: "t", Threshold: &tau}, .4, "static"},
		{"threshold of the spec", spec(`{"name":"own","threshold":0.3}`), .3, "own"},
		{"rate", spec(`{"rate":0.2}`), .2, "rate"},
		{"value", spec(`{"name":"v","value":{"right_nano":10000,"per_second_nano":0}}`), .88, "v"}, // .98 - 1000/10000
		{"risk before its bound is known", spec(`{"risk":{"alpha":0.05,"delta":0.1,"max_rate":0.6}}`), 1, "risk"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newSet(io.Discard).For(tt.p)
			if got := judge(c, 4000); math.Abs(got-tt.share) > .03 {
				t.Errorf("share %.3f, want %.3f", got, tt.share)
			}
			if got := c.Policy(policy.Costs{}).Name; got != tt.title {
				t.Errorf("policy %q, want %q", got, tt.title)
			}
		})
	}
}

// The controller lives as long as its settings, over snapshots.
func TestTheControllerOutlivesSnapshots(t *testing.T) {
	s := newSet(io.Discard)
	c := s.For(spec(`{"rate":0.2}`))
	judge(c, 503)
	moved := c.Policy(policy.Costs{}).Theta
	if again := s.For(spec(`{"rate":0.2}`)).Policy(policy.Costs{}).Theta; again != moved {
		t.Errorf("theta %v after the next snapshot, want %v", again, moved)
	}
	if s.For(nil) != nil {
		t.Error("a class without a policy")
	}
	other := s.For(&tenants.Policy{TenantID: "t", Class: "batch", Spec: json.RawMessage(`{"rate":0.2}`)})
	if other.Policy(policy.Costs{}).Theta == moved {
		t.Error("two classes share one controller")
	}
}

// A row that a newer snapshot lacks is out of force, for labels and metrics too; if
// it comes back it goes on where it was.
func TestRowsOfOlderSnapshotsEnd(t *testing.T) {
	s := newSet(io.Discard)
	general, own := tenants.Policy{TenantID: "t", Spec: json.RawMessage(budgeted)}, tenants.Policy{TenantID: "t", Class: "own", Spec: json.RawMessage(budgeted)}
	both, one := &tenants.Snapshot{Version: 1, Policies: []tenants.Policy{general, own}}, &tenants.Snapshot{Version: 2, Policies: []tenants.Policy{general}}
	noon := time.Unix(1_700_000_000, 0)
	rows := func() int {
		out := make(chan prometheus.Metric, 100)
		s.Collect(out)
		return len(out) / 6
	}
	s.Follow(both)
	s.For(&general)
	s.For(&own).Settle(policies.Settlement{Spent: 3000}, noon)
	if rows() != 2 {
		t.Fatalf("%d rows of 2", rows())
	}
	s.Follow(one)
	if rows() != 1 {
		t.Errorf("%d rows of the newer snapshot's 1", rows())
	}
	s.Follow(both) // a request that began before
	s.For(&own)
	if rows() != 1 {
		t.Errorf("%d rows after an older request", rows())
	}
	s.Follow(&tenants.Snapshot{Version: 3, Policies: both.Policies})
	if left, _ := s.For(&own).Budget(noon); left != 7000 || rows() != 2 {
		t.Errorf("the row is back with %d left of 10000 after 3000, %d rows", left, rows())
	}
}

// Settings that are refused leave the last good ones, with the reason in the
// log; what they say about privacy binds even so.
func TestRefusedSettings(t *testing.T) {
	low := .1
	for _, tt := range []struct {
		name  string
		bad   *tenants.Policy
		why   string
		local bool
		mode  cascade.Mode
	}{
		{"unknown key", spec(`{"treshold":0.2}`), "treshold", false, ""},
		{"two owners", spec(`{"rate":0.2,"threshold":0.5}`), "both set the threshold", false, ""},
		{"row and spec", &tenants.Policy{TenantID: "t", Threshold: &low, Spec: json.RawMessage(`{"rate":0.2}`)}, "both set the threshold", false, ""},
		{"two modes", &tenants.Policy{TenantID: "t", Mode: "edge-only", Spec: json.RawMessage(`{"mode":"prefer-cloud"}`)}, "keep one", false, cascade.ModeEdgeOnly},
		{"leak", spec(`{"privacy":"local-only","hedge":true}`), "hedge", true, ""},
		{"unknown privacy", spec(`{"privacy":"secret"}`), "privacy", true, ""},
		{"privacy of no text", spec(`{"privacy":1}`), "privacy", true, ""},
		{"unknown mode", spec(`{"mode":"local"}`), "mode", false, cascade.ModeEdgeOnly},
		{"no object", spec(`[]`), "settings", true, ""},
		{"no JSON", spec(`{"name":"x"`), "settings", true, ""},
		{"privacy in other capitals", spec(`{"Privacy":"local-only"}`), "Privacy", true, ""},
		{"privacy twice", spec(`{"privacy":"local-only","privacy":"any"}`), "privacy", true, ""},
		{"privacy twice in other capitals", spec(`{"privacy":"local-only","Privacy":"any"}`), "Privacy", true, ""},
		{"rate in other capitals", spec(`{"Rate":0.2}`), "Rate", false, ""},
		{"mode twice", spec(`{"mode":"edge-only","mode":"cloud-only"}`), "mode", false, cascade.ModeEdgeOnly},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, before := range []bool{true, false} {
				var log strings.Builder
				s := newSet(&log)
				if before {
					s.For(spec(`{"name":"good","threshold":0.4}`))
				}
				c := s.For(tt.bad)
				if got := c.Policy(policy.Costs{}); before && (got.Name != "good" || got.Threshold != .4) || !before && got.Threshold != .75 {
					t.Errorf("good before: %v: policy %+v in force", before, got)
				}
				if got := c.Settings(); got.Privacy.Local() != tt.local || got.Mode != tt.mode {
					t.Errorf("good before: %v: privacy %q mode %q", before, got.Privacy, got.Mode)
				}
				if !strings.Contains(log.String(), "refused") || !strings.Contains(log.String(), tt.why) {
					t.Errorf("log: %s", log.String())
				}
			}
		})
	}
}

// What requests under way may cost is promised once; what they cost counts.
func TestBudget(t *testing.T) {
	c := newSet(io.Discard).For(spec(`{"budget":{"per_day_nano":10000,"right_nano":5000}}`))
	noon := time.Unix(1_700_000_000, 0)
	if !c.Reserve(6000, noon) || c.Reserve(6000, noon) {
		t.Error("10000 hold one promise of 6000")
	}
	if left, ok := c.Budget(noon); !ok || left != 4000 {
		t.Errorf("left %d %v", left, ok)
	}
	c.Settle(policies.Settlement{Reserved: 6000, Spent: 1000}, noon)
	if left, _ := c.Budget(noon); left != 9000 {
		t.Errorf("left %d after 1000 were spent", left)
	}
	var none *policies.Class
	if _, ok := none.Budget(noon); ok || !none.Reserve(1<<40, noon) {
		t.Error("no class has no budget")
	}
}

// Answers that cannot be judged do not wind the tracker up.
func TestUnusableAnswersDoNotMoveARate(t *testing.T) {
	c := newSet(io.Discard).For(spec(`{"rate":0.2}`))
	before := c.Policy(policy.Costs{}).Theta
	for range 100 {
		c.Settle(policies.Settlement{Judged: true, Verdict: cascade.Verdict{Wanted: true, Escalate: true, Reason: cascade.ReasonSignalUnusable}}, time.Unix(0, 0))
	}
	if after := c.Policy(policy.Costs{}).Theta; after != before {
		t.Errorf("theta moved from %v to %v", before, after)
	}
}

func TestConcurrentUseAndMetrics(t *testing.T) {
	s := newSet(io.Discard)
	reg := prometheus.NewRegistry()
	if err := reg.Register(s); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 50 {
				judge(s.For(&tenants.Policy{TenantID: "t", Class: []string{"a", "b"}[i%2], Spec: json.RawMessage(`{"rate":0.3}`)}), 10)
			}
		})
	}
	wg.Wait()
	s.For(&tenants.Policy{TenantID: "t", Class: "a", Spec: json.RawMessage(`{"rate":3}`)})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	if got["weir_edge_policy_judged_total"] != 2000 || got["weir_edge_policy_refused"] != 1 {
		t.Errorf("%v", got)
	}
}

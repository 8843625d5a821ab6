package cascade

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParsersAreStrict(t *testing.T) {
	for _, r := range Reasons() {
		if got, err := ParseReason(string(r)); err != nil || got != r {
			t.Errorf("ParseReason(%q) = %q, %v", r, got, err)
		}
	}
	if _, err := ParseReason("Confident"); err == nil {
		t.Error("ParseReason accepts another case")
	}
	if m, err := ParseMode(""); err != nil || m != ModeAuto {
		t.Errorf("ParseMode(\"\") = %q, %v", m, err)
	}
	for _, bad := range []string{"AUTO", " auto", "edge", "local-only"} {
		if _, err := ParseMode(bad); err == nil {
			t.Errorf("ParseMode(%q) succeeds", bad)
		}
	}
	if p, err := ParsePrivacy(""); err != nil || p != PrivacyAny {
		t.Errorf("ParsePrivacy(\"\") = %q, %v", p, err)
	}
	for _, bad := range []string{"none", "redact", "local_only"} {
		if _, err := ParsePrivacy(bad); err == nil {
			t.Errorf("ParsePrivacy(%q) succeeds", bad)
		}
	}
	if Stricter(PrivacyAny, PrivacyLocalOnly) != PrivacyLocalOnly || Stricter("", PrivacyAny) != PrivacyAny {
		t.Error("Stricter is wrong")
	}
	if !Privacy("garbage").Local() {
		t.Error("a damaged privacy label is not treated as local-only")
	}
}

func TestBefore(t *testing.T) {
	ready := Node{EdgeReady: true, Link: LinkUp, RTT: 20 * time.Millisecond, CloudP90: time.Second, CloudCost: 1000}
	with := func(f func(*Node)) Node { n := ready; f(&n); return n }
	down := with(func(n *Node) { n.Link = LinkDown })
	noEdge := with(func(n *Node) { n.EdgeReady = false })
	tests := []struct {
		name          string
		r             Request
		n             Node
		first, second Tier
		judge         bool
		reason        Reason
	}{
		{"auto", Request{}, ready, TierEdge, TierCloud, true, ""},
		{"auto, link unknown", Request{}, with(func(n *Node) { n.Link = LinkUnknown }), TierEdge, TierCloud, true, ""},
		{"auto, offline", Request{}, down, TierEdge, "", false, ReasonOffline},
		{"auto, no edge", Request{}, noEdge, TierCloud, "", false, ReasonEdgeUnavailable},
		{"auto, nothing", Request{}, Node{Link: LinkDown}, "", "", false, ReasonEdgeUnavailable},
		{"auto, busy", Request{}, with(func(n *Node) { n.EdgeBusy = true }), TierCloud, TierEdge, false, ReasonEdgeOverloaded},
		{"auto, busy and offline", Request{}, with(func(n *Node) { n.EdgeBusy, n.Link = true, LinkDown }), TierEdge, "", false, ReasonOffline},
		{"sticky", Request{Sticky: true}, ready, TierCloud, TierEdge, false, ReasonSessionSticky},
		{"predicted hard", Request{PredictedHard: true}, ready, TierCloud, TierEdge, false, ReasonPredictedHard},
		{"already escalated", Request{Escalated: true}, ready, TierEdge, "", false, ReasonClientMode},
		{"deadline too near", Request{Remaining: time.Second}, ready, TierEdge, "", false, ReasonDeadline},
		{"deadline passed", Request{Remaining: -1}, ready, TierEdge, "", false, ReasonDeadline},
		{"deadline far", Request{Remaining: 2 * time.Second}, ready, TierEdge, TierCloud, true, ""},
		{"cost cap", Request{MaxCost: 999}, ready, TierEdge, "", false, ReasonCostCap},
		{"budget gone", Request{}, with(func(n *Node) { n.Budgeted = true }), TierEdge, "", false, ReasonBudget},
		{"budget left", Request{}, with(func(n *Node) { n.Budgeted, n.Budget = true, 1000 }), TierEdge, TierCloud, true, ""},
		{"prompt beyond the edge", Request{PromptTokens: 4000}, with(func(n *Node) { n.Edge.Context = 2048 }), TierCloud, "", false, ReasonCapability},
		{"tools at the cloud only", Request{Tools: true}, with(func(n *Node) { n.Edge.Context, n.Cloud.Tools = 2048, true }), TierCloud, "", false, ReasonCapability},
		{"edge-only", Request{Mode: ModeEdgeOnly}, ready, TierEdge, "", false, ReasonClientMode},
		{"edge-only, no edge", Request{Mode: ModeEdgeOnly}, noEdge, "", "", false, ReasonEdgeUnavailable},
		{"cloud-only", Request{Mode: ModeCloudOnly}, ready, TierCloud, "", false, ReasonClientMode},
		{"cloud-only, offline", Request{Mode: ModeCloudOnly}, down, "", "", false, ReasonOffline},
		{"cloud-only, cost cap", Request{Mode: ModeCloudOnly, MaxCost: 1}, ready, "", "", false, ReasonCostCap},
		{"prefer-edge", Request{Mode: ModePreferEdge}, ready, TierEdge, TierCloud, false, ReasonClientMode},
		{"prefer-edge, no edge", Request{Mode: ModePreferEdge}, noEdge, TierCloud, "", false, ReasonEdgeUnavailable},
		{"prefer-cloud", Request{Mode: ModePreferCloud}, ready, TierCloud, TierEdge, false, ReasonClientMode},
		{"prefer-cloud, offline", Request{Mode: ModePreferCloud}, down, TierEdge, "", false, ReasonOffline},
		{"named edge", Request{Named: TierEdge}, ready, TierEdge, "", false, ReasonClientMode},
		{"named cloud", Request{Named: TierCloud, Mode: ModePreferEdge}, ready, TierCloud, "", false, ReasonClientMode},
		{"contradiction", Request{Named: TierEdge, Mode: ModeCloudOnly}, ready, "", "", false, ReasonClientMode},
		{"local-only", Request{Privacy: PrivacyLocalOnly}, ready, TierEdge, "", false, ReasonLocalOnly},
		{"local-only, no edge", Request{Privacy: PrivacyLocalOnly}, noEdge, "", "", false, ReasonLocalOnlyUnavailable},
		{"local-only and cloud-only", Request{Privacy: PrivacyLocalOnly, Mode: ModeCloudOnly}, ready, "", "", false, ReasonLocalOnlyUnavailable},
		{"local-only and cloud model", Request{Privacy: PrivacyLocalOnly, Named: TierCloud}, ready, "", "", false, ReasonLocalOnlyUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Before(tt.r, tt.n)
			if p.First() != tt.first || p.Second() != tt.second || p.Judge != tt.judge || p.Reason != tt.reason {
				t.Errorf("Before = %+v, want %q %q judge %v reason %q", p, tt.first, tt.second, tt.judge, tt.reason)
			}
		})
	}
}

func signalsOf(lps ...float64) Signals {
	var a Accumulator
	for _, lp := range lps {
		a.Add(lp, math.NaN())
	}
	return a.Signals()
}

func unitCalibration() *Calibration {
	return &Calibration{Version: 1, Terms: []Term{{FeatureProduct, 1}}, Threshold: .6}
}

func TestAfter(t *testing.T) {
	ready := Node{EdgeReady: true, Link: LinkUp}
	cal, pol := unitCalibration(), ThresholdPolicy(.6)
	sure, unsure := signalsOf(-.01, -.01), signalsOf(-.01, -2)
	tests := []struct {
		name     string
		r        Request
		a        Answer
		n        Node
		escalate bool
		wanted   bool
		reason   Reason
	}{
		{"sure", Request{}, Answer{Signals: sure}, ready, false, false, ReasonConfident},
		{"unsure", Request{}, Answer{Signals: unsure}, ready, true, true, ReasonLowConfidence},
		{"invalid", Request{}, Answer{Signals: sure, Failed: true}, ready, true, true, ReasonValidatorFailed},
		{"no signal", Request{}, Answer{}, ready, true, true, ReasonSignalUnusable},
		{"unsure, offline", Request{}, Answer{Signals: unsure}, Node{Link: LinkDown}, false, true, ReasonOffline},
		{"unsure, local-only", Request{Privacy: PrivacyLocalOnly}, Answer{Signals: unsure}, ready, false, true, ReasonLocalOnly},
		{"unsure, late", Request{Remaining: -time.Second}, Answer{Signals: unsure}, ready, false, true, ReasonDeadline},
		{"unsure, edge-only", Request{Mode: ModeEdgeOnly}, Answer{Signals: unsure}, ready, false, true, ReasonClientMode},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := After(&tt.r, &tt.a, cal, &pol, &tt.n)
			if v.Escalate != tt.escalate || v.Wanted != tt.wanted || v.Reason != tt.reason {
				t.Errorf("After = %+v, want escalate %v wanted %v reason %q", v, tt.escalate, tt.wanted, tt.reason)
			}
		})
	}
	risky := pol
	risky.Risk = true
	if v := After(&Request{}, &Answer{Signals: unsure}, cal, &risky, &ready); v.Reason != ReasonRiskControl {
		t.Errorf("reason under risk control is %q", v.Reason)
	}
}

// No combination of inputs lets a local-only request reach the cloud.
func TestLocalOnlyNeverReachesCloud(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Request{
			Privacy: PrivacyLocalOnly,
			Mode:    rapid.SampledFrom([]Mode{"", ModeAuto, ModeEdgeOnly, ModeCloudOnly, ModePreferEdge, ModePreferCloud}).Draw(t, "mode"),
			Named:   rapid.SampledFrom([]Tier{"", TierEdge, TierCloud}).Draw(t, "named"),
			Tools:   rapid.Bool().Draw(t, "tools"), Sticky: rapid.Bool().Draw(t, "sticky"),
			PredictedHard: rapid.Bool().Draw(t, "hard"), PromptTokens: rapid.IntRange(0, 9000).Draw(t, "prompt"),
			Remaining: time.Duration(rapid.Int64Range(-5, 5).Draw(t, "remaining")) * time.Second,
		}
		n := Node{
			EdgeReady: rapid.Bool().Draw(t, "ready"), EdgeBusy: rapid.Bool().Draw(t, "busy"),
			Link: Link(rapid.IntRange(0, 2).Draw(t, "link")), Edge: Capability{Context: 2048},
		}
		p := Before(r, n)
		if p.Uses(TierCloud) {
			t.Fatalf("plan %+v uses the cloud", p)
		}
		if p.Refused() && p.Reason != ReasonLocalOnlyUnavailable {
			t.Fatalf("refused with %q", p.Reason)
		}
		pol := rapid.SampledFrom([]Policy{ThresholdPolicy(2), GainPolicy(-5, 1), {Rule: RuleAlwaysCloud}}).Draw(t, "policy")
		a := Answer{Failed: rapid.Bool().Draw(t, "failed"), Signals: signalsOf(-3)}
		if v := After(&r, &a, unitCalibration(), &pol, &n); v.Escalate {
			t.Fatalf("verdict %+v escalates", v)
		}
	})
}

func TestCalibrationJSON(t *testing.T) {
	c := unitCalibration()
	c.Model, c.Fingerprint = "m", "f"
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseCalibration(data)
	if err != nil || back.Terms[0] != c.Terms[0] || back.Fingerprint != "f" {
		t.Errorf("round trip gives %+v, %v", back, err)
	}
	if err := back.Bind("g"); !errors.Is(err, ErrFingerprint) {
		t.Errorf("Bind to another model: %v", err)
	}
	for _, bad := range []string{
		``, `{}`, `[]`, string(data) + `{}`,
		`{"version":1,"terms":[],"threshold":0.5}`,
		`{"version":1,"terms":[{"feature":"x","weight":1}],"threshold":0.5}`,
		`{"version":1,"terms":[{"feature":"product","weight":1}],"threshold":7}`,
		`{"version":1,"terms":[{"feature":"product","weight":1}],"threshold":0.5,"extra":1}`,
	} {
		if _, err := ParseCalibration([]byte(bad)); err == nil {
			t.Errorf("ParseCalibration(%s) succeeds", bad)
		}
	}
}

func FuzzParseCalibration(f *testing.F) {
	f.Add([]byte(`{"version":1,"terms":[{"feature":"product","weight":1}],"threshold":0.5}`))
	f.Add([]byte(`{"version":1e9}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCalibration(data)
		if err != nil {
			return
		}
		s := signalsOf(-.5, -1)
		if p, ok := c.Probability(&s); ok && !unit(p) {
			t.Fatalf("probability %v", p)
		}
	})
}

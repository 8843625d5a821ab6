package policy

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/control"
)

func TestParseRefuses(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"a","treshold":0.5}`:                                             "treshold",
		`{"threshold":0.5,"rate":0.2}`:                                            "threshold and rate",
		`{"rate":1.2}`:                                                            "rate is 1.2",
		`{"mode":"fast"}`:                                                         "mode",
		`{"privacy":"redact"}`:                                                    "privacy",
		`{"handoff":"guess"}`:                                                     "handoff",
		`{"privacy":"local-only","shadow":0.02}`:                                  "shadow",
		`{"privacy":"local-only","hedge":true}`:                                   "hedge",
		`{"privacy":"local-only","mode":"prefer-cloud"}`:                          "prefer-cloud",
		`{"privacy":"local-only","skip_edge":true}`:                               "skip_edge",
		`{"privacy":"local-only","sticky":true}`:                                  "sticky",
		`{"privacy":"local-only","handoff":"continue"}`:                           "handoff continue",
		`{"privacy":"local-only","handoff":"append"}`:                             "handoff append",
		`{"risk":{"alpha":0,"delta":0.1,"max_rate":0.5}}`:                         "risk",
		`{"budget":{"per_day_nano":0,"right_nano":1}}`:                            "budget",
		`{"value":{"right_nano":-1,"per_second_nano":0}}`:                         "value",
		`{"window":{"tokens":-1,"wait_ms":0}}`:                                    "window",
		`{"verify":{"samples":0}}`:                                                "verify: samples is 0",
		`{"verify":{"samples":11}}`:                                               "verify: samples is 11",
		`{"verify":{"samples":5,"band":[0,1]}}`:                                   "band",
		`{"verify":{"samples":5},"risk":{"alpha":0.05,"delta":0.1,"max_rate":1}}`: "verify and risk",
		`{"validate":{"pattern":"("}}`:                                            "validate",
		`{"validate":{"pattrn":"x"}}`:                                             "pattrn",
		`{} {}`:                                                                   "after",
		`{"name":"x","Rate":0.2}`:                                                 `"Rate"`,
		`{"verify":{"Samples":5}}`:                                                `"verify.Samples"`,
		`{"privacy":"local-only","mode":"cloud-only","Privacy":"any"}`:            `"Privacy"`,
		`{"privacy":"local-only","privacy":"any"}`:                                "privacy is given more than once",
		`{"risk":{"alpha":0.05,"alpha":0.1,"delta":0.1,"max_rate":1}}`:            "risk.alpha is given more than once",
		`{"risk":{"alpha":0.05,"delta":0.1,"max_rat":0.5}}`:                       "max_rat",
	} {
		_, err := Parse([]byte(in))
		if !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error about %q", in, err, want)
		}
	}
	if _, err := Parse([]byte(`{"name":"gold","version":3,"rate":0.2,"shadow":0.02,"window":{"tokens":32,"wait_ms":400},"verify":{"samples":10}}`)); err != nil {
		t.Error(err)
	}
}

func TestCheckRisk(t *testing.T) {
	s := Settings{Risk: &Risk{Alpha: .05, Delta: .1, MaxRate: .3}}
	if err := s.CheckRisk(.4); !errors.Is(err, control.ErrInfeasible) {
		t.Errorf("a base risk of .4 within 30 %%: %v", err)
	}
	if err := s.CheckRisk(.2); err != nil {
		t.Error(err)
	}
}

func calibration() cascade.Calibration {
	c := cascade.Calibration{Version: 1, Threshold: .6, CloudAccuracy: .95}
	for i := range 21 {
		c.Quantiles = append(c.Quantiles, float64(i)/20)
	}
	return c
}

// run lets requests with uniform confidence pass and returns the share that
// the policy wanted to escalate.
func run(c *Controller, n int, cost int64, perHour int) (rate float64, spent int64) {
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	for range n {
		p := c.Policy(Costs{CloudNano: cost})
		left, limited := c.BudgetLeft(now)
		node := cascade.Node{EdgeReady: true, CloudCost: cost, Budget: left, Budgeted: limited}
		v := cascade.Judge(&cascade.Request{}, rng.Float64(), true, false, &p, &node)
		d := Decided{Verdict: v}
		if v.Escalate {
			rate++
			d.SpentNano = cost
			spent += cost
		}
		c.Observe(d, now)
		now = now.Add(time.Hour / time.Duration(perHour))
	}
	return rate / float64(n), spent
}

func ptr(v float64) *float64 { return &v }

func TestControllers(t *testing.T) {
	tests := []struct {
		name string
		set  Settings
		want float64
	}{
		{"calibration's own", Settings{}, .6},
		{"threshold", Settings{Threshold: ptr(.3)}, .3},
		{"rate", Settings{Rate: ptr(.2)}, .2},
		{"rate without escalation", Settings{Rate: ptr(0)}, 0},
		// gain .95-p above 300/1000: p below .65
		{"value", Settings{Value: &Value{RightNano: 1000}}, .65},
		{"risk, nothing known yet", Settings{Risk: &Risk{Alpha: .05, Delta: .1, MaxRate: 1}}, 1},
	}
	for _, tt := range tests {
		if got, _ := run(NewController(tt.set, calibration()), 3000, 300, 1000); math.Abs(got-tt.want) > .03 {
			t.Errorf("%s: %.3f escalated, want %.2f", tt.name, got, tt.want)
		}
	}
}

// A day's budget is neither exceeded nor spent in the morning of a day whose
// demand is known.
func TestBudgetLastsTheDay(t *testing.T) {
	c := NewController(Settings{Budget: &Budget{PerDayNano: 24 * 100 * 60, RightNano: 1000}}, calibration())
	perDay := 24 * 100
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	rng := rand.New(rand.NewPCG(3, 4))
	var days [3]int64
	var mornings [3]int64
	for day := range days {
		for i := range perDay {
			const cost = 300
			p := c.Policy(Costs{CloudNano: cost})
			left, _ := c.BudgetLeft(now)
			node := cascade.Node{EdgeReady: true, CloudCost: cost, Budget: left, Budgeted: true}
			v := cascade.Judge(&cascade.Request{}, rng.Float64(), true, false, &p, &node)
			d := Decided{Verdict: v}
			if v.Escalate {
				d.SpentNano = cost
				days[day] += cost
				if i < perDay/2 {
					mornings[day] += cost
				}
			}
			c.Observe(d, now)
			now = now.Add(time.Hour / 100)
		}
	}
	budget := int64(24 * 100 * 60)
	for day, spent := range days {
		if spent > budget {
			t.Errorf("day %d spends %d of %d", day, spent, budget)
		}
	}
	if last := days[2]; last < budget*9/10 || mornings[2] > last*6/10 {
		t.Errorf("the third day spends %d of %d, %d of it before noon", last, budget, mornings[2])
	}
}

func TestRiskControl(t *testing.T) {
	c := NewController(Settings{Risk: &Risk{Alpha: .05, Delta: .1, MaxRate: 1}}, calibration())
	rng := rand.New(rand.NewPCG(5, 6))
	var items []control.RiskItem
	for range 800 {
		pe := rng.Float64()
		it := control.RiskItem{Score: .95 - pe}
		if rng.Float64() > pe {
			it.Loss = 1
		}
		items = append(items, it)
	}
	b, err := c.Calibrate(items)
	if err != nil {
		t.Fatal(err)
	}
	p := c.Policy(Costs{})
	if p.Rule != cascade.RuleGain || p.Theta != b.Theta || !p.Risk {
		t.Errorf("policy %+v for bound %+v", p, b)
	}
	c.Label(1, .05)
	if c.Policy(Costs{}).Theta >= b.Theta {
		t.Error("a loss does not lower theta")
	}
	c.Drifted()
	if c.State().Theta != b.Theta {
		t.Error("drift does not go back to the bound")
	}
	if s := c.State(); s.RiskTarget != .05 || !(s.RiskUCB > 0 && s.RiskUCB <= .05) {
		t.Errorf("state %+v", s)
	}
	if _, err := c.Calibrate(items[:10]); err == nil {
		t.Error("ten labels are enough")
	}
}

// What a controller knows outlives it as JSON; what was spent also outlives a
// change of settings.
func TestSavedControllers(t *testing.T) {
	rate, other := .2, .3
	risk := &Risk{Alpha: .05, Delta: .1, MaxRate: 1}
	budget := &Budget{PerDayNano: 1000, RightNano: 10}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	again := func(c *Controller, s Settings) *Controller {
		raw, err := json.Marshal(c.Saved())
		if err != nil {
			t.Fatal(err)
		}
		var saved Saved
		if err := json.Unmarshal(raw, &saved); err != nil {
			t.Fatal(err)
		}
		n := NewController(s, calibration())
		n.Restore(saved)
		return n
	}

	spender := NewController(Settings{Budget: budget}, calibration())
	spender.Observe(Decided{SpentNano: 600}, now)
	spender.Charge(100, now)
	for _, set := range []Settings{{Budget: budget}, {Name: "new", Budget: &Budget{PerDayNano: 1000, RightNano: 20}}} {
		if left, _ := again(spender, set).BudgetLeft(now); left != 300 {
			t.Errorf("%+v: %d left of 1000 after 700 were spent", set, left)
		}
		if left, _ := again(spender, set).BudgetLeft(now.AddDate(0, 0, 1)); left != 1000 {
			t.Errorf("%+v: %d left of 1000 the day after, before its first request", set, left)
		}
	}

	tracked := NewController(Settings{Rate: &rate}, calibration())
	for i := range 500 {
		tracked.Observe(Decided{Verdict: cascade.Verdict{Wanted: i%2 == 0}}, now)
	}
	theta := tracked.State().Theta
	if got := again(tracked, Settings{Rate: &rate}).State().Theta; got != theta {
		t.Errorf("theta %v restored as %v", theta, got)
	}
	if got := again(tracked, Settings{Rate: &other}).State().Theta; got == theta {
		t.Error("another rate takes over the theta")
	}

	bounded := NewController(Settings{Risk: risk}, calibration())
	if _, err := bounded.Calibrate(make([]control.RiskItem, 500)); err != nil {
		t.Fatal(err)
	}
	if got := again(bounded, Settings{Risk: risk}).State(); !got.RiskKnown || got.Theta != bounded.State().Theta {
		t.Errorf("the bound is lost: %+v", got)
	}
	bounded.Drifted()
	held := again(bounded, Settings{Risk: risk})
	held.Label(1, 1)
	if got := held.State().Theta; got != bounded.State().Theta {
		t.Errorf("a frozen threshold moves after a restart: %v", got)
	}
	held.Settled()
	held.Label(1, 1)
	if got := held.State().Theta; !(got < bounded.State().Theta) {
		t.Error("it stays frozen when the drift is settled")
	}
}

func TestInfeasibleRiskIsRefused(t *testing.T) {
	for _, bad := range []string{
		`{"risk":{"alpha":0.001,"delta":0.1,"max_rate":1}}`,
		`{"risk":{"alpha":0.01,"delta":1e-10,"max_rate":1}}`,
	} {
		if _, err := Parse([]byte(bad)); !errors.Is(err, ErrSettings) || !strings.Contains(err.Error(), "infeasible") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	s := Settings{Risk: &Risk{Alpha: .05, Delta: .1, MaxRate: .1}}
	if err := s.CheckRisk(.2); !errors.Is(err, control.ErrInfeasible) {
		t.Errorf("base risk .2 within 10 %%: %v", err)
	}
	if err := s.CheckRisk(.05); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"gold","version":3,"rate":0.2}`))
	f.Add([]byte(`{"privacy":"local-only","mode":"edge-only","shadow":0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse(data)
		if err != nil {
			return
		}
		c := NewController(s, calibration())
		p := c.Policy(Costs{CloudNano: 1})
		if err := p.Validate(); err != nil {
			t.Fatalf("accepted settings %s give %v", data, err)
		}
	})
}

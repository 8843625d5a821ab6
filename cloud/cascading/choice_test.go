package cascading

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/tiers"
)

// equals is an entry of two pools that are equals, with a small one before.
func equals(t testing.TB, set policy.Settings) *Entry {
	t.Helper()
	e, err := New(Options{Tiers: []Tier{{Pool: "small", Calibration: calibration()}, {Pool: "a"}, {Pool: "b"}}, Equals: 2, Policy: set})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func asking(seed uint64) *Asking {
	return &Asking{Class: "std", Offers: make([]Offer, 2), Seed: seed, Now: time.Unix(1000, 0)}
}

// earned gives the two pools arms of 100 labels.
func earned(e *Entry, a, b float64) {
	e.SetArms(Arms{{"std", "a"}: tiers.Arm{Right: 100 * a, Wrong: 100 - 100*a}, {"std", "b"}: tiers.Arm{Right: 100 * b, Wrong: 100 - 100*b},
		{"std", "gone"}: tiers.Arm{Right: 100}})
}

func TestChoiceExplores(t *testing.T) {
	e := equals(t, policy.Settings{})
	earned(e, .7, .75)
	counts, propensity := map[int]float64{}, map[int]float64{}
	for seed := range uint64(2000) {
		c := e.Choose(asking(seed))
		if c.How != HowDrawn || len(c.Rest) != 1 || c.Rest[0]+c.Tier != 3 || c.Candidates[c.Tier-1].Propensity != c.Propensity {
			t.Fatalf("%+v", c)
		}
		counts[c.Tier]++
		propensity[c.Tier] = c.Propensity
		if again := e.Choose(asking(seed)); again.Tier != c.Tier {
			t.Fatal("the same choice again falls otherwise")
		}
	}
	if sum := propensity[1] + propensity[2]; math.Abs(sum-1) > 1e-9 || math.Abs(counts[1]/2000-propensity[1]) > .05 || counts[1] < 100 || counts[2] < counts[1] {
		t.Errorf("%v, with propensities %v", counts, propensity)
	}
	if n := len(e.Arms()); n != 2 {
		t.Errorf("%d arms, of which one is of no pool", n)
	}
}

// What limits and policies forbid is never chosen, and never explored.
func TestChoiceUnderLimits(t *testing.T) {
	shadow := 0.0
	value := policy.Settings{Value: &policy.Value{RightNano: 1000}}
	for name, tt := range map[string]struct {
		set    policy.Settings
		change func(*Entry, *Asking)
		how    How
		tier   int // 2 is the better one
		outA   Out
		outB   Out
	}{
		"steady":                {policy.Settings{}, func(_ *Entry, a *Asking) { a.Steady = true }, HowBest, 2, "", ""},
		"the entry forbids it":  {policy.Settings{Shadow: &shadow}, func(*Entry, *Asking) {}, HowBest, 2, "", ""},
		"the better is absent":  {policy.Settings{}, func(_ *Entry, a *Asking) { a.Offers[1].Out = OutAbsent }, HowOnly, 1, "", OutAbsent},
		"the cap excludes it":   {policy.Settings{}, func(_ *Entry, a *Asking) { a.Offers[1].Out = OutCostCap }, HowOnly, 1, "", OutCostCap},
		"all are absent":        {policy.Settings{}, func(_ *Entry, a *Asking) { a.Offers[0].Out, a.Offers[1].Out = OutAbsent, OutAbsent }, HowNone, 1, OutAbsent, OutAbsent},
		"the cap leaves nobody": {policy.Settings{}, func(_ *Entry, a *Asking) { a.Offers[0], a.Offers[1] = Offer{9, OutCostCap}, Offer{5, OutCostCap} }, HowNone, 2, OutCostCap, OutCostCap},
		"a price outweighs it":  {value, func(_ *Entry, a *Asking) { a.Offers[1].Nano = 900; a.Steady = true }, HowBest, 1, "", ""},
		"what is not known of one costs as the other": {value, func(e *Entry, a *Asking) {
			a.Offers[0].Nano, a.Offers[1].Nano, a.Steady = 1000, 1100, true
			e.Paid("a", 10, 0)
		}, HowBest, 2, "", ""},
		"an unknown time":        {policy.Settings{}, func(_ *Entry, a *Asking) { a.Remaining = time.Hour }, HowBest, 2, "", ""},
		"a tight deadline":       {policy.Settings{}, func(e *Entry, a *Asking) { takes(e, 1, 1); a.Remaining = 1900 * time.Millisecond }, HowBest, 2, "", ""},
		"a deadline beyond it":   {policy.Settings{}, func(e *Entry, a *Asking) { takes(e, 1, 9); a.Remaining = 8 * time.Second }, HowOnly, 1, "", OutDeadline},
		"time enough":            {policy.Settings{}, func(e *Entry, a *Asking) { takes(e, 1, 1); a.Remaining = time.Minute }, HowDrawn, 0, "", ""},
		"the session is there":   {policy.Settings{}, func(e *Entry, a *Asking) { a.Session = "s"; e.Stay("s", "a", a.Now) }, HowSession, 1, "", ""},
		"the session was there":  {policy.Settings{}, func(e *Entry, a *Asking) { a.Session = "s"; e.Stay("s", "a", a.Now.Add(-time.Hour)); a.Steady = true }, HowBest, 2, "", ""},
		"its pool is gone":       {policy.Settings{}, func(e *Entry, a *Asking) { a.Session = "s"; e.Stay("s", "a", a.Now); a.Offers[0].Out = OutAbsent }, HowOnly, 2, OutAbsent, ""},
		"a stranger's session":   {policy.Settings{}, func(e *Entry, a *Asking) { a.Session = "t"; e.Stay("s", "a", a.Now); a.Steady = true }, HowBest, 2, "", ""},
		"the budget excludes it": {policy.Settings{Budget: &policy.Budget{PerDayNano: 100, RightNano: 1000}}, func(_ *Entry, a *Asking) { a.Judged = true; a.Offers[0].Nano, a.Offers[1].Nano = 50, 200 }, HowOnly, 1, "", OutBudget},
	} {
		for seed := range uint64(20) {
			e, a := equals(t, tt.set), asking(seed)
			earned(e, .5, .9)
			tt.change(e, a)
			c := e.Choose(a)
			if c.How != tt.how || tt.tier != 0 && c.Tier != tt.tier || c.Candidates[0].Out != tt.outA || c.Candidates[1].Out != tt.outB || tt.how != HowDrawn && c.Propensity != 1 {
				t.Errorf("%s: %+v", name, c)
			}
			if slices.ContainsFunc(c.Rest, func(i int) bool { return c.Candidates[i-1].Out != "" }) {
				t.Errorf("%s: %v may stand in", name, c.Rest)
			}
		}
	}
}

// takes lets the equals have seen answers of so many seconds.
func takes(e *Entry, a, b float64) {
	e.Paid("a", 0, time.Duration(a*float64(time.Second)))
	e.Paid("b", 0, time.Duration(b*float64(time.Second)))
}

// A pool that a limit excludes is never chosen while another is free of limits, and
// the shares of the free ones sum to 1.
func TestLimitsAreNeverTraded(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		e := equals(t, policy.Settings{})
		earned(e, rapid.Float64Range(0, 1).Draw(r, "a"), rapid.Float64Range(0, 1).Draw(r, "b"))
		a := asking(rapid.Uint64().Draw(r, "seed"))
		for i := range a.Offers {
			a.Offers[i].Out = rapid.SampledFrom([]Out{"", "", OutAbsent, OutCostCap}).Draw(r, "out")
		}
		c := e.Choose(a)
		sum, free := 0.0, false
		for _, x := range c.Candidates {
			sum += x.Propensity
			free = free || x.Out == ""
		}
		if math.Abs(sum-1) > 1e-9 || free != (c.Candidates[c.Tier-1].Out == "") || c.Propensity != c.Candidates[c.Tier-1].Propensity {
			r.Fatalf("%+v", c)
		}
	})
}

func TestPinsAreBounded(t *testing.T) {
	var p pins
	now := time.Unix(1000, 0)
	for i := range maxPins + 10 {
		p.set(string(rune(i+1)), "a", now)
		p.find("\x01", now)
		if i%100 == 0 {
			p.set("\x01", "b", now) // used again
		}
	}
	if len(p.byKey) != maxPins || p.order.Len() != maxPins || p.find("\x01", now) != "b" || p.find("\x02", now) != "" {
		t.Errorf("%d sessions", len(p.byKey))
	}
}

// A case whose pool gives no answer goes to the other one, with its price, and
// pays for what it got alone.
func TestInstead(t *testing.T) {
	e := equals(t, policy.Settings{Budget: &policy.Budget{PerDayNano: 1000, RightNano: 1 << 40}})
	c := e.Open(1)
	ask := Ask{Now: time.Unix(0, 0), Fingerprint: right, Nano: [4]int64{1, 300, 800}}
	finish(c.Draft(0, Form{}), read(t, chat("a", -9)), ask)
	if c.Next() != 1 || e.reserved != 300 {
		t.Fatalf("tier %d, %d reserved", c.Next(), e.reserved)
	}
	if !c.Instead(2, ask) || c.Next() != 2 || e.reserved != 800 {
		t.Errorf("tier %d, %d reserved", c.Next(), e.reserved)
	}
	c.Paid("b", 700, 0)
	c.Settle(ask.Now)
	if left, _ := e.left(ask.Now); left != 300 || e.reserved != 0 {
		t.Errorf("%d left, %d reserved", left, e.reserved)
	}
	c = e.Open(1)
	finish(c.Draft(0, Form{}), read(t, chat("a", -9)), ask)
	if c.Instead(2, ask) || c.Next() != 1 || e.reserved != 300 {
		t.Errorf("a pool beyond the budget, %d reserved", e.reserved)
	}
	c.Settle(ask.Now)
}

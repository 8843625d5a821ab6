package quota

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLearnedQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Float64Range(0.01, 1e6), 20, 900).Draw(t, "values")
		q := rapid.Float64Range(0.01, 1).Draw(t, "q")
		var l Learned
		for _, v := range values {
			l.Observe(v)
		}
		slices.Sort(values)
		exact := values[int(math.Ceil(q*float64(len(values))))-1]
		got, ok := l.Quantile(q)
		if !ok || got < exact*(1-1e-9) || got > exact*math.Exp2(1.0/8)*(1+1e-9) {
			t.Fatalf("quantile %v is %v, want %v and at most 9 %% more", q, got, exact)
		}
	})
}

func TestLearnedForgets(t *testing.T) {
	var l Learned
	if _, ok := l.Quantile(0.5); ok {
		t.Error("a quantile of nothing")
	}
	for range 50_000 {
		l.Observe(1)
	}
	for range 50_000 {
		l.Observe(1000)
	}
	if v, _ := l.Quantile(0.02); v < 999 {
		t.Errorf("after 50,000 new values the 2 %% quantile is still %v", v)
	}
	for _, odd := range []float64{0, -1, math.Inf(1), math.NaN(), 1e300} {
		l.Observe(odd)
	}
	if v, ok := l.Quantile(1); !ok || math.IsInf(v, 0) || math.IsNaN(v) {
		t.Errorf("quantile %v, %v after odd values", v, ok)
	}
}

func TestEstimator(t *testing.T) {
	var e Estimator
	if in, out := e.Likely(400, 256); in != 400+TemplateTokens || out != 256 {
		t.Errorf("knowing nothing: %d, %d, want the bound", in, out)
	}
	for i := range int64(200) {
		e.Observe(400, 100, 20+i%10)
	}
	e.Observe(0, 5, 0) // says nothing
	in, out := e.Likely(4000, 256)
	if in < 1000 || in > 1100 || out < 29 || out > 32 {
		t.Errorf("likely %d, %d, want about 1000 and 29", in, out)
	}
	if in, out := e.Likely(4000, 10); out != 10 || in > 4000+TemplateTokens {
		t.Errorf("likely %d, %d is over the bound", in, out)
	}
}

// Rates reserve what is likely, budgets the bound; both settle by what was.
func TestRatesAndBudgetsReserveDifferently(t *testing.T) {
	a := account(t, Limit{ID: "tpm", Kind: Total, Window: Minute, Max: 1000}, Limit{ID: "day", Kind: Total, Window: Day, Max: 1000})
	r := &Request{Amount: Amount{Requests: 1, Input: 400, Output: 200}, Likely: Amount{Requests: 1, Input: 100, Output: 50}}
	expect := func(when string, rate, reserved, used int64) {
		t.Helper()
		st := a.Status(r, noon, nil)
		if st[0].Remaining != 1000-rate || st[1].Reserved != reserved || st[1].Used != used {
			t.Errorf("%s: %+v, want rate %d, reserved %d, used %d", when, st, rate, reserved, used)
		}
	}
	var res Reservation
	if v := a.Admit(r, noon, &res); !v.OK() {
		t.Fatal(v)
	}
	expect("admitted", 150, 600, 0)
	res.Correct(Amount{Input: 120, Output: 200}, Amount{Input: 120, Output: 50}, noon)
	expect("corrected", 170, 320, 0)
	res.TopUp(Amount{Input: 120, Output: 100}, noon)
	expect("topped up", 220, 320, 0)
	res.Settle(Amount{Input: 120, Output: 90}, noon)
	expect("settled", 210, 0, 210)
}

package control

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Whatever the scores do, the realised rate keeps to its bound.
func TestTrackerHoldsTheRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.Float64Range(.05, .95).Draw(t, "target")
		seed := rapid.Uint64().Draw(t, "seed")
		jump := rapid.IntRange(1, 4000).Draw(t, "jump")
		rng := rand.New(rand.NewPCG(seed, 1))
		tr, escalated := NewTracker(target, 0), 0
		const n = 8000
		for i := range n {
			s := rng.Float64()
			if i%(2*jump) >= jump {
				s = s*s - .3
			}
			if tr.Decide(s) {
				escalated++
			}
		}
		// (range + step)/(step T), plus what the larger first steps add.
		if miss := math.Abs(float64(escalated)/n - target); miss > (1.3+.5)/(.02*n)+.001 {
			t.Fatalf("rate misses the target %v by %v", target, miss)
		}
	})
}

// A jump of the scores by far more than a step is made up for, and scores may
// lie far from zero.
func TestTrackerMakesUpForJumps(t *testing.T) {
	for _, base := range []float64{0, 1000} {
		rng := rand.New(rand.NewPCG(2, 9))
		tr := NewTracker(.3, base)
		for block := range 4 {
			n, level := 0, base+.9*float64(block%2)
			for range 10_000 {
				if tr.Decide(level + .1*rng.Float64()) {
					n++
				}
			}
			if math.Abs(float64(n)-3000) > 10 {
				t.Errorf("scores from %v: %d of 10,000 escalated, want 3,000 within 10", level, n)
			}
		}
	}
}

// A shift of .3 sd is found within 160 values in the mean over streams, both
// ways, one of .5 sd in every stream, at one false alarm in 5,000 values: the
// bar allows two and a half.
func TestPageHinkley(t *testing.T) {
	const streams = 100
	alarms, late, delay := 0, 0, 0.0
	for seed := range uint64(streams) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := NewPageHinkley()
		for range d.Warmup {
			d.Observe(5 + 2*rng.NormFloat64())
		}
		quiet, far := *d, *d
		for range 2000 {
			if quiet.Observe(5 + 2*rng.NormFloat64()) {
				alarms++
			}
		}
		shift := .3 * float64(1-2*int(seed%2))
		for n := 0; !far.Observe(5 + 2*(rng.NormFloat64()+shift/.6)); n++ {
			if n == 160 {
				late++
			}
		}
		for delay++; !d.Observe(5 + 2*(rng.NormFloat64()+shift)); delay++ {
		}
	}
	delay /= streams
	t.Logf("%d alarms in %d quiet streams of 2,000; a shift of .3 sd is found after %.0f values", alarms, streams, delay)
	if alarms > 2*streams/5 || late > 0 || delay > 160 {
		t.Errorf("%d alarms in %d quiet streams of 2,000; a shift of .3 sd is found after %.0f values, one of .5 sd late in %d", alarms, streams, delay, late)
	}
	d := NewPageHinkley()
	if d.Observe(math.NaN()) || d.n != 0 {
		t.Error("NaN is counted")
	}
}

func TestPageHinkleyConstantReference(t *testing.T) {
	d := NewPageHinkley()
	for range d.Warmup {
		d.Observe(1)
	}
	for i := range 100 {
		if d.Observe(2) {
			return
		}
		if i == 99 {
			t.Error("a jump away from a constant is not noticed")
		}
	}
}

func TestPacerMeetsTheBudget(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	p := &Pacer{}
	budget, spent := 1000.0, 0.0
	const n = 10000
	for i := range n {
		left := (budget - spent) / float64(n-i)
		cost := 0.0
		// Escalate when the gain pays for the cost (0.3) at the shadow price.
		if rng.Float64() > (1+p.Lambda())*.3/2 && spent+.3 <= budget {
			cost = .3
		}
		spent += cost
		p.Observe(cost, left)
	}
	if spent > budget || spent < .95*budget {
		t.Errorf("spent %v of %v", spent, budget)
	}
}

func TestForecast(t *testing.T) {
	var f Forecast
	if got := f.PerRequest(100, 0, 5); got != 100 {
		t.Errorf("without history a request may use %v, want all", got)
	}
	f.Observe(10, 40)
	f.Observe(11, 20)
	if got := f.Expect(10, 2); got != 60 {
		t.Errorf("Expect = %v, want 60", got)
	}
	if got := f.Expect(12, 1); got != 30 {
		t.Errorf("unseen hour = %v, want the mean 30", got)
	}
	f.Observe(10+HoursPerWeek, 140)
	if got := f.Expect(10, 1); math.Abs(got-70) > 1e-9 {
		t.Errorf("after another week %v, want 70", got)
	}
	if h := HourOfWeek(time.Date(2026, 11, 29, 5, 30, 0, 0, time.UTC)); h != 5 {
		t.Errorf("Sunday 05:30 is hour %d", h)
	}
}

// A bucket never pays out more than its capacity plus what flowed in.
func TestBucketNeverOverspends(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		rate, capacity := rapid.Float64Range(0, 50).Draw(t, "rate"), rapid.Int64Range(0, 1000).Draw(t, "cap")
		b := NewBucket(rate, capacity, start)
		now, paid := start, int64(0)
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			ask := rapid.Int64Range(0, 300).Draw(t, "ask")
			if b.Reserve(now, ask) {
				used := rapid.Int64Range(0, ask).Draw(t, "used")
				b.Settle(now, ask, used)
				paid += used
			}
		}
		if most := float64(capacity) + rate*now.Sub(start).Seconds() + 1; float64(paid) > most {
			t.Fatalf("paid %d, at most %v was there", paid, most)
		}
	})
}

func TestClopperPearson(t *testing.T) {
	// Values of the beta quantile: k=0 has the closed form 1-delta^(1/n).
	if got, want := ClopperPearsonUpper(0, 500, .1), 1-math.Pow(.1, 1./500); math.Abs(got-want) > 1e-9 {
		t.Errorf("k=0: %v, want %v", got, want)
	}
	if got := ClopperPearsonUpper(10, 100, .05); math.Abs(got-.16373) > 2e-4 {
		t.Errorf("10 of 100 at 95 %%: %v, want .1637", got)
	}
	if got := ClopperPearsonUpper(3, 3, .1); got != 1 {
		t.Errorf("all wrong: %v", got)
	}
}

// LTT exceeds its target in at most the share delta of windows.
func TestLTTKeepsItsPromise(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 9))
	draw := func() RiskItem {
		s := rng.Float64()
		it := RiskItem{Score: s}
		if rng.Float64() < .6*s*s {
			it.Loss = 1
		}
		return it
	}
	risk := func(theta float64) float64 { return .6 * math.Pow(math.Max(0, math.Min(1, theta)), 3) / 3 }
	bad, crcMean := 0, 0.0
	for range 200 {
		items := make([]RiskItem, 500)
		for i := range items {
			items[i] = draw()
		}
		b, err := LTT(items, .05, .1)
		if err != nil {
			t.Fatal(err)
		}
		if risk(b.Theta) > .05 {
			bad++
		}
		c, err := CRC(items, .05)
		if err != nil {
			t.Fatal(err)
		}
		crcMean += risk(c.Theta) / 200
		if c.Escalate > b.Escalate {
			t.Fatalf("CRC escalates %v, more than LTT %v", c.Escalate, b.Escalate)
		}
	}
	if bad > 20 || crcMean > .052 {
		t.Errorf("LTT exceeds alpha in %d of 200 windows, CRC has mean risk %v", bad, crcMean)
	}
}

func TestRiskRefusals(t *testing.T) {
	if _, err := LTT(make([]RiskItem, 50), .05, .1); err == nil {
		t.Error("50 labels are enough")
	}
	if _, err := LTT(make([]RiskItem, 200), .001, .1); err == nil {
		t.Error("a target below what 200 labels can show is accepted")
	}
	if err := CheckFeasible(.4, .05, .3); err == nil {
		t.Error("an infeasible target is accepted")
	}
	if err := CheckFeasible(.4, .05, .4); err != nil {
		t.Errorf("a feasible target is refused: %v", err)
	}
}

// Weighted windows use the Bernstein bound and stay valid, if wide.
func TestLTTWeighted(t *testing.T) {
	rng := rand.New(rand.NewPCG(10, 11))
	items := make([]RiskItem, 4000)
	for i := range items {
		items[i] = RiskItem{Score: rng.Float64(), Weight: 1 + float64(i%2)}
		if rng.Float64() < .3*items[i].Score {
			items[i].Loss = 1
		}
	}
	b, err := LTT(items, .05, .1)
	if err != nil {
		t.Fatal(err)
	}
	if b.Risk > .05 || b.UCB > .05 || b.Escalate < .2 || b.Escalate > .9 {
		t.Errorf("bound %+v", b)
	}
}

func TestRiskTracker(t *testing.T) {
	rng := rand.New(rand.NewPCG(12, 13))
	tr := NewRiskTracker(.05, 1)
	loss, n := 0.0, 20000
	for range n {
		s, l := rng.Float64(), 0.0
		if s <= tr.Theta() && rng.Float64() < s {
			l = 1
		}
		loss += l
		tr.Observe(l, 1)
	}
	if r := loss / float64(n); math.Abs(r-.05) > .01 {
		t.Errorf("mean loss %v, want .05", r)
	}
	tr.Freeze(.25)
	tr.Observe(1, .01)
	if tr.Theta() != .25 {
		t.Error("a frozen tracker moves")
	}
	tr.Thaw()
	tr.Observe(1, .01)
	if got := .25 - tr.Theta(); math.Abs(got-.02*(20-.05)) > 1e-9 {
		t.Errorf("capped step is %v", got)
	}
}

func BenchmarkTracker(b *testing.B) {
	b.ReportAllocs()
	t := NewTracker(.3, 0)
	for i := 0; b.Loop(); i++ {
		t.Decide(float64(i&255) / 256)
	}
}

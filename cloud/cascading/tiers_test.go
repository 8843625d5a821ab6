package cascading

import (
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
)

// three is a cascade whose right answers are worth 1000 nano-dollars. The mid
// tier costs 100, the large one 300.
func three(t *testing.T, quality ...float64) (*Entry, Ask) {
	t.Helper()
	cal := calibration()
	cal.EdgeAccuracy = .6
	for i := range 21 {
		cal.Quantiles = append(cal.Quantiles, .1+.045*float64(i))
	}
	e, err := New(Options{Policy: policy.Settings{Value: &policy.Value{RightNano: 1000}},
		Tiers: []Tier{{"small", cal, quality[0]}, {"mid", cal, quality[1]}, {"large", cascade.Calibration{}, quality[2]}}})
	if err != nil {
		t.Fatal(err)
	}
	return e, Ask{Now: time.Unix(0, 0), Fingerprint: right, Nano: [4]int64{20, 100, 300}}
}

// Of three tiers the one comes next whose gain is worth its price, and the best
// answer stands.
func TestThreeTiers(t *testing.T) {
	for _, tt := range []struct {
		name      string
		quality   []float64
		small     float64 // log-probability of the small tier's answer
		asks      bool
		next      int
		mid       float64 // of the mid tier's; 0: it is not asked
		asksAgain bool
		last      int
	}{
		{"a sure answer stays", []float64{.6, .8, .95}, -.001, false, 0, 0, false, 0},
		{"a doubtful one goes to who is worth it", []float64{.6, .85, .95}, -3, true, 1, -.001, false, 1},
		{"and on, where that pays", []float64{.6, .85, .95}, -3, true, 1, -4, true, 2},
		{"past a tier that is not better", []float64{.6, .2, .95}, -3, true, 2, 0, false, 2},
		{"nobody is worth it", []float64{.6, .01, .2}, -3, false, 0, 0, false, 0},
		{"back to the better of two", []float64{.6, .9, .55}, -1.1, true, 1, -4, true, 0},
	} {
		e, ask := three(t, tt.quality...)
		c := e.Open(0)
		out := finish(c.Draft(0, Form{}), read(t, chat("a", tt.small)), ask)
		if (out.Ask == stream.AskRestart) != tt.asks || c.Next() != tt.next {
			t.Errorf("%s: %+v, then %d", tt.name, out, c.Next())
		}
		if tt.mid != 0 {
			out := finish(c.Draft(1, Form{}), read(t, chat("a", tt.mid)), ask)
			if (out.Ask == stream.AskRestart) != tt.asksAgain || c.Next() != tt.last {
				t.Errorf("%s: the mid tier %+v, then %d", tt.name, out, c.Next())
			}
		}
		c.Settle(ask.Now)
	}
}

// What a tier's answers are worth is learned from their confidences.
func TestExpectationsMove(t *testing.T) {
	e, ask := three(t, .6, .85, .95)
	for range 300 { // the mid tier's answers turn out to be no better than the small one's
		c := e.Open(0)
		finish(c.Draft(0, Form{}), read(t, chat("a", -3)), ask)
		finish(c.Draft(1, Form{}), read(t, chat("a", -3)), ask)
		c.Settle(ask.Now)
	}
	c := e.Open(0)
	if finish(c.Draft(0, Form{}), read(t, chat("a", -3)), ask); c.Next() != 2 {
		t.Errorf("tier %d is asked next", c.Next())
	}
}

func TestThreeTiersWithoutASignal(t *testing.T) {
	e, ask := three(t, .6, .85, .95)
	c := e.Open(0)
	out := finish(c.Draft(0, Form{}), read(t, chat("a")), ask)
	if _, err := New(Options{Policy: e.o.Policy, Tiers: []Tier{{"small", calibration(), .5}, {"mid", calibration(), .5}, {"large", cascade.Calibration{}, .5}}}); err == nil {
		t.Error("a route over calibrations that do not tell their spread")
	}
	if out.Ask != stream.AskRestart || out.Reason != cascade.ReasonSignalUnusable || c.Next() != 1 {
		t.Errorf("%+v, then %d", out, c.Next())
	}
}

package cascading

import (
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/ballot"
)

// verifying is the calibration of a pool whose votes of three are worth a lot.
func verifying() cascade.Calibration {
	cal := calibration()
	cal.Verifier = verifier.New(3)
	for range 200 {
		cal.Verifier.Observe(verifier.BothRight, 3, 1)
		cal.Verifier.Observe(verifier.OnlyCloud, 0, 1)
	}
	cal.EdgeAccuracy = .6
	for i := range 21 {
		cal.Quantiles = append(cal.Quantiles, .1+.045*float64(i))
	}
	return cal
}

var threeVotes = &policy.Verify{Samples: 3}

// Votes are asked for only where the deadline has room for them and for the answer
// that they may lead to.
func TestVotesLeaveTimeForTheNextPool(t *testing.T) {
	e, err := New(Options{Tiers: []Tier{{Pool: "small", Calibration: verifying()}, {Pool: "large"}}, Policy: policy.Settings{Verify: threeVotes}})
	if err != nil {
		t.Fatal(err)
	}
	ways := &ballot.Ways{Patience: 2 * time.Second}
	poll := func(left time.Duration) (int, ballot.Outcome) {
		d := e.Open(0).Draft(0, Form{})
		return d.Poll(d.Score(read(t, chat("a", -.2))), ways, Ask{Fingerprint: right, Remaining: left})
	}
	for _, tt := range []struct {
		took time.Duration // of an answer of the large pool
		left time.Duration
		why  ballot.Outcome
	}{
		{0, 2 * time.Second, ballot.Late}, {0, 2200 * time.Millisecond, ""}, // nothing is known of the large pool
		{3 * time.Second, 2200 * time.Millisecond, ballot.Late}, {3 * time.Second, 4900 * time.Millisecond, ballot.Late},
		{3 * time.Second, 5100 * time.Millisecond, ""}, {3 * time.Second, 0, ""},
	} {
		if tt.took > 0 {
			e.Open(0).Paid("large", 1, tt.took)
		}
		if n, why := poll(tt.left); why != tt.why || (n == 3) != (why == "") {
			t.Errorf("%v left, answers take %v: %d, %q", tt.left, tt.took, n, why)
		}
	}
}

// Votes on a pool that the budget pays for are a part of what is promised for it.
func TestVotesAreReserved(t *testing.T) {
	now := time.Unix(86400*20000, 0)
	for _, tt := range []struct {
		verify   *policy.Verify
		left     int64
		promised int64 // 0: the budget does not hold it
	}{{nil, 100, 100}, {threeVotes, 250, 200}, {threeVotes, 150, 0}} {
		e, err := New(Options{Tiers: []Tier{{"small", verifying(), .6}, {"mid", verifying(), .9}, {"large", cascade.Calibration{}, .2}},
			Policy: policy.Settings{Verify: tt.verify, Budget: &policy.Budget{PerDayNano: 1e6, RightNano: 1e9}}})
		if err != nil {
			t.Fatal(err)
		}
		e.Restore(policy.Saved{Spent: 1e6 - tt.left, Day: now.Unix() / 86400})
		c := e.Open(0)
		out := finish(c.Draft(0, Form{}), read(t, chat("a", -3)), Ask{Now: now, Fingerprint: right, Nano: [4]int64{20, 100, 1000}})
		if got := e.Saved().Spent - (1e6 - tt.left); (out.Ask != stream.AskNone) != (tt.promised > 0) || got != tt.promised {
			t.Errorf("verify %v, %d left: %+v, promised %d", tt.verify, tt.left, out, got)
		}
		c.Settle(now)
		if s := e.Saved().Spent; s != 1e6-tt.left {
			t.Errorf("settled, %d of it is still promised", s)
		}
	}
}

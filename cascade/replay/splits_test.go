package replay

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/cascade/control"
)

// halves is a stream file with its rows in train and test at random.
func halves(tb testing.TB, file string, seed uint64) *Data {
	tb.Helper()
	d := *openShared(tb, file)
	d.Records = slices.Clone(d.Records)
	rng := rand.New(rand.NewPCG(seed, 9))
	for i := range d.Records {
		d.Records[i].Split = SplitTrain + Split(rng.IntN(2))
	}
	return &d
}

// Fitted on half of the rows, gain is calibrated on the other half in every
// task, and over all tasks ranks better than the raw signal.
func TestGainOnSplits(t *testing.T) {
	for _, file := range []string{qwen, llama} {
		o := DefaultOptions()
		o.Policies, o.Bootstrap = []string{"p1", "gain"}, 200
		res, err := Evaluate(halves(t, file, 1), o)
		if err != nil {
			t.Fatal(err)
		}
		worst := 0.0
		for _, s := range res.Sets {
			worst = max(worst, s.Policies["gain"].ECE)
			if m := s.Policies["gain"]; m.ECE > .05 {
				t.Errorf("%s: ECE %.3f", s.Name, m.ECE)
			}
		}
		pooled := res.Sets[len(res.Sets)-1]
		m := pooled.Policies["gain"]
		t.Logf("%s: ECE at most %.3f; APGR %.4f, p1 %.4f, difference %.4f to %.4f", pooled.Name, worst, m.APGR, pooled.Policies["p1"].APGR, m.DiffLow, m.DiffHigh)
		if !(m.DiffLow > 0) {
			t.Errorf("%s: gain less p1 is %.4f to %.4f, want more than 0", pooled.Name, m.DiffLow, m.DiffHigh)
		}
	}
}

// Learn-then-test on 500 labels keeps its promise on real answers, of one task
// and of five in a mixture: the risk exceeds 5 % in at most 10 % of 200 draws.
func TestRiskOnSplits(t *testing.T) {
	for _, c := range []struct{ file, cell string }{{llama, "cosmosqa_10k"}, {llama, ""}, {qwen, ""}} {
		var items []control.RiskItem
		for _, r := range openShared(t, c.file).Records {
			if c.cell == "" || r.Cell == c.cell {
				items = append(items, control.RiskItem{Score: -r.Signals[SignalP1], Loss: 1 - r.Edge})
			}
		}
		violations, escalated, rng := 0, 0., rand.New(rand.NewPCG(1, 5))
		for range 200 {
			for i := range 500 { // the first of a shuffle
				j := i + rng.IntN(len(items)-i)
				items[i], items[j] = items[j], items[i]
			}
			b, err := control.LTT(items[:500], .05, .1)
			if err != nil {
				t.Fatal(err)
			}
			escalated += b.Escalate / 200
			risk := 0.0
			for _, it := range items[500:] {
				if it.Score <= b.Theta {
					risk += it.Loss
				}
			}
			if risk/float64(len(items)-500) > .05 {
				violations++
			}
		}
		t.Logf("%s %s: risk above 5 %% in %d of 200 draws, %.1f %% escalated", c.file, c.cell, violations, 100*escalated)
		if violations > 20 {
			t.Errorf("%s %s: risk above 5 %% in %d of 200 draws", c.file, c.cell, violations)
		}
	}
}

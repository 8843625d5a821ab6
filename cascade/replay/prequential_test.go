package replay

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weirhq/weir/cascade"
)

// stream returns rows of which a higher confidence is more often right.
func stream(n int) *Data {
	rng, d := rand.New(rand.NewPCG(5, 5)), &Data{}
	for range n {
		r := newRecord()
		p := rng.Float64()
		r.Set, r.Cell, r.Cloud, r.EdgeMS, r.CloudMS = "a", "a", 1, 100, 300
		r.Edge, r.Signals[SignalConfidence] = b2f(rng.Float64() < .4+.6*p), p
		d.Records = append(d.Records, r)
	}
	return d
}

func streamOf(t *testing.T, d *Data, name string, o Options) Stream {
	t.Helper()
	o.Policies, o.Bootstrap = []string{name}, 0
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return res.Streams[name]
}

// Without a split the risk policy escalates all until it has labels, and no
// decision depends on a label of its own row or of a later one.
func TestRiskPredictsBeforeItLearns(t *testing.T) {
	const n, cut = 3000, 1500
	o := DefaultOptions()
	was := streamOf(t, stream(n), "risk", o)
	if slices.Contains(was.escalated[:200], false) || !slices.Contains(was.escalated[200:cut], false) {
		t.Errorf("%v: all of the first 200 are escalated, then fewer", was.Rates)
	}
	if !was.Feasible || was.Risk > o.Alpha {
		t.Errorf("risk %v, feasible %v", was.Risk, was.Feasible)
	}
	changed := stream(n)
	for i := cut; i < n; i++ {
		changed.Records[i].Edge = 1 - changed.Records[i].Edge
	}
	if now := streamOf(t, changed, "risk", o); !slices.Equal(now.escalated[:cut], was.escalated[:cut]) {
		t.Error("decisions depend on labels of later rows")
	}
	if st := streamOf(t, stream(150), "risk", o); st.Rate != 1 || st.Feasible {
		t.Errorf("150 rows: rate %v, feasible %v", st.Rate, st.Feasible)
	}
}

// The cloud is asked only where it is likely to keep the deadline.
func TestDeadlineInTheStream(t *testing.T) {
	o := DefaultOptions()
	o.DeadlineMS = 450
	if st := streamOf(t, stream(2000), "static", o); st.Reasons[cascade.ReasonDeadline] != 0 || st.Rate < .2 {
		t.Errorf("a deadline that holds: %v, rate %v", st.Reasons, st.Rate)
	}
	o.DeadlineMS = 350
	if st := streamOf(t, stream(2000), "static", o); st.Rate != 0 || st.Reasons[cascade.ReasonDeadline] < 400 {
		t.Errorf("a deadline that does not: %v, rate %v", st.Reasons, st.Rate)
	}
}

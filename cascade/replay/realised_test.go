package replay

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func equal(t *testing.T, name string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= 1e-9) && !(math.IsNaN(got) && math.IsNaN(want)) {
		t.Errorf("%s is %v, want %v", name, got, want)
	}
}

// Four rows by hand: the second and the third are escalated.
func byHand() (*Data, Stream) {
	d := &Data{Pool: "pooled"}
	for _, v := range [][6]float64{ // scores, costs, latencies
		{1, 1, 1, 10, 100, 300}, {0, 1, 1, 20, 200, 500}, {1, 1, 1, 30, 100, 400}, {0, 1, 1, 20, 100, 600},
	} {
		r := newRecord()
		r.Set, r.Edge, r.Cloud, r.EdgeCost, r.CloudCost, r.EdgeMS, r.CloudMS = "a", v[0], v[1], v[2], v[3], v[4], v[5]
		r.CloudTTFT = r.CloudMS / 10
		d.Records = append(d.Records, r)
	}
	return d, Stream{rows: []int{0, 1, 2, 3}, escalated: []bool{false, true, true, false}}
}

func TestOutcomeByHand(t *testing.T) {
	o := DefaultOptions()
	o.DeadlineMS = 500
	d, st := byHand()
	out := st.decided(d, "a").outcome(o)
	equal(t, "blocks", float64(len(out.Rates)), 1)
	equal(t, "rate", out.Rates[0], .5)
	equal(t, "worst block", out.WorstBlock, .2)
	equal(t, "blocks over the risk", out.Violations, 1) // .25 is lost
	equal(t, "random", out.Random, .75)
	equal(t, "over random", out.Over, 0)
	// The edge (1, .5), the cloud (20, 1), the policy (1 + 12.5, .75).
	equal(t, "IBC", out.IBC, (.25/12.5)/(.5/19)-1)
	equal(t, "IBC, free edge", out.IBCFree, (.25/12.5)/(.5/20)-1)
	equal(t, "wasted edge ms", out.WastedEdgeMS, 75)
	equal(t, "wasted dollars", out.WastedCloud, 7.5) // 30 where the edge was right
	// Latencies 100, 100, 500, 700.
	equal(t, "p50", out.P50, 100)
	equal(t, "p95", out.P95, 700)
	equal(t, "first token", out.TTFT95, 250)
	equal(t, "late", out.DeadlineMissed, .25)
}

// A row without a latency or a cost takes part in what it has.
func TestOutcomeWithHoles(t *testing.T) {
	d, st := byHand()
	d.Records[1].CloudMS, d.Records[2].CloudCost, d.Records[3].EdgeMS = math.NaN(), math.NaN(), math.NaN()
	out := st.decided(d, "pooled").outcome(DefaultOptions())
	equal(t, "p95", out.P95, 500) // of 100 and 500
	equal(t, "wasted edge ms", out.WastedEdgeMS, 100)
	equal(t, "wasted dollars", out.WastedCloud, 0)
	equal(t, "late without a deadline", out.DeadlineMissed, math.NaN())
	for i := range d.Records {
		r := &d.Records[i]
		r.EdgeMS, r.CloudCost, r.CloudTTFT = math.NaN(), math.NaN(), math.NaN()
	}
	out = st.decided(d, "a").outcome(DefaultOptions())
	for name, v := range map[string]float64{"IBC": out.IBC, "wasted ms": out.WastedEdgeMS, "wasted dollars": out.WastedCloud, "p50": out.P50, "first token": out.TTFT50} {
		equal(t, name, v, math.NaN())
	}
}

// All figures are there in JSON, by their names; those that the file cannot
// give are null, and the reason is told.
func TestMoreFigures(t *testing.T) {
	o := DefaultOptions()
	o.Policies, o.Bootstrap, o.DeadlineMS = []string{"gain", "risk"}, 50, 400
	more := moreOf(t, evaluatedText(t, synthetic(3000), o), "good", "gain")
	for _, name := range []string{"aiq", "aiq_free_edge", "ibc_lift", "ibc_lift_free_edge", "rates", "worst_block", "risk", "risk_violations", "random_at_own_rate",
		"accuracy_minus_random", "accuracy_minus_random_95", "p50_ms", "p95_ms", "deadline_missed", "wasted_edge_ms", "wasted_cloud_usd_per_1k", "brier", "log_loss"} {
		if v, ok := more[name]; !ok || v == nil {
			t.Errorf("%s is %v", name, v)
		}
	}
	if v, ok := more["ttft_p50_ms"]; !ok || v != nil {
		t.Errorf("time to the first token of a file without one is %v", v)
	}
	if low := more["accuracy_minus_random_95"].([]any)[0].(float64); low <= 0 {
		t.Errorf("gain beats random by at least %v", low)
	}
	res := evaluatedText(t, "edge,cloud,confidence\n0,1,.1\n1,1,.2\n", o)
	more = moreOf(t, res, "x", "gain")
	for _, name := range []string{"aiq", "ibc_lift", "p50_ms", "wasted_edge_ms", "deadline_missed"} {
		if v, ok := more[name]; !ok || v != nil {
			t.Errorf("%s out of nowhere: %v", name, v)
		}
	}
	if told := strings.Join(res.Lacking, "\n"); !strings.Contains(told, "--cloud-cost") || !strings.Contains(told, "--edge-ms") {
		t.Errorf("the reason is not told: %s", told)
	}
}

func moreOf(t *testing.T, res *Result, set, policy string) map[string]any {
	t.Helper()
	var b strings.Builder
	if err := res.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Sets map[string]struct{ More map[string]map[string]any }
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	return got.Sets[set].More[policy]
}

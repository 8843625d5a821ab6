package replay

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
)

// Logged decisions with a few shadow labels tell what another threshold would
// have done.
func TestLoggedEstimates(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 3))
	const n = 20000
	truth := 0.0 // accuracy at threshold .7
	for i := range n {
		stated := rng.Float64()
		edge, cloud := b2f(rng.Float64() < stated*stated), b2f(rng.Float64() < .9) // overconfident
		if stated < .7 {
			truth += cloud / n
		} else {
			truth += edge / n
		}
		r := journal.Record{Kind: journal.KindDecision, Request: fmt.Sprint(i), Tier: "edge", Conf: &stated, Propensity: .1}
		if stated < .3 {
			r.Tier, r.Propensity = "cloud", 1
		}
		if _, err := j.Append(r); err != nil {
			t.Fatal(err)
		}
		if r.Tier == "cloud" || rng.Float64() < .1 {
			if _, err := j.Append(journal.Record{Kind: journal.KindLabel, Request: r.Request, Edge: &edge, Cloud: &cloud}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	e := l.Estimate(.7)
	if math.Abs(float64(e.DR)-truth) > 3*float64(e.SE) || math.Abs(float64(e.SNIPS)-truth) > .03 || math.Abs(e.Rate-.7) > .02 {
		t.Errorf("estimate %+v, truth %.4f", e, truth)
	}
	if se := float64(e.SE); !(se > 0 && se < .01) {
		t.Errorf("standard error %v", se)
	}
	code, out, errs := runCommand(t, "eval", "--log", dir, "--json")
	if code != 0 || !json.Valid([]byte(out)) {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, _ := runCommand(t, "eval", "--log", t.TempDir()); code != 1 {
		t.Errorf("an empty log: exit %d", code)
	}
}

// While the cloud is away nothing escalates, the reason says so, and afterwards
// the rate is what it was: forced decisions do not move the threshold.
func TestFaults(t *testing.T) {
	d, err := Read(strings.NewReader(synthetic(9000)), "x", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Policies, o.Bootstrap, o.Faults = []string{"gain"}, 0, []Fault{{Kind: "cloud-down", From: 2000, Count: 1000}, {Kind: "budget", From: 4000, Count: 500}}
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	st := res.Streams["gain"]
	if st.Rates[2] != 0 || math.Abs(st.Rates[3]-.3) > .05 {
		t.Errorf("rates per thousand %v", st.Rates)
	}
	if n := st.Reasons[cascade.ReasonOffline]; n < 200 || n > 400 {
		t.Errorf("%d answers kept for %s", n, cascade.ReasonOffline)
	}
	if st.Reasons[cascade.ReasonBudget] < 100 {
		t.Errorf("reasons %v", st.Reasons)
	}
	for _, bad := range []string{"", "cloud-down", "cloud-down=1", "x=1:2", "budget=-1:2"} {
		if _, err := ParseFault(bad); err == nil {
			t.Errorf("fault %q is accepted", bad)
		}
	}
}

// A user's word on a kept answer replaces what was inferred of it, the last one
// counts, and alone it is no label.
func TestLoggedFeedback(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	conf, good, bad := .8, 1.0, 0.0
	label := func(request string, edge, cloud *float64, kind string) journal.Record {
		return journal.Record{Kind: journal.KindLabel, Request: request, Edge: edge, Cloud: cloud, LabelKind: kind}
	}
	for _, r := range []journal.Record{
		{Kind: journal.KindDecision, Request: "both", Tier: "edge", Conf: &conf, Propensity: .5},
		{Kind: journal.KindDecision, Request: "shadow", Tier: "edge", Conf: &conf, Propensity: .5},
		{Kind: journal.KindDecision, Request: "word", Tier: "edge", Conf: &conf, Propensity: .5},
		{Kind: journal.KindDecision, Request: "cloud", Tier: "cloud", Conf: &conf, Propensity: 1},
		label("both", &good, nil, journal.LabelFeedback), label("both", &good, &good, journal.LabelAgreement), label("both", &bad, nil, journal.LabelFeedback),
		label("shadow", &good, &good, journal.LabelAgreement), label("word", &good, nil, journal.LabelFeedback),
		label("cloud", &good, &good, journal.LabelAgreement), label("cloud", nil, &bad, journal.LabelFeedback),
	} {
		if _, err := j.Append(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := OpenLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	if d := l.Decisions; d[0].Edge != 0 || d[1].Edge != 1 || d[2].Labelled || d[3].Cloud != 1 || l.Labelled() != 3 || l.Kinds[journal.LabelFeedback] != 1 || l.Kinds[journal.LabelAgreement] != 2 {
		t.Errorf("%+v", l)
	}
	var out strings.Builder
	if err := l.Write(&out, false); err != nil || !strings.Contains(out.String(), "4 decisions, 3 labelled, 2 by agreement, 1 by feedback") {
		t.Errorf("%s", out.String())
	}
}

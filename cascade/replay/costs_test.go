package replay

import (
	"math"
	"strings"
	"testing"
)

func evaluatedText(t *testing.T, in string, o Options) *Result {
	t.Helper()
	d, err := Read(strings.NewReader(in), "x", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// The order decides what a budget buys: the dear request is 6 of 10 dollars.
// A row without a cost is left out and counted, and takes no figure away.
func TestCostsRowByRow(t *testing.T) {
	const in = "edge,cloud,confidence,edge_cost,cloud_cost\n" +
		"0,1,.1,.4,6\n0,1,.2,.4,2\n1,1,.3,.4,1\n1,1,.4,.4,1\n"
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"static", "random"}, 0
	for name, c := range map[string]struct {
		in      string
		missing int
	}{"whole": {in, 0}, "one without": {in + "0,1,.2,.4,\n", 1}} {
		res := evaluatedText(t, c.in, o)
		m := res.Sets[0].Policies["static"]
		if want := (1.5*.625 + .5*.875 + .1) / 2.1; math.Abs(m.Dollars.CQAUC-want) > .002 {
			t.Errorf("%s: CQ-AUC %.4f, want %.4f", name, m.Dollars.CQAUC, want)
		}
		if want := (2*.75 + .1) / 2.1; math.Abs(m.Dollars.AIQ-want) > 1e-9 {
			t.Errorf("%s: AIQ %.4f, want %.4f", name, m.Dollars.AIQ, want)
		}
		if got := res.Sets[0].Unpriced; got != [2]int{c.missing, c.missing} {
			t.Errorf("%s: %v rows without a cost", name, got)
		}
		if told := strings.Contains(strings.Join(res.Notes, "\n"), "1 of 5 row(s) lack a cost"); told != (c.missing > 0) {
			t.Errorf("%s: notes %q", name, res.Notes)
		}
	}
	none := evaluatedText(t, "edge,cloud,confidence\n0,1,.1\n1,1,.2\n", o).Sets[0]
	if m := none.Policies["static"]; !math.IsNaN(m.Dollars.AIQ) || !math.IsNaN(m.FreeEdge.CQAUC) || none.Unpriced != [2]int{} {
		t.Errorf("costs out of nowhere: %+v, %v", m.FreeEdge, none.Unpriced)
	}
}

// Where the edge is the dearer one there is no curve of dollars, and that is told.
func TestADearEdgeIsTold(t *testing.T) {
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"static"}, 0
	res := evaluatedText(t, "edge,cloud,confidence,edge_cost,cloud_cost\n0,1,.1,3,2\n1,1,.2,3,2\n", o)
	m := res.Sets[0].Policies["static"]
	if !math.IsNaN(m.Dollars.AIQ) || math.IsNaN(m.FreeEdge.AIQ) || !strings.Contains(strings.Join(res.Notes, "\n"), "with a free edge only") {
		t.Errorf("AIQ %v, free edge %v, notes %q", m.Dollars.AIQ, m.FreeEdge.AIQ, res.Notes)
	}
}

func TestRandomAPGRNeedsAGap(t *testing.T) {
	o := DefaultOptions()
	o.Policies, o.Bootstrap = []string{"random"}, 0
	if b := evaluatedText(t, "edge,cloud\n1,0\n0,1\n", o).Sets[0].Baselines; !math.IsNaN(b.RandomAPGR) {
		t.Errorf("random APGR %v without a gap", b.RandomAPGR)
	}
}

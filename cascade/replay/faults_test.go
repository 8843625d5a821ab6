package replay

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weirhq/weir/cascade"
)

func TestParseFault(t *testing.T) {
	for s, want := range map[string]Fault{
		"cloud-down=5:10":    {Kind: "cloud-down", From: 5, Count: 10},
		"rtt=0:7:250.5":      {Kind: "rtt", Count: 7, MS: 250.5},
		"task-switch=100:50": {Kind: "task-switch", From: 100, Count: 50},
		"edge-swap=1:2":      {Kind: "edge-swap", From: 1, Count: 2},
	} {
		if got, err := ParseFault(s); err != nil || got != want {
			t.Errorf("%s is %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "fire=1:2", "rtt=1:2", "rtt=1:2:-3", "rtt=1:2:NaN", "rtt=1:2:1e300", "budget=1", "budget=1:2:3", "cloud-down=-1:2", "cloud-down=a:b"} {
		if _, err := ParseFault(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
	n := nodeAt([]Fault{{Kind: faultRTT, From: 2, Count: 3, MS: 80}}, 4)
	if n.RTT != 80*time.Millisecond || nodeAt([]Fault{{Kind: faultRTT, From: 2, Count: 3, MS: 80}}, 5).RTT != 0 {
		t.Errorf("round trip %v", n.RTT)
	}
}

// A cloud that moves away is not asked where the deadline has no room for it.
func TestRTTStep(t *testing.T) {
	o := DefaultOptions()
	o.DeadlineMS, o.Faults = 450, []Fault{{Kind: faultRTT, From: 1000, Count: 500, MS: 200}}
	st := streamOf(t, stream(2000), "static", o)
	kept := 0
	for k, e := range st.escalated {
		if inside := k >= 1000 && k < 1500; inside && e {
			t.Fatalf("row %d is escalated", k)
		} else if !inside && e {
			kept++
		}
	}
	if kept == 0 || st.Reasons[cascade.ReasonDeadline] == 0 {
		t.Errorf("%d escalations, reasons %v", kept, st.Reasons)
	}
	o.DeadlineMS = 0
	out := streamOf(t, stream(2000), "always-cloud", o)
	d, err := stream(2000).played(o.Faults)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "p95", out.decided(d, "a").outcome(o).P95, 600)
	equal(t, "p50", out.decided(d, "a").outcome(o).P50, 400)
}

func TestTaskSwitch(t *testing.T) {
	d := stream(2000)
	for i := range d.Records {
		if i >= 1400 {
			r := &d.Records[i]
			r.Set, r.Cell, r.Signals[SignalConfidence] = "b", "b", r.Signals[SignalConfidence]/10
		}
	}
	faults := []Fault{{Kind: faultTaskSwitch, From: 1200, Count: 150}}
	out, err := d.played(faults)
	if err != nil {
		t.Fatal(err)
	}
	for k, r := range out.Records {
		if want := (k >= 1200 && k < 1350) || k >= 1550; (r.Set == "b") != want {
			t.Fatalf("row %d is of %s", k, r.Set)
		}
	}
	if d.Records[1200].Set != "a" || len(out.Notes) != 1 {
		t.Errorf("the data itself is changed, or nothing is told: %v", out.Notes)
	}
	d.Pool = "pooled"
	o := DefaultOptions()
	o.Policies, o.Bootstrap, o.Faults = []string{"static"}, 0, faults
	res, err := Evaluate(d, o)
	if err != nil {
		t.Fatal(err)
	}
	pooled := res.Sets[len(res.Sets)-1].Drift
	if !(pooled.AfterFault >= 1 && pooled.AfterFault <= 150) {
		t.Errorf("the switch is noticed after %v rows", pooled.AfterFault)
	}
	if !(pooled.Delay >= 1 && pooled.Delay <= 160) || pooled.SlowestDelay < pooled.Delay || !(pooled.FalseAlarms <= 10) {
		t.Errorf("drift %+v", pooled)
	}
	if alone := res.Sets[1].Drift; !math.IsNaN(alone.Delay) || !math.IsNaN(alone.Alarms) {
		t.Errorf("600 rows of one task have a delay: %+v", alone)
	}
}

// A fault's rows are the stream's: only a set that is all of it has the distance
// to an alarm.
func TestAfterFaultIsOfTheStream(t *testing.T) {
	file := func(second string) *Data {
		var b strings.Builder
		b.WriteString("task,edge,cloud,confidence,swap_score,swap_confidence\n")
		rng := rand.New(rand.NewPCG(3, 4))
		for k := range 5000 {
			task, p := "a", .7+.2*rng.Float64()
			if k < 1000 && k%2 == 0 {
				task = second
			}
			fmt.Fprintf(&b, "%s,1,1,%.4f,0,%.4f\n", task, p, p-.5)
		}
		d, err := Read(strings.NewReader(b.String()), "x", Columns{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	o := DefaultOptions()
	o.Policies, o.Bootstrap, o.Faults = []string{"static"}, 0, []Fault{{Kind: faultEdgeSwap, From: 2000, Count: 1000}}
	for second, whole := range map[string]string{"a": "a", "b": "pooled"} {
		res, err := Evaluate(file(second), o)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range res.Sets {
			switch after := s.Drift.AfterFault; {
			case s.Name == whole && !(after >= 1 && after <= 100):
				t.Errorf("%s: the fault is noticed after %v rows", s.Name, after)
			case s.Name != whole && (s.Name == "a" && s.Drift.Alarms == 0 || !math.IsNaN(after)):
				t.Errorf("%s: %v alarms, and %v rows after a fault that is not counted in its rows", s.Name, s.Drift.Alarms, after)
			}
		}
	}
}

func TestEdgeSwap(t *testing.T) {
	const in = "edge,cloud,confidence,edge_ms,swap_score,swap_confidence\n9,9,.9,5,2,.1\n9,9,.8,5,4,.2\n10,9,.7,5,6,.3\n"
	d, err := Read(strings.NewReader(in), "x", Columns{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := d.played([]Fault{{Kind: faultEdgeSwap, From: 1, Count: 1}})
	if err != nil {
		t.Fatal(err)
	}
	r := out.Records[1]
	equal(t, "score", r.Edge, .4)
	equal(t, "confidence", r.Signals[SignalConfidence], .2)
	equal(t, "its time", r.EdgeMS, math.NaN())
	equal(t, "the row before", out.Records[0].Edge, .9)
	equal(t, "the data itself", d.Records[1].Edge, .9)
}

// A fault that the data cannot play is refused with the reason.
func TestFaultsThatLackSomething(t *testing.T) {
	d := &Data{Records: make([]Record, 3)}
	for i := range d.Records {
		d.Records[i] = newRecord()
		d.Records[i].Edge, d.Records[i].Cloud = 0, 1
	}
	for kind, want := range map[string]string{faultRTT: "--cloud-ms", faultTaskSwitch: "--task", faultEdgeSwap: "--swap-edge"} {
		o := DefaultOptions()
		o.Faults = []Fault{{Kind: kind, Count: 2, MS: 5}}
		if _, err := Evaluate(d, o); !errors.Is(err, ErrNotApplicable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

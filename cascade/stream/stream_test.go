package stream

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
)

func TestWindow(t *testing.T) {
	o := DefaultWindow()
	w := NewWindow(o)
	for range o.Tokens - 1 {
		w.Token(-.01)
	}
	if w.Over(0) || !w.Over(o.Wait) {
		t.Error("the window ends too early or not in time")
	}
	w.Token(-.01)
	if !w.Over(0) {
		t.Error("the window does not end by tokens")
	}
	if NewWindow(o.ForRequest(true, 32)).Over(time.Hour) || NewWindow(o.ForRequest(false, 0)).Over(time.Hour) {
		t.Error("short and unstreamed answers are not held whole")
	}
	if !NewWindow(WindowOptions{}).Over(0) {
		t.Error("a window of size zero holds")
	}
}

func TestWindowAlarm(t *testing.T) {
	o := DefaultWindow()
	o.Mean, o.SD = 5, 2
	good, bad := NewWindow(o), NewWindow(o)
	for i := range 30 {
		if good.Token(-.003) { // Phi 5.1
			t.Fatalf("alarm at good token %d", i)
		}
	}
	raised := 0
	for i := range 10 {
		if bad.Token(-1) && raised == 0 {
			raised = i + 1
		}
	}
	if raised == 0 || raised > 4 {
		t.Errorf("alarm at bad token %d, want within 4", raised)
	}
}

func judged() cascade.Plan {
	return cascade.Before(cascade.Request{}, cascade.Node{EdgeReady: true, Link: cascade.LinkUp})
}

func TestRestartIsInvisible(t *testing.T) {
	m := NewMachine(judged(), HandoffFinish, false)
	if out := m.Text(cascade.TierEdge, []byte("wrong")); out.Emit != nil {
		t.Fatal("held text is shown")
	}
	out := m.Decide(cascade.Verdict{Escalate: true, Reason: cascade.ReasonLowConfidence})
	if out.Call != CallRestart || !out.StopEdge {
		t.Fatalf("verdict gives %+v", out)
	}
	if out := m.Text(cascade.TierEdge, []byte("late")); out.Emit != nil {
		t.Error("text of the abandoned edge is shown")
	}
	if out := m.Text(cascade.TierCloud, []byte("right")); string(out.Emit) != "right" {
		t.Errorf("cloud text gives %+v", out)
	}
	if out := m.CloudEnd(); !out.Done || out.End != (End{Tier: cascade.TierCloud, Reason: cascade.ReasonLowConfidence}) {
		t.Errorf("end %+v", out)
	}
}

func TestDoubtAfterCommit(t *testing.T) {
	for _, tt := range []struct {
		handoff     Handoff
		canContinue bool
		call        Call
	}{{HandoffFinish, true, CallNone}, {HandoffContinue, true, CallContinue}, {HandoffContinue, false, CallNone}, {HandoffAppend, false, CallAppend}} {
		m := NewMachine(judged(), tt.handoff, tt.canContinue)
		m.Text(cascade.TierEdge, []byte("half "))
		if out := m.Decide(cascade.Verdict{Reason: cascade.ReasonConfident}); string(out.Emit) != "half " {
			t.Fatalf("commit gives %+v", out)
		}
		out := m.EdgeEnd(cascade.Verdict{Escalate: true, Reason: cascade.ReasonLowConfidence})
		if out.Call != tt.call {
			t.Errorf("%s: call %v, want %v", tt.handoff, out.Call, tt.call)
		}
		if tt.call == CallNone && (!out.Done || out.End.Reason != cascade.ReasonLowConfidence) {
			t.Errorf("%s: the end is not flagged: %+v", tt.handoff, out)
		}
		if tt.call == CallContinue && string(out.Shown) != "half " {
			t.Errorf("continues after %q", out.Shown)
		}
	}
}

func TestNoHandoffInsideToolCall(t *testing.T) {
	m := NewMachine(judged(), HandoffContinue, true)
	m.Tool(true)
	if out := m.Decide(cascade.Verdict{Escalate: true}); out.Call != CallNone || !m.Held() {
		t.Errorf("a tool call is torn: %+v", out)
	}
	m.Tool(false)
	if out := m.Decide(cascade.Verdict{Escalate: true}); out.Call != CallRestart {
		t.Errorf("after the tool call: %+v", out)
	}
}

func TestCloudFailsBeforeText(t *testing.T) {
	m := NewMachine(judged(), HandoffFinish, false)
	m.EdgeEnd(cascade.Verdict{Escalate: true, Reason: cascade.ReasonLowConfidence})
	if out := m.CloudFail(); out.Call != CallEdge {
		t.Fatalf("cloud failure gives %+v", out)
	}
	m.Text(cascade.TierEdge, []byte("answer"))
	if out := m.EdgeEnd(cascade.Verdict{Escalate: true}); out.End != (End{Tier: cascade.TierEdge, Reason: cascade.ReasonCloudError}) {
		t.Errorf("end %+v", out)
	}
}

// Under any order of events: what is sent is a prefix of the final answer,
// there is one end, and a local-only request never calls the cloud.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := cascade.Request{
			Privacy: rapid.SampledFrom([]cascade.Privacy{cascade.PrivacyAny, cascade.PrivacyLocalOnly}).Draw(t, "privacy"),
			Mode:    rapid.SampledFrom([]cascade.Mode{cascade.ModeAuto, cascade.ModeCloudOnly, cascade.ModePreferEdge, cascade.ModePreferCloud}).Draw(t, "mode"),
		}
		plan := cascade.Before(r, cascade.Node{EdgeReady: rapid.Bool().Draw(t, "ready"), Link: cascade.Link(rapid.IntRange(0, 2).Draw(t, "link"))})
		if plan.Refused() {
			return
		}
		h := rapid.SampledFrom([]Handoff{HandoffFinish, HandoffContinue, HandoffAppend}).Draw(t, "handoff")
		m := NewMachine(plan, h, rapid.Bool().Draw(t, "can continue"))
		var sent []byte
		ends, restarts := 0, 0
		use := func(out Output) {
			if ends > 0 && (out.Emit != nil || out.Call != CallNone || out.Done) {
				t.Fatalf("%+v after the end", out)
			}
			sent = append(sent, out.Emit...)
			if out.Done {
				ends++
			}
			switch out.Call {
			case CallRestart, CallContinue, CallAppend:
				if r.Privacy.Local() {
					t.Fatal("a local-only request calls the cloud")
				}
				restarts++
				if out.Call == CallRestart && len(sent) > 0 {
					t.Fatalf("restart after %q was shown", sent)
				}
				if out.Call == CallContinue && !bytes.Equal(out.Shown, sent) {
					t.Fatalf("continues after %q, shown is %q", out.Shown, sent)
				}
			case CallEdge:
				if len(sent) > 0 {
					t.Fatalf("edge starts again after %q was shown", sent)
				}
			}
			if !bytes.Equal(sent, m.sent) {
				t.Fatalf("sent %q, the machine believes %q", sent, m.sent)
			}
		}
		verdict := func() cascade.Verdict {
			v := cascade.Verdict{Escalate: rapid.Bool().Draw(t, "escalate"), Reason: cascade.ReasonLowConfidence}
			if !v.Escalate {
				v.Reason = cascade.ReasonConfident
			}
			return v
		}
		for range rapid.IntRange(1, 30).Draw(t, "events") {
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0, 1:
				use(m.Text(cascade.TierEdge, []byte("e")))
			case 2:
				use(m.Text(cascade.TierCloud, []byte("c")))
			case 3:
				use(m.Decide(verdict()))
			case 4:
				use(m.EdgeEnd(verdict()))
			case 5:
				use(m.EdgeFail())
			case 6:
				use(m.CloudEnd())
			case 7:
				use(m.CloudFail())
			case 8:
				m.Tool(rapid.Bool().Draw(t, "open"))
			}
		}
		use(m.Cancel())
		if ends != 1 || restarts > 1 {
			t.Fatalf("%d ends, %d cloud calls", ends, restarts)
		}
	})
}

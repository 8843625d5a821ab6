package stream

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weirhq/weir/cascade"
)

var (
	doubt = cascade.Verdict{Escalate: true, Reason: cascade.ReasonLowConfidence}
	sure  = cascade.Verdict{Reason: cascade.ReasonConfident}
	auto  = Options{Judge: true, Cloud: true}
)

// view is what the client sees while a machine is played.
type view struct {
	m          *Machine
	held, sent string
	asks       []Ask
	end        *End
}

func (v *view) do(out Output) {
	if out.Flush {
		v.sent += v.held
	}
	if out.Flush || out.Drop {
		v.held = ""
	}
	if out.Ask != AskNone {
		v.asks = append(v.asks, out.Ask)
	}
	if out.Done {
		v.end = &out.End
	}
}

func (v *view) edge(text string) {
	switch {
	case v.m.ended || v.m.lost: // has no text any more
	case v.m.Text():
		v.sent += text
	default:
		v.held += text
	}
}

// Each row is a story: e, c: text of edge and cloud; W, w: the window is over,
// in doubt or sure; D: doubt about shown text; E, e.: the edge's end in doubt
// or sure; X: the edge is lost; B: the cloud begins; C: it ends; F: it fails;
// H: a hedge.
func TestStories(t *testing.T) {
	with := func(h Handoff, can bool) Options { o := auto; o.Handoff, o.CanContinue = h, can; return o }
	for _, tt := range []struct {
		name, story string
		opt         Options
		sent        string
		asks        int
		end         End
	}{
		{"sure in the window", "e e w e .", auto, "eee", 0, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"short answer, sure", "e .", auto, "e", 0, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"short answer, doubt", "e E B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"restart in the window", "e W e B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"restart, the cloud fails while the edge goes on", "e W e F e E", auto, "eee", 1, End{cascade.TierEdge, cascade.ReasonCloudError, false}},
		{"restart, the cloud fails after the edge's end", "e W e E F", auto, "ee", 1, End{cascade.TierEdge, cascade.ReasonCloudError, false}},
		{"restart, then the edge is lost", "e W X B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"restart, both are lost", "e W X F", auto, "", 1, End{cascade.TierEdge, cascade.ReasonCloudError, true}},
		{"doubt at the end of shown text", "e w e E", auto, "ee", 0, End{cascade.TierEdge, cascade.ReasonLowConfidence, false}},
		{"finish takes no doubt", "e w e D e .", auto, "eee", 0, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"continue", "e w e D e B c C", with(HandoffContinue, true), "eec", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"continue, the cloud fails before it begins", "e w D e F e .", with(HandoffContinue, true), "eee", 1, End{cascade.TierEdge, cascade.ReasonCloudError, false}},
		{"continue, the cloud fails after it began", "e w D e B c F", with(HandoffContinue, true), "ec", 1, End{cascade.TierCloud, cascade.ReasonCloudError, true}},
		{"continue where the target cannot", "e w D e E", with(HandoffContinue, false), "ee", 0, End{cascade.TierEdge, cascade.ReasonLowConfidence, false}},
		{"the edge is lost, the cloud continues", "e w e X B c C", with(HandoffContinue, true), "eec", 1, End{cascade.TierCloud, cascade.ReasonEdgeUnavailable, false}},
		{"append", "e w e E B c C", with(HandoffAppend, false), "eec", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"append, the cloud fails", "e w e E F", with(HandoffAppend, false), "ee", 1, End{cascade.TierEdge, cascade.ReasonCloudError, false}},
		{"the edge is lost while held", "e X B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonEdgeUnavailable, false}},
		{"the edge is lost after text was shown", "e w e X", auto, "ee", 0, End{cascade.TierEdge, cascade.ReasonEdgeUnavailable, true}},
		{"not judged", "e e E", Options{Reason: cascade.ReasonClientMode}, "ee", 0, End{cascade.TierEdge, cascade.ReasonClientMode, false}},
		{"not judged, the edge is lost", "e X", Options{Cloud: true}, "e", 0, End{cascade.TierEdge, cascade.ReasonEdgeUnavailable, true}},
		{"not judged and whole, the edge is lost", "e X B c C", Options{Cloud: true, Whole: true}, "c", 1, End{cascade.TierCloud, cascade.ReasonEdgeUnavailable, false}},
		{"not judged and whole", "e w e E", Options{Whole: true, Reason: cascade.ReasonClientMode}, "ee", 0, End{cascade.TierEdge, cascade.ReasonClientMode, false}},
		{"no cloud", "e W e E", Options{Judge: true}, "ee", 0, End{cascade.TierEdge, cascade.ReasonLowConfidence, false}},
		{"hedge, the edge is sure", "H e w e .", auto, "ee", 1, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"hedge, the edge is sure at its end", "H e .", auto, "e", 1, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"hedge, the cloud is faster", "H e B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonHedgeWon, false}},
		{"hedge, the edge doubts", "H e W e B c C", auto, "c", 1, End{cascade.TierCloud, cascade.ReasonLowConfidence, false}},
		{"hedge, the cloud fails first, the edge doubts", "H e F e E", auto, "ee", 1, End{cascade.TierEdge, cascade.ReasonCloudError, false}},
		{"hedge, the cloud fails first, the edge is sure", "H e F e .", auto, "ee", 1, End{cascade.TierEdge, cascade.ReasonConfident, false}},
		{"hedge, the cloud fails first, doubt in the window", "H e F W e .", auto, "ee", 1, End{cascade.TierEdge, cascade.ReasonConfident, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := view{m: NewMachine(tt.opt)}
			for _, c := range strings.Fields(tt.story) {
				if v.end != nil {
					t.Fatalf("ended before %s", c)
				}
				v.play(c)
			}
			if v.end == nil || *v.end != tt.end || v.sent != tt.sent || len(v.asks) != tt.asks {
				t.Errorf("sent %q, asked %v, end %+v", v.sent, v.asks, v.end)
			}
		})
	}
}

func (v *view) play(event string) {
	switch event {
	case "e":
		v.edge("e")
	case "c":
		if v.m.begun && !v.m.done {
			v.sent += "c"
		}
	case "W":
		v.do(v.m.Window(doubt))
	case "w":
		v.do(v.m.Window(sure))
	case "D":
		v.do(v.m.Doubt(doubt))
	case "E":
		v.do(v.m.EdgeEnd(doubt))
	case ".":
		v.do(v.m.EdgeEnd(sure))
	case "X":
		v.do(v.m.EdgeFail(cascade.ReasonEdgeUnavailable))
	case "H":
		v.do(v.m.Hedge())
	case "B":
		v.do(v.m.CloudBegin())
	case "C":
		v.do(v.m.CloudEnd())
	case "F":
		v.do(v.m.CloudFail(cascade.ReasonCloudError))
	case "T":
		v.m.Tool(true)
	case "t":
		v.m.Tool(false)
	}
}

func TestNoHandoffInsideToolCall(t *testing.T) {
	v := view{m: NewMachine(Options{Judge: true, Cloud: true, Handoff: HandoffContinue, CanContinue: true})}
	v.play("T")
	v.edge("{")
	if v.play("W"); len(v.asks) > 0 || v.m.Undecided() {
		t.Errorf("a tool call is torn: %+v", v)
	}
	v.play("t")
	if !v.m.Undecided() {
		t.Error("after the tool call no verdict is awaited")
	}
	if v.play("W"); len(v.asks) != 1 {
		t.Errorf("after the tool call: %+v", v)
	}
}

// Under any order of events: what is sent only grows, it is the edge's text, or
// the cloud's, or the edge's and then the cloud's where a hand-over says so;
// there is one end and one request to the cloud at most, and none where the
// cloud may not be asked.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{
			Judge: rapid.Bool().Draw(t, "judge"), Whole: rapid.Bool().Draw(t, "whole"), Cloud: rapid.Bool().Draw(t, "cloud"), CanContinue: rapid.Bool().Draw(t, "can"),
			Handoff: rapid.SampledFrom([]Handoff{"", HandoffFinish, HandoffContinue, HandoffAppend}).Draw(t, "handoff"),
		}
		v := view{m: NewMachine(o)}
		ends := 0
		for _, event := range append(rapid.SliceOfN(rapid.SampledFrom(strings.Split("eecccWwDE.XHBCFTt", "")), 1, 40).Draw(t, "events"), "X", "F") { // at last both tiers are lost
			before := v.sent
			if v.end != nil {
				ends = 1
				v.end = nil
			}
			v.play(event)
			if !strings.HasPrefix(v.sent, before) {
				t.Fatalf("%q was sent, then %q", before, v.sent)
			}
			if ends > 0 && (v.sent != before || v.end != nil) {
				t.Fatalf("%s after the end: sent %q, end %+v", event, v.sent, v.end)
			}
			if len(v.asks) > 1 || len(v.asks) > 0 && !o.Cloud {
				t.Fatalf("asks %v", v.asks)
			}
			handover := len(v.asks) > 0 && v.asks[0] != AskRestart
			if strings.Contains(v.sent, "ce") || strings.Contains(v.sent, "ec") && !handover {
				t.Fatalf("sent %q after %v", v.sent, v.asks)
			}
		}
		if v.end != nil {
			ends++
		}
		if ends != 1 {
			t.Fatalf("%d ends", ends)
		}
	})
}

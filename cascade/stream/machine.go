package stream

import "github.com/weirhq/weir/cascade"

// Handoff says what happens when doubt comes after text was shown.
type Handoff string

// The hand-offs.
const (
	// HandoffFinish lets the edge finish and flags the end low_confidence.
	HandoffFinish Handoff = "finish"
	// HandoffContinue lets the cloud go on after the text shown. Only for a
	// target that declares that it can; otherwise the edge finishes.
	HandoffContinue Handoff = "continue"
	// HandoffAppend adds the cloud's answer as a new part after the edge's.
	HandoffAppend Handoff = "append"
)

// Ask is a request to the cloud that the caller must make. What it gives is
// told by CloudBegin, CloudEnd and CloudFail.
type Ask uint8

// The requests.
const (
	AskNone     Ask = iota
	AskRestart      // the original messages; the cloud's answer stands alone
	AskContinue     // the text shown so far, as a begun answer
	AskAppend       // the original messages; the answer follows the edge's
)

// String names the request, as metrics do.
func (a Ask) String() string {
	return [...]string{"none", "restart", "continue", "append"}[min(a, AskAppend)]
}

// Output is what to do after an event.
type Output struct {
	Flush     bool // show what is held back; later text passes
	Drop      bool // forget what is held back: it is never shown
	Ask       Ask
	Reason    cascade.Reason // of Ask, and of the cloud's answer when it begins
	StopEdge  bool           // the edge's generation is not needed any more
	StopCloud bool           // nor is the cloud's answer
	Done      bool           // the stream ends as End says
	End       End
}

// End describes the end of a stream.
type End struct {
	Tier   cascade.Tier // that produced the last token
	Reason cascade.Reason
	// Failed says that the answer is incomplete: the stream ends with an error
	// event, and what was shown stays.
	Failed bool
}

// Options of a Machine.
type Options struct {
	Judge       bool           // the edge's answer is judged
	Whole       bool           // an answer is sent at its end: until then the client has seen nothing
	Reason      cascade.Reason // of an answer that is not judged
	Cloud       bool           // the cloud may be asked at all
	Handoff     Handoff
	CanContinue bool // the cloud's model declares assistant prefill
}

// Machine is the way of one edge answer to the client. The edge goes on while
// the cloud is asked and steps back at the cloud's first event, so that a cloud
// that fails costs nothing. At most one request goes to the cloud. Events after
// the end change nothing.
type Machine struct {
	opt Options

	holding bool // the edge's text is held back
	held    bool // and there is some
	shown   bool // some text has gone to the client
	tool    bool // a tool call is open
	asked   bool // the cloud's one request is used up
	asking  Ask  // it is under way, without an event yet
	hedged  bool // it was made beside the edge, which is not judged yet
	begun   bool // the cloud's answer is shown
	ended   bool // the edge's answer is complete
	lost    bool // the edge's answer broke off
	reason  cascade.Reason
	stand   cascade.Reason // why the edge's answer stands in for the cloud's
	missed  cascade.Reason // why a hedge failed, before the edge was judged
	done    bool
}

// NewMachine starts an answer.
func NewMachine(o Options) *Machine {
	return &Machine{opt: o, holding: o.Judge || o.Whole, reason: o.Reason}
}

// Text is a piece of the edge's text; pass says that it is shown at once.
func (m *Machine) Text() (pass bool) {
	if m.done || m.begun || m.ended || m.lost {
		return false
	}
	m.held = m.held || m.holding
	m.shown = m.shown || !m.holding
	return !m.holding
}

// Tool says whether a tool call is open. Inside one nothing is handed over.
func (m *Machine) Tool(open bool) { m.tool = open }

// Undecided reports whether a verdict on the text held back is awaited. Inside a
// tool call none is: it could not be acted on.
func (m *Machine) Undecided() bool {
	return m.opt.Judge && m.holding && !m.tool && !m.done && !m.begun && (m.asking == AskNone || m.hedged)
}

// Watched reports whether text is shown that a hand-over may still cut short.
func (m *Machine) Watched() bool { return m.opt.Judge && !m.holding && !m.done && m.mayContinue() }

// Hedge asks the cloud beside the edge, before anything is known.
func (m *Machine) Hedge() Output {
	if m.done || !m.holding || !m.mayAsk() {
		return Output{}
	}
	m.hedged = true
	return m.ask(AskRestart, cascade.ReasonHedgeWon)
}

// Window is the verdict on the text held back, when the window is over or its
// alarm is raised.
func (m *Machine) Window(v cascade.Verdict) Output {
	switch {
	case !m.Undecided():
		return Output{}
	case v.Escalate && m.hedged:
		return m.await(v.Reason)
	case v.Escalate && m.mayAsk():
		return m.ask(AskRestart, v.Reason)
	}
	return m.keep(m.kept(v))
}

// Doubt is a verdict against text that is shown already.
func (m *Machine) Doubt(v cascade.Verdict) Output {
	if m.done || m.holding || m.tool || !v.Escalate || !m.mayContinue() {
		return Output{}
	}
	m.holding = true // the edge's text from here on is shown only if the cloud fails
	return m.ask(AskContinue, v.Reason)
}

// EdgeEnd is the end of the edge's text with the verdict on the whole, which is
// ignored where nothing is judged.
func (m *Machine) EdgeEnd(v cascade.Verdict) Output {
	if m.done || m.begun {
		return Output{}
	}
	m.ended = true
	switch {
	case m.stand != "":
		return m.end(cascade.TierEdge, m.stand)
	case !m.opt.Judge:
		return m.end(cascade.TierEdge, m.reason)
	case m.hedged && v.Escalate:
		return m.await(v.Reason)
	case m.asking != AskNone && !m.hedged:
		return Output{}
	case m.holding && v.Escalate && m.mayAsk():
		return m.ask(AskRestart, v.Reason)
	case m.holding:
		return m.end(cascade.TierEdge, m.kept(v))
	case v.Escalate && m.opt.Handoff == HandoffAppend && m.mayAsk():
		return m.ask(AskAppend, v.Reason)
	case v.Escalate:
		return m.end(cascade.TierEdge, cascade.ReasonLowConfidence)
	}
	return m.end(cascade.TierEdge, v.Reason)
}

// EdgeFail is the loss of the edge before its end; why is the reason if the
// cloud is asked instead.
func (m *Machine) EdgeFail(why cascade.Reason) Output {
	if m.done || m.begun || m.ended {
		return Output{}
	}
	m.lost = true
	switch {
	case m.asking != AskNone:
		return m.await(m.reason)
	case !m.shown && m.mayAsk():
		return m.ask(AskRestart, why)
	case m.mayContinue():
		m.holding = true
		return m.ask(AskContinue, why)
	}
	return m.fail(cascade.TierEdge, why)
}

// CloudBegin is the cloud's first event: its text counts from now on.
func (m *Machine) CloudBegin() Output {
	if m.done || m.asking == AskNone {
		return Output{}
	}
	m.asking, m.begun, m.holding, m.held = AskNone, true, false, false
	return Output{Drop: true, StopEdge: true, Reason: m.reason}
}

// CloudEnd is the end of the cloud's text.
func (m *Machine) CloudEnd() Output {
	if m.done || !m.begun {
		return Output{}
	}
	return m.end(cascade.TierCloud, m.reason)
}

// CloudFail is the loss of the cloud. Before its first event the edge's answer
// stands in, if there is one, and why is its reason.
func (m *Machine) CloudFail(why cascade.Reason) Output {
	switch {
	case m.done || !m.begun && m.asking == AskNone:
		return Output{}
	case m.begun:
		return m.fail(cascade.TierCloud, cascade.ReasonCloudError)
	case m.lost:
		return m.fail(cascade.TierEdge, why)
	case m.ended:
		return m.end(cascade.TierEdge, why)
	case m.hedged: // the edge is judged as if nothing had been asked
		m.asking, m.hedged, m.missed = AskNone, false, why
		return Output{}
	}
	m.asking, m.hedged, m.stand = AskNone, false, why
	return Output{Flush: m.release()}
}

// kept is the reason of an answer that is kept by the verdict, or because a
// hedge has failed.
func (m *Machine) kept(v cascade.Verdict) cascade.Reason {
	if v.Escalate && m.missed != "" {
		return m.missed
	}
	return v.Reason
}

func (m *Machine) mayAsk() bool { return m.opt.Cloud && !m.asked }

func (m *Machine) mayContinue() bool {
	return m.mayAsk() && m.opt.Handoff == HandoffContinue && m.opt.CanContinue && !m.tool
}

func (m *Machine) ask(a Ask, why cascade.Reason) Output {
	m.asking, m.asked, m.reason = a, true, why
	return Output{Ask: a, Reason: why}
}

// await ends a hedge's race: the edge has lost it.
func (m *Machine) await(why cascade.Reason) Output {
	m.hedged, m.reason = false, why
	return Output{}
}

// keep commits to the edge's answer before its end.
func (m *Machine) keep(why cascade.Reason) Output {
	out := Output{Flush: m.release(), StopCloud: m.asking != AskNone}
	m.asking, m.hedged, m.reason = AskNone, false, why
	return out
}

// release ends the holding back and reports whether there was any.
func (m *Machine) release() bool {
	was := m.holding
	m.shown, m.holding, m.held = m.shown || m.held, false, false
	return was
}

func (m *Machine) end(t cascade.Tier, why cascade.Reason) Output {
	out := Output{Flush: m.release(), StopCloud: m.asking != AskNone, Done: true, End: End{Tier: t, Reason: why}}
	m.asking, m.done = AskNone, true
	return out
}

func (m *Machine) fail(t cascade.Tier, why cascade.Reason) Output {
	m.asking, m.holding, m.held, m.done = AskNone, false, false, true
	return Output{Drop: true, StopEdge: true, StopCloud: true, Done: true, End: End{Tier: t, Reason: why, Failed: true}}
}

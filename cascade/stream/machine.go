package stream

import "github.com/weirhq/weir/cascade"

// Handoff says what happens when doubt comes after text was shown.
type Handoff string

// The hand-offs.
const (
	// HandoffFinish lets the edge finish and flags the end low_confidence.
	HandoffFinish Handoff = "finish"
	// HandoffContinue asks the cloud to go on after the text shown. Only for a
	// target that declares that it can.
	HandoffContinue Handoff = "continue"
	// HandoffAppend adds the cloud's answer as a new part of the message.
	HandoffAppend Handoff = "append"
)

// Call is a request for a tier that the caller must make.
type Call uint8

// The calls.
const (
	CallNone     Call = iota
	CallRestart       // cloud, original messages; edge text is discarded
	CallContinue      // cloud, with Output.Shown as the begun answer
	CallAppend        // cloud, original messages; its text follows as a new part
	CallEdge          // edge again, because the cloud failed before any text
)

// Output is what to do after an event.
type Output struct {
	Emit []byte // send to the client
	Call Call
	// Shown is the text already sent, for CallContinue.
	Shown []byte
	// StopEdge says that the edge's generation is no longer needed.
	StopEdge bool
	// Done ends the stream; End says how.
	Done bool
	End  End
}

// End describes the end of a stream.
type End struct {
	Tier   cascade.Tier // that produced the last token
	Reason cascade.Reason
	// Failed says that the answer is incomplete: the stream ends with an error
	// event, and what was shown stays.
	Failed bool
}

// Machine is one answer's way to the client. Events after the end, and events
// of a tier that is not in charge, change nothing.
type Machine struct {
	plan    cascade.Plan
	handoff Handoff
	// canContinue says that the cloud target declares assistant prefill.
	canContinue bool

	active    cascade.Tier // whose text counts
	committed bool         // something may have been shown
	held      []byte
	sent      []byte
	toolOpen  bool
	edgeLost  bool // the edge has failed once
	cloudUsed bool
	reason    cascade.Reason
	done      bool
}

// NewMachine starts an answer by a plan that is not a refusal. Continue without
// a target that can continue becomes finish.
func NewMachine(plan cascade.Plan, h Handoff, canContinue bool) *Machine {
	m := &Machine{plan: plan, handoff: h, canContinue: canContinue, active: plan.First(), reason: plan.Reason}
	m.cloudUsed = m.active == cascade.TierCloud
	// An answer that is not judged needs no holding back.
	m.committed = !plan.Judge
	return m
}

// Held reports whether the edge's text is still being held back.
func (m *Machine) Held() bool { return !m.committed && !m.done }

// Done reports whether the stream has ended.
func (m *Machine) Done() bool { return m.done }

// Text is a piece of text from a tier.
func (m *Machine) Text(t cascade.Tier, piece []byte) Output {
	if m.done || t != m.active || len(piece) == 0 {
		return Output{}
	}
	if !m.committed {
		m.held = append(m.held, piece...)
		return Output{}
	}
	m.sent = append(m.sent, piece...)
	return Output{Emit: piece}
}

// Tool says whether a tool call is open. Inside one nothing is handed over.
func (m *Machine) Tool(open bool) { m.toolOpen = open }

// Decide is the verdict when the window closes or the alarm is raised. Keeping
// commits: the held text is shown.
func (m *Machine) Decide(v cascade.Verdict) Output {
	if m.done || m.committed || m.active != cascade.TierEdge || m.toolOpen {
		return Output{}
	}
	if v.Escalate && m.plan.Uses(cascade.TierCloud) {
		return m.restart(v.Reason)
	}
	m.reason = v.Reason
	return m.commit()
}

func (m *Machine) commit() Output {
	m.committed = true
	out := Output{Emit: m.held}
	m.sent = append(m.sent, m.held...)
	m.held = nil
	return out
}

func (m *Machine) restart(why cascade.Reason) Output {
	m.held, m.active, m.committed, m.reason, m.cloudUsed = nil, cascade.TierCloud, true, why, true
	return Output{Call: CallRestart, StopEdge: true}
}

// EdgeEnd is the end of the edge's text with the verdict on the whole; for a
// plan without judging the verdict is ignored.
func (m *Machine) EdgeEnd(v cascade.Verdict) Output {
	if m.done || m.active != cascade.TierEdge {
		return Output{}
	}
	if !m.plan.Judge {
		return m.end(cascade.TierEdge, m.reason, false)
	}
	if v.Escalate && m.plan.Uses(cascade.TierCloud) && !m.cloudUsed {
		if !m.committed {
			return m.restart(v.Reason)
		}
		if out, ok := m.handOver(v.Reason); ok {
			return out
		}
	}
	out := Output{}
	if !m.committed {
		out = m.commit()
	}
	end := m.end(cascade.TierEdge, endReason(v), false)
	end.Emit = out.Emit
	return end
}

// endReason is the verdict's, or low_confidence for doubt that came too late.
func endReason(v cascade.Verdict) cascade.Reason {
	if v.Escalate {
		return cascade.ReasonLowConfidence
	}
	return v.Reason
}

// handOver continues or appends after text was shown, if so configured.
func (m *Machine) handOver(why cascade.Reason) (Output, bool) {
	call := CallNone
	switch {
	case m.toolOpen:
	case m.handoff == HandoffContinue && m.canContinue:
		call = CallContinue
	case m.handoff == HandoffAppend:
		call = CallAppend
	}
	if call == CallNone {
		return Output{}, false
	}
	m.active, m.reason, m.cloudUsed = cascade.TierCloud, why, true
	out := Output{Call: call, StopEdge: true}
	if call == CallContinue {
		out.Shown = append([]byte(nil), m.sent...)
	}
	return out, true
}

// EdgeFail is the loss of the edge before its end.
func (m *Machine) EdgeFail() Output {
	if m.done || m.active != cascade.TierEdge {
		return Output{}
	}
	m.edgeLost = true
	if m.plan.Uses(cascade.TierCloud) && !m.cloudUsed {
		if len(m.sent) == 0 {
			return m.restart(cascade.ReasonEdgeUnavailable)
		}
		if m.handoff == HandoffContinue {
			if out, ok := m.handOver(cascade.ReasonEdgeUnavailable); ok {
				return out
			}
		}
	}
	return m.end(cascade.TierEdge, cascade.ReasonEdgeUnavailable, true)
}

// CloudEnd is the end of the cloud's text.
func (m *Machine) CloudEnd() Output {
	if m.done || m.active != cascade.TierCloud {
		return Output{}
	}
	return m.end(cascade.TierCloud, m.reason, false)
}

// CloudFail is the loss of the cloud. Before any text was shown the edge is
// asked (again), if the plan has it and it is alive; its answer then stands.
func (m *Machine) CloudFail() Output {
	if m.done || m.active != cascade.TierCloud {
		return Output{}
	}
	if len(m.sent) == 0 && m.plan.Uses(cascade.TierEdge) && !m.edgeLost {
		m.active, m.committed, m.reason = cascade.TierEdge, true, cascade.ReasonCloudError
		m.plan.Judge = false
		return Output{Call: CallEdge}
	}
	return m.end(cascade.TierCloud, cascade.ReasonCloudError, true)
}

// Cancel ends the stream because the client went away.
func (m *Machine) Cancel() Output {
	if m.done {
		return Output{}
	}
	return m.end(m.active, m.reason, true)
}

func (m *Machine) end(t cascade.Tier, r cascade.Reason, failed bool) Output {
	m.done, m.held = true, nil
	return Output{Done: true, StopEdge: true, End: End{Tier: t, Reason: r, Failed: failed}}
}

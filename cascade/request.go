package cascade

import "time"

// Request is what a decision may know of a request. The zero value is an
// ordinary request in mode auto.
type Request struct {
	Mode    Mode
	Privacy Privacy
	// Named is the tier of the model that the client named, "" for the model
	// that cascades ("auto"). Naming a model bypasses the cascade.
	Named Tier
	// PromptTokens and MaxTokens are bounds in tokens; 0 is unknown.
	PromptTokens, MaxTokens int
	Tools, Images           bool
	// Unchecked says that the client asks for a form of answer that this node
	// cannot check, and so cannot promise.
	Unchecked bool
	// Remaining is the time left until the client's deadline; 0 is no deadline
	// and a negative value is a deadline that has passed.
	Remaining time.Duration
	// MaxCost is the client's cap in nano-dollars; 0 is no cap.
	MaxCost int64
	// Sticky says that the session is pinned to the cloud (see Session).
	Sticky bool
	// PredictedHard says that the pre-router gives the edge pass up.
	PredictedHard bool
	// Escalated requests came from another cascade and are not cascaded again.
	Escalated bool
}

// Link is what is known of the way to the cloud.
type Link uint8

// The states of a link. An unknown link is tried.
const (
	LinkUnknown Link = iota
	LinkUp
	LinkDown // the circuit breaker is open
)

// Capability is what a tier's model can take.
type Capability struct {
	Context int // most tokens of prompt and answer; 0 is unknown and not checked
	Tools   bool
	Images  bool
}

// Node is what is known, at the moment of a decision, of the node that decides.
// Numbers are estimates that the caller keeps fresh.
type Node struct {
	// EdgeReady is false while no local model can answer.
	EdgeReady bool
	// EdgeBusy says that the local queue is beyond its bound.
	EdgeBusy bool
	Edge     Capability
	Cloud    Capability
	Link     Link
	// RTT and CloudP90 are the round trip to the cloud and the 90 % quantile of
	// its whole answer; 0 is unknown.
	RTT, CloudP90 time.Duration
	// CloudCost is an upper bound of one escalation's cost, nano-dollars.
	CloudCost int64
	// Budget is what the tenant may still spend, nano-dollars; it binds only
	// when Budgeted is set.
	Budget   int64
	Budgeted bool
}

// cloudBlock returns why the cloud must not be asked, or "". The order is that
// of the hard gates: privacy, the client's mode, capability, link, deadline, cost cap, budget.
func cloudBlock(r *Request, n *Node) Reason {
	switch {
	case r.Privacy.Local():
		return ReasonLocalOnly
	case r.Mode == ModeEdgeOnly || r.Named == TierEdge:
		return ReasonClientMode
	case !n.Cloud.takes(r):
		return ReasonCapability
	case n.Link == LinkDown:
		return ReasonOffline
	case r.Remaining != 0 && n.RTT+n.CloudP90 > r.Remaining:
		return ReasonDeadline
	case r.MaxCost > 0 && n.CloudCost > r.MaxCost:
		return ReasonCostCap
	case n.Budgeted && (n.Budget <= 0 || n.CloudCost > n.Budget):
		return ReasonBudget
	}
	return ""
}

// edgeBlock returns why the edge cannot answer, or "".
func edgeBlock(r *Request, n *Node) Reason {
	switch {
	case !n.EdgeReady:
		return ReasonEdgeUnavailable
	case r.Unchecked || !n.Edge.takes(r):
		return ReasonCapability
	}
	return ""
}

// Blocks returns why each tier may not be asked, "" where it may.
func Blocks(r Request, n Node) (edge, cloud Reason) { return edgeBlock(&r, &n), cloudBlock(&r, &n) }

func (c Capability) takes(r *Request) bool {
	// A capability that says nothing at all is unknown, not incapable.
	if c == (Capability{}) {
		return true
	}
	if c.Context > 0 && r.PromptTokens+r.MaxTokens > c.Context {
		return false
	}
	return (c.Tools || !r.Tools) && (c.Images || !r.Images)
}

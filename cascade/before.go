package cascade

// Plan says who is asked, in which order, and what is done with the edge's
// answer. An empty plan is a refusal; Reason says why.
type Plan struct {
	first, second Tier
	// Judge says that the edge's answer goes through After. Otherwise the
	// second tier is asked only if the first fails.
	Judge bool
	// Reason is the reason to report if the first tier answers. It is empty
	// when After decides.
	Reason Reason
}

// First returns the tier to ask first, "" for a refusal.
func (p Plan) First() Tier { return p.first }

// Second returns the tier to ask when the first fails or, for a judged edge
// answer, when After escalates; "" for none.
func (p Plan) Second() Tier { return p.second }

// Refused reports whether nobody may be asked.
func (p Plan) Refused() bool { return p.first == "" }

// Uses reports whether the plan may ask the tier at all.
func (p Plan) Uses(t Tier) bool { return p.first == t || p.second == t }

// Before plans a request. It fails closed: for a local-only request the cloud
// is never in the plan, and where the edge cannot answer the plan is a refusal
// with ReasonLocalOnlyUnavailable.
func Before(r Request, n Node) Plan {
	edge, cloud := edgeBlock(&r, &n), cloudBlock(&r, &n)
	if r.Privacy.Local() {
		return planLocal(&r, edge)
	}
	mode := r.Mode
	if r.Named != "" {
		if (r.Named == TierEdge && mode == ModeCloudOnly) || (r.Named == TierCloud && mode == ModeEdgeOnly) {
			return Plan{Reason: ReasonClientMode} // the client contradicts itself
		}
		mode = ModeEdgeOnly
		if r.Named == TierCloud {
			mode = ModeCloudOnly
		}
	}
	switch mode {
	case ModeEdgeOnly:
		return planOnly(TierEdge, edge)
	case ModeCloudOnly:
		return planOnly(TierCloud, cloud)
	case ModePreferEdge:
		return planPrefer(TierEdge, edge, TierCloud, cloud)
	case ModePreferCloud:
		return planPrefer(TierCloud, cloud, TierEdge, edge)
	}
	return planAuto(&r, &n, edge, cloud)
}

func planLocal(r *Request, edge Reason) Plan {
	if edge != "" || r.Mode == ModeCloudOnly || r.Named == TierCloud {
		return Plan{Reason: ReasonLocalOnlyUnavailable}
	}
	return Plan{first: TierEdge, Reason: ReasonLocalOnly}
}

func planOnly(t Tier, block Reason) Plan {
	if block != "" {
		return Plan{Reason: block}
	}
	return Plan{first: t, Reason: ReasonClientMode}
}

func planPrefer(a Tier, blockA Reason, b Tier, blockB Reason) Plan {
	switch {
	case blockA == "" && blockB == "":
		return Plan{first: a, second: b, Reason: ReasonClientMode}
	case blockA == "":
		return Plan{first: a, Reason: ReasonClientMode}
	case blockB == "":
		return Plan{first: b, Reason: blockA}
	}
	return Plan{Reason: blockA}
}

func planAuto(r *Request, n *Node, edge, cloud Reason) Plan {
	cloudFirst := func(why Reason) Plan { return Plan{first: TierCloud, second: TierEdge, Reason: why} }
	switch {
	case edge != "" && cloud != "":
		return Plan{Reason: edge}
	case edge != "":
		return Plan{first: TierCloud, Reason: edge}
	case cloud != "":
		return Plan{first: TierEdge, Reason: cloud}
	case r.Sticky:
		return cloudFirst(ReasonSessionSticky)
	case n.EdgeBusy:
		return cloudFirst(ReasonEdgeOverloaded)
	case r.PredictedHard:
		return cloudFirst(ReasonPredictedHard)
	case r.Escalated:
		return Plan{first: TierEdge, Reason: ReasonClientMode}
	}
	return Plan{first: TierEdge, second: TierCloud, Judge: true}
}

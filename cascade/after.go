package cascade

// Answer is the edge's finished answer as far as a decision looks at it.
type Answer struct {
	Signals Signals
	// Failed says that a validator rejected the answer (schema, tool call,
	// pattern, refusal, empty). It is hard evidence: confidence cannot save it.
	Failed bool
}

// Verdict is the judgement of an edge answer.
type Verdict struct {
	// Escalate says that the cloud is to answer instead.
	Escalate bool
	// Wanted says that the policy would escalate, even where a hard limit
	// forbids it. A kept answer with Wanted set is a low-confidence one.
	Wanted bool
	Reason Reason
	// Confidence is the calibrated probability that the edge's answer is right.
	// It is meaningful only when Known is set.
	Confidence float64
	Known      bool
	// Gain and Theta are what the rule compared (RuleGain only).
	Gain, Theta float64
}

// After judges a finished edge answer. Hard limits come first: where the cloud
// must not be asked the answer is kept and the reason names the limit, if the
// policy had wanted more. cal may be nil: the signals are then unusable.
// It allocates nothing.
func After(r *Request, a *Answer, cal *Calibration, pol *Policy, n *Node) Verdict {
	p, known := cal.Probability(&a.Signals)
	return Judge(r, p, known, a.Failed, pol, n)
}

// Judge is After for a caller that has its own calibrator: pe is the
// probability that the edge is right, unless known is false; failed says that a
// validator rejected the answer.
func Judge(r *Request, pe float64, known, failed bool, pol *Policy, n *Node) Verdict {
	v := Verdict{Confidence: pe, Known: known, Theta: pol.Theta}
	switch {
	case failed:
		v.Wanted, v.Reason = true, ReasonValidatorFailed
	case !known && pol.Rule != RuleAlwaysEdge && pol.Rule != RuleAlwaysCloud:
		v.Wanted, v.Reason = !pol.KeepUnusable, ReasonSignalUnusable
	default:
		v.Wanted, v.Gain = pol.wants(pe)
		v.Reason = verdictReason(v.Wanted, pol)
	}
	if !v.Wanted {
		return v
	}
	if block := cloudBlock(r, n); block != "" {
		v.Reason = block
		return v
	}
	v.Escalate = true
	return v
}

func verdictReason(wanted bool, pol *Policy) Reason {
	switch {
	case !wanted:
		return ReasonConfident
	case pol.Risk:
		return ReasonRiskControl
	default:
		return ReasonLowConfidence
	}
}

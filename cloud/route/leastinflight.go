package route

// LeastInFlight sends each stage to the ready instance with the fewest legs
// under way. Prefill legs weigh by count first and by prompt bytes second,
// because a prefill's cost grows with its prompt.
type LeastInFlight struct{}

const policyLeastInFlight = "least-in-flight"

var _ Policy = LeastInFlight{}

// Spec implements Policy.
func (LeastInFlight) Spec() Spec {
	return Spec{
		Name:     policyLeastInFlight,
		Signals:  []string{"role", "model", "ready", "suspect", "weight", "in_flight.requests", "in_flight.prompt_bytes"},
		Knob:     "prefill and decode instance",
		Fallback: "without a usable prefill instance the decode instance prefills",
		Weakness: "several gateways see only their own legs; prefix hits and answer lengths are not weighed",
	}
}

// Decide implements Policy.
func (LeastInFlight) Decide(o *Observation) Decision {
	d := Decision{Policy: policyLeastInFlight, Scores: make([]Score, 0, len(o.Inst))}
	decode, only := pick(o, &d, StageDecode, decodeHard(o)...)
	if decode == nil {
		d.Action = reject(o, d.Scores)
		return d
	}
	d.Reasons = append(d.Reasons, why(only))
	if o.Req.Moved || decode.Role == Mixed {
		return whole(d, decode, ReasonWhole)
	}
	if h := o.Req.Handoff; h.ID != "" && handoffFits(o, h, decode) {
		return reused(d, h, decode)
	}
	prefill, _ := pick(o, &d, StagePrefill, prefillHard(o, decode)...)
	return split(d, prefill, decode)
}

// decodeHard and prefillHard are what each stage asks of an instance now. A
// suspect prefills nothing, because the decode instance can do it.
func decodeHard(o *Observation) []constraint {
	return []constraint{servesModel, canDecode, notFailed(o.Req.FailedDecode), isReady, isRested, canResume, contextFits}
}

func prefillHard(o *Observation, decode *InstanceView) []constraint {
	return []constraint{servesModel, canPrefill, notFailed(o.Req.FailedPrefill), isReady, isRested, notSuspect, canResume, contextFits, sharesKV(decode)}
}

// split sends the prompt to prefill and the answer to decode; without a
// prefill instance decode does both.
func split(d Decision, prefill, decode *InstanceView) Decision {
	if prefill == nil {
		d.Fallback = true
		return whole(d, decode, ReasonPrefillAtDecode)
	}
	d.Reasons = append(d.Reasons, ReasonSplit)
	d.Action = Send{Prefill: prefill.ID, Decode: decode.ID}
	return d
}

func reused(d Decision, handoff Process, decode *InstanceView) Decision {
	d.Reasons = append(d.Reasons, ReasonSplit, ReasonHandoffReused)
	d.Action = Send{Prefill: handoff.ID, Decode: decode.ID, Reuse: true}
	return d
}

func whole(d Decision, in *InstanceView, reason Reason) Decision {
	d.Reasons = append(d.Reasons, reason)
	d.Action = Send{Decode: in.ID}
	return d
}

func why(only bool) Reason {
	if only {
		return ReasonOnly
	}
	return ReasonLeastInFlight
}

// handoffFits reports whether the process that holds the hand-off is still there
// and writes what decode reads.
func handoffFits(o *Observation, holder Process, decode *InstanceView) bool {
	for i := range o.Inst {
		if in := &o.Inst[i]; in.process() == holder {
			return in.Ready && sharesKV(decode)(o, in) == ""
		}
	}
	return false
}

// pick scores the instances that meet every constraint and returns the best,
// and whether it was the only one. Ties go to a place that the seed chooses.
func pick(o *Observation, d *Decision, stage Stage, hard ...constraint) (best *InstanceView, only bool) {
	n, ties := 0, 0
	for i := range o.Inst {
		in := &o.Inst[i]
		if out := firstViolation(o, in, hard); out != "" {
			if out != OutModel && out != OutRole {
				d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Out: out})
			}
			continue
		}
		n++
		d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Value: legs(in)})
		switch {
		case best == nil || less(stage, in, best):
			best, ties = in, 1
		case !less(stage, best, in):
			// Reservoir choice among equals: the k-th replaces with chance 1/k.
			if ties++; mix(o.Seed, uint64(ties))%uint64(ties) == 0 {
				best = in
			}
		}
	}
	return best, n == 1
}

func firstViolation(o *Observation, in *InstanceView, hard []constraint) Reason {
	for _, c := range hard {
		if out := c(o, in); out != "" {
			return out
		}
	}
	return ""
}

// less is the order of preference: the healthy before suspects, then by load.
func less(stage Stage, a, b *InstanceView) bool {
	if a.Suspect != b.Suspect {
		return b.Suspect
	}
	if x, y := legs(a), legs(b); x != y {
		return x < y
	}
	return stage == StagePrefill && a.InFlight.PromptBytes < b.InFlight.PromptBytes
}

// legs is the load that one more leg would make, over what the instance should
// take: without slow start the legs under way.
func legs(in *InstanceView) float64 { return float64(in.InFlight.Requests+1)/in.weight() - 1 }

// reject explains an empty stage, and says when to ask again.
func reject(o *Observation, scores []Score) Reject {
	r := Reject{Cause: whyNone(scores)}
	lasting := []constraint{servesModel, canDecode, isReady, canResume, contextFits}
	found := false
	for i := range o.Inst {
		in := &o.Inst[i]
		if firstViolation(o, in, lasting) != "" {
			continue
		}
		left := max(in.RestsUntil-o.Now, 0)
		if !found || left < r.After {
			r.After, found = left, true
		}
	}
	return r
}

// whyNone names the cause of an empty stage: the mildest exclusion wins,
// because it is the one that was closest to a yes.
func whyNone(scores []Score) Reason {
	cause := ReasonNoInstance
	for _, s := range scores {
		switch s.Out {
		case OutFailed:
			return ReasonAllFailed
		case OutBusy:
			cause = ReasonAllBusy
		case OutContext:
			if cause != ReasonAllBusy {
				cause = ReasonTooLong
			}
		case OutNotReady:
			if cause == ReasonNoInstance {
				cause = ReasonNoneReady
			}
		}
	}
	return cause
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) over both words.
func mix(a, b uint64) uint64 {
	z := a + b*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

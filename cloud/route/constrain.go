package route

import "slices"

// constraint returns why an instance cannot take the stage, or "".
type constraint func(*Observation, *InstanceView) Reason

func servesModel(o *Observation, in *InstanceView) Reason {
	if in.Model != o.Req.Model {
		return OutModel
	}
	return ""
}

// canResume refuses what would begin an answer anew that the client has seen
// in part, and what would go on with it with another model's words.
func canResume(o *Observation, in *InstanceView) Reason {
	switch {
	case !o.Req.Resume:
		return ""
	case !in.Resumes:
		return OutResume
	case WeightsDiffer(o.Req.Weights, in.Weights):
		return OutWeights
	}
	return ""
}

// WeightsDiffer reports whether two instances are known to have other weights.
// "" is unknown.
func WeightsDiffer(a, b string) bool { return a != "" && b != "" && a != b }

func notSuspect(_ *Observation, in *InstanceView) Reason {
	if in.Suspect {
		return OutSuspect
	}
	return ""
}

func isReady(_ *Observation, in *InstanceView) Reason {
	if !in.Ready {
		return OutNotReady
	}
	return ""
}

// isRested refuses an instance that has asked to be left alone for a while.
func isRested(o *Observation, in *InstanceView) Reason {
	if in.RestsUntil > o.Now {
		return OutBusy
	}
	return ""
}

// contextFits refuses only what cannot fit in any tokenizer of today: no
// vocabulary has tokens of more than 128 bytes on average text.
func contextFits(o *Observation, in *InstanceView) Reason {
	const mostBytesPerToken = 128
	if in.Context > 0 && o.Req.PromptBytes/mostBytesPerToken > in.Context {
		return OutContext
	}
	return ""
}

func canPrefill(_ *Observation, in *InstanceView) Reason {
	if in.Role != Prefill {
		return OutRole
	}
	return ""
}

func canDecode(_ *Observation, in *InstanceView) Reason {
	if in.Role == Prefill {
		return OutRole
	}
	return ""
}

func notFailed(failed []Process) constraint {
	return func(_ *Observation, in *InstanceView) Reason {
		if slices.Contains(failed, in.process()) {
			return OutFailed
		}
		return ""
	}
}

// sharesKV refuses a prefill instance whose KV the decode instance is known
// not to get or not to read.
func sharesKV(decode *InstanceView) constraint {
	return func(_ *Observation, in *InstanceView) Reason {
		if in.Apart || decode.Apart || in.KVFormat != "" && decode.KVFormat != "" && in.KVFormat != decode.KVFormat {
			return OutKV
		}
		return ""
	}
}

// Takes reports whether an instance could decode the request now, without
// choosing one.
func Takes(o *Observation) bool {
	hard := []constraint{servesModel, canDecode, isReady, contextFits}
	for i := range o.Inst {
		if firstViolation(o, &o.Inst[i], hard) == "" {
			return true
		}
	}
	return false
}

package route

import "math"

// candidates are the instances that meet every constraint; the others go into
// the decision's scores with what left them out.
func candidates(o *Observation, d *Decision, stage Stage, hard []constraint) []*InstanceView {
	list := make([]*InstanceView, 0, len(o.Inst))
	for i := range o.Inst {
		in := &o.Inst[i]
		switch out := firstViolation(o, in, hard); out {
		case "":
			list = append(list, in)
		case OutModel, OutRole:
		default:
			d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Out: out})
		}
	}
	return list
}

// prefer keeps those that are good, or all where none is.
func prefer(d *Decision, stage Stage, list []*InstanceView, out Reason, good func(*InstanceView) bool) []*InstanceView {
	kept := make([]*InstanceView, 0, len(list))
	for _, in := range list {
		if good(in) {
			kept = append(kept, in)
		}
	}
	if len(kept) == 0 {
		return list
	}
	for _, in := range list {
		if !good(in) {
			d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Out: out})
		}
	}
	return kept
}

func withoutSuspects(d *Decision, stage Stage, list []*InstanceView) []*InstanceView {
	return prefer(d, stage, list, OutSuspect, func(in *InstanceView) bool { return !in.Suspect })
}

// withRoom keeps the instances whose KV cache has room for the request's prompt
// and its answer.
func withRoom(o *Observation, d *Decision, list []*InstanceView) []*InstanceView {
	need := tokens(o.Req.PromptBytes) + o.Req.MaxTokens
	return prefer(d, StageDecode, list, OutFull, func(in *InstanceView) bool {
		return in.Load.KVTokens == 0 || in.Load.KVFree-tokens(in.Unseen.PromptBytes) >= need
	})
}

// least scores the list and returns the best; ties go to a place that the seed
// chooses.
func least(o *Observation, d *Decision, stage Stage, list []*InstanceView, score func(*InstanceView) float64) *InstanceView {
	var best *InstanceView
	low, ties := math.Inf(1), 0
	for _, in := range list {
		v := score(in)
		d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Value: v})
		switch {
		case best == nil || v < low:
			best, low, ties = in, v, 1
		case v == low:
			if ties++; mix(o.Seed, uint64(ties))%uint64(ties) == 0 {
				best = in
			}
		}
	}
	return best
}

// leastOf is least-in-flight over a list.
func leastOf(o *Observation, d *Decision, stage Stage, list []*InstanceView) *InstanceView {
	return least(o, d, stage, list, legs)
}

func first(list []*InstanceView) *InstanceView {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func allMixed(list []*InstanceView) bool {
	for _, in := range list {
		if in.Role != Mixed {
			return false
		}
	}
	return true
}

// batch is the requests at an instance: what it reports and what it has not
// reported yet of the observer's own.
func batch(in *InstanceView) int { return in.Load.Running + in.Load.Waiting + in.Unseen.Requests }

// backlog is the prompt tokens that an instance has yet to compute.
func backlog(in *InstanceView) int { return in.Load.PrefillTokens + tokens(in.Unseen.PromptBytes) }

// suffix is how many of the request's tokens the instance has not cached.
func suffix(o *Observation, in *InstanceView) int {
	return tokens(max(o.Req.PromptBytes-in.HitBytes, 0))
}

func tokens(bytes int) int { return (bytes + BytesPerToken - 1) / BytesPerToken }

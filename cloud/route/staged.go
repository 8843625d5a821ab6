package route

// Staged lets Policy decide, but gives a request that moves to the instance that
// has its KV already, as long as that can take it.
type Staged struct {
	Policy
	At string // instance; "" is none
}

// ReasonStaged: the KV of the request that moves was copied there ahead.
const ReasonStaged Reason = "kv_staged"

// Decide implements Policy.
func (s Staged) Decide(o *Observation) Decision {
	for i := range o.Inst {
		if in := &o.Inst[i]; in.ID == s.At && o.Req.Moved && !in.Suspect && firstViolation(o, in, decodeHard(o)) == "" {
			d := Decision{Policy: s.Spec().Name, Scores: []Score{{Stage: StageDecode, Instance: in.ID, Value: legs(in)}}}
			return whole(d, in, ReasonStaged)
		}
	}
	return s.Policy.Decide(o)
}

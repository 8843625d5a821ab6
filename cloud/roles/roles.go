// Package roles decides what becomes of instances and of streams that run: who
// prefills and who decodes, which streams move (moves.go), and who degrades
// (slow.go). All of it is pure.
//
// Decide goes from what the pool knows to at most one change of a role. It follows
// Arrow and Llumnix's adaptive split (scheduling.md 3.5): flip an instance when one
// side misses its target and the other has room to spare. What those lack it adds:
// a band between the two thresholds and a dwell time, so that roles do not thrash.
package roles

import (
	"time"

	"github.com/weirhq/weir/cloud/route"
)

// Instance is one instance of the pool.
type Instance struct {
	ID    string
	Role  route.Role
	Ready bool
	// Flips says that its role can be changed while it runs.
	Flips   bool
	Running int           // requests
	Backlog time.Duration // until its prompts that wait are computed, predicted
	TPOT    time.Duration // time of a step, recent
	Changed time.Duration // when its role was changed last, on Observation.Now's clock; 0 is never
}

// Observation is what a decision sees: all instances of one pool.
type Observation struct {
	Now  time.Duration
	Inst []Instance
	TTFT time.Duration // wanted time to the first token
	TPOT time.Duration // wanted time per token after it
}

// Reason explains a decision.
type Reason string

// Reasons of decisions.
const (
	ReasonBalanced   Reason = "balanced"
	ReasonDwell      Reason = "dwell"        // a role was changed a short while ago
	ReasonAtLeastOne Reason = "at_least_one" // the change would leave a side empty
	ReasonNoDonor    Reason = "no_donor"     // the other side has no room, or nobody whose role can change
	ReasonPrefill    Reason = "prefill_behind"
	ReasonDecode     Reason = "decode_behind"
)

// Decision is at most one change. ID is "" where nothing changes.
type Decision struct {
	ID     string
	Role   route.Role
	Reason Reason
	// Prefill and Decode are the pressures that were seen: the mean over ready
	// instances of what they take, over what is wanted.
	Prefill, Decode float64
}

// Params are a controller's thresholds, as shares of what is wanted. Zero
// fields take the defaults of scheduling.md 10.
type Params struct {
	High  float64       // a side beyond it needs help; 0.95
	Low   float64       // a side below it after the change can give; 0.6
	Dwell time.Duration // between two changes in a pool; 10 s
}

func (p *Params) fill() {
	if p.High <= 0 {
		p.High = .95
	}
	if p.Low <= 0 {
		p.Low = .6
	}
	if p.Dwell <= 0 {
		p.Dwell = 10 * time.Second
	}
}

// Decide returns the change that the pool needs most.
func (p Params) Decide(o *Observation) Decision {
	p.fill()
	prefill, decode := sideOf(o, route.Prefill), sideOf(o, route.Decode)
	d := Decision{Reason: ReasonBalanced, Prefill: prefill.pressure, Decode: decode.pressure}
	switch {
	case prefill.n == 0 || decode.n == 0: // not a split pool
		return d
	case prefill.pressure > p.High && decode.pressure <= p.High:
		return p.move(o, d, decode, route.Prefill, ReasonPrefill)
	case decode.pressure > p.High && prefill.pressure <= p.High:
		return p.move(o, d, prefill, route.Decode, ReasonDecode)
	}
	return d
}

// move takes the idlest instance of the side that gives.
func (p Params) move(o *Observation, d Decision, from side, to route.Role, why Reason) Decision {
	for i := range o.Inst {
		if at := o.Inst[i].Changed; at > 0 && o.Now-at < p.Dwell {
			d.Reason = ReasonDwell
			return d
		}
	}
	switch {
	case from.n < 2:
		d.Reason = ReasonAtLeastOne
	case from.donor == nil || from.pressure*float64(from.n)/float64(from.n-1) > p.Low:
		d.Reason = ReasonNoDonor
	default:
		d.ID, d.Role, d.Reason = from.donor.ID, to, why
	}
	return d
}

// side is the instances of one role.
type side struct {
	n        int
	pressure float64
	donor    *Instance // who could best be spared
}

func sideOf(o *Observation, role route.Role) side {
	var s side
	for i := range o.Inst {
		in := &o.Inst[i]
		if in.Role != role || !in.Ready {
			continue
		}
		s.n++
		s.pressure += pressure(o, in)
		if in.Flips && (s.donor == nil || in.Running < s.donor.Running) {
			s.donor = in
		}
	}
	if s.n > 0 {
		s.pressure /= float64(s.n)
	}
	return s
}

// pressure is what an instance takes over what is wanted of its role.
func pressure(o *Observation, in *Instance) float64 {
	took, want := in.Backlog, o.TTFT
	if in.Role == route.Decode {
		took, want = in.TPOT, o.TPOT
		if in.Running == 0 {
			took = 0
		}
	}
	if want <= 0 {
		return 0
	}
	return float64(took) / float64(want)
}

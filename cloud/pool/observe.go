package pool

import "github.com/weirhq/weir/cloud/route"

// group is the instances that can stand in for one another.
type group struct {
	model   string
	prefill bool
}

// observeLocked fills the scratch views, in the order of inst. Beyond the cap,
// instances that are out for soft reasons stay in as suspects.
func (p *Pool) observeLocked() []route.InstanceView {
	now := p.now()
	size, soft, sound := map[group]int{}, map[group]int{}, map[group]bool{}
	for _, in := range p.inst {
		g := in.group()
		size[g]++
		if out, _ := in.vitals.out(now); !out && !in.vitals.suspect {
			sound[g] = true
		}
	}
	p.views = p.views[:0]
	for _, in := range p.inst {
		v := in.view()
		out, hard := in.vitals.out(now)
		v.Ready = !out
		if out && !hard {
			// A breaker alone leaves nobody to suspects: those may be dead.
			if g := in.group(); soft[g] < capped(size[g]) && (sound[g] || !in.vitals.up) {
				soft[g]++
			} else {
				v.Ready, v.Suspect = true, true
			}
		}
		v.Weight = in.vitals.share(now)
		p.views = append(p.views, v)
	}
	return p.views
}

func (in *instance) group() group { return group{in.Model, in.role == route.Prefill} }

// view is the instance as far as no clock is needed.
func (in *instance) view() route.InstanceView {
	v := route.InstanceView{ID: in.Name, Epoch: in.epoch, Role: in.role, Model: in.Model, Context: in.context, KVFormat: in.kv, Weights: in.weights, Apart: in.apart,
		SeenAt: in.seen, InFlight: in.ledger.total, Unseen: in.ledger.unseen, Suspect: in.vitals.suspect, RestsUntil: in.vitals.rests,
		Resumes: in.known.streams, Load: in.known.load, KVAddr: in.kvAddr, Copies: in.known.copies}
	if in.known.cost != nil {
		v.Cost = predictor{in.known.cost}
	}
	return v
}

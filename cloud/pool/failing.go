package pool

import (
	"fmt"
	"time"

	"github.com/weirhq/weir/cloud/roles"
)

// stepsTell is for how long an instance's last steps tell its peers how fast
// steps are now.
const stepsTell = 30 * time.Second

// pace follows how fast an instance's steps are.
type pace struct {
	slow  roles.Slowness
	steps uint64        // that were looked at
	ran   time.Duration // when it was last seen to run something; 0 is never
	ratio float64       // of its steps' time and its cost model's word, then
}

// judge looks for instances that degrade while they still answer, by their own
// word or by their steps. They get no new work, within the bounds of soft
// reasons, and come back slowly when the evidence ends.
func (p *Pool) judge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	fresh := make([]float64, len(p.inst))
	for i, in := range p.inst {
		fresh[i] = in.pace.look(&in.known, now)
	}
	for i, in := range p.inst {
		peers := p.peerPaceLocked(in, now)
		why := in.known.failing
		if in.pace.slow.Look(now, fresh[i], peers) && why == "" {
			why = fmt.Sprintf("its steps take %.1f times as long as its cost model says, those of its peers %.1f times", in.pace.ratio, peers)
			if in.vitals.failing != "" {
				why = in.vitals.failing // numbers of the verdict, not of each look
			}
		}
		switch was := in.vitals.failing; {
		case why != "" && was == "":
			p.opts.Log.Warn("instance degrades", "instance", in.Name, "why", why)
		case why == "" && was != "":
			in.vitals.back = now
			p.opts.Log.Info("instance does not degrade any more", "instance", in.Name)
		}
		in.vitals.failing = why
	}
}

// look is how long recent steps took over what the cost model says of them; 0
// where no step has ended since the last look, so that one slow step counts once.
func (c *pace) look(k *known, now time.Duration) float64 {
	if k.seq == 0 || k.steps == c.steps || k.load.Running == 0 || k.modelMs <= 0 {
		return 0
	}
	c.steps, c.ran, c.ratio = k.steps, now, k.stepMs/k.modelMs
	return c.ratio
}

// peerPaceLocked is the middle of the same of those that can stand in for in.
// Where none of them runs anything they are taken to be as fast as their cost
// models say.
func (p *Pool) peerPaceLocked(in *instance, now time.Duration) float64 {
	var busy, idle []float64
	for _, other := range p.inst {
		switch {
		case other == in || other.group() != in.group():
		case other.pace.ran > 0 && now-other.pace.ran < stepsTell:
			busy = append(busy, other.pace.ratio)
		case other.known.cost != nil && other.known.seq > 0:
			idle = append(idle, 1)
		}
	}
	if len(busy) == 0 {
		return roles.Middle(idle)
	}
	return roles.Middle(busy)
}

package pool

import (
	"slices"
	"strings"
	"time"
)

// Joined is an instance that is a member by its own word, as the cloud's
// registry has it.
type Joined struct {
	Member
	Epoch  string        // of the process that registered
	Silent time.Duration // since its last heartbeat
}

// joined is what the registry last said of an instance.
type joined struct {
	epoch string
	heard time.Duration // the last heartbeat, on the pool's clock
}

// SetJoined takes the registry's list, whole and as of now. A name in the
// operator's list is the operator's. Whom neither a heartbeat nor this gateway's
// own probes have heard of for Options.Forget is taken for gone; who is gone
// gets no new work, and is watched until its streams have ended or moved.
func (p *Pool) SetJoined(list []Joined) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := map[*instance]bool{}
	for _, j := range list {
		if err := j.fill(); err != nil {
			p.opts.Log.Error("registered instance left out", "error", err)
			continue
		}
		in := p.find(j.Name)
		if in != nil && in.joined == nil {
			continue
		}
		heard := p.now() - j.Silent
		if in != nil && in.moved(&j) {
			p.retire(in)
			in = nil
		}
		if in == nil {
			if j.Silent > p.opts.Forget {
				continue
			}
			in = newInstance(j.Member)
			in.joined = &joined{}
			p.add(in)
			p.opts.Log.Info("instance joined", "instance", in.Name, "url", in.URL, "role", in.Role, "model", in.Model, "epoch", j.Epoch)
		}
		if in.joined.epoch != j.Epoch {
			signal(in.kick) // another process: look at once
		}
		in.joined.epoch, in.joined.heard = j.Epoch, heard
		keep[in] = p.now()-max(heard, in.seen) <= p.opts.Forget
	}
	for _, in := range slices.Clone(p.inst) {
		if in.joined != nil && !keep[in] {
			p.retire(in)
		}
	}
	signal(p.changed)
}

// moved reports whether the registry's process is not where the known one is.
func (in *instance) moved(j *Joined) bool {
	return in.URL != j.URL || in.Model != j.Model || in.Served != j.Served
}

// retire takes an instance out of the pool.
func (p *Pool) retire(in *instance) {
	i, _ := slices.BinarySearchFunc(p.inst, in.Name, func(x *instance, name string) int { return strings.Compare(x.Name, name) })
	p.inst = slices.Delete(p.inst, i, i+1)
	p.leaving = append(p.leaving, in)
	p.opts.Log.Info("instance left", "instance", in.Name, "url", in.URL, "in_flight", in.ledger.total.Requests)
}

// bury forgets those who left and have no leg of this gateway any more, streams
// that never came back, and orders that did nothing.
func (p *Pool) bury() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for operation, h := range p.moved {
		if p.now()-h.since > historyFor {
			if h.from != nil {
				p.stayedLocked(h.cause)
				h.from = nil
			}
			delete(p.moved, operation)
		}
	}
	for _, in := range slices.Concat(p.inst, p.leaving) {
		for _, e := range in.ledger.legs {
			p.lapseLocked(e)
		}
	}
	p.leaving = slices.DeleteFunc(p.leaving, func(in *instance) bool {
		over := len(in.ledger.legs) == 0
		if over {
			close(in.gone)
		}
		return over
	})
}

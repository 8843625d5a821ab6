package pool

import (
	"time"

	"github.com/weirhq/weir/cloud/route"
)

// Leg is one request's work at one instance, counted until Release. It is for
// the goroutine that selected it.
type Leg struct {
	ID     string // instance
	Opaque string
	URL    string
	Served string // the model's name at the instance
	Epoch  string

	pool     *Pool
	prompt   int
	released bool
}

// Selection is where a request goes. Prefill is nil when Decode serves it
// whole, and when an earlier hand-off is used again (Reused).
type Selection struct {
	Prefill *Leg
	Decode  *Leg
	Reused  bool
}

// Release ends the legs. Calling it again does nothing.
func (s *Selection) Release() {
	s.Prefill.Release()
	s.Decode.Release()
}

// Select asks the policy and counts the chosen legs before anyone else looks.
// When the policy rejects, the Selection is empty.
func (p *Pool) Select(policy route.Policy, trigger route.Trigger, req route.RequestView, seed uint64) (Selection, route.Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := policy.Decide(&route.Observation{Now: time.Since(p.start), Trigger: trigger, Req: req, Inst: p.observeLocked(), Seed: seed})
	send, ok := d.Action.(route.Send)
	if !ok {
		return Selection{}, d
	}
	s := Selection{Reused: send.Reuse}
	prompt := req.PromptBytes
	if send.Prefill != "" {
		prompt = 0
		if !send.Reuse {
			s.Prefill = p.countLocked(send.Prefill, req.PromptBytes)
		}
	}
	s.Decode = p.countLocked(send.Decode, prompt)
	return s, d
}

func (p *Pool) countLocked(id string, prompt int) *Leg {
	in := p.inst[id]
	in.view.InFlight.Requests++
	in.view.InFlight.PromptBytes += prompt
	return &Leg{ID: id, Opaque: in.opaque, URL: in.URL, Served: in.Served, Epoch: in.view.Epoch, pool: p, prompt: prompt}
}

// Prefilled takes the leg's prompt off the instance's backlog: its first token
// is there.
func (l *Leg) Prefilled() {
	if l == nil || l.released || l.prompt == 0 {
		return
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.giveBackLocked(l, 0)
}

// Release ends the leg. It does nothing on nil and when called again.
func (l *Leg) Release() {
	if l == nil || l.released {
		return
	}
	l.released = true
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.giveBackLocked(l, 1)
}

// giveBackLocked undoes a leg's counts, unless the instance has restarted
// since: a new epoch began with an empty ledger.
func (p *Pool) giveBackLocked(l *Leg, requests int) {
	in := p.inst[l.ID]
	if in.view.Epoch == l.Epoch {
		in.view.InFlight.Requests -= requests
		in.view.InFlight.PromptBytes -= l.prompt
	}
	l.prompt = 0
}

// Suspect takes an instance out until its next good probe, which it asks for
// at once. epoch is the leg's: news of a process that is gone is ignored.
func (p *Pool) Suspect(l *Leg, problem string) {
	p.mu.Lock()
	in := p.inst[l.ID]
	if in.view.Epoch == l.Epoch && in.view.Ready {
		in.view.Ready = false
		in.problem = problem
		p.opts.Log.Warn("instance taken out", "instance", in.Name, "problem", problem)
	}
	p.mu.Unlock()
	select {
	case in.kick <- struct{}{}:
	default:
	}
}

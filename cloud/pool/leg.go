package pool

import (
	"cmp"
	"slices"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/prefix"
)

// Leg is one request's work at one instance, counted until Release. It is for
// the goroutine that selected it.
type Leg struct {
	ID     string // instance
	Opaque string
	URL    string
	Served string // the model's name at the instance
	Epoch  string
	// Fingerprint is of the model that the instance serves; "" where it has none.
	Fingerprint string
	// Weights are the fingerprint's; "" is unknown.
	Weights string
	// Resumes says that the instance can go on with an answer that another began.
	Resumes bool

	pool   *Pool
	in     *instance
	move   *history // by which the stream comes here, until its first token
	trial  bool     // of a breaker that was open
	judged bool
}

// Process says which life of which instance the leg runs at.
func (l *Leg) Process() route.Process { return route.Process{ID: l.ID, Epoch: l.Epoch} }

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

// Ask is a request that looks for instances.
type Ask struct {
	route.RequestView
	Operation string
	// Movable says that an instance may give the request's stream to another.
	Movable bool
	// Keys are the request's prefix keys by the fingerprint of a model; see
	// Fingerprints.
	Keys map[string][]prefix.Key
}

// Fingerprints are those of a model's instances, "" for an engine that has none:
// the keys of a request depend on them.
func (p *Pool) Fingerprints(model string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, in := range p.inst {
		if in.Model == model && !slices.Contains(out, in.prints) {
			out = append(out, in.prints)
		}
	}
	return out
}

// Select asks the policy and counts the chosen legs before anyone else looks.
// When the policy rejects, the Selection is empty.
func (p *Pool) Select(policy route.Policy, trigger route.Trigger, ask Ask, seed uint64) (Selection, route.Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	views := p.observeLocked()
	class := p.recognise(&ask, views)
	traffic := p.trafficLocked(ask.Model)
	counts := trigger == route.Arrival && class != (route.Class{})
	if counts {
		ask.Class = traffic.Arrive(p.now(), class)
	}
	d := p.decideLocked(policy, trigger, &ask, views, seed)
	if counts {
		traffic.Learn(class, &d)
	}
	send, ok := d.Action.(route.Send)
	if !ok {
		return Selection{}, d
	}
	s := Selection{Reused: send.Reuse}
	prompt := ask.PromptBytes
	if send.Prefill != "" {
		prompt = 0
		if !send.Reuse {
			s.Prefill = p.openLocked(send.Prefill, &ask, ask.PromptBytes)
		}
	}
	s.Decode = p.openLocked(send.Decode, &ask, prompt)
	return s, d
}

// Would reports whether the policy finds an instance for one more attempt at the
// request. It counts nothing and takes no breaker's trial.
func (p *Pool) Would(policy route.Policy, ask Ask, seed uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	views := p.observeLocked()
	p.recognise(&ask, views)
	d := p.decideLocked(policy, route.Retry, &ask, views, seed)
	_, send := d.Action.(route.Send)
	return send
}

func (p *Pool) decideLocked(policy route.Policy, trigger route.Trigger, ask *Ask, views []route.InstanceView, seed uint64) route.Decision {
	return policy.Decide(&route.Observation{Now: p.now(), Trigger: trigger, Req: ask.RequestView, Inst: views, Seed: seed})
}

func (p *Pool) trafficLocked(model string) *route.Traffic {
	if p.traffic[model] == nil {
		p.traffic[model] = &route.Traffic{}
	}
	return p.traffic[model]
}

// recognise notes in the views how much of the prompt each instance holds. It
// returns the class of requests that share what the best of them holds, up to a
// bound; where nobody holds anything, those that begin like this one.
func (p *Pool) recognise(ask *Ask, views []route.InstanceView) (class route.Class) {
	const most = 32 // keys, 2 KiB of prompt
	best := -1
	for i, in := range p.inst {
		if in.Model != ask.Model {
			continue
		}
		keys := ask.Keys[in.prints]
		hit := in.index.hit(keys)
		views[i].HitBytes = min(hit*prefix.BlockBytes, ask.PromptBytes)
		if hit > best && len(keys) > 0 {
			best, class = hit, route.Class(keys[min(cmp.Or(hit, len(keys)), most)-1])
		}
	}
	return class
}

func (p *Pool) openLocked(id string, ask *Ask, prompt int) *Leg {
	in := p.find(id)
	l := &Leg{ID: id, Opaque: in.opaque, URL: in.URL, Served: in.Served, Epoch: in.epoch, Fingerprint: in.prints, Weights: in.weights, Resumes: in.known.streams, pool: p, in: in}
	l.trial = in.vitals.begin(p.now())
	in.ledger.open(l, ask, prompt, p.now())
	p.arrivesLocked(l, ask)
	if !in.known.streams {
		in.index.guess(ask.Keys[in.prints])
	}
	return l
}

// Prefilled takes the leg's prompt off the instance's backlog: its first token
// is there.
func (l *Leg) Prefilled() {
	if l == nil {
		return
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.cameLocked(l)
	l.in.ledger.prefilled(l)
}

// Release ends the leg. It does nothing on nil and when called again. The trial
// of a breaker that ends without a verdict has not brought the instance back.
func (l *Leg) Release() {
	if l == nil {
		return
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if e := l.in.ledger.legs[l]; e != nil {
		l.pool.leavesLocked(l, e)
	}
	l.in.ledger.close(l)
	if l.trial && !l.judged && l.Epoch == l.in.epoch {
		l.in.vitals.result(false, l.pool.now())
	}
	l.judged = true
}

// Good says that the instance has done its work. Only a leg's first word counts.
func (l *Leg) Good() {
	if l == nil || l.judged {
		return
	}
	l.judged = true
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.pool.cameLocked(l) // where its end is all that comes
	if l.Epoch == l.in.epoch {
		l.in.vitals.result(true, l.pool.now())
	}
}

// Bad counts a failure at the instance's breaker, also after Good: a stream may
// begin well. A suspect gets no new work while there is another, until its next
// good probe, which is asked for at once. News of a process that is gone is
// ignored.
func (l *Leg) Bad(problem string, suspect bool) {
	l.judged = true
	p, in := l.pool, l.in
	p.mu.Lock()
	if in.epoch == l.Epoch {
		in.vitals.failed(problem, suspect, p.now())
		p.opts.Log.Warn("instance failed a request", "instance", in.Name, "problem", problem, "suspect", suspect,
			"breaker", in.vitals.breakerState(p.now()))
	}
	p.mu.Unlock()
	if suspect {
		signal(in.kick)
	}
}

// LongestRest bounds for how long an instance may ask to be left alone: an
// instance that said an hour would be lost although it may be well soon.
const LongestRest = 30 * time.Second

// Rest keeps new work from the instance for as long as it has asked.
func (l *Leg) Rest(d time.Duration) {
	if d <= 0 {
		return
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	if l.in.epoch == l.Epoch {
		l.in.vitals.rests = max(l.in.vitals.rests, l.pool.now()+min(d, LongestRest))
	}
}

// signal wakes who waits for c, now or next.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

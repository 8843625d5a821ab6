package pool

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weirhq/weir/cloud/roles"
	"github.com/weirhq/weir/cloud/route"
)

const (
	// steerEvery is the time between two looks at what is to be done.
	steerEvery = 250 * time.Millisecond
	// orderTimeout bounds the orders of one look to an instance.
	orderTimeout = 2 * time.Second
	// copyTimeout bounds an order for which KV is copied first.
	copyTimeout = 25 * time.Second
	// wantTTFT and wantTPOT are what roles are balanced for.
	wantTTFT = time.Second
	wantTPOT = 50 * time.Millisecond
)

// steer gives orders to instances until ctx ends: streams leave those that
// drain, with Options.Moves also those that degrade or have too much to do, and
// roles follow the load where Options.Roles is set.
func (p *Pool) steer(ctx context.Context) {
	tick := time.NewTicker(steerEvery)
	defer tick.Stop()
	var moving sync.WaitGroup
	defer moving.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.bury()
		p.judge()
		p.weigh()
		list := p.toMove()
		if p.opts.Moves != nil {
			list = append(list, p.balance(*p.opts.Moves)...)
		}
		for _, m := range list {
			moving.Go(func() { p.giveAway(ctx, m) })
		}
		var wg sync.WaitGroup
		if p.opts.Roles != nil {
			for in, d := range p.reroles(*p.opts.Roles) {
				wg.Go(func() { p.rerole(ctx, in, d) })
			}
		}
		wg.Wait()
	}
}

// move is a stream that is to leave an instance, for heir where its KV can be
// copied there first.
type move struct {
	leg   *entry
	from  *instance
	heir  *destination
	cause Cause
}

// forever is a time that does not come.
const forever = time.Duration(math.MaxInt64)

// destination is where an instance takes KV, in the words of a worker's order.
type destination struct {
	Name string `json:"name"`
	Host string `json:"host"`
	Port int    `json:"port"`
}

// departure is how long a stream may go on at an instance that has taken the
// order to give it away: after that the last step has failed.
const departure = 5 * time.Second

// giveAway orders an instance to give a stream away. One that has to leave is
// asked again where the order is not taken, or it does not leave, then to do so at
// once, without a copy ahead.
func (p *Pool) giveAway(ctx context.Context, m move) {
	most := orderTimeout
	if m.heir != nil {
		most = copyTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	order := struct {
		Operation string       `json:"operation"`
		To        *destination `json:"to,omitempty"`
	}{m.leg.operation, m.heir}
	taken := p.order(ctx, m.from, "migrate", order)
	p.mu.Lock()
	defer p.mu.Unlock()
	e := m.leg
	if e.cause == "" {
		return // its leg has ended
	}
	e.moved, e.whole = p.now(), m.cause != CauseBalance
	e.asked = p.now() + departure
	if !taken {
		e.asked = 0
		p.lapseLocked(e)
	}
}

// rerole orders a change of role. A refusal, too, is left alone for the dwell
// time.
func (p *Pool) rerole(ctx context.Context, in *instance, d roles.Decision) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	taken := p.order(ctx, in, "role", map[string]route.Role{"role": d.Role})
	p.reroled(in)
	p.opts.Log.Info("role change ordered", "instance", d.ID, "to", d.Role, "taken", taken, "reason", d.Reason, "prefill", d.Prefill, "decode", d.Decode)
}

// order sends an order and reports whether it was taken.
func (p *Pool) order(ctx context.Context, in *instance, verb string, body any) bool {
	var out struct{}
	err := p.call(ctx, in, http.MethodPost, "/instance/v1/"+verb, body, &out)
	if err != nil {
		p.opts.Log.Debug("order not taken", "instance", in.Name, "order", verb, "error", err)
	}
	return err == nil
}

// toMove lists this gateway's streams that have to leave their instance, as long
// as another can take them: those with the most to come first. It marks them as
// asked to leave.
func (p *Pool) toMove() []move {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []move
	given := map[*instance]int{}
	for _, l := range p.leftLocked() {
		in := l.in
		for _, s := range p.byWorth(in) {
			heir := p.heirLocked(in, given)
			if heir == nil {
				break
			}
			given[heir]++
			s.asked, s.heir, s.cause = forever, heir, l.cause
			m := move{leg: s, from: in, cause: l.cause}
			if !s.whole && in.prints != "" && in.prints == heir.prints && !in.apart {
				m.heir = heir.kvAddress()
			}
			out = append(out, m)
		}
	}
	return out
}

// leaver is an instance that streams have to leave.
type leaver struct {
	in    *instance
	cause Cause
}

// leftLocked are the instances that streams have to leave: who drains, and who
// is out because it degrades.
func (p *Pool) leftLocked() (out []leaver) {
	for i, v := range p.observeLocked() {
		if in := p.inst[i]; in.known.draining {
			out = append(out, leaver{in, CauseDrain})
		} else if p.opts.Moves != nil && in.vitals.failing != "" && !v.Ready {
			out = append(out, leaver{in, CauseFailing})
		}
	}
	for _, in := range p.leaving {
		if in.known.draining {
			out = append(out, leaver{in, CauseDrain})
		}
	}
	return out
}

// byWorth are the legs that could leave an instance now, those with the most
// tokens to come first.
func (p *Pool) byWorth(in *instance) []*entry {
	worth := map[*entry]int{}
	for _, e := range in.ledger.legs {
		if r, ok := in.known.decoding[e.operation]; ok && e.movable && e.asked <= p.now() {
			s := e.stream(r.PromptTokens, r.Generated)
			worth[e] = s.Expected()
		}
	}
	return slices.SortedFunc(maps.Keys(worth), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(worth[b], worth[a]), cmp.Compare(a.operation, b.operation))
	})
}

// heirLocked is the instance with the fewest legs, those given to it included,
// that can continue in's streams; nil where none can.
func (p *Pool) heirLocked(in *instance, given map[*instance]int) (best *instance) {
	least := 0
	for i, v := range p.observeLocked() {
		other := p.inst[i]
		if other == in || v.Model != in.Model || !v.Ready || v.Suspect || v.RestsUntil > p.now() || !v.Resumes || v.Role == route.Prefill ||
			route.WeightsDiffer(in.weights, other.weights) {
			continue
		}
		if n := v.InFlight.Requests + given[other]; best == nil || n < least {
			best, least = other, n
		}
	}
	return best
}

// kvAddress is where a worker takes KV: the port of its API, on UDP, where it has
// not told another. It is nil for one that takes none and for an address without
// a port.
func (in *instance) kvAddress() *destination {
	if in.apart {
		return nil
	}
	return in.takes
}

// takesKVAt notes where an instance takes KV and gives it.
func (in *instance) takesKVAt(host string, port int) {
	if d := (destination{in.Name, host, port}); in.takes == nil || *in.takes != d {
		in.takes, in.kvAddr = &d, net.JoinHostPort(host, strconv.Itoa(port))
	}
}

// valid reports whether it can be an address.
func (d *destination) valid() bool {
	return d != nil && d.Host != "" && len(d.Host) <= 253 && d.Port > 0 && d.Port < 1<<16
}

// reroles asks the controller about each pool.
func (p *Pool) reroles(params roles.Params) map[*instance]roles.Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	pools := map[string]*roles.Observation{}
	for i, v := range p.observeLocked() {
		o := pools[v.Model]
		if o == nil {
			o = &roles.Observation{Now: p.now(), TTFT: wantTTFT, TPOT: wantTPOT}
			pools[v.Model] = o
		}
		in := p.inst[i]
		one := roles.Instance{ID: v.ID, Role: v.Role, Ready: v.Ready && !v.Suspect, Flips: in.known.seq > 0, Running: v.Load.Running,
			TPOT: millis(in.known.stepMs), Changed: in.changed}
		if v.Cost != nil {
			n := v.Load.PrefillTokens
			one.Backlog = millis(v.Cost.StepMs(v.Load.Running, n, v.Load.DecodeContext, n*n/2))
		}
		o.Inst = append(o.Inst, one)
	}
	out := map[*instance]roles.Decision{}
	for _, o := range pools {
		if d := params.Decide(o); d.ID != "" {
			out[p.find(d.ID)] = d
		}
	}
	return out
}

func (p *Pool) reroled(in *instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	in.changed = p.now()
}

// millis is ms as a duration, at most some thirty years: more is no time that a
// Duration has.
func millis(ms float64) time.Duration {
	return time.Duration(min(ms, 1e12) * float64(time.Millisecond))
}

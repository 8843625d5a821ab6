package pool

import (
	"context"
	"net/http"
	"slices"
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
	// wantTTFT and wantTPOT are what roles are balanced for.
	wantTTFT = time.Second
	wantTPOT = 50 * time.Millisecond
)

// steer gives orders to instances until ctx ends: streams leave those that
// drain, and roles follow the load where Options.Roles is set.
func (p *Pool) steer(ctx context.Context) {
	tick := time.NewTicker(steerEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.bury()
		var wg sync.WaitGroup
		for in, legs := range p.toMove() {
			wg.Go(func() { p.giveAway(ctx, in, legs) })
		}
		if p.opts.Roles != nil {
			for in, d := range p.reroles(*p.opts.Roles) {
				wg.Go(func() { p.rerole(ctx, in, d) })
			}
		}
		wg.Wait()
	}
}

// giveAway orders one instance to give away the streams of legs. Those that it
// did not take an order for are asked for again at the next look.
func (p *Pool) giveAway(ctx context.Context, in *instance, legs []*entry) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	for _, e := range legs {
		if !p.order(ctx, in, "migrate", map[string]string{"operation": e.operation}) {
			p.mu.Lock()
			e.asked = false
			p.mu.Unlock()
		}
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

// toMove lists this gateway's streams at instances that drain, by instance, as
// long as another instance can take them. It marks them as asked to leave.
func (p *Pool) toMove() map[*instance][]*entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[*instance][]*entry{}
	for _, in := range slices.Concat(p.inst, p.leaving) {
		if !in.known.draining || !p.replaceableLocked(in) {
			continue
		}
		for _, e := range in.ledger.legs {
			if e.movable && !e.asked && in.known.decoding[e.operation] {
				e.asked = true
				out[in] = append(out[in], e)
			}
		}
	}
	return out
}

// replaceableLocked reports whether another instance can continue in's streams.
func (p *Pool) replaceableLocked(in *instance) bool {
	for i, v := range p.observeLocked() {
		if p.inst[i] != in && v.Model == in.Model && v.Ready && !v.Suspect && v.RestsUntil <= p.now() && v.Resumes && v.Role != route.Prefill {
			return true
		}
	}
	return false
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

func millis(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

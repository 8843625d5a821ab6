package gateway

import (
	"time"

	"github.com/weirhq/weir/cascade"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// cascades reports whether the model's small pool is asked first: not for what
// another cascade has let over or asks a label for, and not for several answers,
// of which only one could be judged.
func (x *exchange) cascades() bool {
	return x.ask.model.Cascade != nil && x.ask.opts.Draft == nil && x.ask.req.N <= 1
}

// cascade asks the small pool and, where its answer is not kept, the large one.
func (a *admitted) cascade() {
	a.tries.policy = a.ask.model.Cascade.Open()
	defer func() { a.tries.policy.Settle(time.Now()) }()
	if d := a.newDraft(); d != nil {
		defer d.close()
		if !d.begin() || d.run() {
			return
		}
	}
	for !a.try() {
	}
}

// newDraft picks an instance of the small pool. nil where there is none: the
// large pool then answers alone.
func (a *admitted) newDraft() *draft {
	entry, large := a.ask.model.Cascade, a.ask.model.Pool
	a.inPool(entry.First())
	ask := a.poolAsk()
	ask.Movable = false // what is judged stays where it is
	sel, decision := a.g.opts.Pool.Select(a.g.opts.Policy, route.Arrival, ask, a.seed())
	if sel.Decode == nil {
		a.story.addDecision(decision)
		a.result.Reason = cascade.ReasonEdgeUnavailable
		a.inPool(large)
		return nil
	}
	form := cascading.Form{Stream: a.ask.req.Stream}
	if n := a.ask.req.MaxTokens; n != nil {
		form.MaxTokens = *n
	}
	d := &draft{attempt: &attempt{admitted: a, id: contract.NewID(), began: time.Now(), sel: sel},
		judge: a.tries.policy.Draft(form), small: entry.First(), large: large}
	d.describe(decision)
	a.result.Policy = a.tries.policy.Policy()
	a.tries.drafts, a.result.Attempts = 1, 1
	return d
}

// inPool makes the request one for a pool. Its prefixes have other keys there.
func (a *admitted) inPool(name string) { a.ask.model.Pool, a.keys = name, nil }

// asking is what a judgement looks at, as of now.
func (d *draft) asking() cascading.Ask {
	ask := cascading.Ask{Now: time.Now(), Fingerprint: d.sel.Decode.Fingerprint, LargeNano: d.bound(d.large)}
	if !d.ask.deadline.IsZero() {
		if ask.Remaining = time.Until(d.ask.deadline); ask.Remaining <= 0 {
			ask.Remaining = -1
		}
	}
	return ask
}

// adopt tells the client, the meter and the explanation of the verdict that
// counts, and of the reason that follows from it.
func (d *draft) adopt(why cascade.Reason) {
	v := d.judge.Verdict()
	d.result.Reason = why
	if d.result.Confidence = nil; v.Known {
		p := v.Confidence
		d.result.Confidence = &p
	}
	if d.lost || d.counted {
		return
	}
	d.counted = true
	v.Reason = why
	d.g.meter.judged(d.ask.req.Model, v)
	if v.Escalate {
		d.story.note("judged: " + string(why))
	}
}

// pay notes what an attempt at a cascade's large pool has cost.
func (a *attempt) pay(nano int64) {
	if c := a.tries.policy; c != nil && a.ask.model.Pool != a.ask.model.Cascade.First() {
		c.Paid(nano)
	}
}

// bound is the most that a pool's answer may cost, nano-dollars; 0 without a
// price.
func (a *attempt) bound(pool string) int64 {
	out := maxAnswer
	if n := a.ask.req.MaxTokens; n != nil {
		out = *n
	} else if _, context := a.g.opts.Pool.Serves(pool); context > 0 {
		out = context
	}
	p, _ := a.g.tenancy().book.At(tenants.Cloud, pool, a.exchange.began)
	cost, err := price.Cost(p, price.Tokens{Input: int64(a.ask.promptBytes + templateTokens), Output: int64(out)})
	if err != nil {
		return 1<<63 - 1 // beyond counting
	}
	return cost
}

// overtaken is called with the first token of the large pool's answer: the draft
// that waits is not needed any more.
func (a *admitted) overtaken() {
	d := a.tries.waits
	if d == nil {
		return
	}
	a.tries.waits = nil
	d.judge.LargeBegins()
	d.close()
	d.settle(tenants.OutcomeEscalated, nil)
	if d.asked == cascades.AskAppend && a.stream.begun() {
		d.endPart()
	}
}

// standsIn lets the draft that waits be the answer, because the large pool gives
// none. It reports whether there is one; the request is then over.
func (a *admitted) standsIn(why cascade.Reason) bool {
	d := a.tries.waits
	if d == nil || d.lost {
		return false
	}
	a.tries.waits = nil
	a.inPool(d.small)
	if s := a.stream; s != nil {
		s.early, s.holding, s.shown = s.early[:0], false, d.shown
	}
	a.result.HandoffToken, a.tries.handed = 0, 0
	d.gaveWay, d.aside = false, false
	if over := d.act(d.judge.LargeFails(why)) || d.run(); !over {
		for !a.try() {
		}
	}
	return true
}

// settleDraft settles the draft that still waits when the request ends.
func (a *admitted) settleDraft() {
	d := a.tries.waits
	if d == nil {
		return
	}
	a.tries.waits = nil
	outcome := tenants.OutcomeEscalated
	if a.outcome == tenants.OutcomeClientCancelled || a.outcome == tenants.OutcomeDeadline {
		outcome = a.outcome
	}
	d.close()
	d.settle(outcome, nil)
}

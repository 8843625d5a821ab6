package gateway

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade"
	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// cascades reports whether the model's small pool is asked first: not for what
// another cascade has let over or asks a label for, and not for several answers,
// of which only one could be judged.
func (x *exchange) cascades() bool {
	c := x.ask.model.Cascade
	return c != nil && len(c.Drafts()) > 0 && x.ask.opts.Draft == nil && x.ask.req.N <= 1
}

// maxDrafts is how many answers of a request are judged at most: with the one
// that is not, a request is three attempts.
const maxDrafts = 2

// cascade asks one pool after the other until an answer is kept. The last that
// may be asked is not judged.
func (a *admitted) cascade() {
	policy, pools, drafts := a.ask.model.Cascade.Open(a.choice.tier()), a.ask.model.Cascade.Pools(), len(a.ask.model.Cascade.Drafts())
	a.tries.policy = policy
	defer func() { policy.Settle(time.Now()) }()
	tier := 0
	for tier < drafts && a.tries.judged() < maxDrafts {
		d := a.newDraft(tier)
		if d == nil {
			if tier = a.without(tier); tier < 0 {
				return
			}
			continue
		}
		defer d.close()
		if !d.begin() || d.run() {
			return
		}
		if !d.aside { // its pool goes on with what was shown
			a.answerFrom(pools[tier])
			return
		}
		if tier = policy.Next(); a.answered(tier) && a.standsIn(cascade.ReasonLowConfidence) {
			return
		}
	}
	for tier < drafts && !a.has(pools[tier]) {
		if tier = a.without(tier); tier < 0 {
			return
		}
	}
	a.answerFrom(pools[tier])
}

// answerFrom lets a pool give the answer, whatever it is.
func (a *admitted) answerFrom(pool string) {
	a.inPool(pool)
	for !a.try() {
	}
}

// without is the tier to ask because a tier's pool has no instance, -1 when the
// request is over.
func (a *admitted) without(tier int) int {
	policy, pools, drafts := a.tries.policy, a.ask.model.Cascade.Pools(), len(a.ask.model.Cascade.Drafts())
	for {
		why, next := policy.Absent(tier, a.now("")), policy.Next()
		switch {
		case why == "" && (next == tier || next < drafts || len(a.tries.waits) > 0 || a.has(pools[next])):
			return next
		case why == "":
			tier = next
		case a.standsIn(why):
			return -1
		default:
			a.outcome = tenants.OutcomeRejected
			a.refuseFor(why, &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeQuota, Code: openai.CodeQuotaExhausted, NoRetry: true,
				Message: fmt.Sprintf("no instance of pool %s is ready, and the day's budget for larger ones is used up", pools[tier])})
			return -1
		}
	}
}

// has reports whether a pool has an instance for the request.
func (a *admitted) has(name string) bool {
	a.inPool(name)
	return a.g.opts.Pool.Would(a.g.opts.Policy, a.poolAsk(), a.seed())
}

// answered reports whether a tier's draft waits.
func (a *admitted) answered(tier int) bool {
	return slices.ContainsFunc(a.tries.waits, func(d *draft) bool { return d.tier == tier })
}

// newDraft picks an instance of a tier's pool, nil where there is none.
func (a *admitted) newDraft(tier int) *draft {
	name := a.ask.model.Cascade.Pools()[tier]
	a.inPool(name)
	ask := a.poolAsk()
	ask.Movable = false // what is judged stays where it is
	sel, decision := a.g.opts.Pool.Select(a.g.opts.Policy, route.Arrival, ask, a.seed())
	if sel.Decode == nil {
		a.story.addDecision(name, decision)
		if a.tries.drafts == 0 {
			a.result.Reason = cascade.ReasonEdgeUnavailable
		}
		return nil
	}
	d := &draft{attempt: &attempt{admitted: a, id: contract.NewID(), began: time.Now(), sel: sel, pool: name},
		form: a.form(), tier: tier, posed: a.ask}
	d.judge = a.tries.policy.Draft(tier, d.form)
	d.draft = true
	d.describe(decision)
	a.result.Policy = a.tries.policy.Policy()
	a.tries.drafts++
	a.result.Attempts = a.tries.judged()
	return d
}

// form is what the client wants of an answer. What is wrong about it the model
// servers tell.
func (a *admitted) form() cascading.Form {
	f := cascading.Form{Stream: a.ask.req.Stream}
	if n := a.ask.req.MaxTokens; n != nil {
		f.MaxTokens = *n
	}
	var err error
	if f.Form, err = form.Parse(a.ask.body); err != nil {
		f.Beyond = true
	}
	return f
}

// inPool makes the request one for a pool. Its prefixes have other keys there.
func (a *admitted) inPool(name string) { a.ask.model.Pool, a.keys = name, nil }

// now is what a judgement of the draft looks at.
func (d *draft) now() cascading.Ask { return d.admitted.now(d.sel.Decode.Fingerprint) }

// now is what a cascade's policy looks at; print is the fingerprint of the
// instance that answers.
func (a *admitted) now(print string) cascading.Ask {
	ask := cascading.Ask{Now: time.Now(), Fingerprint: print, Remaining: a.remaining()}
	for i, p := range a.ask.model.Cascade.Pools() {
		ask.Nano[i] = a.bound(p)
	}
	return ask
}

// remaining is the time until the deadline: 0 without one, negative once it has
// passed.
func (x *exchange) remaining() time.Duration {
	if x.ask.deadline.IsZero() {
		return 0
	}
	if left := time.Until(x.ask.deadline); left > 0 {
		return left
	}
	return -1
}

// adopt tells the client, the meter and the explanation of the verdict that
// counts, and of the reason that follows from it.
func (d *draft) adopt(why cascade.Reason) {
	v := d.judge.Verdict()
	d.tell(v, why)
	d.result.Reason = why
	if d.result.Confidence = nil; v.Known {
		p := v.Confidence
		d.result.Confidence = &p
	}
	if d.lost || d.counted {
		return
	}
	d.counted, d.sure = true, v.Confidence
	v.Reason = why
	d.g.meter.judged(d.ask.req.Model, v)
}

// pay tells a cascade's policy what an attempt has cost.
func (a *attempt) pay(r *tenants.UsageRecord) {
	took := time.Duration(0)
	if r.Outcome == tenants.OutcomeOK {
		took = time.Duration(r.TotalMicros) * time.Microsecond
	}
	if c := a.tries.policy; c != nil {
		c.Paid(a.pool, r.CostNanoUSD, took)
	}
	if a.choice != nil {
		a.ask.model.Cascade.Paid(a.pool, r.CostNanoUSD, took)
	}
}

// bound is the most that a pool's answer may cost, nano-dollars; 0 without a
// price.
func (x *exchange) bound(name string) int64 {
	out := maxAnswer
	if n := x.ask.req.MaxTokens; n != nil {
		out = *n
	} else if _, context := x.g.opts.Pool.Serves(name); context > 0 {
		out = context
	}
	p, _ := x.g.tenancy().book.At(tenants.Cloud, name, x.began)
	cost, err := price.Cost(p, price.Tokens{Input: int64(x.ask.promptBytes + templateTokens), Output: int64(out)})
	if err != nil {
		return 1<<63 - 1 // beyond counting
	}
	return cost
}

// overtaken is called when an answer is the client's, with its first token: the
// drafts that wait are not needed any more.
func (a *admitted) overtaken() {
	for _, d := range a.endWaiting(tenants.OutcomeEscalated) {
		if d.asked == cascades.AskAppend && a.stream.begun() {
			d.endPart()
		}
	}
}

// endWaiting settles the drafts that wait.
func (a *admitted) endWaiting(outcome tenants.Outcome) []*draft {
	waits := a.tries.waits
	a.tries.waits = nil
	for _, d := range waits {
		d.judge.Overtaken()
		d.close()
		d.settle(outcome, nil)
	}
	return waits
}

// standsIn lets the best draft that waits be the answer, because no other pool
// gives one. It reports whether there is one; the request is then over.
func (a *admitted) standsIn(why cascade.Reason) bool {
	if len(a.tries.waits) == 0 {
		return false
	}
	d := slices.MaxFunc(a.tries.waits, func(d, e *draft) int { return cmp.Compare(d.sure, e.sure) })
	a.tries.waits = slices.DeleteFunc(a.tries.waits, func(other *draft) bool { return other == d })
	a.endWaiting(tenants.OutcomeEscalated)
	a.ask = d.posed
	a.inPool(d.pool)
	if s := a.stream; s != nil {
		s.early, s.holding, s.shown = s.early[:0], false, d.shown
	}
	a.result.HandoffToken, a.tries.handed = 0, 0
	d.gaveWay, d.aside = false, false
	if over := d.act(d.judge.StandsIn(why)) || d.run(); !over {
		for !a.try() {
		}
	}
	return true
}

// settleDrafts settles the drafts that still wait when the request ends.
func (a *admitted) settleDrafts() {
	outcome := tenants.OutcomeEscalated
	if a.outcome == tenants.OutcomeClientCancelled || a.outcome == tenants.OutcomeDeadline {
		outcome = a.outcome
	}
	a.endWaiting(outcome)
}

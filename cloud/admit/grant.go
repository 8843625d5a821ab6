package admit

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/cloud/gateway"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/fair"
	"github.com/weirhq/weir/tenants/price"
	"github.com/weirhq/weir/tenants/quota"
	"github.com/weirhq/weir/tenants/refusal"
)

// grant is what one admitted request holds. Its methods are called by the
// request's goroutine, one at a time.
type grant struct {
	a           *Admitter
	account     *quota.Account // nil for a tenant that the snapshot does not limit
	request     quota.Request
	reservation quota.Reservation
	prices      *price.Book
	price       tenants.Price
	strict      bool
	promptBytes int64
	// bound and likely are what the answer takes; a cascade's small pool takes
	// its draft beside it.
	bound, likely      quota.Amount
	drafts             bool
	draft, likelyDraft quota.Amount
	delivered          int64
	overrun            bool // a top-up has failed: no more are tried

	learner *learner
	line    *line
	item    fair.Item
	turn    chan fair.Refusal // where it has to wait
	going   bool              // guarded by the line's lock
	ctx     context.Context
}

const (
	// openOutput is the bound of an answer whose length neither the client nor
	// the model's context bounds; longer answers are topped up.
	openOutput = 4096
	// maxLife ends a reservation whose owner forgot it: longer than all
	// attempts of a request together.
	maxLife = time.Hour
)

func (a *Admitter) newGrant(r *rules, w *gateway.Work, now time.Time) *grant {
	g := &grant{a: a, account: a.book.Account(w.Identity.TenantID), strict: w.Identity.Tenant != nil && w.Identity.Tenant.Strict,
		promptBytes: int64(w.PromptBytes), learner: a.learner(w.Pool), drafts: len(w.Drafts) > 0, prices: r.prices}
	g.price, _ = r.prices.At(tenants.Cloud, w.Pool, now)
	g.bound, g.likely = a.estimate(w, w.Pool, g.price)
	for _, amount := range []*quota.Amount{&g.bound, &g.likely} {
		amount.Requests = 1
		if w.Escalated {
			amount.Escalations = 1
		}
	}
	for i, pool := range w.Drafts {
		price, _ := r.prices.At(tenants.Cloud, pool, now)
		bound, likely := a.estimate(w, pool, price)
		g.draft = plus(g.draft, bound)
		if i == 0 { // most often no more than one is asked
			g.likelyDraft = likely
		}
	}
	g.request = quota.Request{Key: w.Identity.KeyID, Model: w.Pool, Tier: string(tenants.Cloud), Class: w.Class,
		Amount: plus(g.bound, g.draft), Likely: plus(g.likely, g.likelyDraft), Deadline: now.Add(maxLife)}
	return g
}

// estimate is what the work takes of tokens and money at a pool, at most and
// probably.
func (a *Admitter) estimate(w *gateway.Work, pool string, p tenants.Price) (bound, likely quota.Amount) {
	output := int64(w.MaxTokens)
	_, context := a.o.Pool.Serves(pool)
	if output == 0 {
		output = openOutput
		if context > 0 {
			output = int64(context)
		}
	}
	if context > 0 {
		output = min(output, int64(context))
	}
	bound, likely = a.learner(pool).amounts(int64(w.PromptBytes), output)
	choices := int64(max(w.Choices, 1))
	bound.Output, likely.Output = bound.Output*choices, likely.Output*choices
	bound.Cost, likely.Cost = costOf(p, &bound), costOf(p, &likely)
	return bound, likely
}

// plus adds the tokens and the money of a draft to those of the answer.
func plus(answer, draft quota.Amount) quota.Amount {
	answer.Input += draft.Input
	answer.Output += draft.Output
	answer.Cost += draft.Cost
	return answer
}

// costOf prices an amount's tokens, none of them cached.
func costOf(p tenants.Price, a *quota.Amount) int64 {
	cost, err := price.Cost(p, price.Tokens{Input: a.Input, Output: a.Output})
	if err != nil {
		return 1 << 60 // beyond every budget
	}
	return cost
}

// leaseWait bounds how long a request waits for a block of its budget.
const leaseWait = 3 * time.Second

// reserve commits the request's amounts to all its limits.
func (g *grant) reserve(ctx context.Context, now time.Time) error {
	until := now.Add(leaseWait)
	v := g.account.Admit(&g.request, now, &g.reservation)
	for v.Reason == quota.LeaseWanted && now.Before(until) {
		err := g.a.agent.round(ctx, until)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now = time.Now()
		v = g.account.Admit(&g.request, now, &g.reservation)
		if err != nil {
			break // with the store away, once more is enough
		}
	}
	if v.OK() {
		return nil
	}
	g.a.meter.results.WithLabelValues(v.Reason.String()).Inc()
	return g.refusal(v)
}

// Correct implements gateway.Grant.
func (g *grant) Correct(promptTokens int) {
	now := time.Now()
	bound, likely := g.bound, g.likely
	bound.Input, likely.Input = int64(promptTokens), int64(promptTokens)
	bound.Cost, likely.Cost = costOf(g.price, &bound), costOf(g.price, &likely)
	if g.reservation.Correct(plus(bound, g.draft), plus(likely, g.likelyDraft), now) {
		g.bound, g.likely = bound, likely
	}
	g.line.corrected(g, int64(promptTokens), now)
}

// Moves implements gateway.Grant. The limits that name a pool have counted the
// work for the one that it was admitted to, and count nothing for another.
func (g *grant) Moves(pool string) bool {
	now := time.Now()
	p, _ := g.prices.At(tenants.Cloud, pool, now)
	bound, likely := g.bound, g.likely
	bound.Cost, likely.Cost = costOf(p, &bound), costOf(p, &likely)
	if g.account != nil {
		other := g.request
		other.Model = pool
		for _, r := range []*quota.Request{&g.request, &other} {
			if named, _ := g.account.Named(r, now); named {
				return false
			}
		}
		if !g.topUp(quota.Amount{Cost: bound.Cost + g.draft.Cost}).OK() {
			return false
		}
	}
	g.price, g.bound, g.likely, g.learner = p, bound, likely, g.a.learner(pool)
	return true
}

// topUpStep is how many tokens are reserved ahead when an answer outgrows its
// reservation.
const topUpStep = 64

// Delivered implements gateway.Grant.
func (g *grant) Delivered(tokens int) error {
	g.delivered = int64(tokens)
	if g.delivered <= g.likely.Output || g.overrun || g.account == nil {
		return nil
	}
	to := g.bound
	to.Input = g.likely.Input
	to.Output = g.delivered + topUpStep
	to.Cost = costOf(g.price, &to)
	v := g.topUp(plus(to, g.likelyDraft))
	if v.OK() {
		g.likely.Output = to.Output
		g.bound.Output = max(g.bound.Output, to.Output)
		return nil
	}
	// A rate is owed what goes beyond it, and so is a budget of a tenant that
	// prefers service.
	g.overrun = true
	if !g.strict || v.Window == quota.Minute {
		return nil
	}
	return overrunError(v)
}

// topUp raises the reservation. A strict tenant's stream waits for a block of
// its budget where it needs one.
func (g *grant) topUp(to quota.Amount) quota.Verdict {
	v := g.reservation.TopUp(to, time.Now())
	if v.Reason != quota.LeaseWanted || !g.strict {
		return v
	}
	if g.a.agent.round(g.ctx, time.Now().Add(leaseWait)) == nil {
		v = g.reservation.TopUp(to, time.Now())
	}
	return v
}

// Settle implements gateway.Grant.
func (g *grant) Settle(r tenants.UsageRecord) {
	now := time.Now()
	if r.AttemptID == "" {
		g.reservation.Release(now)
	} else {
		g.reservation.Settle(quota.Amount{Input: r.InputTokens, Output: r.OutputTokens, Cost: r.CostNanoUSD}, now)
	}
	if !g.drafts && r.Outcome == tenants.OutcomeOK && r.UsageSource == tenants.UsageUpstream { // a draft is in the sum
		g.learner.observe(g.promptBytes, r.InputTokens, r.OutputTokens)
	}
	g.line.leave(g, r.OutputTokens, now)
}

// SetHeaders implements gateway.Grant.
func (g *grant) SetHeaders(h http.Header) {
	if g.account != nil {
		var room [8]quota.Status
		refusal.SetHeaders(h, g.account.Status(&g.request, time.Now(), room[:0]))
	}
}

// learner guesses for one model.
type learner struct {
	mu sync.Mutex
	quota.Estimator
}

func (a *Admitter) learner(model string) *learner {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.learners[model]
	if l == nil {
		l = new(learner)
		a.learners[model] = l
	}
	return l
}

func (l *learner) amounts(promptBytes, maxOutput int64) (bound, likely quota.Amount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	bound.Input, bound.Output = l.Bound(promptBytes, maxOutput)
	likely.Input, likely.Output = l.Likely(promptBytes, maxOutput)
	return bound, likely
}

func (l *learner) observe(promptBytes, input, output int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.Observe(promptBytes, input, output)
}

// queue stands in line for the model's pool.
func (g *grant) queue(ctx context.Context, w *gateway.Work, class *tenants.Class) error {
	g.ctx = ctx
	g.line = g.a.lineOf(w.Pool)
	g.item = fair.Item{Tenant: w.Identity.TenantID, Value: g, Weight: 1, Input: g.likely.Input}
	if t := w.Identity.Tenant; t != nil && t.Weight > 0 {
		g.item.Weight = t.Weight
	}
	if class != nil {
		g.item.Band = min(max(class.Band, 0), g.a.o.Queue.Bands-1)
		g.item.Sheddable = class.Sheddable
		g.item.MaxQueue = time.Duration(class.MaxQueueMillis) * time.Millisecond
		if class.Weight > 0 {
			g.item.Weight *= class.Weight
		}
		if class.TTFTMillis > 0 {
			g.item.Deadline = w.Arrived.Add(time.Duration(class.TTFTMillis) * time.Millisecond)
		}
	}
	r, err := g.line.enter(ctx, g)
	switch {
	case err != nil:
		return err
	case r == fair.Accepted:
		return nil
	case r == fair.BadItem:
		return errors.New("admit: the fair queue refused an item as malformed")
	}
	g.a.meter.results.WithLabelValues(r.String()).Inc()
	return g.turnedAway(r)
}

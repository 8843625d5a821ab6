package gateway

import (
	"math/bits"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// templateTokens is room for what a chat template adds to a prompt.
const templateTokens = 64

// capCost keeps a request under its cost cap: the answer's bound is lowered to
// what the cap affords after the dearest possible prompt. No token is shorter
// than a byte, so the prompt's bytes bound its tokens.
func (x *exchange) capCost() (cascade.Reason, *openai.Error) {
	if !x.ask.opts.CostCapped {
		return "", nil
	}
	p := x.dearest(x.ask.model.Pool)
	afford := x.affords(p, 0)
	if afford < 1 {
		e := openai.BadRequest(contract.HeaderMaxCost, "cost_cap", "the prompt alone may cost more than %s dollars", contract.USD(x.ask.opts.MaxCost))
		return cascade.ReasonCostCap, e
	}
	if n := x.ask.req.MaxTokens; p.Output == 0 || n != nil && int64(*n) <= afford {
		return "", nil
	}
	bound := int(min(afford, maxAnswer))
	x.ask.req.MaxTokens = &bound
	x.ask.body.Set("max_tokens", bound)
	if _, ok := x.ask.body["max_completion_tokens"]; ok {
		x.ask.body.Set("max_completion_tokens", bound)
	}
	return "", nil
}

// affords is how many tokens of an answer the cost cap pays for at a price, after
// the dearest possible prompt and what is spent already; below 1 it does not pay
// for an answer.
func (x *exchange) affords(p tenants.Price, spent int64) int64 {
	prompt, err := price.Cost(p, price.Tokens{Input: int64(x.ask.promptBytes + templateTokens)})
	if err != nil {
		return -1
	}
	return answerTokens(x.ask.opts.MaxCost-spent-prompt, p.Output)
}

// capAffords reports whether the cost cap, if there is one, pays for the answer
// that the client bounds, of a pool, after what is spent and the drafts before it;
// where it does not bound any, for some answer.
func (x *exchange) capAffords(pool string, spent int64) bool {
	if !x.ask.opts.CostCapped {
		return true
	}
	want := 1
	if n := x.ask.req.MaxTokens; n != nil {
		want = max(want, *n)
	}
	return x.affords(x.dearest(pool), spent) >= int64(want)
}

// dearest is the price of a model's last pool, with those of the pools that a
// cascade asks before it.
func (x *exchange) dearest(pool string) tenants.Price {
	book := x.g.tenancy().book
	p, _ := book.At(tenants.Cloud, pool, x.began)
	if c := x.ask.model.Cascade; c != nil {
		for _, pool := range c.Drafts() {
			draft, _ := book.At(tenants.Cloud, pool, x.began)
			p.Input += draft.Input
			p.Output += draft.Output
		}
	}
	return p
}

// maxAnswer is beyond every model's context.
const maxAnswer = 1 << 30

// answerTokens is how many tokens at a price (micro-dollars per million) an
// amount of nano-dollars buys, cost rounded half up as price.Cost does.
func answerTokens(nano, perMillion int64) int64 {
	switch {
	case nano < 0:
		return -1
	case perMillion <= 0:
		return maxAnswer
	}
	// Thousandths of a nano-dollar; below half of one more it rounds down.
	hi, lo := bits.Mul64(uint64(nano), 1000)
	lo, carry := bits.Add64(lo, 499, 0)
	if hi += carry; hi >= uint64(perMillion) {
		return maxAnswer
	}
	n, _ := bits.Div64(hi, lo, uint64(perMillion))
	return int64(min(n, maxAnswer))
}

package gateway

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/tenants"
)

// choice is which of a model's equal pools answers a request.
type choice struct {
	cascading.Choice
	pools   []string // all of the entry's, by tier
	session string   // that the answer's pool is remembered for; "": none
	check   *formCheck
}

// tier is the pool that answers in the end, 0 where there was no choice.
func (c *choice) tier() int {
	if c == nil {
		return 0
	}
	return c.Tier
}

// holds reports whether a pool is one of those that the choice was about.
func (c *choice) holds(pool string) bool {
	return c != nil && slices.ContainsFunc(c.Candidates, func(x cascading.Candidate) bool { return x.Pool == pool })
}

// choose picks one of the model's equal pools, where it has some. All that comes
// after, from the cost cap to admission, is about that one.
func (x *exchange) choose() {
	e := x.ask.model.Cascade
	if e == nil || len(e.Equals()) < 2 {
		return
	}
	a := cascading.Asking{Class: x.ask.class, Judged: x.cascades(), Remaining: x.remaining(), Steady: x.steady(), Session: x.session(), Now: time.Now()}
	a.Seed = seedOf(x.ask.req.Model, a.Class, a.Session)
	if a.Session == "" {
		a.Seed = seedOf(x.op)
	}
	for _, pool := range e.Equals() {
		o := cascading.Offer{Nano: x.bound(pool)}
		switch view := (route.RequestView{Model: pool, PromptBytes: x.ask.promptBytes}); {
		case !x.g.opts.Pool.Takes(view):
			o.Out = cascading.OutAbsent
		case !x.capAffords(pool, 0):
			o.Out = cascading.OutCostCap
		case !x.g.opts.Admission.Room(x.work(pool)):
			o.Out = cascading.OutQuota
		}
		a.Offers = append(a.Offers, o)
	}
	x.choice = &choice{Choice: e.Choose(&a), pools: e.Pools(), session: a.Session}
	x.ask.model.Pool = x.choice.pools[x.choice.Tier]
}

// seedOf makes the seed of a draw out of names.
func seedOf(names ...string) uint64 {
	h := fnv.New64a()
	for _, n := range names {
		fmt.Fprintf(h, "%d:%s", len(n), n)
	}
	return h.Sum64()
}

// steady reports whether the tenant's policy for the class forbids to explore: a
// share of 0 for shadow labels says that nothing is to be learned from its
// requests.
func (x *exchange) steady() bool {
	p := x.g.tenancy().index.Policy(x.who.TenantID, x.ask.class)
	if p == nil {
		return false
	}
	set, err := policy.Join(p.Spec, p.Mode, p.Threshold)
	return err == nil && set.Shadow != nil && *set.Shadow == 0
}

// session names what stays with one pool: the client's session, else the chain of
// tool calls that follows one question; "" for neither.
func (x *exchange) session() string {
	name := x.ask.opts.Session
	if name == "" && form.Present(x.ask.body["tools"]) {
		name = chainOf(x.ask.body["messages"])
	}
	if name == "" {
		return ""
	}
	device := x.who.Device
	if x.who.KeyID != "" {
		device = "" // the key is the caller, whatever way it takes
	}
	return fmt.Sprintf("%s/%s/%s/%s/%s", x.who.TenantID, device, x.who.KeyID, x.ask.req.Model, name)
}

// chainOf is a digest of the messages up to the last one of the user: what calls
// of tools add after it does not change it. The marks keep it apart from names of
// sessions.
func chainOf(messages json.RawMessage) string {
	var list []json.RawMessage
	_ = json.Unmarshal(messages, &list) // parsed before
	for i := len(list) - 1; i >= 0; i-- {
		var m struct{ Role string }
		if json.Unmarshal(list[i], &m) == nil && m.Role == "user" {
			h := fnv.New128a()
			for _, raw := range list[:i+1] {
				_, _ = h.Write(raw)
			}
			return fmt.Sprintf("\n%x", h.Sum(nil))
		}
	}
	return ""
}

// another lets another of the equal pools have the next attempt, because the one
// before has failed or has nobody for it. What the client has seen a part of stays
// where it is.
func (a *admitted) another(failed bool) bool {
	c, before := a.choice, a.ask.model.Pool
	if !c.holds(before) || a.stream.begun() || a.tries.moved != nil {
		return false
	}
	for len(c.Rest) > 0 {
		next := c.Rest[0]
		c.Rest = c.Rest[1:]
		pool := c.pools[next]
		if !a.capAffords(pool, a.tries.carried.CostNanoUSD) || !a.grant.Moves(pool) {
			continue
		}
		if a.tries.policy != nil && !a.tries.policy.Instead(next, a.now("")) {
			a.grant.Moves(before)
			continue
		}
		if failed { // it may have other instances
			c.Rest = append(c.Rest, slices.Index(c.pools, before))
		}
		a.tries.handoff = nil
		a.inPool(pool)
		a.story.note("the next attempt is pool " + pool + "'s")
		return true
	}
	return false
}

// remember notes the answer of one of the equals, also where it was asked by its
// own name: it may be scored, unless an edge node compares its own with it and
// shows that. The session of a choice stays there. It comes before the answer's
// last byte, so that whoever has read the answer can score it.
func (a *admitted) remember() {
	c, pool := a.choice, a.ask.model.Pool
	if a.outcome != tenants.OutcomeOK || !a.g.equals[pool] || a.ask.opts.Draft != nil && a.ask.opts.Draft.Reason == cascade.ReasonConfident {
		return
	}
	n := Answer{Operation: a.op, TenantID: a.who.TenantID, Device: a.who.Device, Class: a.ask.class, Pool: pool, At: time.Now()}
	if c.holds(pool) {
		a.ask.model.Cascade.Stay(c.session, pool, n.At)
		n.Model = a.ask.req.Model
		n.Checked, n.Broken = c.check.found(int(a.last.OutputTokens - a.tries.draft.OutputTokens))
		if i := slices.Index(c.pools, pool); i == c.Tier {
			n.Propensity = c.Propensity
		}
	}
	if a.g.opts.Feedback != nil {
		a.g.opts.Feedback.Answered(n)
	}
}

// seen is the choice as applications and operators see it.
func (c *choice) seen() *explainedChoice {
	if c == nil {
		return nil
	}
	return &explainedChoice{Pool: c.pools[c.Tier], How: c.How, Propensity: c.Propensity, Candidates: c.Candidates}
}

// explainedChoice is which of the equal pools was chosen, and why.
type explainedChoice struct {
	Pool       string                `json:"pool"`
	How        cascading.How         `json:"how"`
	Propensity float64               `json:"propensity"`
	Candidates []cascading.Candidate `json:"candidates,omitempty"` // with scope explain
}

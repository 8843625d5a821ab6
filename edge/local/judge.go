package local

import (
	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/tenants"
)

// judgeWhole is the verdict on the finished local answer. Where the plan judges
// nothing it keeps the answer and still tells the confidence.
func (c *call) judgeWhole(s *Server) cascade.Verdict {
	node := c.refresh(s)
	failed := c.check.failed(c.draft, c.ask.MaxTokens)
	pe, known := s.calibration(c).Probability(&c.draft.Signals)
	pe, known = c.stands(&c.draft.Signals, pe, known)
	v := cascade.Judge(&c.ask, pe, known, failed, &c.policy, &node)
	if !c.plan.Judge {
		v.Escalate, v.Reason = false, c.plan.Reason
	}
	if failed && c.check.form && !v.Escalate {
		v.Reason = cascade.ReasonValidatorFailed // nobody else may try: the client is told that the form is broken
	}
	return v
}

// judgeBeginning is the verdict on an answer that goes on.
func (c *call) judgeBeginning(s *Server, p *upstream.Progress) cascade.Verdict {
	node := c.refresh(s)
	signals := p.Signals()
	pe, known := s.calibration(c).PrefixProbability(&signals)
	pe, known = c.stands(&signals, pe, known)
	return cascade.Judge(&c.ask, pe, known, false, &c.policy, &node)
}

// judgeAtBest is the verdict on an answer as if it ended well now. The product
// of the probabilities only falls: a doubt cannot be made good any more.
func (c *call) judgeAtBest(s *Server, p *upstream.Progress) cascade.Verdict {
	node := c.refresh(s)
	a := cascade.Answer{Signals: p.Signals()}
	cal := s.calibration(c)
	v := cascade.After(&c.ask, &a, cal, &c.policy, &node)
	if pe, known := cal.PrefixProbability(&a.Signals); known {
		v.Confidence = min(v.Confidence, pe)
	}
	return v
}

// refresh brings what a verdict depends on up to now, and returns the node as
// it is now. Of an answer that is under way only the rest is waited for, and its
// cost is reserved.
func (c *call) refresh(s *Server) cascade.Node {
	now := s.opt.Now()
	c.ask.Remaining = c.remaining(now)
	c.node.Budget, c.node.Budgeted = c.rules.Budget(now)
	if c.rules != nil {
		c.policy = c.rules.Policy(s.costs(c))
	}
	node := c.node
	if !c.hedged.IsZero() {
		node.RTT, node.CloudP90 = 0, max(0, node.CloudP90-now.Sub(c.hedged))
		node.Budget += c.reserved
	}
	return node
}

// adopt makes v the verdict that counts.
func (c *call) adopt(v cascade.Verdict) {
	c.verdict, c.judged = v, true
	if c.result.Confidence = nil; v.Known {
		p := v.Confidence
		c.result.Confidence = &p
	}
}

// windowOf is the hold-back window: the tenant's, or the model's own. Without a
// calibration for beginnings an answer is held until it is whole.
func (s *Server) windowOf(c *call) stream.WindowOptions {
	cal := s.calibration(c)
	if cal == nil || cal.Prefix == nil {
		return stream.WindowOptions{Whole: true}
	}
	o := stream.WindowOptions{Tokens: cal.Prefix.Tokens, Wait: cal.Prefix.Wait(), Mean: cal.Prefix.PhiMean, SD: cal.Prefix.PhiSD}
	if w := c.settings().Window; w != nil {
		o.Tokens, o.Wait = w.Tokens, w.Wait()
	}
	o.Whole = c.check.whole()
	return o.ForRequest(c.req.Stream, c.ask.MaxTokens)
}

// cloudContinues reports whether the model that an escalation names declares
// that it can go on with a begun answer.
func (s *Server) cloudContinues(c *call) bool {
	if c.view == nil {
		return false
	}
	m := c.view.Model(c.escalationModel(s))
	return m != nil && m.Continues
}

// edgePriced reports whether the edge's tokens cost something.
func (s *Server) edgePriced(c *call) bool {
	if c.view == nil {
		return false
	}
	p, ok := c.view.Prices.At(tenants.Edge, s.opt.Model, s.opt.Now())
	return ok && (p.Input != 0 || p.Output != 0)
}

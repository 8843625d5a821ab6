package local

import (
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/internal/openai"
)

// Decisions is the log of decisions.
type Decisions interface {
	// Log takes a record without waiting and reports whether there was room.
	Log(journal.Record) bool
	// Find returns the decision on a request and its latest labels, if any.
	Find(request string) (f journal.Found, ok bool, err error)
}

// decide ends the part that the cascade had in a request: the controller and
// the log hear of it. A request that was refused before a plan had none.
func (s *Server) decide(c *call) {
	if !c.planned {
		return
	}
	judged := c.judged && c.plan.Judge
	spent := c.lost
	if c.result.Tier == cascade.TierCloud {
		spent = max(0, int64(c.result.CostUSD-s.edgeCost(c)))
	}
	verdict, counts := c.verdict, judged
	if c.unseen() {
		verdict, counts = cascade.Verdict{Escalate: true, Wanted: true, Known: true, Reason: c.result.Reason}, true
	}
	c.rules.Settle(policies.Settlement{Verdict: verdict, Judged: counts, Reserved: c.reserved, Spent: spent}, s.opt.Now())
	s.remember(c)
	if judged {
		s.metrics.judged(c)
	}
	if s.opt.Decisions == nil {
		return
	}
	r := c.record(s, spent)
	teach := s.lesson(c, &r)
	if judged {
		c.propensity, c.shadowed = new(r.Propensity), r.Shadow
	}
	if !s.opt.Decisions.Log(r) {
		s.metrics.dropped.Inc()
	}
	teach()
}

// unseen reports whether the cascade let a request over without a verdict on an
// answer of the edge: it counts as one let over.
func (c *call) unseen() bool {
	switch c.result.Reason {
	case cascade.ReasonPredictedHard, cascade.ReasonSessionSticky, cascade.ReasonHedgeWon:
		return c.result.Tier == cascade.TierCloud
	}
	return false
}

// record is the decision as it is logged: neither prompt nor answer is in it.
func (c *call) record(s *Server, spent int64) journal.Record {
	r := journal.Record{
		UnixNS: c.arrived.UnixNano(), Kind: journal.KindDecision, Request: c.op, Cell: cell(c.class),
		Key: c.KeyID, Private: c.opt.Privacy.Local(), Policy: c.policy.Name,
		Tier: string(c.result.Tier), Reason: string(c.result.Reason), Outcome: string(c.outcome),
		CostNano: spent, EdgeMS: millis(c.edgeTime), CloudMS: millis(c.cloudTime),
	}
	if health, ready := s.opt.Worker.Health(); ready {
		r.Model = health.Fingerprint.Weights
	}
	r.Embedding = string(c.foreseen.look.Outcome())
	if !c.judged {
		return r
	}
	r.Judged = c.plan.Judge
	if c.verdict.Known {
		p := c.verdict.Confidence
		r.Conf = &p
	}
	if !math.IsInf(c.verdict.Theta, 0) { // JSON has no infinity
		r.Gain, r.Theta = c.verdict.Gain, c.verdict.Theta
	}
	if r.Features = c.features(s); r.Features != nil {
		r.Scored = cascade.ScoredAnswer
	}
	r.Spans = journal.SpansOf(&c.draft.Signals.Spans)
	r.Votes, r.Before = c.vote.Votes, c.vote.Before
	return r
}

// cell names the requests that share what is learned: those of a class.
func cell(class string) string {
	if class == "" {
		return "default"
	}
	return class
}

// remembered is what the log still tells of a request that the ring has
// forgotten, nil when it tells nothing.
func (s *Server) remembered(id string) (*explained, error) {
	if s.opt.Decisions == nil {
		return nil, nil
	}
	f, ok, err := s.opt.Decisions.Find(id)
	if err != nil || !ok {
		return nil, err
	}
	e := explainedRecord(&f.Decision)
	e.tenant = s.opt.TenantID
	return e, nil
}

// labels adds what the log says was learned of a request, and said of it.
func (s *Server) labels(e *explained) error {
	if s.opt.Decisions == nil {
		return nil
	}
	f, _, err := s.opt.Decisions.Find(e.ID)
	e.Label, e.Feedback = f.Label, f.Feedback
	return err
}

// share is the escalated share of the last judged answers.
type share struct {
	mu   sync.Mutex
	last [1000]bool
	n    int
	yes  int
}

func (h *share) add(escalated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := &h.last[h.n%len(h.last)]
	if h.n >= len(h.last) && *at {
		h.yes--
	}
	if *at = escalated; escalated {
		h.yes++
	}
	h.n++
}

// value is NaN before the first answer.
func (h *share) value() float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.yes) / float64(min(h.n, len(h.last)))
}

// errBudget says that requests under way have what was left of the budget.
var errBudget = &openai.Error{Status: http.StatusTooManyRequests, Type: openai.TypeQuota, Code: openai.CodeQuotaExhausted,
	Message: "the budget is used up", NoRetry: true}

// reserve takes what asking the cloud may cost from the class's budget, once.
func (c *call) reserve(now time.Time) error {
	if c.reserved > 0 {
		return nil
	}
	if !c.rules.Reserve(c.node.CloudCost, now) {
		return errBudget
	}
	c.reserved = c.node.CloudCost
	return nil
}

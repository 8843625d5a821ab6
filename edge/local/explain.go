package local

import (
	"encoding/json"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/journal"
	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// ringSize is how many requests can be explained afterwards.
const ringSize = 1024

// explained is what GET /v1/weir/requests/{id} tells of a request. It holds
// neither prompt nor answer.
type explained struct {
	ID       string           `json:"id"`
	Arrived  time.Time        `json:"arrived"`
	Endpoint string           `json:"endpoint"`
	Model    string           `json:"model,omitempty"` // as asked
	Stream   bool             `json:"stream"`
	Mode     cascade.Mode     `json:"mode,omitempty"`
	Privacy  cascade.Privacy  `json:"privacy,omitempty"`
	Class    string           `json:"slo,omitempty"`
	First    cascade.Tier     `json:"asked_first,omitempty"`
	Second   cascade.Tier     `json:"asked_second,omitempty"`
	Judged   bool             `json:"judged"`
	Outcome  string           `json:"outcome"`
	Error    string           `json:"error,omitempty"`
	Via      string           `json:"via,omitempty"` // transport to the cloud
	EdgeMs   float64          `json:"edge_ms"`
	CloudMs  float64          `json:"cloud_ms"` // until its first event
	TotalMs  float64          `json:"total_ms"`
	Weir     *contract.Result `json:"weir,omitempty"`
	Scores   *scores          `json:"scores,omitempty"`   // scope explain only
	Label    *journal.Record  `json:"label,omitempty"`    // what was learned later; scope explain only
	Feedback *journal.Record  `json:"feedback,omitempty"` // the latest score of the answer; scope explain only

	tenant, key string
}

// scores are the numbers behind a decision. Those of the verdict are there
// where an answer was judged.
type scores struct {
	Candidates []candidate       `json:"candidates,omitempty"`
	Foreseen   *float64          `json:"foreseen,omitempty"`  // probability of an escalation, from the prompt alone
	Embedding  foresight.Outcome `json:"embedding,omitempty"` // of the prompt
	Policy     string            `json:"policy"`
	Threshold  float64           `json:"threshold,omitempty"`
	Gain       float64           `json:"gain"`
	Theta      float64           `json:"theta"`
	Confidence float64           `json:"confidence"`
	Known      bool              `json:"known"`
	Wanted     bool              `json:"wanted"`
	Signals    *signalsView      `json:"signals,omitempty"`
	LinkRTTMs  float64           `json:"link_rtt_ms"`
	CloudP90Ms float64           `json:"cloud_p90_ms"`
	CloudCost  contract.USD      `json:"cloud_cost_bound_usd"`
	Verdict    *cascade.Reason   `json:"verdict,omitempty"`
	// Propensity is the probability with which the cloud labels this answer, and
	// Shadow says that it does; absent before that is drawn.
	Propensity *float64 `json:"propensity,omitempty"`
	Shadow     bool     `json:"shadow,omitempty"`
	// Verify is what the local model's votes did; absent where the settings ask for
	// none.
	Verify *verified `json:"verify,omitempty"`
}

// candidate is a tier that might have answered.
type candidate struct {
	Tier    cascade.Tier   `json:"tier"`
	Blocked cascade.Reason `json:"blocked,omitempty"` // the limit that kept it out
	Quality *float64       `json:"quality,omitempty"` // probability that its answer is right, where it is known
}

type signalsView struct {
	Usable      bool    `json:"usable"`
	Tokens      int     `json:"tokens"`
	SumLogProb  float64 `json:"sum_logprob,omitempty"` // the log does not keep these three
	MinLogProb  float64 `json:"min_logprob,omitempty"`
	MeanLogProb float64 `json:"mean_logprob,omitempty"`
	// Tokens that are not scored.
	Think     int `json:"think_tokens,omitempty"`
	Structure int `json:"structure_tokens,omitempty"`
	Prose     int `json:"prose_tokens,omitempty"`
}

func (c *call) explained(total time.Duration) *explained {
	result := c.result
	result.Explain = nil
	e := &explained{
		ID: c.op, Arrived: c.arrived.UTC(), Endpoint: c.kind.Path(), Class: c.class,
		Mode: c.opt.Mode, Privacy: c.opt.Privacy, First: c.plan.First(), Second: c.plan.Second(), Judged: c.plan.Judge && c.judged,
		Outcome: string(c.outcome), Via: string(c.via),
		EdgeMs: millis(c.edgeTime), CloudMs: millis(c.cloudTime), TotalMs: millis(total), Weir: &result,
		tenant: c.TenantID, key: c.KeyID,
	}
	if c.req != nil {
		e.Model, e.Stream = c.req.Model, c.req.Stream
	}
	if c.failure != nil {
		e.Error = c.failure.Code
	}
	if c.planned {
		e.Scores = c.scores()
	}
	return e
}

// scores points at nothing of c, which would keep the request's body.
func (c *call) scores() *scores {
	edge, cloud := cascade.Blocks(c.ask, c.node)
	sc := &scores{
		Candidates: []candidate{{Tier: cascade.TierEdge, Blocked: edge, Quality: c.result.Confidence}, {Tier: cascade.TierCloud, Blocked: cloud}},
		Policy:     c.policy.Name, LinkRTTMs: millis(c.node.RTT), CloudP90Ms: millis(c.node.CloudP90), CloudCost: contract.USD(c.node.CloudCost),
	}
	if c.policy.Rule == cascade.RuleGain {
		sc.Candidates[1].Quality = new(c.policy.CloudQuality)
	}
	if c.foreseen.known {
		sc.Foreseen = new(c.foreseen.escalates)
	}
	sc.Embedding = c.foreseen.look.Outcome()
	if !c.judged {
		return sc
	}
	v, g := &c.verdict, &c.draft.Signals
	sc.Threshold, sc.Confidence, sc.Known, sc.Wanted, sc.Verdict = c.policy.Threshold, v.Confidence, v.Known, v.Wanted, new(v.Reason)
	if !math.IsInf(v.Theta, 0) { // JSON has no infinity
		sc.Gain, sc.Theta = v.Gain, v.Theta
	}
	sc.Signals = &signalsView{g.Usable, g.Tokens, g.SumLogProb, g.MinLogProb, g.MeanLogProb,
		g.Spans[cascade.SpanThink], g.Spans[cascade.SpanStructure], g.Spans[cascade.SpanProse]}
	sc.Propensity, sc.Shadow = c.propensity, c.shadowed
	if c.vote.Outcome != "" {
		v := c.vote
		sc.Verify = &v
	}
	return sc
}

// final is the result as it goes into the answer, with the explanation where
// the client asks for it: with scores only for a key that may see them.
func (s *Server) final(c *call) *contract.Result {
	if c.opt.Explain {
		e := c.explained(s.opt.Now().Sub(c.arrived))
		if e.Weir = nil; !c.HasScope(tenants.ScopeExplain) {
			e.Scores = nil
		}
		c.result.Explain = e
	}
	return &c.result
}

// explainedRecord is what a logged decision tells.
func explainedRecord(r *journal.Record) *explained {
	e := &explained{
		ID: r.Request, Arrived: time.Unix(0, r.UnixNS).UTC(), Class: r.Cell, Judged: r.Judged, Outcome: r.Outcome, EdgeMs: r.EdgeMS, CloudMs: r.CloudMS,
		Weir: &contract.Result{Tier: cascade.Tier(r.Tier), Reason: cascade.Reason(r.Reason), Confidence: r.Conf, Policy: r.Policy, CostUSD: contract.USD(r.CostNano)},
		key:  r.Key,
	}
	if r.Private {
		e.Privacy = cascade.PrivacyLocalOnly
	}
	if r.Judged || r.Embedding != "" {
		e.Scores = recordedScores(r)
	}
	return e
}

func recordedScores(r *journal.Record) *scores {
	sc := &scores{Policy: r.Policy, Embedding: foresight.Outcome(r.Embedding)}
	if !r.Judged {
		return sc
	}
	sc.Gain, sc.Theta, sc.Propensity, sc.Shadow = r.Gain, r.Theta, &r.Propensity, r.Shadow
	if r.Votes != nil {
		sc.Verify = &verified{Votes: r.Votes, Before: r.Before}
	}
	if r.Conf != nil {
		sc.Confidence, sc.Known = *r.Conf, true
	}
	if n := r.Spans; n != nil {
		sc.Signals = &signalsView{Usable: r.Features != nil, Tokens: n.Answer, Think: n.Think, Structure: n.Structure, Prose: n.Prose}
	}
	return sc
}

// serveExplain shows a request to its own tenant. The device's anonymous
// caller sees anonymous requests only.
func (s *Server) serveExplain(w http.ResponseWriter, r *http.Request) {
	who, err := s.authenticate(r)
	if err != nil {
		s.refuse(w, r, openai.AsError(err))
		return
	}
	id, err := contract.ParseID(r.PathValue("id"))
	if err != nil {
		s.refuse(w, r, openai.BadRequest("id", openai.CodeInvalidValue, "the request id must be a UUIDv7, as X-Request-Id gives it"))
		return
	}
	e, err := s.find(who, id)
	if err != nil {
		s.refuse(w, r, openai.AsError(err))
		return
	}
	shown := *e
	if !who.HasScope(tenants.ScopeExplain) {
		shown.Scores = nil
	} else if err := s.labels(&shown); err != nil {
		s.refuse(w, r, openai.Internal(err))
		return
	}
	s.serveJSON(w, &shown)
}

// find returns what is remembered of a caller's request. The error is an
// *openai.Error.
func (s *Server) find(who caller, id string) (e *explained, err error) {
	if e = s.ring.find(id); e == nil {
		if e, err = s.remembered(id); err != nil {
			return nil, openai.Internal(err)
		}
	}
	if e == nil || e.tenant != who.TenantID || (who.KeyID == "" && e.key != "") {
		return nil, contract.UnknownRequest()
	}
	return e, nil
}

func (s *Server) serveJSON(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		openai.Internal(err).Write(w, &contract.Result{})
		return
	}
	w.Header().Set(contract.HeaderRequestID, contract.NewID())
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw) // the client may be gone
}

// ring keeps the last requests.
type ring struct {
	mu   sync.Mutex
	at   map[string]*explained
	list []*explained
	next int
}

func newRing(n int) *ring {
	return &ring{at: make(map[string]*explained, n), list: make([]*explained, n)}
}

func (r *ring) add(e *explained) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.list[r.next]; old != nil {
		delete(r.at, old.ID)
	}
	r.list[r.next], r.at[e.ID] = e, e
	r.next = (r.next + 1) % len(r.list)
}

func (r *ring) find(id string) *explained {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at[id]
}

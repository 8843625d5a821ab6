package local

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/edge/policies"
	"github.com/weirhq/weir/edge/uplink"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/form"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// call is one request's life. One goroutine owns it; only output is shared
// with the heartbeat.
type call struct {
	op      string // operation id
	label   string // the client's own X-Request-Id
	kind    upstream.Kind
	arrived time.Time
	span    trace.Span

	caller
	body  openai.Body
	req   *openai.Request
	opt   contract.Options
	class string
	named cascade.Tier
	check checks

	foreseen foreseen

	ask    cascade.Request
	node   cascade.Node
	plan   cascade.Plan
	rules  *policies.Class // the tenant's settings for the class; nil for none
	policy cascade.Policy
	// planned says that the request reached the cascade.
	planned bool

	draft      *upstream.Draft // the local answer, as far as it counts
	partial    *upstream.Draft // of a local generation that failed
	verdict    cascade.Verdict
	vote       verified // of the local model on its answer
	judged     bool
	propensity *float64  // of a label for the judged answer; nil before it is drawn
	shadowed   bool      // it was drawn
	reserved   int64     // nano-dollars promised by rules for asking the cloud
	lost       int64     // of these, for an answer that nobody needed
	hedged     time.Time // when the cloud was asked beside the edge
	edgeRuns   int
	cloudSends int
	heard      []byte // the cloud's answer to this request, for its label
	heardAll   bool   // heard is all of it: it was not cut
	via        uplink.Via
	first      time.Duration // until the first content went to the client
	edgeTime   time.Duration // spent in the local model
	cloudTime  time.Duration // spent waiting for the cloud's first event

	result  contract.Result
	usage   openai.Usage // what the answer reported
	failure *openai.Error
	outcome tenants.Outcome
	// calledTool says that the answer called a tool.
	calledTool bool
	// replayed says that the answer is one kept under an Idempotency-Key.
	replayed bool
}

// errDeadline ends a call's context when the client's deadline is reached.
var errDeadline = errors.New("the request's deadline has passed")

func (c *call) parse(s *Server, w http.ResponseWriter, r *http.Request) error {
	var err error
	if c.caller, err = s.authenticate(r); err != nil {
		return err
	}
	if c.body, err = openai.ReadBody(r); err != nil {
		return err
	}
	openai.UnboundBody(w)
	if c.opt, err = contract.ParseOptions(r.Header, c.body); err != nil {
		return err
	}
	if c.opt.Draft != nil {
		return openai.BadRequest("weir.draft", openai.CodeUnknownMember, "weir.draft is for edge nodes, not for applications")
	}
	if c.kind == upstream.Text {
		c.req, err = openai.ParseCompletion(c.body)
	} else {
		c.req, err = openai.ParseChat(c.body)
	}
	if err != nil {
		return err
	}
	if c.check, err = parseChecks(c.body); err != nil {
		return err
	}
	c.body.StripInner()
	return c.resolve(s)
}

// resolve applies the tenant's rules: which models and classes the key may
// use, the class's deadline and the tenant's policy.
func (c *call) resolve(s *Server) error {
	named, ok := s.tierOf(c.req.Model, c.caller)
	if !ok || !c.MayUseModel(c.req.Model) {
		return openai.ModelNotFound(c.req.Model)
	}
	c.named, c.policy = named, s.rules.Default()
	if c.view == nil {
		if c.opt.SLO != "" {
			return openai.BadRequest(contract.HeaderSLO, openai.CodeInvalidValue, "no SLO class is known to this edge node yet")
		}
		return nil
	}
	class := c.view.DefaultClass(c.Identity)
	if c.opt.SLO != "" {
		if class = c.view.Class(c.opt.SLO); class == nil || !c.MayUseClass(c.opt.SLO) {
			return openai.BadRequest(contract.HeaderSLO, openai.CodeInvalidValue, "the SLO class does not exist or is not allowed for this key")
		}
	}
	if class != nil {
		c.class = class.Name
		if c.opt.Deadline == 0 {
			c.opt.Deadline = time.Duration(class.DefaultDeadlineMs) * time.Millisecond
		}
	}
	c.applyPolicy(s)
	return nil
}

// applyPolicy takes the tenant's settings: the mode where the client named
// none, and the stricter privacy.
func (c *call) applyPolicy(s *Server) {
	s.rules.Follow(c.view.Snapshot())
	if c.rules = s.rules.For(c.view.Policy(c.TenantID, c.class)); c.rules == nil {
		return
	}
	if set := c.rules.Settings(); set.Mode != "" && c.opt.Mode == cascade.ModeAuto {
		c.opt.Mode = set.Mode
	}
	set := c.rules.Settings()
	if set.Privacy.Local() {
		c.opt.Privacy = cascade.PrivacyLocalOnly
	}
	if set.Checks != nil {
		c.check.rules.Pattern, c.check.rules.Refusals = set.Checks.Regexp(), set.Checks.Refusals
	}
}

// settings are the tenant's for the class, empty where there are none.
func (c *call) settings() policy.Settings {
	if c.rules == nil {
		return policy.Settings{}
	}
	return c.rules.Settings()
}

// tierOf says which tier a model's name means: "" for the cascade. ok is false
// for a name that is not known.
func (s *Server) tierOf(name string, c caller) (tier cascade.Tier, ok bool) {
	switch {
	case name == ModelAuto:
		return "", true
	case name == s.opt.Model:
		return cascade.TierEdge, true
	case slices.Contains(s.opt.CloudModels, name):
		return cascade.TierCloud, true
	}
	if c.view == nil {
		return "", false
	}
	m := c.view.Model(name)
	if m == nil || m.Tier == tenants.Edge { // an edge model that this node does not have
		return "", false
	}
	return cascade.Tier(m.Tier), true
}

// deadline bounds ctx by the client's deadline. A small margin is left in
// which an answer that is there already can still be sent in time.
func (c *call) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.opt.Deadline <= 0 {
		return context.WithCancel(ctx)
	}
	margin := min(c.opt.Deadline/20, 10*time.Millisecond)
	return context.WithDeadlineCause(ctx, c.arrived.Add(c.opt.Deadline-margin), errDeadline)
}

// remaining is the time left until the deadline in cascade's terms.
func (c *call) remaining(now time.Time) time.Duration {
	if c.opt.Deadline <= 0 {
		return 0
	}
	if left := c.arrived.Add(c.opt.Deadline).Sub(now); left > 0 {
		return left
	}
	return -1
}

// observe fills in what cascade may know of the request and the node now.
func (c *call) observe(s *Server) {
	now := s.opt.Now()
	c.ask = cascade.Request{
		Mode: c.opt.Mode, Privacy: c.opt.Privacy, Named: c.named,
		Tools:     form.Present(c.body["tools"]) || form.Present(c.body["functions"]),
		Unchecked: c.check.beyond, PromptTokens: c.req.LeastTokens(),
		Remaining: c.remaining(now),
	}
	if c.req.MaxTokens != nil {
		c.ask.MaxTokens = *c.req.MaxTokens
	}
	if c.opt.CostCapped {
		c.ask.MaxCost = max(1, c.opt.MaxCost) // 0 is no cap to cascade; nothing costs less than 1
	}
	health, ready := s.opt.Worker.Health()
	link := s.opt.Cloud.Stats()
	c.node = cascade.Node{
		EdgeReady: ready,
		EdgeBusy:  len(s.local) >= s.opt.MaxLocal,
		Edge:      cascade.Capability{Context: health.Context},
		Cloud:     c.cloudTakes(s),
		Link:      linkOf(link.State),
		RTT:       link.RTT,
		CloudP90:  s.latency.p90(),
		CloudCost: s.costBound(c, health.Context),
	}
	c.node.Budget, c.node.Budgeted = c.rules.Budget(s.opt.Now())
}

// cloudTakes is what the cloud's model takes as far as the snapshot tells.
// Whether an answer's bound is cut to the room that is left is for the cloud to
// say: the prompt alone counts here.
func (c *call) cloudTakes(s *Server) cascade.Capability {
	if c.view == nil {
		return cascade.Capability{}
	}
	m := c.view.Model(c.escalationModel(s))
	if m == nil || m.ContextTokens == 0 {
		return cascade.Capability{}
	}
	return cascade.Capability{Context: m.ContextTokens + c.ask.MaxTokens, Tools: true, Images: true}
}

func linkOf(s uplink.State) cascade.Link {
	switch s {
	case uplink.Up:
		return cascade.LinkUp
	case uplink.Down:
		return cascade.LinkDown
	}
	return cascade.LinkUnknown
}

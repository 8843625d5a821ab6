package local

import (
	"hash/fnv"
	"math"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/learn"
	"github.com/weirhq/weir/cascade/prerouter"
	"github.com/weirhq/weir/edge/foresight"
	"github.com/weirhq/weir/internal/openai"
)

const (
	// exploreOneIn is how many requests that would skip the edge are asked of
	// it all the same, so that a guess can be found wrong.
	exploreOneIn = 20
	// exploreWeight is what such a verdict counts. Clipped: one over the
	// probability would let a few verdicts speak for all prompts.
	exploreWeight = 5
)

// prompt is what a guess is made of.
func (c *call) prompt() prerouter.Prompt {
	p := prerouter.Prompt{Text: c.req.Prompt, Turns: len(c.req.Messages), Tools: len(c.check.rules.Tools)}
	for _, m := range c.req.Messages {
		switch m.Role {
		case "system", "developer":
			p.System += m.Content
		case "user":
			p.Text = m.Content
		}
	}
	return p
}

// foreseen is what was known of a request before any model ran.
type foreseen struct {
	look      *foresight.Look // nil where nothing is foreseen
	escalates float64
	known     bool
	explored  bool // the edge was to be skipped, but for exploration
	hedge     bool
}

// foresee fills in what the session and the prompt say of the request. It
// changes nothing where the client or privacy have decided already.
func (s *Server) foresee(c *call) {
	set := c.settings()
	if !c.cascades() {
		return
	}
	if set.Sticky && c.opt.Session != "" {
		c.ask.Sticky = s.sessions.sticky(c.sessionKey(), s.opt.Now())
	}
	uses := set.SkipEdge || set.Hedge || set.Sticky
	if !uses && !s.opt.Foresight.Embeds() {
		return
	}
	f := &c.foreseen
	health, _ := s.opt.Worker.Health()
	f.look = s.opt.Foresight.Look(cell(c.class), health.Fingerprint.Weights, c.prompt())
	if !uses {
		return // it may stand in for log-probabilities yet
	}
	if f.escalates, f.known = f.look.Escalates(); !f.known {
		return
	}
	t := s.times(c)
	if t.CloudSeconds == 0 {
		return // nothing is known of the cloud yet
	}
	if set.SkipEdge && prerouter.SkipEdge(f.escalates, t) {
		f.explored = explores(c.op)
		c.ask.PredictedHard = !f.explored
	}
	f.hedge = set.Hedge && prerouter.Hedge(f.escalates, c.ask.Remaining.Seconds(), t)
}

// times are the node's estimates for the request. Without a price of time, time
// alone counts.
func (s *Server) times(c *call) prerouter.Times {
	t := prerouter.Times{EdgeSeconds: s.generation.p50().Seconds(), CloudSeconds: s.latency.p50().Seconds(), PerSecond: 1}
	if v := c.settings().Value; v != nil {
		t.PerSecond, t.CloudCost = float64(v.PerSecondNano), float64(c.node.CloudCost)
	}
	return t
}

// explores picks one in exploreOneIn operations, the same for one id.
func explores(op string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(op))
	return h.Sum32()%exploreOneIn == 0
}

// cascades reports whether the cascade has the choice of a tier.
func (c *call) cascades() bool {
	return c.ask.Mode == cascade.ModeAuto && c.named == "" && !c.opt.Privacy.Local()
}

func (c *call) sessionKey() sessionKey { return sessionKey{c.KeyID, c.opt.Session} }

// rightness is the probability that the edge's answer was right: by the cloud's
// where that is known, else by its own signals; NaN where neither tells.
func (c *call) rightness() float64 {
	switch {
	case c.verdict.Escalate && c.heardAll && c.draft.Finish == openai.FinishStop:
		return learn.Agree(cascade.AnswerText(c.draft.Text), cascade.AnswerText(string(c.heard)))
	case c.verdict.Known && c.draft.Signals.Usable:
		return c.verdict.Confidence
	}
	return math.NaN()
}

// stands is the probability that an answer is right, by similar prompts where the
// model server gives no log-probabilities.
func (c *call) stands(g *cascade.Signals, p float64, known bool) (float64, bool) {
	if known || g.Usable || !g.Spans.Plain() {
		return p, known
	}
	return c.foreseen.look.Right()
}

// remember tells foresight and session what became of a request.
func (s *Server) remember(c *call) {
	f := &c.foreseen
	if f.look != nil && c.judged && c.plan.Judge {
		v := foresight.Verdict{Escalated: c.verdict.Wanted, Right: c.rightness(), Weight: 1}
		if f.explored {
			v.Weight = exploreWeight
		}
		f.look.Learn(v)
	}
	if c.opt.Session == "" || !c.settings().Sticky || c.result.Tier == "" || !c.cascades() {
		return
	}
	t := cascade.Turn{Tier: c.result.Tier, ToolCall: c.calledTool}
	switch {
	case c.judged:
		t.Known, t.Gain, t.Theta = c.verdict.Known, c.verdict.Gain, c.verdict.Theta
	case f.known: // calm is what the edge would have kept
		t.Known, t.Gain, t.Theta = true, f.escalates, .5
	}
	s.sessions.turn(c.sessionKey(), t, s.opt.Now())
}

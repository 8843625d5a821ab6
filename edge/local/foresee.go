package local

import (
	"hash/fnv"
	"sync"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/prerouter"
)

// Bounds of what is learned of prompts.
const (
	foresightAfter = 200 // verdicts before a guess counts
	foresightCells = 16  // classes; others have none
	// exploreOneIn is how many requests that would skip the edge are asked of
	// it all the same, so that a guess can be found wrong.
	exploreOneIn = 20
	// exploreWeight is what such a verdict counts. Clipped: one over the
	// probability would let a few verdicts speak for all prompts.
	exploreWeight = 5
)

// foresight guesses from the prompt alone whether the edge's answer will be let
// over. It learns from the node's own verdicts, in memory only, and only where
// a policy uses it.
type foresight struct {
	mu    sync.Mutex
	cells map[string]*guesser
}

type guesser struct {
	router  *prerouter.Router
	seen    int
	scratch []prerouter.Feature
}

// guess is the probability that the edge's answer will be let over; known is
// false before enough verdicts.
func (f *foresight) guess(cell string, p *prerouter.Prompt) (escalates float64, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.cells[cell]
	if g == nil || g.seen < foresightAfter {
		return 0, false
	}
	g.scratch = prerouter.Features(g.scratch[:0], *p)
	return g.router.Predict(g.scratch).Benefit, true
}

// learn notes a verdict of weight w.
func (f *foresight) learn(cell string, p *prerouter.Prompt, escalated bool, w float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.cells[cell]
	if g == nil {
		if len(f.cells) >= foresightCells {
			return
		}
		if f.cells == nil {
			f.cells = map[string]*guesser{}
		}
		g = &guesser{router: prerouter.NewRouter()}
		f.cells[cell] = g
	}
	g.seen++
	g.scratch = prerouter.Features(g.scratch[:0], *p)
	g.router.Count(g.scratch)
	kept := 1.0
	if escalated {
		kept = 0
	}
	g.router.Observe(g.scratch, kept, 1, w) // the benefit of the cloud stands for the wish for it
}

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
	prompt    prerouter.Prompt
	used      bool // the class uses foresight
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
	f := &c.foreseen
	if f.used = set.SkipEdge || set.Hedge || set.Sticky; !f.used {
		return
	}
	f.prompt = c.prompt()
	if f.escalates, f.known = s.foresight.guess(cell(c.class), &f.prompt); !f.known {
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

// remember tells foresight and session what became of a request.
func (s *Server) remember(c *call) {
	f := &c.foreseen
	if f.used && c.judged && c.plan.Judge {
		w := 1.0
		if f.explored {
			w = exploreWeight
		}
		s.foresight.learn(cell(c.class), &f.prompt, c.verdict.Wanted, w)
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

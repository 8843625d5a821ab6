package local

import (
	"slices"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade/policy"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
	"github.com/weirhq/weir/tenants/price"
)

// Bounds on the tokens of a cloud call where nothing better is known: a prompt
// has at most a token a byte, plus the template's.
const (
	templateTokens = 64
	defaultContext = 4096
)

// costBound is an upper bound of what asking the cloud would cost, in
// nano-dollars; 0 without a price.
func (s *Server) costBound(c *call, context int) int64 {
	if c.view == nil {
		return 0
	}
	p, ok := c.view.Prices.At(tenants.Cloud, s.cloudModel(c), s.opt.Now())
	if !ok {
		return 0
	}
	if context <= 0 {
		context = defaultContext
	}
	out := context
	if c.req.MaxTokens != nil {
		out = *c.req.MaxTokens
	}
	in := len(c.body["messages"]) + len(c.body["prompt"]) + len(c.body["tools"]) + templateTokens
	cost, err := price.Cost(p, price.Tokens{Input: int64(in), Output: int64(out)})
	if err != nil {
		return 1<<63 - 1 // beyond counting is beyond any cap
	}
	return cost
}

// costs is what letting this request over is expected to take. An answer's
// duration as seen from here holds the way to the cloud already.
func (s *Server) costs(c *call) policy.Costs {
	k := policy.Costs{CloudNano: c.node.CloudCost, ExtraSeconds: s.latency.p50().Seconds()}
	if v := s.opt.Learner.View(cell(c.class)); v.Effective > 0 {
		k.CloudQuality = v.CloudQuality
	}
	if k.ExtraSeconds == 0 {
		k.RTTSeconds = c.node.RTT.Seconds()
	}
	return k
}

// cloudModel is the model that an escalation is priced as.
func (s *Server) cloudModel(c *call) string {
	if c.req.Model == ModelAuto || c.req.Model == s.opt.Model {
		return s.opt.CloudModels[0]
	}
	return c.req.Model
}

// edgeCost prices the tokens of the local answer, if there was one, and of the
// votes on it.
func (s *Server) edgeCost(c *call) contract.USD {
	if c.view == nil || c.draft == nil {
		return 0
	}
	p, ok := c.view.Prices.At(tenants.Edge, s.opt.Model, s.opt.Now())
	if !ok {
		return 0
	}
	sum := int64(0)
	for _, u := range [...]openai.Usage{c.draft.Usage, c.vote.used} {
		cost, err := price.Cost(p, price.Tokens{Input: int64(u.PromptTokens), Cached: int64(cached(u)), Output: int64(u.CompletionTokens)})
		if err != nil {
			return 0 // the cloud prices the row again and reports the fault
		}
		sum += cost
	}
	return contract.USD(sum)
}

func cached(u openai.Usage) int {
	if u.PromptTokensDetails == nil {
		return 0
	}
	return min(u.PromptTokensDetails.CachedTokens, u.PromptTokens)
}

// latency remembers how long a tier's last answers took.
type latency struct {
	mu     sync.Mutex
	last   [64]time.Duration
	n      int
	cached time.Duration // 90 % quantile
	middle time.Duration
}

func newLatency() *latency { return &latency{} }

// add notes one answer's whole duration.
func (l *latency) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last[l.n%len(l.last)] = d
	l.n++
	have := min(l.n, len(l.last))
	var sorted [64]time.Duration
	copy(sorted[:], l.last[:have])
	slices.Sort(sorted[:have])
	l.cached, l.middle = sorted[have*9/10], sorted[have/2]
}

// p50 is the median; 0 before the first answer.
func (l *latency) p50() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.middle
}

// p90 is the 90 % quantile; 0 before the first answer.
func (l *latency) p90() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cached
}

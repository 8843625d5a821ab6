package route

import "time"

// Measured decides by what instances report of themselves: prefill by an
// affinity gate, LMetric's product and its detector of hot classes (arXiv
// 2603.15202; the gate after llm-d's and agentic-kvc's, because the product alone
// gives away prefix hits), decode by the predicted time per output token, packed
// as Llumnix and Arrow pack. Fields that are 0 take the defaults of scheduling.md
// 10.
type Measured struct {
	Stale       time.Duration // age beyond which a report is not used; 1 s
	GateHit     float64       // share of a prompt that makes an instance a holder; 0.5
	GateFactor  float64       // a holder's backlog over the mean that breaks the gate; 2
	Pack        float64       // share of the wanted time per token up to which decodes are packed; 0.85
	TPOT        time.Duration // wanted where the request does not say; 50 ms
	ShortSuffix int           // uncached tokens that a decode instance always prefills itself; 64
}

const policyMeasured = "measured"

// BytesPerToken turns bytes into tokens where nobody has counted: English text
// has about four bytes a token in today's vocabularies.
const BytesPerToken = 4

var _ Policy = Measured{}

// Spec implements Policy.
func (Measured) Spec() Spec {
	return Spec{
		Name: policyMeasured,
		Signals: []string{"role", "model", "ready", "suspect", "weight", "load (at most 1 s old)", "unseen", "prefix hit",
			"share of the prompt's class in the arrivals of a minute", "cost model", "mean time of a hand-off"},
		Knob:     "prefill and decode instance, and whether they are apart",
		Fallback: "least-in-flight for a stage in which any candidate's report is missing or stale",
		Weakness: "a hot prefix is spread by one instance per streak, slowly where requests are few; prompts are taken for four bytes a token",
	}
}

func (m *Measured) fill() {
	setDefault(&m.Stale, time.Second)
	setDefault(&m.GateHit, .5)
	setDefault(&m.GateFactor, 2)
	setDefault(&m.Pack, .85)
	setDefault(&m.TPOT, 50*time.Millisecond)
	setDefault(&m.ShortSuffix, 64)
}

func setDefault[T int | float64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Decide implements Policy.
func (m Measured) Decide(o *Observation) Decision {
	m.fill()
	d := Decision{Policy: policyMeasured, Scores: make([]Score, 0, len(o.Inst))}
	decode, only := m.decode(o, &d)
	if decode == nil {
		d.Action = reject(o, d.Scores)
		return d
	}
	if only {
		d.Reasons = append(d.Reasons, ReasonOnly)
	}
	if o.Req.Moved || decode.Role == Mixed {
		return whole(d, decode, ReasonWhole)
	}
	if h := o.Req.Handoff; h.ID != "" && handoffFits(o, h, decode) {
		return reused(d, h, decode)
	}
	prefill := m.prefill(o, &d, decode)
	if prefill != nil && m.skipsPrefill(o, prefill, decode) {
		return whole(d, decode, ReasonShortSuffix)
	}
	return split(d, prefill, decode)
}

// decode picks the instance that answers. A pool of mixed instances is judged
// as for prefill, because the prompt's cost is the larger there.
func (m *Measured) decode(o *Observation, d *Decision) (best *InstanceView, only bool) {
	list := candidates(o, d, StageDecode, decodeHard(o))
	list = withoutSuspects(d, StageDecode, list)
	switch {
	case len(list) < 2:
		return first(list), len(list) == 1
	case !m.fresh(o, list):
		d.Reasons = append(d.Reasons, ReasonStale)
		return leastOf(o, d, StageDecode, list), false
	case allMixed(list):
		return m.warmest(o, d, StageDecode, list), false
	}
	return m.tpot(o, d, withRoom(o, d, list)), false
}

func (m *Measured) prefill(o *Observation, d *Decision, decode *InstanceView) *InstanceView {
	list := candidates(o, d, StagePrefill, prefillHard(o, decode))
	switch {
	case len(list) < 2:
		return first(list)
	case !m.fresh(o, list):
		d.Reasons = append(d.Reasons, ReasonStale)
		return leastOf(o, d, StagePrefill, list)
	}
	return m.warmest(o, d, StagePrefill, list)
}

// fresh reports whether every candidate's report can be used.
func (m *Measured) fresh(o *Observation, list []*InstanceView) bool {
	for _, in := range list {
		if in.Load.At == 0 || o.Now-in.Load.At > m.Stale {
			return false
		}
	}
	return true
}

// warmest picks for a prompt: among the instances that hold enough of it, unless
// they are all too far behind the others or the prompt's class is too hot for
// them.
func (m *Measured) warmest(o *Observation, d *Decision, stage Stage, list []*InstanceView) *InstanceView {
	var holders []*InstanceView
	for _, in := range list {
		if m.holds(o, in) {
			holders = append(holders, in)
		}
	}
	switch {
	case len(holders) == 0:
		return m.product(o, d, stage, list)
	case o.Req.Class.hot(len(holders), len(list)):
		return m.hottest(o, d, stage, list, holders)
	}
	return m.product(o, d, stage, m.gate(o, d, stage, list))
}

// gate keeps to the holders, unless they are all too far behind.
func (m *Measured) gate(o *Observation, d *Decision, stage Stage, list []*InstanceView) []*InstanceView {
	sum := 0
	for _, in := range list {
		sum += backlog(in)
	}
	most := m.GateFactor*float64(sum)/float64(len(list)) + float64(tokens(o.Req.PromptBytes))
	kept := make([]*InstanceView, 0, len(list))
	for _, in := range list {
		if m.holds(o, in) && float64(backlog(in)) <= most {
			kept = append(kept, in)
		}
	}
	if len(kept) == 0 {
		d.Reasons = append(d.Reasons, ReasonGateBroken)
		return list
	}
	d.Reasons = append(d.Reasons, ReasonAffinity)
	for _, in := range list {
		if !m.holds(o, in) {
			d.Scores = append(d.Scores, Score{Stage: stage, Instance: in.ID, Out: OutCold})
		}
	}
	return kept
}

func (m *Measured) holds(o *Observation, in *InstanceView) bool {
	return in.HitBytes > 0 && float64(in.HitBytes) >= m.GateHit*float64(o.Req.PromptBytes)
}

// product is LMetric: uncomputed prompt tokens, this request's included, times
// the batch with this request in it.
func (m *Measured) product(o *Observation, d *Decision, stage Stage, list []*InstanceView) *InstanceView {
	d.Reasons = append(d.Reasons, ReasonProduct)
	return least(o, d, stage, list, func(in *InstanceView) float64 {
		return float64(backlog(in)+suffix(o, in)) * float64(batch(in)+1) / in.weight()
	})
}

// tpot packs decodes onto the fullest instance that stays well under the
// wanted time per token, and without one takes the fastest. Without a cost
// model the batch and then its tokens decide.
func (m *Measured) tpot(o *Observation, d *Decision, list []*InstanceView) *InstanceView {
	d.Reasons = append(d.Reasons, ReasonPredictedTPOT)
	want := m.TPOT
	if o.Req.TPOT > 0 {
		want = o.Req.TPOT
	}
	limit := m.Pack * float64(want) / float64(time.Millisecond)
	known := true
	for _, in := range list {
		known = known && in.Cost != nil
	}
	return least(o, d, StageDecode, list, func(in *InstanceView) float64 {
		if !known {
			return (float64(batch(in)+1) + float64(in.Load.DecodeContext)/1e9) / in.weight()
		}
		ms := in.Cost.StepMs(batch(in)+1, 0, in.Load.DecodeContext+tokens(o.Req.PromptBytes), 0) / in.weight()
		if ms < limit {
			return limit - ms // the fuller the better
		}
		return limit + ms
	})
}

// skipsPrefill reports whether the decode instance does better to prefill what
// it has not cached than to wait for a hand-off.
func (m *Measured) skipsPrefill(o *Observation, prefill, decode *InstanceView) bool {
	own := suffix(o, decode)
	if decode.HitBytes > 0 && own <= m.ShortSuffix {
		return true
	}
	fresh := m.fresh(o, []*InstanceView{prefill, decode})
	pull := decode.pullMs(prefill, tokens(o.Req.PromptBytes))
	if !fresh || prefill.Cost == nil || decode.Cost == nil || pull <= 0 {
		return false
	}
	return prefillMs(decode, own, o) < prefillMs(prefill, suffix(o, prefill), o)+pull
}

// prefillMs predicts the time until n more prompt tokens are computed, after
// those that wait.
func prefillMs(in *InstanceView, n int, o *Observation) float64 {
	n += backlog(in)
	cached := tokens(o.Req.PromptBytes) - n
	pairs := n*max(cached, 0) + n*n/2
	return in.Cost.StepMs(in.Load.Running, n, in.Load.DecodeContext, pairs)
}

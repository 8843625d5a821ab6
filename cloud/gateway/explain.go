package gateway

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// explanation is why a request went where it went. It names instances by their
// opaque names and holds nothing of the prompt or the answer.
type explanation struct {
	Operation string           `json:"operation_id"`
	Device    string           `json:"device_id,omitempty"`
	Began     time.Time        `json:"began"`
	Asked     string           `json:"asked_model"`
	Pool      string           `json:"pool"`
	Class     string           `json:"class,omitempty"`
	Outcome   tenants.Outcome  `json:"outcome"`
	ErrorCode string           `json:"error_code,omitempty"`
	Attempts  []explainedTry   `json:"attempts"`
	Choice    *explainedChoice `json:"choice,omitempty"` // among equal pools
	Remark    string           `json:"remark,omitempty"`
	Weir      *contract.Result `json:"weir"`

	tenant string
}

type explainedTry struct {
	Attempt    string          `json:"attempt_id,omitempty"`
	Pool       string          `json:"pool"`
	Why        cascade.Reason  `json:"why,omitempty"` // a cascade let the request over to the pool
	Policy     string          `json:"policy"`
	Prefill    string          `json:"prefill,omitempty"`
	Decode     string          `json:"decode,omitempty"`
	Reasons    []route.Reason  `json:"reasons,omitempty"`
	Rejected   route.Reason    `json:"rejected,omitempty"`
	Candidates []candidate     `json:"candidates,omitempty"` // with scope explain
	Judged     *explainedDraft `json:"judged,omitempty"`     // by the cascade's policy
	Notes      []string        `json:"notes,omitempty"`
	Outcome    tenants.Outcome `json:"outcome,omitempty"`
	ErrorCode  string          `json:"error_code,omitempty"`
	TTFTMs     float64         `json:"ttft_ms"`
	TotalMs    float64         `json:"total_ms"`
}

type candidate struct {
	Stage    route.Stage  `json:"stage"`
	Instance string       `json:"instance"` // opaque
	Score    float64      `json:"score"`    // lower is better
	Out      route.Reason `json:"out,omitempty"`
}

// explainedDraft is what a cascade made of a pool's answer.
type explainedDraft struct {
	Kept       bool           `json:"kept"`
	Reason     cascade.Reason `json:"reason"`
	Confidence *float64       `json:"confidence,omitempty"`
	Broken     bool           `json:"broken,omitempty"` // its form was, or it said nothing
	Lost       bool           `json:"lost,omitempty"`   // it broke off
	Next       string         `json:"next,omitempty"`   // the pool that was asked instead
	Scores     *draftScores   `json:"scores,omitempty"` // with scope explain
}

// draftScores are the numbers behind a verdict.
type draftScores struct {
	Threshold float64             `json:"threshold,omitempty"`
	Gain      float64             `json:"gain"`
	Theta     float64             `json:"theta"`
	Bound     contract.USD        `json:"next_cost_bound_usd"`
	Route     []cascading.Weighed `json:"route,omitempty"` // over three and more pools
}

// tell notes what became of the draft by the verdict, and why.
func (d *draft) tell(v cascade.Verdict, why cascade.Reason) {
	if d.told == nil {
		d.told = &explainedDraft{}
	}
	told := d.judge.Told()
	*d.told = explainedDraft{Kept: d.kept, Reason: why, Broken: told.Broken, Lost: d.lost, Scores: d.told.Scores}
	if v.Known {
		d.told.Confidence = new(v.Confidence)
	}
	if d.told.Scores == nil { // a draft that stands in is not judged again
		next := d.tries.policy.Next()
		d.told.Scores = &draftScores{Threshold: told.Threshold, Gain: finite(v.Gain), Theta: finite(v.Theta), Bound: contract.USD(d.bound(d.ask.model.Cascade.Pools()[next])), Route: told.Weighed}
	}
	if !d.kept {
		d.told.Next = d.ask.model.Cascade.Pools()[d.tries.policy.Next()]
	}
	d.story.try(d.id).Judged = d.told
}

// finite is x where JSON can have it, else 0.
func finite(x float64) float64 {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return 0
	}
	return x
}

// confidences are those of a cascade's answers, in the order in which they came.
func (e *explanation) confidences() string {
	if e == nil {
		return ""
	}
	var all []string
	for _, t := range e.Attempts {
		if t.Judged != nil && t.Judged.Confidence != nil {
			all = append(all, fmt.Sprintf("%s=%.3f", t.Pool, *t.Judged.Confidence))
		}
	}
	return strings.Join(all, " ")
}

func (a *admitted) newStory() *explanation {
	return &explanation{Operation: a.op, Device: a.who.Device, Began: a.began.UTC(), Asked: a.ask.req.Model,
		Pool: a.ask.model.Pool, Class: a.ask.class, Choice: a.choice.seen(), tenant: a.who.TenantID}
}

// describe notes where an attempt goes and counts a split that failed.
func (a *attempt) describe(d route.Decision) {
	a.story.addDecision(a.pool, d)
	last := len(a.story.Attempts) - 1
	t := &a.story.Attempts[last]
	t.Attempt, t.Decode = a.id, a.sel.Decode.Opaque
	if a.tries.policy != nil && last > 0 && a.story.Attempts[last-1].Pool != a.pool {
		t.Why = a.result.Reason
	}
	if a.sel.Prefill != nil {
		t.Prefill = a.sel.Prefill.Opaque
	}
	if a.tries.drafts == 0 { // else the cascade's policy decided
		a.result.Policy = d.Policy
	}
	a.result.Tier, a.result.Model = "", ""
	if d.Fallback {
		a.g.meter.fallback("no_prefill")
	}
}

func (e *explanation) addDecision(pool string, d route.Decision) {
	t := explainedTry{Pool: pool, Policy: d.Policy, Reasons: d.Reasons}
	if r, ok := d.Action.(route.Reject); ok {
		t.Rejected = r.Cause
	}
	for _, s := range d.Scores {
		t.Candidates = append(t.Candidates, candidate{s.Stage, s.Instance, s.Value, s.Out})
	}
	e.Attempts = append(e.Attempts, t)
}

func (e *explanation) note(text string) {
	t := &e.Attempts[len(e.Attempts)-1]
	t.Notes = append(t.Notes, text)
}

// try is the attempt with an id.
func (e *explanation) try(id string) *explainedTry {
	return &e.Attempts[max(0, slices.IndexFunc(e.Attempts, func(t explainedTry) bool { return t.Attempt == id }))]
}

func (e *explanation) endAttempt(r *tenants.UsageRecord) {
	t := e.try(r.AttemptID)
	t.Outcome, t.ErrorCode = r.Outcome, r.ErrorCode
	t.TTFTMs, t.TotalMs = float64(r.TTFTMicros)/1e3, float64(r.TotalMicros)/1e3
}

// finishStory completes the explanation, or returns nil where the request was
// turned away before any decision.
func (x *exchange) finishStory() *explanation {
	e := x.story
	if e == nil {
		return nil
	}
	result := x.result
	e.Weir, e.Outcome, e.Remark = &result, x.outcome, x.remark
	if x.failure != nil {
		e.ErrorCode = x.failure.Code
	}
	return e
}

// explanations remembers the newest requests. Finished explanations do not
// change, so readers need no copy of them.
type explanations struct {
	mu   sync.Mutex
	byID map[string]*explanation
	ring []string
	next int
}

func newExplanations(size int) *explanations {
	return &explanations{byID: make(map[string]*explanation, size), ring: make([]string, size)}
}

func (e *explanations) put(x *explanation) {
	if x == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.byID, e.ring[e.next])
	e.ring[e.next] = x.Operation
	e.byID[x.Operation] = x
	e.next = (e.next + 1) % len(e.ring)
}

// get returns the explanation if it is the tenant's.
func (e *explanations) get(id, tenant string) *explanation {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.byID[id]; x != nil && x.tenant == tenant {
		return x
	}
	return nil
}

// showExplanation answers GET /v1/weir/requests/{id}. Another tenant's request
// is as unknown as one that never was.
func (g *Gateway) showExplanation(x *exchange) {
	e := g.explain.get(x.gin.Param("id"), x.who.TenantID)
	if e == nil {
		x.refuse(&openai.Error{Status: http.StatusNotFound, Type: openai.TypeNotFound, Code: "request_not_found", Param: "id", NoRetry: true,
			Message: "no such request is remembered here: only the newest of your own are, and only by the gateway that served them"})
		return
	}
	if x.who.HasScope(tenants.ScopeExplain) {
		x.answer(g.withOpaqueNames(e))
		return
	}
	plain := *e
	if e.Choice != nil {
		plain.Choice = &explainedChoice{Pool: e.Choice.Pool, How: e.Choice.How, Propensity: e.Choice.Propensity}
	}
	plain.Attempts = make([]explainedTry, len(e.Attempts))
	copy(plain.Attempts, e.Attempts)
	for i := range plain.Attempts {
		t := &plain.Attempts[i]
		t.Candidates = nil
		if t.Judged != nil {
			judged := *t.Judged
			t.Judged, judged.Scores = &judged, nil
		}
	}
	x.answer(&plain)
}

// withOpaqueNames renames the candidates, which are kept by their real names.
func (g *Gateway) withOpaqueNames(e *explanation) *explanation {
	names := map[string]string{}
	for _, s := range g.opts.Pool.Status() {
		names[s.Name] = s.Opaque
	}
	shown := *e
	shown.Attempts = make([]explainedTry, len(e.Attempts))
	for i, t := range e.Attempts {
		list := make([]candidate, len(t.Candidates))
		for j, c := range t.Candidates {
			c.Instance = names[c.Instance]
			list[j] = c
		}
		t.Candidates = list
		shown.Attempts[i] = t
	}
	return &shown
}

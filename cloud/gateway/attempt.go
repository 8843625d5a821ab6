package gateway

import (
	"context"
	"errors"
	"hash/fnv"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/cascading"
	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// tries is what the attempts of a request have taught it.
type tries struct {
	n             int
	open          []*attempt // begun and not settled
	retries       int        // attempts that followed a failure
	began         time.Time
	failedPrefill []route.Process
	failedDecode  []route.Process
	left          route.Process       // has just given the answer away: the next attempt is not there
	handoff       *handoff            // unread, from an earlier attempt
	lease         *lease              // of the newest hand-off
	moved         *movedAnswer        // a worker gave the answer away: the next attempt takes it
	carried       tenants.UsageRecord // what earlier attempts delivered of the answer
	policy        *cascading.Case     // of a model that is a cascade
	begun         int                 // rows
	counted       bool                // a settled row counts the request
	others        int                 // settled rows that do not
	drafts        int                 // attempts whose answers a cascade judges
	polls         int                 // attempts to hear what their models say of them
	waits         []*draft            // their answers, while another pool is asked
	draft         tenants.UsageRecord // what those cost that gave way
	handed        int                 // tokens of them that the client has seen nevertheless
	err           *openai.Error       // of the last one
}

// judged is how many attempts were made for a cascade's judgement.
func (t *tries) judged() int { return t.drafts + t.polls }

// number is that of a row with which an attempt ends. The first one of all that are
// no part of a judgement counts the request: it alone has the number 1.
func (t *tries) number(a *attempt, outcome tenants.Outcome) int {
	if !t.counted && !a.asks && outcome != tenants.OutcomeEscalated {
		t.counted = true
		return 1
	}
	t.others++
	return 1 + t.others
}

// attempt is one try at one pair of instances: one ledger row.
type attempt struct {
	*admitted
	id    string
	began time.Time
	sel   pool.Selection
	used  used
	ttft  time.Duration // since the attempt began
	entry Entry
	ended bool // settled
	// number is the row's: 1 counts the request; said is the model's name in its own
	// words; draft says that a cascade judges the answer, gaveWay that another pool's
	// is to replace it, asks that it only asks what the model says of its answer.
	number               int
	pool, said           string
	draft, gaveWay, asks bool
	// sum is what this and earlier attempts delivered of the answer.
	sum tenants.UsageRecord
}

// legError is why a leg did not answer. Exactly one of its forms is meant:
// ended is set when the request itself is over (client gone, deadline); else
// the failure is the instance's and failover decides.
type legError struct {
	route.Failure
	ended tenants.Outcome
	moved *movedAnswer // no failure: the worker gave the answer away
	leg   *pool.Leg
	api   *openai.Error // what the client is told if nothing else can be tried
}

// Causes that end a leg's context.
var (
	errFirstByte = errors.New("no token came in time")
	errStall     = errors.New("the stream stood still")
)

// complete runs attempts until one has answered or none is left to try.
func (g *Gateway) complete(c *gin.Context) {
	a := of(c).admitted
	a.story = a.newStory()
	a.tries.began = time.Now()
	defer a.letGo()
	defer a.abandon()
	if a.ask.req.Stream {
		a.stream = &stream{exchange: a.exchange}
		defer a.stream.close()
	}
	g.budget(a.ask.model.Pool).Add(retriesPerRequest, a.tries.began)
	if a.choice != nil {
		g.meter.chosen(a.ask.req.Model, a.ask.model.Pool, a.choice.How)
	}
	if a.cascades() {
		a.cascade()
		return
	}
	for {
		done := a.try()
		if done {
			return
		}
	}
}

// try makes one attempt. It returns true when the request is over.
func (a *admitted) try() bool {
	g := a.g
	trigger := route.Arrival
	if a.tries.n > 0 {
		trigger = route.Retry
	}
	policy := g.opts.Policy
	if m := a.tries.moved; m != nil {
		policy = route.Staged{Policy: policy, At: m.To}
	}
	sel, decision := g.opts.Pool.Select(policy, trigger, a.poolAsk(), a.seed())
	a.tries.left = route.Process{}
	if sel.Decode == nil {
		a.story.addDecision(a.ask.model.Pool, decision)
		if a.another(false) {
			return false
		}
		a.noInstance(decision)
		return true
	}
	defer sel.Release()
	a.tries.n++
	at := &attempt{admitted: a, id: contract.NewID(), began: time.Now(), sel: sel, pool: a.ask.model.Pool}
	at.describe(decision)
	if err := at.begin(); err != nil {
		if a.standsIn(cascade.ReasonCloudError) {
			return true
		}
		a.outcome = tenants.OutcomeRejected
		if a.stream.begun() {
			a.outcome = tenants.OutcomeUpstreamTruncated
		}
		a.giveUp("", err)
		return true
	}
	a.result.Attempts = a.tries.judged() + a.tries.n
	failed := at.run()
	switch {
	case failed == nil:
		at.conclude(a.outcome, a.failure)
		return true
	case failed.moved != nil:
		a.tries.err = failed.api
		at.handOver(failed.moved)
		return false
	case failed.ended != "":
		at.endedBy(failed)
		return true
	}
	return at.failed(failed)
}

// run does the legs of the attempt. A nil error means that the client has been
// answered or is gone, and outcome says how.
func (a *attempt) run() *legError {
	ctx, cancel := context.WithCancelCause(a.ctx)
	defer cancel(nil)
	watch := newWatchdog(cancel, a.g.opts.Timeouts.FirstByte, errFirstByte)
	defer watch.stop()
	h := a.tries.handoff
	if !a.sel.Reused {
		h = nil
	}
	a.tries.handoff = nil
	if m := a.tries.moved; m != nil {
		h = &handoff{params: m.Params, lease: a.tries.lease}
	} else if a.sel.Prefill != nil {
		var failed *legError
		if h, failed = a.runPrefill(ctx); failed != nil {
			return failed
		}
	}
	failed := a.runDecode(ctx, h, watch)
	switch {
	case failed == nil || !h.unread(failed):
		a.tries.moved = nil
	case a.tries.moved == nil:
		a.tries.handoff = h
	}
	return failed
}

// poolAsk is the request as the pool and the routing policy see it.
func (a *admitted) poolAsk() pool.Ask {
	v := route.RequestView{Model: a.ask.model.Pool, PromptBytes: a.ask.promptBytes, Session: a.ask.opts.Session,
		FailedPrefill: a.tries.failedPrefill, FailedDecode: append(slices.Clip(a.tries.failedDecode), a.tries.left),
		Resume: a.stream.resumes() || a.tries.moved != nil, Moved: a.tries.moved != nil}
	if v.Resume {
		v.Weights = a.stream.shown.weights
	}
	if a.ask.req.MaxTokens != nil {
		v.MaxTokens = *a.ask.req.MaxTokens
	}
	if c := a.ask.slo; c != nil {
		v.TPOT = time.Duration(c.TPOTMillis) * time.Millisecond
	}
	if h := a.tries.handoff; h.usable(time.Now()) {
		v.Handoff = h.from
	}
	return pool.Ask{RequestView: v, Operation: a.op, Movable: a.ask.resumable(), Keys: a.prefixKeys()}
}

func (a *admitted) seed() uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(a.op))
	return h.Sum64() + uint64(a.tries.n)
}

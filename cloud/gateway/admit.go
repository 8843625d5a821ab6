package gateway

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/prefix"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// Work is a request that asks to be let in.
type Work struct {
	Operation string
	Identity  tenants.Identity
	Device    string
	Model     string // as asked
	// Escalated says that a device sends what its own model did not answer.
	Escalated bool
	Pool      string
	// Drafts are the pools that a cascade may ask before: the request takes what
	// all of them take.
	Drafts []string
	Class  string // SLO class
	// PromptBytes is the prompt's size; MaxTokens bounds the answer, 0 where
	// the client left it open.
	PromptBytes int
	MaxTokens   int
	Choices     int // answers asked for, at least 1
	Arrived     time.Time
	Deadline    time.Time // zero: none
}

// Admission decides whether and when a request may use a model. Admit may wait
// (a queue); it must return when ctx ends. Its error is an *openai.Error or a
// *Refused. Room reports whether the limits that name the work's pool leave room
// for it, as far as is known without waiting.
type Admission interface {
	Admit(ctx context.Context, w Work) (Grant, error)
	Room(w Work) bool
}

// Refused is an error of Admission that says more than its API error.
type Refused struct {
	Err     *openai.Error
	Outcome tenants.Outcome // rejected or shed
	Header  http.Header     // X-RateLimit-* of the limits that hold
}

func (r *Refused) Error() string { return r.Err.Error() }

// Unwrap returns the API error.
func (r *Refused) Unwrap() error { return r.Err }

// Grant is an admitted request's share. Its methods must not block.
type Grant interface {
	// Correct replaces the estimate of the prompt by its real tokens, known
	// after the prefill leg and before decode starts.
	Correct(promptTokens int)
	// Delivered tells how many tokens of the answer have come so far, before
	// the last of them goes to the client. An *openai.Error ends the stream
	// without it.
	Delivered(tokens int) error
	// Moves lets another pool answer in place of the work's. It reports false, and
	// changes nothing, where a limit names either of them or leaves no room for what
	// the other one costs.
	Moves(pool string) bool
	// SetHeaders sets X-RateLimit-* as of now.
	SetHeaders(http.Header)
	// Settle ends the grant with what was used; the zero row says that no
	// attempt was made. It is called exactly once, before the answer's end.
	Settle(tenants.UsageRecord)
}

// AdmitAll lets everything in at once.
type AdmitAll struct{}

type freeGrant struct{}

func (freeGrant) Correct(int)                {}
func (freeGrant) Delivered(int) error        { return nil }
func (freeGrant) Moves(string) bool          { return true }
func (freeGrant) SetHeaders(http.Header)     {}
func (freeGrant) Settle(tenants.UsageRecord) {}

// Admit implements Admission.
func (AdmitAll) Admit(context.Context, Work) (Grant, error) { return freeGrant{}, nil }

// Room implements Admission.
func (AdmitAll) Room(Work) bool { return true }

// admitted is the licence to use a model: select and the legs are methods of
// it, and only admit makes one.
type admitted struct {
	*exchange
	grant   Grant
	prefill time.Duration // of the last prefill leg
	tries   tries
	stream  *stream                 // the client's side, where it wants a stream
	keys    map[string][]prefix.Key // nil until prefixKeys
	last    tenants.UsageRecord     // sums over the attempts that have delivered
	settled bool                    // the grant
}

// settleGrant ends the grant, once. It comes before the answer's last byte, so
// that whoever has read the answer finds the counters settled and the slot
// free.
func (a *admitted) settleGrant() {
	if !a.settled {
		a.settled = true
		a.settleDrafts()
		a.remember()
		a.grant.Settle(a.last)
	}
}

// errDeadline is the cause of a context that ended with the request's deadline.
var errDeadline = errors.New("the request's deadline has passed")

// admit is the one way to a model. Everything that follows in the chain runs
// inside it, and the request ends here, once.
func (g *Gateway) admit(c *gin.Context) {
	x := of(c)
	ctx := telemetry.Extract(c.Request.Context(), x.remoteTrace())
	ctx, x.span = g.opts.Telemetry.Tracer.Start(ctx, x.operationName()+" "+x.ask.req.Model,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(x.spanAttributes()...))
	defer x.end()
	cancel := context.CancelFunc(func() {})
	if !x.ask.deadline.IsZero() {
		ctx, cancel = context.WithDeadlineCause(ctx, x.ask.deadline, errDeadline)
	}
	defer cancel()
	x.ctx = ctx

	waiting := time.Now()
	grant, err := g.opts.Admission.Admit(ctx, x.work(x.ask.model.Pool))
	x.queue = time.Since(waiting)
	if err != nil {
		x.turnedAway(err)
		return
	}
	x.admitted = &admitted{exchange: x, grant: grant}
	defer x.admitted.settleGrant()
	c.Next()
}

// work is the request as one for a pool.
func (x *exchange) work(pool string) Work {
	w := Work{Operation: x.op, Identity: x.who.Identity, Device: x.who.Device, Model: x.ask.req.Model, Pool: pool,
		Class: x.ask.class, Escalated: x.who.Device != "", Choices: max(x.ask.req.N, 1), Arrived: x.began, Deadline: x.ask.deadline,
		// Tools become part of the prompt.
		PromptBytes: x.ask.promptBytes + len(x.ask.body["tools"]) + len(x.ask.body["response_format"])}
	if x.cascades() {
		w.Drafts = x.ask.model.Cascade.Drafts()
		if x.ask.model.Cascade.Polls() { // one of them reads its answer once more
			dearest := slices.MaxFunc(w.Drafts, func(p, q string) int { return cmp.Compare(x.bound(p), x.bound(q)) })
			w.Drafts = append(slices.Clip(w.Drafts), dearest)
		}
	}
	if x.ask.req.MaxTokens != nil {
		w.MaxTokens = *x.ask.req.MaxTokens
	}
	return w
}

// turnedAway ends a request that was not admitted.
func (x *exchange) turnedAway(err error) {
	switch {
	case context.Cause(x.ctx) == errDeadline:
		x.outcome = tenants.OutcomeDeadline
		x.refuseFor(cascade.ReasonDeadline, deadlineError())
	case x.ctx.Err() != nil:
		x.outcome = tenants.OutcomeClientCancelled
		x.refuse(openai.Unavailable("client_closed_request", 0, "the client has gone"))
	default:
		x.outcome = tenants.OutcomeRejected
		if r := (*Refused)(nil); errors.As(err, &r) {
			x.outcome = r.Outcome
			maps.Copy(x.gin.Writer.Header(), r.Header)
		}
		x.refuse(openai.AsError(err))
	}
}

func (x *exchange) operationName() string {
	if x.ask.kind == kindText {
		return "text_completion"
	}
	return "chat"
}

func (x *exchange) spanAttributes() []attribute.KeyValue {
	r := x.ask.req
	a := []attribute.KeyValue{
		attribute.String(telemetry.AttrOperation, x.operationName()),
		attribute.String(telemetry.AttrProvider, "weir"),
		attribute.String(telemetry.AttrRequestModel, r.Model),
		attribute.Bool("gen_ai.request.stream", r.Stream),
		attribute.String("weir.operation", x.op),
		attribute.String("weir.tenant", x.who.TenantID),
		attribute.String("network.protocol.version", x.proto),
	}
	if x.who.Device != "" {
		a = append(a, attribute.String("weir.device", x.who.Device))
	}
	if r.MaxTokens != nil {
		a = append(a, attribute.Int("gen_ai.request.max_tokens", *r.MaxTokens))
	}
	return a
}

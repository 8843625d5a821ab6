package gateway

import (
	"crypto/sha256"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/tenants"
)

// ask is what a request asks for, checked.
type ask struct {
	kind        kind
	body        openai.Body // without weir and what only the inside may say
	req         *openai.Request
	opts        contract.Options
	model       Model
	class       string // SLO class, "" where the tenant has none
	slo         *tenants.Class
	promptBytes int
	deadline    time.Time         // zero: none
	hash        [sha256.Size]byte // of the request, where it has an Idempotency-Key or a device's attempt
}

// parse reads and checks the request before anything is spent on it.
func (g *Gateway) parse(k kind) gin.HandlerFunc {
	return func(c *gin.Context) {
		x := of(c)
		if err := x.read(k); err != nil {
			x.refuse(openai.AsError(err))
			return
		}
		reason, refused := x.refusedByMode()
		if refused == nil {
			x.choose()
			reason, refused = x.capCost()
		}
		if refused != nil {
			x.refuseFor(reason, refused)
		}
	}
}

func (x *exchange) read(k kind) error {
	body, err := openai.ReadBody(x.gin.Request)
	if err != nil {
		return err
	}
	openai.UnboundBody(x.gin.Writer)
	x.ask = ask{kind: k, body: body}
	parse, prompt := openai.ParseChat, "messages"
	if k == kindText {
		parse, prompt = openai.ParseCompletion, "prompt"
	}
	if x.ask.req, err = parse(body); err != nil {
		return err
	}
	x.ask.promptBytes = len(body[prompt])
	if x.ask.opts, err = contract.ParseOptions(x.gin.Request.Header, body); err != nil {
		return err
	}
	if x.ask.opts.IdempotencyKey != "" || x.attempt != uuid.Nil {
		x.ask.hash = sha256.Sum256(append(body.JSON(), byte(k)))
	}
	delete(body, "weir")
	body.StripInner()
	return x.check()
}

// check compares the request with what the caller may do.
func (x *exchange) check() error {
	model, ok := x.g.opts.Models[x.ask.req.Model]
	if !ok || !x.who.MayUseModel(x.ask.req.Model) {
		return openai.ModelNotFound(x.ask.req.Model)
	}
	x.ask.model = model
	if x.ask.opts.Draft != nil && x.who.Device == "" {
		return openai.BadRequest("weir.draft", openai.CodeInvalidValue, "weir.draft is accepted only from a device with its certificate")
	}
	return x.checkClass()
}

// checkClass resolves the SLO class and the deadline that follows from it.
func (x *exchange) checkClass() error {
	index := x.g.tenancy().index
	class := index.DefaultClass(x.who.Identity)
	if name := x.ask.opts.SLO; name != "" {
		if class = index.Class(name); class == nil || !x.who.MayUseClass(name) {
			return openai.BadRequest(contract.HeaderSLO, openai.CodeInvalidValue, "the SLO class %q does not exist or is not allowed for this key", name)
		}
	}
	deadline := x.ask.opts.Deadline
	if class != nil {
		x.ask.class, x.ask.slo = class.Name, class
		if deadline == 0 {
			deadline = time.Duration(class.DefaultDeadlineMs) * time.Millisecond
		}
	}
	if deadline > 0 {
		x.ask.deadline = x.began.Add(deadline)
	}
	return nil
}

// refusedByMode refuses what the cloud must not or cannot do, and else notes
// why the cloud answers.
func (x *exchange) refusedByMode() (cascade.Reason, *openai.Error) {
	o := &x.ask.opts
	switch {
	case o.Privacy.Local():
		err := openai.Unavailable(string(cascade.ReasonLocalOnlyUnavailable), 0, "the request is local-only and this is the cloud: ask an edge node")
		err.Param, err.NoRetry = contract.HeaderPrivacy, true
		return cascade.ReasonLocalOnlyUnavailable, err
	case o.Mode == cascade.ModeEdgeOnly:
		err := openai.Unavailable(string(cascade.ReasonEdgeUnavailable), 0, "the request is edge-only and this is the cloud: ask an edge node")
		err.Param, err.NoRetry = contract.HeaderMode, true
		return cascade.ReasonEdgeUnavailable, err
	}
	x.result.Reason = x.why()
	if o.Draft != nil {
		x.result.Confidence = o.Draft.Confidence
	}
	return "", nil
}

// why is the reason code of an answer from here.
func (x *exchange) why() cascade.Reason {
	o := &x.ask.opts
	switch {
	case o.Draft != nil:
		return o.Draft.Reason
	case x.ask.model.Named, o.Mode == cascade.ModeCloudOnly, o.Mode == cascade.ModePreferCloud:
		return cascade.ReasonClientMode
	}
	return cascade.ReasonEdgeUnavailable // nobody stands before the cloud here
}

package local

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// serve is the life of one request: it ends exactly once, here.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, kind upstream.Kind) {
	c := &call{op: contract.NewID(), label: label(r), kind: kind, arrived: s.opt.Now(), outcome: tenants.OutcomeOK}
	ctx, span := s.tracer.Start(telemetry.Extract(r.Context(), r.Header), kind.Operation(),
		trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(attribute.String("weir.operation", c.op)))
	c.span = span
	w.Header().Set(contract.HeaderRequestID, c.op)
	out := newOutput(w, c, s.opt.WriteTime)
	defer out.end()
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			s.opt.Log.Error("request panicked", "operation", c.op, "panic", fmt.Sprint(p))
			s.settle(ctx, c, out, openai.Internal(fmt.Errorf("panic: %v", p)))
		}
	}()
	s.settle(ctx, c, out, s.answer(ctx, c, r, out))
}

// label is the client's own id of the request: for the log, never a key.
func label(r *http.Request) string {
	const most = 128
	l := r.Header.Get(contract.HeaderRequestID)
	return l[:min(len(l), most)]
}

func (s *Server) answer(ctx context.Context, c *call, r *http.Request, out *output) error {
	if err := c.parse(s, out.w, r); err != nil {
		c.outcome = tenants.OutcomeRejected
		return err
	}
	select {
	case s.gate <- struct{}{}:
		defer func() { <-s.gate }()
	default:
		c.outcome, c.result.Reason = tenants.OutcomeShed, cascade.ReasonEdgeOverloaded
		return openai.Unavailable("edge_overloaded", time.Second, "this edge node has %d requests in flight", s.opt.MaxInflight)
	}
	return s.once(c, out, func() error { return s.run(ctx, c, out) })
}

// run plans and answers a request that has been admitted.
func (s *Server) run(ctx context.Context, c *call, out *output) error {
	out.stream = c.req.Stream
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	c.observe(s)
	s.foresee(c)
	c.plan, c.planned = cascade.Before(c.ask, c.node), true
	if c.plan.Refused() {
		c.outcome = tenants.OutcomeRejected
		return s.refusal(c, c.plan.Reason)
	}
	out.hold(s.opt.Heartbeat)
	defer out.release()
	if c.plan.First() == cascade.TierEdge {
		return s.newFlight(ctx, c, out, c.plan.Reason).run()
	}
	return s.cloudFirst(ctx, c, out)
}

// cloudFirst asks the cloud, and the edge when the cloud has no answer and the
// plan allows it.
func (s *Server) cloudFirst(ctx context.Context, c *call, out *output) error {
	reply, err := s.ask(ctx, c, c.plan.Reason)
	if err == nil {
		return s.relay(ctx, c, out, reply, c.plan.Reason)
	}
	if c.plan.Second() != cascade.TierEdge || !worthAnother(err) || ctx.Err() != nil {
		return s.cloudFailure(ctx, c, out, c.plan.Reason, err)
	}
	return s.newFlight(ctx, c, out, fallbackReason(ctx, c.plan.Reason, err)).run()
}

// generate runs the local model. Its error is what the client gets if nobody
// else may be asked.
func (s *Server) generate(ctx context.Context, c *call, watch upstream.Watch) error {
	select {
	case s.local <- struct{}{}:
		defer func() { <-s.local }()
	default:
		c.outcome, c.result.Reason = tenants.OutcomeShed, cascade.ReasonEdgeOverloaded
		return openai.Unavailable("edge_overloaded", time.Second, "the local model has too many requests")
	}
	ctx, span := s.tracer.Start(ctx, "generate "+s.opt.Model, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	if errors.Is(context.Cause(ctx), errOvertaken) {
		return errOvertaken // nothing was asked of the model: no attempt has begun
	}
	ask := upstream.Ask{Kind: c.kind, Body: c.body, Header: http.Header{contract.HeaderOperation: {c.op}}, JSON: c.check.rules.Schema != nil}
	telemetry.Inject(ctx, ask.Header)
	if health, _ := s.opt.Worker.Health(); health.Model != "" {
		ask.Body = ask.Body.Clone()
		ask.Body.Set("model", health.Model)
	}
	start := s.opt.Now()
	c.edgeRuns++
	draft, err := s.opt.Generator.Generate(ctx, ask, watch)
	if refusesFormat(err) {
		ask.Body = ask.Body.Clone()
		delete(ask.Body, "response_format")
		draft, err = s.opt.Generator.Generate(ctx, ask, watch)
	}
	c.edgeTime += s.opt.Now().Sub(start)
	switch {
	case err == nil:
		c.draft, c.calledTool = draft, len(draft.Calls) > 0
		s.generation.add(s.opt.Now().Sub(start))
		return nil
	case errors.Is(err, errOvertaken), errors.Is(context.Cause(ctx), errOvertaken):
		c.draft = draft
		return errOvertaken
	}
	c.partial = draft
	span.RecordError(err)
	return s.localFailure(ctx, c, draft, start, err)
}

// localFailure records a failed local attempt and says what the client hears.
func (s *Server) localFailure(ctx context.Context, c *call, partial *upstream.Draft, start time.Time, err error) error {
	refused, isRefusal := errors.AsType[*openai.Error](err)
	switch {
	case s.gone(ctx) != nil || errors.Is(err, errGone):
		s.recordPartial(c, partial, start, tenants.OutcomeClientCancelled)
		return errGone
	case errors.Is(context.Cause(ctx), errDeadline):
		s.recordPartial(c, partial, start, tenants.OutcomeDeadline)
		return s.deadlineError(c)
	case isRefusal && !errors.Is(err, upstream.ErrUnavailable) && !errors.Is(err, upstream.ErrTruncated):
		c.edgeRuns-- // nothing ran
		c.outcome = tenants.OutcomeRejected
		return refused
	}
	outcome := tenants.OutcomeUpstreamError
	if errors.Is(err, upstream.ErrTruncated) {
		outcome = tenants.OutcomeUpstreamTruncated
	}
	s.recordPartial(c, partial, start, outcome)
	s.opt.Worker.Suspect()
	c.outcome = outcome
	c.result.Reason = cascade.ReasonEdgeUnavailable
	if c.opt.Privacy.Local() {
		c.result.Reason = cascade.ReasonLocalOnlyUnavailable
	}
	e := openai.Unavailable(string(c.result.Reason), time.Second, "the local model failed and nobody else may be asked")
	e.Cause = err
	return e
}

// mayMove says whether a request that the edge did not answer may go to the
// cloud, and with which reason.
func (s *Server) mayMove(c *call, err error) (cascade.Reason, bool) {
	if c.plan.Second() != cascade.TierCloud {
		return "", false
	}
	e := openai.AsError(err)
	switch {
	case e.Code == openai.CodeContextLength || e.Code == openai.CodeUnsupported:
		c.outcome = tenants.OutcomeOK
		return cascade.ReasonCapability, true
	case c.result.Reason == cascade.ReasonEdgeUnavailable || c.result.Reason == cascade.ReasonEdgeOverloaded:
		c.outcome = tenants.OutcomeOK
		return c.result.Reason, true
	}
	return "", false
}

// errGone says that the client has left; nobody reads an answer.
var errGone = errors.New("the client has left")

// gone returns errGone when the client, and not a deadline or a guard, ended
// ctx.
func (s *Server) gone(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return errGone
	}
	return nil
}

package local

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// settle ends a request: the error, if any, goes to the client, and the log,
// the metrics, the trace and the explain ring get what happened.
func (s *Server) settle(ctx context.Context, c *call, out *output, err error) {
	switch {
	case errors.Is(err, errGone):
		out.release()
		c.outcome = tenants.OutcomeClientCancelled
	case err != nil:
		c.failure = openai.AsError(err)
		if c.outcome == tenants.OutcomeOK {
			c.outcome = tenants.OutcomeUpstreamError
		}
		s.final(c)
		out.fail(c.failure)
	}
	total := s.opt.Now().Sub(c.arrived)
	c.foreseen.look.End() // first: log and explanation tell the same of it
	s.decide(c)
	s.ring.add(c.explained(total))
	s.count(ctx, c, total)
	s.access(c, total)
	s.closeSpan(c)
}

// access writes the one log line of a request. Neither prompt nor answer nor
// any secret is in it.
func (s *Server) access(c *call, total time.Duration) {
	args := []any{
		"operation", c.op, "tenant", c.TenantID, "key", c.KeyID, "endpoint", c.kind.Operation(),
		"tier", c.result.Tier, "model", c.result.Model, "reason", c.result.Reason, "outcome", c.outcome,
		"edge_tokens", c.result.EdgeTokens, "cloud_tokens", c.result.CloudTokens,
		"attempts", c.result.Attempts, "via", c.via,
		"ttft_ms", millis(c.first), "total_ms", millis(total),
	}
	if c.req != nil {
		args = append(args, "asked", c.req.Model, "stream", c.req.Stream, "mode", c.opt.Mode)
	}
	if c.replayed {
		args = append(args, "replayed", true)
	}
	if c.label != "" {
		args = append(args, "label", c.label)
	}
	if c.failure == nil {
		s.opt.Log.Info("request", args...)
		return
	}
	args = append(args, "status", c.failure.Status, "code", c.failure.Code, "param", c.failure.Param)
	if c.failure.Status >= 500 {
		s.opt.Log.Warn("request failed", append(args, "err", c.failure.Cause)...)
		return
	}
	s.opt.Log.Info("request refused", args...)
}

func (s *Server) count(ctx context.Context, c *call, total time.Duration) {
	s.metrics.requests.WithLabelValues(string(c.result.Tier), string(c.result.Reason), string(c.outcome)).Inc()
	if c.verdict.Known {
		s.metrics.confidence.Observe(c.verdict.Confidence)
	}
	if c.req == nil {
		return // refused before its model was known: not a GenAI request
	}
	asked := c.req.Model
	if _, ok := s.tierOf(asked, c.caller); !ok {
		return // a label must not be the client's to choose
	}
	r := telemetry.Request{
		Operation: c.kind.Operation(), RequestModel: asked, ResponseModel: c.result.Model,
		Total: total, TTFT: c.first, Input: c.usage.PromptTokens, Output: c.usage.CompletionTokens,
		Extra: []attribute.KeyValue{attribute.String("weir.tier", string(c.result.Tier))},
	}
	if c.failure != nil {
		r.ErrorType = c.failure.Code
	} else if c.outcome != tenants.OutcomeOK {
		r.ErrorType = string(c.outcome)
	}
	s.opt.Telemetry.GenAI.Record(ctx, r)
}

func (s *Server) closeSpan(c *call) {
	c.span.SetAttributes(
		attribute.String("weir.tier", string(c.result.Tier)), attribute.String("weir.reason", string(c.result.Reason)),
		attribute.String("weir.outcome", string(c.outcome)), attribute.String(telemetry.AttrResponseModel, c.result.Model),
		attribute.Int("weir.edge_tokens", c.result.EdgeTokens), attribute.Int("weir.cloud_tokens", c.result.CloudTokens))
	if c.req != nil {
		c.span.SetName(c.kind.Operation() + " " + c.req.Model)
		c.span.SetAttributes(attribute.String(telemetry.AttrRequestModel, c.req.Model))
	}
	if c.failure != nil {
		c.span.SetStatus(codes.Error, c.failure.Code)
		c.span.SetAttributes(attribute.String(telemetry.AttrErrorType, c.failure.Code))
	}
	c.span.End()
}

// record writes the usage row of the finished local attempt.
func (s *Server) record(c *call, outcome tenants.Outcome, reason cascade.Reason) {
	s.row(c, c.draft, c.arrived, outcome, reason)
}

// recordPartial writes the row of a local attempt that did not finish.
func (s *Server) recordPartial(c *call, partial *upstream.Draft, start time.Time, outcome tenants.Outcome) {
	if partial == nil {
		partial = &upstream.Draft{Counted: true}
	}
	partial.Total = s.opt.Now().Sub(start)
	s.row(c, partial, start, outcome, "")
}

func (s *Server) row(c *call, d *upstream.Draft, start time.Time, outcome tenants.Outcome, reason cascade.Reason) {
	source := tenants.UsageUpstream
	if d.Counted {
		source = tenants.UsageCounted
	}
	rec := s.usage(c)
	rec.AttemptID, rec.Outcome, rec.UsageSource, rec.Reason = contract.NewID(), outcome, source, string(reason)
	rec.InputTokens, rec.CachedTokens, rec.OutputTokens = int64(d.Usage.PromptTokens), int64(cached(d.Usage)), int64(d.Usage.CompletionTokens)
	rec.StartedAt, rec.TTFTMicros, rec.TotalMicros = start.UTC(), d.TTFT.Microseconds(), max(d.Total, d.TTFT).Microseconds()
	if outcome != tenants.OutcomeOK && outcome != tenants.OutcomeEscalated {
		rec.ErrorCode = string(outcome)
	}
	s.opt.Recorder.Record(rec)
}

// usage is what the rows of all local attempts of a request have in common.
func (s *Server) usage(c *call) tenants.UsageRecord {
	return tenants.UsageRecord{OperationID: c.op, TenantID: s.opt.TenantID, KeyID: c.KeyID, DeviceID: s.opt.DeviceID,
		Tier: tenants.Edge, Model: s.opt.Model, Class: c.class}
}

// serveModels lists the models that the caller may ask for.
func (s *Server) serveModels(w http.ResponseWriter, r *http.Request) {
	who, err := s.authenticate(r)
	if err != nil {
		s.refuse(w, r, openai.AsError(err))
		return
	}
	s.serveJSON(w, openai.ModelList{Object: openai.ObjectList, Data: s.models(who)})
}

func (s *Server) serveModel(w http.ResponseWriter, r *http.Request) {
	who, err := s.authenticate(r)
	if err != nil {
		s.refuse(w, r, openai.AsError(err))
		return
	}
	for _, m := range s.models(who) {
		if m.ID == r.PathValue("name") {
			s.serveJSON(w, m)
			return
		}
	}
	s.refuse(w, r, openai.ModelNotFound(r.PathValue("name")))
}

func (s *Server) models(who caller) []openai.Model {
	health, _ := s.opt.Worker.Health()
	list := []openai.Model{}
	seen := map[string]bool{}
	add := func(name string, context int) {
		if seen[name] || !who.MayUseModel(name) {
			return
		}
		seen[name] = true
		list = append(list, openai.Model{ID: name, Object: openai.ObjectModel, OwnedBy: "weir", MaxModelLen: context})
	}
	add(ModelAuto, 0)
	add(s.opt.Model, health.Context)
	for _, name := range s.opt.CloudModels {
		add(name, 0)
	}
	if who.view != nil {
		for _, m := range who.view.Snapshot().Models {
			if _, ok := s.tierOf(m.Name, who); ok && !strings.EqualFold(m.Name, ModelAuto) {
				add(m.Name, m.ContextTokens)
			}
		}
	}
	return list
}

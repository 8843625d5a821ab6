package api

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/google/uuid"
	"github.com/weirhq/weir/engine/sample"
	"github.com/weirhq/weir/engine/worker/handoff"
	"github.com/weirhq/weir/engine/worker/loop"
	"github.com/weirhq/weir/engine/worker/metrics"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
)

// call is one request being served.
type call struct {
	s         *Server
	m         *Model
	w         http.ResponseWriter
	operation string
	attempt   string
	leg       handoff.Legs
	params    json.RawMessage // kv_transfer_params
	req       *openai.Request
	shape     shape
	tokenIDs  bool   // return_token_ids
	resumed   string // text of weir_resume
	began     time.Time
	loop      *loop.Stream
	move      atomic.Pointer[move] // under way
	result    loop.Result
	finish    loop.Finish
}

// generate serves one completion from parse to the last byte.
func (s *Server) generate(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{s: s, w: w, began: time.Now(), operation: label(r, contract.HeaderOperation), attempt: label(r, contract.HeaderAttempt)}
		ctx, span := s.tracer.Start(telemetry.Extract(r.Context(), r.Header), spanName(chat), trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		err := c.serve(ctx, r, chat)
		c.report(ctx, span, err)
	}
}

func spanName(chat bool) string {
	if chat {
		return "worker chat"
	}
	return "worker text_completion"
}

// label reads a header that only Weir's own processes send: the listener lets
// nobody else in.
func label(r *http.Request, name string) string {
	v := r.Header.Get(name)
	if len(v) > 128 {
		return ""
	}
	return v
}

func (c *call) serve(ctx context.Context, r *http.Request, chat bool) error {
	if c.operation != "" {
		c.w.Header().Set(contract.HeaderRequestID, c.operation)
	}
	lr, err := c.parse(r, chat)
	if err != nil {
		return c.fail(err)
	}
	if c.leg == handoff.Decode {
		lr.DecodeLeg = true
		if lr.Import = c.pull(ctx, lr); lr.Import != nil {
			c.w.Header().Set(contract.HeaderKV, contract.KVPulled)
		}
	}
	stream, err := c.m.Loop.Submit(ctx, lr)
	if err != nil {
		if lr.Import != nil {
			lr.Import.Done()
		}
		return c.fail(err)
	}
	defer stream.Cancel()
	c.loop = stream
	defer c.s.enter(c.operation, c)()
	if c.req.Stream {
		return c.stream(ctx, stream)
	}
	return c.whole(ctx, stream)
}

// parse checks a request as far as it can be without the model's loop.
func (c *call) parse(r *http.Request, chat bool) (loop.Request, error) {
	var lr loop.Request
	body, err := openai.ReadBody(r)
	if err != nil {
		return lr, err
	}
	openai.UnboundBody(c.w)
	var release func()
	if c.m, release, err = c.s.use(); err != nil {
		return lr, err
	}
	defer release()
	parse := openai.ParseCompletion
	if chat {
		parse = openai.ParseChat
	}
	if c.req, err = parse(body); err != nil {
		return lr, err
	}
	if err := checkMembers(body); err != nil {
		return lr, err
	}
	if c.req.Model != c.m.Info.Name {
		return lr, openai.ModelNotFound(c.req.Model)
	}
	c.params = body["kv_transfer_params"]
	if c.leg, err = handoff.LegOf(c.params); err != nil {
		return lr, openai.BadRequest("kv_transfer_params", openai.CodeInvalidValue, "kv_transfer_params %s", err)
	}
	if c.leg == handoff.Prefill && c.req.Stream {
		return lr, openai.BadRequest("stream", openai.CodeInvalidValue, "stream must be false on a prefill leg")
	}
	if lr.Prompt, err = c.m.promptTokens(c.req, chat); err != nil {
		return lr, err
	}
	if err := c.inner(r, body, &lr); err != nil {
		return lr, err
	}
	c.describe(chat)
	c.fill(&lr)
	return lr, nil
}

// describe sets how the answer is written.
func (c *call) describe(chat bool) {
	prefix := "cmpl-"
	if chat {
		prefix = "chatcmpl-"
	}
	id := c.operation
	if id == "" {
		id = uuid.NewString()
	}
	c.shape = shape{chat: chat, id: prefix + id, model: c.m.Info.Name, created: c.began.Unix(), logprobs: c.req.Logprobs,
		top: min(c.req.TopLogprobs, c.m.Info.Vocab), tokenIDs: c.tokenIDs, offset: len(c.resumed),
		includeUsage: c.req.IncludeUsage, pieces: c.m.Pieces}
}

// fill maps the API's members to the loop's.
func (c *call) fill(lr *loop.Request) {
	r := c.req
	lr.Stop, lr.Logprobs, lr.Top = r.Stop, r.Logprobs, r.TopLogprobs
	lr.MinTokens, lr.IgnoreEOS = r.MinTokens, r.IgnoreEOS
	lr.Export = c.leg == handoff.Prefill
	if r.MaxTokens != nil {
		lr.MaxTokens = *r.MaxTokens
	}
	lr.Sample = sample.Params{Temperature: 1, Seed: rand.Uint64()}
	if r.Temperature != nil {
		lr.Sample.Temperature = *r.Temperature
	}
	if r.TopK != nil {
		lr.Sample.TopK = *r.TopK
	}
	if r.MinP != nil {
		lr.Sample.MinP = *r.MinP
	}
	if r.Seed != nil {
		lr.Sample.Seed = uint64(*r.Seed)
	}
	if r.TopP != nil {
		if lr.Sample.TopP = *r.TopP; *r.TopP == 0 {
			lr.Sample.TopK = 1 // nothing but the best reaches a mass of zero first
		}
	}
}

// pull fetches the prompt's state for a decode leg. nil, and the reason
// counted, means that the prompt is computed here.
func (c *call) pull(ctx context.Context, lr loop.Request) *loop.Handoff {
	reason := metrics.FallbackDisabled
	err := errors.New("this worker has no certificate for hand-offs")
	if c.m.KV != nil {
		var src handoff.Source
		reason = metrics.FallbackParams
		if src, err = handoff.ParseSource(c.params, c.operation); err == nil {
			var h *loop.Handoff
			if h, err = c.m.KV.Endpoint.Pull(ctx, src, slices.Concat(lr.Prompt, lr.Resumed)); err == nil {
				return h
			}
			var pe *handoff.PullError
			if errors.As(err, &pe) {
				reason = pe.Reason
			}
		}
	}
	if ctx.Err() == nil { // a client that left is no failure of the hand-off
		c.m.Metrics.PDFallback.WithLabelValues(reason).Inc()
		c.s.log.Warn("the prompt is computed here", "operation", c.operation, "reason", reason, "error", err)
	}
	return nil
}

// offer keeps a prefill leg's state and returns its kv_transfer_params, nil
// when there is none.
func (c *call) offer(h *loop.Handoff) []byte {
	kv := c.m.KV
	if h == nil || kv == nil {
		return nil
	}
	item, handle := handoff.NewItem(*h, c.m.Info.Fingerprint), handoff.NewHandle()
	if mv := c.move.Load(); mv != nil && h.From > 0 {
		item, handle = mv.item(h, c.m.Info.Fingerprint), mv.handle
	}
	expires, err := kv.Store.Put(handle, c.operation, item)
	if err != nil {
		c.m.Metrics.ExportsRefused.Inc()
		c.s.log.Warn("hand-off not offered", "operation", c.operation, "error", err)
		return nil
	}
	data, err := json.Marshal(item.Offer(handle, expires, *c.s.epoch.Load(), kv.Host, kv.Port, metrics.BlockSize))
	if err != nil { // plain fields
		panic(err)
	}
	return data
}

// fail answers with err unless a stream has begun, and returns it.
func (c *call) fail(err error) error {
	asError(err).Write(c.w, nil)
	return err
}

// asError maps the loop's errors to the API's.
func asError(err error) *openai.Error {
	switch {
	case errors.Is(err, loop.ErrBusy):
		return openai.Unavailable("worker_busy", time.Second, "too many requests wait for this worker")
	case errors.Is(err, loop.ErrClosed):
		return openai.Unavailable("worker_draining", time.Second, "this worker is shutting down")
	}
	if errors.Is(err, loop.ErrResumed) {
		return openai.BadRequest("weir_resume", openai.CodeInvalidValue, "weir_resume holds a complete stop string: its answer has ended")
	}
	return openai.AsError(err)
}

// report writes the access log and the span's attributes. Prompts are in
// neither.
func (c *call) report(ctx context.Context, span trace.Span, err error) {
	t := c.result.Timing
	attrs := []any{"operation", c.operation, "attempt", c.attempt, "leg", legNames[c.leg], "finish", string(c.finish),
		"prompt_tokens", c.result.PromptTokens, "cached_tokens", c.result.CachedTokens, "completion_tokens", c.result.CompletionTokens, "total_ms", ms(time.Since(c.began))}
	if !t.First.IsZero() {
		attrs = append(attrs, "queue_ms", ms(t.Admitted.Sub(t.Arrived)), "ttft_ms", ms(t.First.Sub(c.began)))
	}
	if r := c.result.Rerouted; r.Choices > 0 {
		attrs = append(attrs, "expert_choices", r.Choices, "experts_changed", r.Changed, "mass_lost", r.Lost/float64(r.Choices))
	}
	span.SetAttributes(attribute.Int("gen_ai.usage.input_tokens", c.result.PromptTokens),
		attribute.Int("gen_ai.usage.output_tokens", c.result.CompletionTokens), attribute.String("weir.leg", legNames[c.leg]))
	if c.m != nil {
		span.SetAttributes(attribute.String("gen_ai.response.model", c.m.Info.Name))
	}
	if err == nil {
		c.s.log.InfoContext(ctx, "request", attrs...)
		return
	}
	span.SetStatus(codes.Error, "request failed")
	c.s.log.WarnContext(ctx, "request failed", append(attrs, "error", err)...)
}

var legNames = map[handoff.Legs]string{handoff.Whole: "whole", handoff.Prefill: "prefill", handoff.Decode: "decode"}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/weirhq/weir/cloud/pool"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
)

// Bounds of what is read of an instance's answers, in bytes.
const (
	maxErrorBody  = 64 << 10
	maxAnswerBody = 64 << 20
	maxHandoff    = 4 << 20
)

// call sends a leg's request and returns an answer with status 200, whose body
// the caller closes. ctx ends the call and the reading of its body.
func (a *attempt) call(ctx context.Context, stage route.Stage, leg *pool.Leg, body []byte) (*http.Response, *legError) {
	path := "/v1/chat/completions"
	if a.ask.kind == kindText {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, leg.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, a.legFailure(ctx, stage, leg, err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(contract.HeaderOperation, a.op)
	req.Header.Set(contract.HeaderAttempt, a.id)
	// Always: a Weir worker needs it before its state stream has told what it is.
	req.Header.Set(contract.HeaderCacheSalt, a.salt())
	if c := a.ask.slo; leg.Resumes && c != nil {
		setMillis(req.Header, contract.HeaderTTFT, c.TTFTMillis)
		setMillis(req.Header, contract.HeaderTPOT, c.TPOTMillis)
	}
	telemetry.Inject(ctx, req.Header)
	resp, err := a.g.opts.Client.Do(req)
	if err != nil {
		return nil, a.legFailure(ctx, stage, leg, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	rest := askedRest(resp)
	leg.Rest(rest)
	told, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil {
		return nil, a.legFailure(ctx, stage, leg, err)
	}
	failed := statusFailure(stage, leg, resp.StatusCode, told)
	if rest > 0 {
		failed.api.RetryAfter = rest
	}
	return nil, failed
}

// askedRest is for how long an instance that has too much to do wants to be left
// alone, 0 where it does not say.
func askedRest(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
		return 0
	}
	return min(openai.RetryAfter(resp.Header, time.Now()), pool.LongestRest)
}

// setMillis sets a wanted time that is given.
func setMillis(h http.Header, name string, ms int64) {
	if ms > 0 {
		h.Set(name, strconv.FormatInt(ms, 10))
	}
}

// legSpan starts the client span of a leg. The function that it returns ends
// the span.
func (a *attempt) legSpan(ctx context.Context, stage route.Stage, leg *pool.Leg) (context.Context, func(*legError)) {
	ctx, span := a.g.opts.Telemetry.Tracer.Start(ctx, string(stage)+" "+leg.Served, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("weir.stage", string(stage)),
			attribute.String("weir.instance", leg.ID),
			attribute.Int("weir.attempt", a.tries.n),
			attribute.String(telemetry.AttrRequestModel, leg.Served)))
	return ctx, func(failed *legError) {
		if failed != nil {
			span.SetStatus(codes.Error, failed.api.Message)
			span.SetAttributes(attribute.String(telemetry.AttrErrorType, failed.api.Code))
		}
		span.End()
	}
}

// readAll reads an answer's body up to a bound.
func (a *attempt) readAll(ctx context.Context, stage route.Stage, leg *pool.Leg, body io.Reader, most int64) ([]byte, *legError) {
	data, err := io.ReadAll(io.LimitReader(body, most+1))
	if err != nil {
		return nil, a.legFailure(ctx, stage, leg, err)
	}
	if int64(len(data)) > most {
		return nil, broken(stage, leg, "the model server's answer is too large")
	}
	return data, nil
}

// broken is the failure of an instance whose answer cannot be used.
func broken(stage route.Stage, leg *pool.Leg, why string) *legError {
	return &legError{Failure: route.Failure{Stage: stage, Kind: route.FailedBroken}, leg: leg, api: upstreamError(why, nil)}
}

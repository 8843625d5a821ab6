package gateway

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/telemetry"
	"github.com/weirhq/weir/tenants"
)

// used is what an attempt consumed, as far as it is known.
type used struct {
	reported  *openai.Usage // the instance's own count
	prompt    int           // from the prefill leg; 0 is unknown
	delivered int           // tokens seen on their way to the client
	estimated bool          // delivered was not counted but guessed
}

// take keeps the instance's count. The last report of a stream is the whole.
func (u *used) take(reported *openai.Usage) {
	if reported != nil {
		u.reported = reported
	}
}

// countWhole counts an answer that came at once and without usage. A gateway
// has no tokenizer: bytes of JSON are a rough bound from above.
func (u *used) countWhole(missing bool, data []byte) {
	if missing {
		u.delivered, u.estimated = len(data)/bytesPerToken+1, true
	}
}

// readUsage decodes a usage object; nil when it is not one or is impossible.
func readUsage(raw []byte) *openai.Usage {
	var u openai.Usage
	if raw == nil || json.Unmarshal(raw, &u) != nil || u.PromptTokens < 0 || u.CompletionTokens < 0 {
		return nil
	}
	if d := u.PromptTokensDetails; d != nil && (d.CachedTokens < 0 || d.CachedTokens > u.PromptTokens) {
		u.PromptTokensDetails = nil
	}
	if d := u.CompletionTokensDetails; d != nil && (d.ReasoningTokens < 0 || d.ReasoningTokens > u.CompletionTokens) {
		u.CompletionTokensDetails = nil
	}
	return &u
}

// bytesPerToken turns bytes into tokens where nobody counted: about four bytes
// of English text make a token in today's vocabularies.
const bytesPerToken = 4

// fill writes the counts and their source into a ledger row.
func (u *used) fill(r *tenants.UsageRecord, promptBytes int) {
	if v := u.reported; v != nil {
		r.UsageSource = tenants.UsageUpstream
		r.InputTokens, r.OutputTokens = clampTokens(v.PromptTokens), clampTokens(v.CompletionTokens)
		if d := v.PromptTokensDetails; d != nil {
			r.CachedTokens = min(clampTokens(d.CachedTokens), r.InputTokens)
		}
		if d := v.CompletionTokensDetails; d != nil {
			r.ReasoningTokens = min(clampTokens(d.ReasoningTokens), r.OutputTokens)
		}
		return
	}
	r.UsageSource = tenants.UsageCounted
	r.OutputTokens = clampTokens(u.delivered)
	r.InputTokens = clampTokens(u.prompt)
	if u.estimated {
		r.UsageSource = tenants.UsageEstimated
	}
	if u.prompt == 0 && u.delivered > 0 {
		r.UsageSource = tenants.UsageEstimated
		r.InputTokens = clampTokens(promptBytes/bytesPerToken + 1)
	}
}

func clampTokens(n int) int64 { return min(max(int64(n), 0), tenants.MaxRowTokens) }

// row is the attempt's ledger row as things stand.
func (a *attempt) row(outcome tenants.Outcome) tenants.UsageRecord {
	total := time.Since(a.began)
	r := tenants.UsageRecord{
		AttemptID: a.id, OperationID: a.op,
		TenantID: a.who.TenantID, KeyID: a.who.KeyID, DeviceID: a.who.Device, Attempt: int64(a.number),
		Tier: tenants.Cloud, Model: a.sel.Decode.Served, Class: a.ask.class, Outcome: outcome,
		StartedAt: a.began.UTC(), TTFTMicros: a.ttft.Microseconds(), TotalMicros: total.Microseconds(),
		Reason: string(a.result.Reason), Node: a.g.opts.Node, NodeEpoch: a.g.opts.Epoch,
	}
	if a.said != "" {
		r.Model = a.said
	}
	if outcome.Ran() && outcome != tenants.OutcomeUpstreamError {
		a.used.fill(&r, a.ask.promptBytes)
		if a.tries.carried.AttemptID != "" { // the first attempt's row has the prompt
			r.InputTokens, r.CachedTokens = 0, 0
		}
	} else {
		r.UsageSource = tenants.UsageCounted
	}
	if err := a.g.opts.Billing.Settle(&r, a.g.tenancy().book); err != nil {
		a.g.opts.Log.Error("attempt not priced", "operation", a.op, "error", err)
	}
	return r
}

// addUp keeps the sums with this row: of what the attempts delivered of the
// answer, and of that and what a cascade's small pool took.
func (a *attempt) addUp(r tenants.UsageRecord) {
	if a.gaveWay {
		a.tries.draft = plus(r, &a.tries.draft)
		a.last = plus(a.last, &r)
	} else {
		a.sum = plus(r, &a.tries.carried)
		a.last = plus(a.sum, &a.tries.draft)
	}
	a.pay(&r)
	a.result.CloudTokens = int(a.last.OutputTokens)
	a.result.CostUSD = contract.USD(a.last.CostNanoUSD)
}

// plus is the row r with what another used.
func plus(r tenants.UsageRecord, other *tenants.UsageRecord) tenants.UsageRecord {
	r.InputTokens += other.InputTokens
	r.CachedTokens += other.CachedTokens
	r.OutputTokens += other.OutputTokens
	r.ReasoningTokens += other.ReasoningTokens
	r.CostNanoUSD += other.CostNanoUSD
	return r
}

// begin writes down that the attempt is about to run.
func (a *attempt) begin() *openai.Error {
	a.tries.begun++ // of rows that a dead process leaves, the first counts the request
	a.number = a.tries.begun
	r := a.row(tenants.OutcomeGatewayLost)
	r.UsageSource = tenants.UsageEstimated
	r.InputTokens = clampTokens(a.ask.promptBytes/bytesPerToken + 1)
	var err error
	if a.entry, err = a.g.opts.Recorder.Begin(&r); err != nil {
		e := openai.Unavailable("usage_unrecorded", 5*time.Second, "the gateway cannot write down what the request will cost: try again later")
		e.Cause = err
		return e
	}
	a.tries.open = append(a.tries.open, a)
	return nil
}

// abandon settles what a panic or a refusal has left open: its row must not wait
// for the process's end.
func (a *admitted) abandon() {
	a.settleDrafts()
	for len(a.tries.open) > 0 {
		a.tries.open[0].settle(tenants.OutcomeUpstreamError, nil)
	}
}

// conclude settles the attempt that ends the request, and the request's grant.
// It is called before the answer's last byte leaves, and again at the end for
// answers that broke off; only the first call counts.
func (a *attempt) conclude(outcome tenants.Outcome, failure *openai.Error) {
	a.settle(outcome, failure)
	a.settleGrant()
}

// settle writes the attempt's one ledger row: only the first call counts.
func (a *attempt) settle(outcome tenants.Outcome, failure *openai.Error) {
	if a.ended {
		return
	}
	a.ended = true
	a.tries.open = slices.DeleteFunc(a.tries.open, func(o *attempt) bool { return o == a })
	a.number = a.tries.number(a, outcome)
	r := a.row(outcome)
	if failure != nil {
		r.ErrorCode = errorCode(failure.Code)
	}
	a.addUp(r)
	a.story.endAttempt(&r)
	a.g.meter.attempt(outcome)
	if outcome == tenants.OutcomeOK {
		r.AttemptID = a.answerID(a.id)
	}
	if err := a.entry.Settle(&r); err != nil {
		a.g.opts.Log.Error("ledger row not written down", "operation", a.op, "attempt", a.id, "error", err)
	}
}

// errorCode makes a foreign code fit for a ledger row.
func errorCode(code string) string {
	code = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}
		return '_'
	}, strings.ToLower(code))
	return code[:min(len(code), 64)]
}

// end closes a model request: metrics, span and explanation, once.
func (x *exchange) end() {
	if x.ended {
		return
	}
	x.ended = true
	if x.outcome == "" { // a panic on the way
		x.outcome = tenants.OutcomeUpstreamError
	}
	errorType := ""
	if x.outcome != tenants.OutcomeOK {
		errorType = string(x.outcome)
		x.span.SetStatus(codes.Error, errorType)
		x.span.SetAttributes(attribute.String(telemetry.AttrErrorType, errorType))
	}
	req := telemetry.Request{Operation: x.operationName(), RequestModel: x.ask.req.Model, ErrorType: errorType,
		Total: time.Since(x.began), TTFT: x.ttft, Output: x.result.CloudTokens,
		Extra: []attribute.KeyValue{attribute.String("weir.tier", string(tenants.Cloud))}}
	if x.admitted != nil {
		req.Input = int(x.admitted.last.InputTokens)
		req.ResponseModel = x.ask.model.Pool
		x.span.SetAttributes(attribute.Int("gen_ai.usage.input_tokens", req.Input),
			attribute.Int("gen_ai.usage.output_tokens", req.Output), attribute.Int("weir.attempts", x.result.Attempts))
	}
	x.g.opts.Telemetry.GenAI.Record(x.ctx, req)
	x.span.End()
	x.g.explain.put(x.finishStory())
}

// log writes the request's one line. It never holds prompts, answers or keys.
func (x *exchange) log() {
	level := slog.LevelInfo
	w := x.gin.Writer
	if w.Status() >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	attrs := make([]slog.Attr, 0, 20)
	attrs = append(attrs, slog.String("operation", x.op), slog.String("method", x.gin.Request.Method), slog.String("path", x.gin.FullPath()),
		slog.Int("status", w.Status()), slog.String("proto", x.proto), slog.Duration("total", time.Since(x.began)))
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	add("tenant", x.who.TenantID)
	add("key", x.who.KeyID)
	add("device", x.who.Device)
	add("client_request_id", x.label)
	if x.ask.req != nil {
		add("model", x.ask.req.Model)
	}
	if x.admitted != nil {
		attrs = append(attrs, slog.String("outcome", string(x.outcome)), slog.Int64("input_tokens", x.admitted.last.InputTokens),
			slog.Int64("output_tokens", x.admitted.last.OutputTokens), slog.Duration("ttft", x.ttft), slog.Duration("queue", x.queue),
			slog.Int("attempts", x.result.Attempts), slog.String("reason", string(x.result.Reason)))
		add("confidences", x.story.confidences())
	}
	if x.admitted != nil && x.choice != nil {
		attrs = append(attrs, slog.String("pool", x.ask.model.Pool), slog.String("chosen", string(x.choice.How)), slog.Float64("propensity", x.choice.Propensity))
	}
	if x.failure != nil {
		add("code", x.failure.Code)
		if x.failure.Cause != nil {
			attrs = append(attrs, slog.Any("cause", x.failure.Cause))
		}
	}
	x.g.opts.Log.LogAttrs(x.gin.Request.Context(), level, "request", attrs...)
}

package gateway

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/tenants"
)

// runDecode runs the leg whose answer the client gets. A nil error means that
// the client has been answered, in whole or in part.
func (a *attempt) runDecode(ctx context.Context, h *handoff, watch *watchdog) *legError {
	if h != nil && a.used.prompt == 0 {
		a.used.prompt = h.promptTokens
	}
	ctx, endSpan := a.legSpan(ctx, route.StageDecode, a.sel.Decode)
	failed := a.decodeLeg(ctx, h, watch)
	endSpan(failed)
	return failed
}

func (a *attempt) decodeLeg(ctx context.Context, h *handoff, watch *watchdog) *legError {
	leg := a.sel.Decode
	if a.ask.req.Stream && !a.stream.begun() && a.tries.moved == nil {
		a.stream.anew()
	}
	if !a.ask.req.Stream {
		watch.replace(a.g.opts.Timeouts.Answer, errFirstByte)
	}
	a.beginCheck()
	resp, failed := a.call(ctx, route.StageDecode, leg, a.decodeBody(h).JSON())
	if failed != nil {
		return failed
	}
	defer resp.Body.Close()
	a.read(resp)
	if !a.ask.req.Stream {
		return a.relayWhole(ctx, resp)
	}
	if !isEventStream(resp) {
		return broken(route.StageDecode, leg, "the model server did not stream")
	}
	r := &relay{attempt: a, in: sse.NewReader(resp.Body), watch: watch, continued: a.stream.begun() || a.stream.shown.id != nil, hideIDs: a.asksIDs()}
	return r.run(ctx)
}

func isEventStream(resp *http.Response) bool {
	mt, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return mt == "text/event-stream"
}

// decodeBody is the client's request with the hand-off. A stream always
// reports its usage to the gateway; the relay hides it from clients that did
// not ask.
func (a *attempt) decodeBody(h *handoff) openai.Body {
	b := a.cloneBody(a.sel.Decode.Served)
	if h != nil && h.params != nil {
		b["kv_transfer_params"] = h.params
	}
	if a.ask.req.Stream {
		options := map[string]json.RawMessage{}
		if raw, ok := b["stream_options"]; ok && string(raw) != "null" {
			_ = json.Unmarshal(raw, &options) // parse has checked that it is an object
		}
		options["include_usage"] = json.RawMessage("true")
		b.Set("stream_options", options)
	}
	if a.asksIDs() {
		b.Set("return_token_ids", true)
	}
	a.asResumed(b)
	return b
}

// asksIDs reports whether the gateway asks for the tokens behind the text, to
// have the answer continued token by token if need be.
func (a *attempt) asksIDs() bool {
	_, own := a.ask.body["return_token_ids"]
	return !own && a.sel.Decode.Resumes && a.ask.resumable()
}

// relayWhole hands on an answer that is not streamed.
func (a *attempt) relayWhole(ctx context.Context, resp *http.Response) *legError {
	leg := a.sel.Decode
	data, failed := a.readAll(ctx, route.StageDecode, leg, resp.Body, maxAnswerBody)
	if failed != nil {
		return failed
	}
	c := chunk.Read(data)
	if c.Bad || c.Failed() || !json.Valid(data) {
		return engineFailure(leg, &c)
	}
	if c.Moved != nil { // nobody asked for it: only streams are given away
		return statusFailure(route.StageDecode, leg, http.StatusServiceUnavailable, nil)
	}
	if c.Empty {
		return broken(route.StageDecode, leg, "the model server's answer is empty")
	}
	leg.Good()
	a.firstToken()
	a.used.take(readUsage(c.Usage))
	a.used.countWhole(c.Usage == nil, data)
	a.answeredBy(c.Model)
	a.choice.answer(data)
	a.outcome = tenants.OutcomeOK
	a.conclude(a.outcome, nil)
	a.setTimes()
	a.sendWhole(data)
	return nil
}

// sendWhole sends a settled answer that is not streamed.
func (a *attempt) sendWhole(data []byte) {
	out := chunk.AppendWeir(nil, new(chunk.Rewrite).Append(make([]byte, 0, len(data)+512), data), mustJSON(&a.result))
	h := a.gin.Writer.Header()
	a.result.WriteHeaders(h)
	a.grant.SetHeaders(h)
	a.timing().Write(h)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(out)))
	a.wrote = true
	a.gin.Writer.WriteHeader(http.StatusOK)
	a.writeWhole(out)
}

// writeWhole writes an answer in pieces, each of which the client has to take
// in time: one that does not read must not hold its place. A client that
// leaves has been answered.
func (a *attempt) writeWhole(out []byte) {
	const piece = 64 << 10
	rc := http.NewResponseController(a.gin.Writer)
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	for len(out) > 0 {
		n := min(len(out), piece)
		_ = rc.SetWriteDeadline(time.Now().Add(a.g.opts.Timeouts.Write)) // not every transport has one
		if _, err := a.gin.Writer.Write(out[:n]); err != nil {
			return
		}
		out = out[n:]
	}
}

// firstToken notes the time to the first token, of the attempt and of the
// request.
func (a *attempt) firstToken() {
	if a.ttft == 0 {
		a.ttft = time.Since(a.began)
		if !a.draft {
			a.overtaken()
		}
		if !a.stream.begun() {
			a.exchange.ttft = time.Since(a.exchange.began)
		}
		a.sel.Decode.Prefilled()
		a.sel.Decode.Good()
	}
}

// answeredBy fills what an answer says of its origin. model is the upstream's
// word, with its quotes.
func (a *attempt) answeredBy(model []byte) {
	a.result.Tier = cascade.TierCloud
	a.result.Model = a.sel.Decode.Served
	var said string
	if json.Unmarshal(model, &said) == nil && said != "" && headerSafe(said) {
		a.result.Model = said
	}
	a.said = a.result.Model
	a.result.Instance = a.sel.Decode.Opaque
}

// headerSafe reports whether a foreign name may stand in a header and a ledger
// row.
func headerSafe(s string) bool {
	if len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func mustJSON(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil { // plain structs of ours
		panic("gateway: " + err.Error())
	}
	return data
}

// cloneBody is the client's body as an instance may see it.
func (a *admitted) cloneBody(served string) openai.Body {
	b := a.ask.body.Clone()
	b.Set("model", served)
	return b
}

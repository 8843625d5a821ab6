package gateway

import (
	"context"
	"encoding/json"
	"time"

	"github.com/weirhq/weir/cloud/route"
	"github.com/weirhq/weir/internal/openai"
)

// handoff is what a prefill leg left for a decode leg. params is opaque: its
// members change between engine versions.
type handoff struct {
	params       json.RawMessage
	from         route.Process // prefill instance
	promptTokens int           // 0: not reported
	lease        *lease
}

// usable reports whether h may still be read at now. A nil hand-off is not.
func (h *handoff) usable(now time.Time) bool {
	return h != nil && h.params != nil && h.lease.runs(now)
}

// unread reports whether another decode leg may read h after one has failed: the
// failure says so itself, or else the instance that has it is asked. The next
// reader takes the place of one that hangs.
func (h *handoff) unread(f *legError) bool {
	if !h.usable(time.Now()) || f.Shown || f.ended != "" || f.moved != nil {
		return false
	}
	v := route.AfterFailure(f.Failure)
	return v.KeepHandoff || v.Next == route.NextElsewhere && h.lease.renew()
}

// runPrefill runs the prefill leg (vLLM's two-step flow, protocols.md 2.1). An
// instance that answers without a hand-off is no failure: decode then prefills
// itself, and that is counted.
func (a *attempt) runPrefill(ctx context.Context) (*handoff, *legError) {
	leg := a.sel.Prefill
	began := time.Now()
	ctx, endSpan := a.legSpan(ctx, route.StagePrefill, leg)
	h, failed := a.prefillLeg(ctx)
	endSpan(failed)
	a.prefill = time.Since(began)
	if failed != nil {
		return nil, failed
	}
	leg.Good()
	leg.Release()
	if h.params == nil {
		a.g.meter.fallback("no_params")
		a.story.note("the prefill instance gave no hand-off")
	}
	if h.promptTokens > 0 {
		a.grant.Correct(h.promptTokens)
	}
	return h, nil
}

func (a *attempt) prefillLeg(ctx context.Context) (*handoff, *legError) {
	leg := a.sel.Prefill
	resp, failed := a.call(ctx, route.StagePrefill, leg, a.prefillBody().JSON())
	if failed != nil {
		return nil, failed
	}
	defer resp.Body.Close()
	data, failed := a.readAll(ctx, route.StagePrefill, leg, resp.Body, maxHandoff)
	if failed != nil {
		return nil, failed
	}
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
		Usage  *openai.Usage   `json:"usage"`
		Fault  json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &answer) != nil {
		return nil, broken(route.StagePrefill, leg, "the prefill instance's answer cannot be read")
	}
	if answer.Fault != nil && string(answer.Fault) != "null" {
		return nil, faultFailure(route.StagePrefill, leg, answer.Fault)
	}
	h := &handoff{params: answer.Params, from: leg.Process()}
	if string(h.params) == "null" {
		h.params = nil
	}
	if h.params != nil {
		h.lease = a.hold(leg, h.params)
	}
	if u := answer.Usage; u != nil && u.PromptTokens > 0 {
		h.promptTokens = u.PromptTokens
	}
	return h, nil
}

// prefillParams asks an instance to keep the prompt's KV for a reader.
var prefillParams = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,` +
	`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)

// prefillBody is the client's request cut down to its prompt: one token, not
// streamed, nothing computed that the decode leg computes anyway.
func (a *attempt) prefillBody() openai.Body {
	b := a.cloneBody(a.sel.Prefill.Served)
	a.asResumed(b)
	b.Set("stream", false)
	b.Set("max_tokens", 1)
	if _, ok := b["max_completion_tokens"]; ok {
		b.Set("max_completion_tokens", 1)
	}
	for _, name := range []string{"stream_options", "min_tokens", "logprobs", "top_logprobs", "n", "best_of"} {
		delete(b, name)
	}
	b["kv_transfer_params"] = prefillParams
	return b
}

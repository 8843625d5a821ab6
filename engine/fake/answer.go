package fake

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"

	"github.com/weirhq/weir/internal/sse"
)

type object = map[string]any

func (c *run) base(kind string) object {
	return object{"id": c.id, "object": kind, "created": c.began.Add(c.e.o.Skew).Unix(), "model": c.e.o.Model}
}

func (c *run) usage() object {
	// vLLM says null here unless it runs with --enable-prompt-tokens-details.
	return object{"prompt_tokens": c.q.tokens, "completion_tokens": c.sent, "total_tokens": c.q.tokens + c.sent, "prompt_tokens_details": nil}
}

// whole makes all tokens and answers once. kept says that the prompt's blocks
// are offered to a decode engine.
func (c *run) whole(ctx context.Context, host string, ids []int) (kept bool, err error) {
	for range c.tokens {
		if err := c.next(ctx); err != nil {
			return false, err
		}
	}
	if c.hook(ctx, Headers) || c.hook(ctx, End) {
		return false, errStopped
	}
	text := strings.Join(c.tokens, "")
	choice := object{"index": 0, "finish_reason": c.finish, "stop_reason": nil, "token_ids": nil, "logprobs": c.logprobs(c.tokens, 0)}
	kind := "text_completion"
	if c.q.chat {
		kind = "chat.completion"
		choice["message"] = object{"role": "assistant", "content": text, "refusal": nil, "annotations": nil, "audio": nil,
			"function_call": nil, "tool_calls": []any{}, "reasoning": nil}
	} else {
		choice["text"], choice["prompt_logprobs"] = text, nil
	}
	body := c.base(kind)
	body["choices"], body["usage"] = []any{choice}, c.usage()
	for _, extra := range []string{"service_tier", "system_fingerprint", "prompt_logprobs", "prompt_token_ids"} {
		body[extra] = nil
	}
	body["kv_transfer_params"] = nil
	if c.q.leg == Prefill {
		body["kv_transfer_params"], kept = c.offer(host, ids), true
	}
	writeJSON(c.w, http.StatusOK, body)
	return kept, nil
}

// offer keeps the prompt's blocks for a decode engine.
func (c *run) offer(host string, ids []int) object {
	o := &c.e.o
	until := c.e.blocks.keep(c.id, ids)
	if c.fault != nil && c.fault.Fault == FaultLease && c.e.blocks.fetch(c.id) {
		c.e.metrics.expired.Inc()
	}
	h, p := hostPort(host)
	if o.Host != "" {
		h = o.Host
	}
	if o.Port != 0 {
		p = o.Port
	}
	return object{"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int{ids},
		"remote_engine_id": o.EngineID, "remote_request_id": c.id, "remote_host": h, "remote_port": p,
		"tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": c.q.tokens,
		"remote_blocks_expiry_time": float64(until.UnixMilli()) / 1000, "transfer_mode": "pull"}
}

// stream sends a chunk per token. kept says that the request's blocks wait for
// another engine.
func (c *run) stream(ctx context.Context, host string, ids []int) (kept bool, err error) {
	if c.hook(ctx, Headers) {
		return false, errStopped
	}
	w := sse.Start(c.w)
	if c.q.chat && c.q.Resume == nil {
		if err := c.chunk(w, object{"delta": object{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}); err != nil {
			return false, err
		}
	}
	for i, t := range c.tokens {
		if i > 0 && c.flight.moves.Load() {
			return true, c.moveAway(w, host, ids)
		}
		if err := c.next(ctx); err != nil {
			return false, err
		}
		if err := c.chunk(w, c.token(i, t)); err != nil {
			return false, err
		}
	}
	if c.hook(ctx, End) {
		return false, errStopped
	}
	if c.q.StreamOptions != nil && c.q.StreamOptions.IncludeUsage {
		if err := c.send(w, []any{}, c.usage()); err != nil {
			return false, err
		}
	}
	return false, w.Done()
}

// token is the choice with the i-th token of this leg.
func (c *run) token(i int, text string) object {
	choice := object{"logprobs": c.logprobs(c.tokens[i:i+1], i), "finish_reason": nil}
	if c.q.ReturnIDs {
		choice["token_ids"] = []int{c.from + i}
	}
	c.put(choice, text)
	if i == len(c.tokens)-1 {
		choice["finish_reason"], choice["stop_reason"] = c.finish, nil
	}
	return choice
}

func (c *run) put(choice object, text string) {
	if c.q.chat {
		choice["delta"] = object{"content": text}
	} else {
		choice["text"] = text
	}
}

func (c *run) chunk(w *sse.Writer, choice object) error {
	choice["index"] = 0
	return c.send(w, []any{choice}, nil)
}

func (c *run) send(w *sse.Writer, choices []any, usage any) error {
	kind := "text_completion"
	if c.q.chat {
		kind = "chat.completion.chunk"
	}
	body := c.base(kind)
	body["choices"] = choices
	if usage != nil {
		body["usage"] = usage
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return w.Data(data)
}

// logprobs describes tokens that begin at index from of the answer. nil when
// not asked for.
func (c *run) logprobs(tokens []string, from int) any {
	if !c.q.logprobs || c.blind() {
		return nil
	}
	if !c.q.chat {
		return c.textLogprobs(tokens, from)
	}
	content := make([]object, len(tokens))
	for i, t := range tokens {
		content[i] = c.entry(t, from+i, 0)
		top := make([]object, c.q.top)
		for k := range top {
			top[k] = c.entry(alternative(t, k), from+i, k)
		}
		content[i]["top_logprobs"] = top
	}
	return object{"content": content}
}

// blind reports whether the answer has a token without log-probability.
func (c *run) blind() bool {
	if c.e.o.Logprobs == nil {
		return false
	}
	for i := range c.tokens {
		if math.IsNaN(c.e.o.Logprobs(c.from + i)) {
			return true
		}
	}
	return false
}

// entry describes what stands in the place of token number at.
func (c *run) entry(token string, at, rank int) object {
	bytes := make([]int, len(token))
	for i := range token {
		bytes[i] = int(token[i])
	}
	return object{"token": token, "logprob": c.logprob(at, rank), "bytes": bytes}
}

// logprob falls by five per rank.
func (c *run) logprob(at, rank int) float64 {
	first := c.e.o.Logprob
	if c.e.o.Logprobs != nil {
		first = c.e.o.Logprobs(c.from + at)
	}
	return round6(first - 5*float64(rank))
}

// alternative is the k-th likeliest token in t's place; the first is t itself.
func alternative(t string, k int) string {
	if k == 0 {
		return t
	}
	return " " + vocabulary[(len(t)+7*k)%len(vocabulary)] + strings.Repeat("s", k)
}

func (c *run) textLogprobs(tokens []string, from int) any {
	lp, top, offsets := make([]float64, len(tokens)), make([]object, len(tokens)), make([]int, len(tokens))
	at := len(strings.Join(c.tokens[:from], ""))
	for i, t := range tokens {
		lp[i], offsets[i] = c.logprob(from+i, 0), at
		at += len(t)
		top[i] = object{}
		for k := range c.q.top {
			top[i][alternative(t, k)] = c.logprob(from+i, k)
		}
	}
	return object{"tokens": tokens, "token_logprobs": lp, "top_logprobs": top, "text_offset": offsets}
}

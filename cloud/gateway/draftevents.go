package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	cascades "github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/cloud/gateway/chunk"
	"github.com/weirhq/weir/internal/openai"
)

// pass shows an event of the draft, or holds it back. The error is the client's
// connection's, or an *openai.Error of a budget that has no room for the event.
func (d *draft) pass(data []byte, c *chunk.Event) error {
	if d.model == nil && c.Model != nil {
		d.model = append([]byte(nil), c.Model...)
	}
	if c.Usage != nil {
		d.used.take(readUsage(c.Usage))
	}
	shows := false
	if c.Token {
		d.text = d.text || c.Other || len(c.Text) > 2
		d.used.delivered += tokens(c)
		if d.ttft == 0 {
			d.watch.replace(d.g.opts.Timeouts.Stall, errStall)
		}
		d.firstToken()
		shows = d.judge.Shows()
	}
	if !d.ask.req.IncludeUsage && c.Usage != nil && c.Empty {
		return nil // the client did not ask for this event
	}
	switch {
	case c.Finish != nil || c.Usage != nil:
		d.finish = d.finish || c.Finish != nil
		d.tail = append(d.tail, bytes.Clone(data))
	case shows:
		if err := d.flush(); err != nil {
			return err
		}
		return d.emit(data)
	default:
		d.held = append(d.held, bytes.Clone(data))
	}
	return nil
}

// flush shows what is held back.
func (d *draft) flush() error {
	held := d.held
	d.held = nil
	d.overtaken()
	return d.emitAll(held)
}

func (d *draft) emitAll(events [][]byte) error {
	for _, e := range events {
		if err := d.emit(e); err != nil {
			return err
		}
	}
	return nil
}

// emit shows an event. The head of a stream that is not at its end tells no
// reason: the last event does.
func (d *draft) emit(event []byte) error {
	s, c := d.stream, chunk.Read(event)
	if c.Token {
		if err := d.grant.Delivered(s.shown.generated + tokens(&c)); err != nil {
			return err
		}
		s.shown.note(&c, d.sel.Decode.Weights)
	}
	s.shown.identity.learn(&c)
	if c.Token && !s.begun() {
		d.exchange.ttft = time.Since(d.exchange.began)
		d.answeredBy(d.model)
		if why := d.result.Reason; !d.kept {
			d.result.Reason = ""
			defer func() { d.result.Reason = why }()
		}
	}
	if err := s.release(); err != nil {
		return err
	}
	event = d.rewrite(event, false)
	if c.Finish != nil || c.Usage != nil {
		s.hold(event)
		return nil
	}
	return s.emit(event, c.Token)
}

// rewrite takes out what only the gateway asked for. The result is good until
// the next call.
func (d *draft) rewrite(event []byte, unfinished bool) []byte {
	w := chunk.Rewrite{HideUsage: unfinished || !d.ask.req.IncludeUsage, HideProbs: !d.ask.req.Logprobs, HideIDs: d.asksIDs(), HideFinish: unfinished}
	d.scratch = w.Append(d.scratch[:0], event)
	return d.scratch
}

// handTo prepares the request to the large pool after text was shown: what that
// one says joins the stream.
func (d *draft) handTo() {
	a, s := d.admitted, d.stream
	a.tries.handed = s.shown.generated
	a.result.HandoffToken = s.shown.generated
	s.shown = shown{identity: d.shown.identity, last: time.Now()}
	if d.asked == cascades.AskContinue {
		a.continueAfter(&d.shown)
	}
}

// continueAfter makes the request one that goes on after the text shown: it
// becomes the last assistant message, or the end of the prompt. What the draft was
// asked stays as it is: it may have to stand in.
func (a *admitted) continueAfter(s *shown) {
	body, own := maps.Clone(a.ask.body), *a.ask.req
	req := &own
	a.ask.body, a.ask.req = body, req
	var begun string
	_ = json.Unmarshal(fmt.Appendf(nil, `"%s"`, s.text), &begun) // the inside of a JSON string
	if a.ask.kind == kindText {
		body.Set("prompt", req.Prompt+begun)
	} else {
		var messages []json.RawMessage
		_ = json.Unmarshal(body["messages"], &messages) // parsed before
		if last := len(messages) - 1; req.Continue {    // the client had begun it already
			begun = req.Messages[last].Content + begun
			messages = messages[:last]
		}
		body.Set("messages", append(messages, mustJSON(openai.Message{Role: "assistant", Content: begun})))
		body.Set("continue_final_message", true)
		body.Set("add_generation_prompt", false)
	}
	a.ask.promptBytes += len(begun)
	if req.MaxTokens == nil {
		return
	}
	left := max(1, *req.MaxTokens-s.generated)
	req.MaxTokens = &left
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		if _, ok := body[name]; ok {
			body.Set(name, left)
		}
	}
}

// endPart ends the draft's text as the first part of the answer: the large
// pool's, a part of its own, comes after a blank line.
func (d *draft) endPart() {
	for _, e := range d.tail {
		if c := chunk.Read(e); c.Token {
			_ = d.stream.emit(d.rewrite(e, true), true) // the next event tells of a client that is gone
		}
	}
	text, choice := "\n\n", map[string]any{"index": 0, "logprobs": nil, "finish_reason": nil}
	object := openai.ObjectChatChunk
	if choice["delta"] = map[string]string{"content": text}; d.ask.kind == kindText {
		object = openai.ObjectCompletion
		delete(choice, "delta")
		choice["text"] = text
	}
	_ = d.stream.emit(mustJSON(map[string]any{"id": json.RawMessage(d.shown.id), "object": object, "created": json.RawMessage(d.shown.created),
		"model": json.RawMessage(d.model), "choices": []any{choice}}), true)
}

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/stream"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
)

// continueAfter turns an escalation into one that goes on after the text shown:
// it becomes the last assistant message, or the end of the prompt.
func (c *call) continueAfter(body openai.Body, shown []byte) {
	if c.kind == upstream.Text {
		body.Set("prompt", c.req.Prompt+string(shown))
	} else {
		var messages []json.RawMessage
		_ = json.Unmarshal(body["messages"], &messages) // parsed before
		begun := openai.Message{Role: "assistant", Content: string(shown)}
		if last := len(messages) - 1; c.req.Continue { // the client had begun it already
			begun.Content = c.req.Messages[last].Content + begun.Content
			messages = messages[:last]
		}
		raw, err := json.Marshal(begun)
		if err != nil {
			return // a message of two strings marshals
		}
		body.Set("messages", append(messages, raw))
		body.Set("continue_final_message", true)
		body.Set("add_generation_prompt", false)
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		var most int
		if json.Unmarshal(body[name], &most) == nil && most > 0 {
			body.Set(name, max(1, most-c.draft.Usage.CompletionTokens))
		}
	}
}

// partBreak stands between the edge's answer and the cloud's where the second
// is a part of its own.
const partBreak = `"\n\n"`

// goOn sends the cloud's text after the edge's, of which the client has seen
// shown tokens, as one stream: continued, or as a part of its own.
func (f *flight) goOn(r *cloudReply, kind stream.Ask, shown int, why cascade.Reason) error {
	s, c := f.s, f.c
	defer r.close()
	s.merge(c, nil, r.Header.Get(contract.HeaderModel), why)
	f.frames.speaks(c.result.Model)
	if kind == stream.AskAppend {
		if err := f.frames.piece(&upstream.Piece{Text: []byte(partBreak)}); err != nil {
			return err
		}
	}
	var finish string
	for event := r.first; string(event) != sse.Done; {
		if e := errorEvent(event); e != nil {
			s.readFailure(c, event, why)
			return e
		}
		e := upstream.Read(event)
		if e.Bad {
			return errors.New("an event of the cloud's stream is no JSON object")
		}
		if e.Visible() || e.Logprobs != nil {
			if err := f.frames.piece(&e.Piece); err != nil {
				return err
			}
		}
		if e.Finish != nil {
			text, _ := jsonscan.AppendText(nil, e.Finish)
			finish = string(text)
		}
		if err := s.readTail(c, event, &e, why); err != nil {
			return err
		}
		var err error
		if event, err = r.events.Next(); err != nil {
			return fmt.Errorf("read the cloud's stream: %w", err)
		}
		r.guard.Progress()
	}
	if finish == "" {
		return errors.New("the cloud's stream ended without a finish reason")
	}
	f.m.CloudEnd()
	c.result.TTFTMs, c.result.EdgeTokens = millis(c.first), c.draft.Usage.CompletionTokens
	c.usage = together(c.draft.Usage.PromptTokens, shown, c.usage)
	s.latency.add(s.opt.Now().Sub(r.start))
	return f.frames.end(finish, &c.usage, s.final(c))
}

// readTail takes usage and the weir object from an event that has them.
func (s *Server) readTail(c *call, event []byte, e *upstream.Event, reason cascade.Reason) error {
	if e.Usage == nil && !bytes.Contains(event, []byte(`"weir"`)) {
		return nil
	}
	body, err := openai.ParseBody(event)
	if err != nil {
		return fmt.Errorf("an event of the cloud's stream: %w", errors.New(err.Error()))
	}
	if len(body["weir"]) == 0 && e.Usage != nil {
		_ = json.Unmarshal(e.Usage, &c.usage) // what is not usage counts nothing
		return nil
	}
	s.read(c, body, reason)
	return nil
}

// together is the use of an answer that two tiers made: what the client saw of
// both, after the edge's prompt.
func together(prompt, shown int, cloud openai.Usage) openai.Usage {
	u := openai.Usage{PromptTokens: prompt, CompletionTokens: shown + cloud.CompletionTokens}
	if u.PromptTokens == 0 {
		u.PromptTokens = cloud.PromptTokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
	"github.com/weirhq/weir/internal/sse"
	"github.com/weirhq/weir/tenants"
)

// passed are the cloud's response headers that the client gets as they are.
var passed = []string{
	contract.HeaderInstance,
	"X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests",
	"X-RateLimit-Limit-Tokens", "X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens",
}

// refusedError is the cloud's error with the headers that the client gets.
type refusedError struct {
	err    *openai.Error
	header http.Header
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func (r *cloudReply) passed() http.Header {
	h := http.Header{}
	for _, name := range passed {
		if v := r.Header.Get(name); v != "" {
			h.Set(name, v)
		}
	}
	return h
}

// relay sends the cloud's answer on. Nothing of it is repeated or replaced
// once a byte has left.
func (s *Server) relay(ctx context.Context, c *call, out *output, r *cloudReply, reason cascade.Reason) error {
	defer r.close()
	s.merge(c, nil, r.Header.Get(contract.HeaderModel), reason)
	var err error
	if c.req.Stream {
		s.seal(c, out, false, r.passed())
		err = s.relayStream(c, out, r, reason)
	} else {
		err = s.relayWhole(c, out, r, reason)
	}
	if err != nil {
		return s.broken(ctx, c, r, err)
	}
	s.latency.add(s.opt.Now().Sub(r.start))
	return nil
}

// broken says how a relay ended that did not end well.
func (s *Server) broken(ctx context.Context, c *call, r *cloudReply, err error) error {
	r.span.RecordError(err)
	if s.gone(ctx) != nil || errors.Is(err, errGone) {
		return errGone
	}
	if errors.Is(context.Cause(ctx), errDeadline) {
		return s.deadlineError(c)
	}
	c.result.Reason, c.outcome = cascade.ReasonCloudError, tenants.OutcomeUpstreamTruncated
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	return &openai.Error{Status: http.StatusBadGateway, Type: openai.TypeServer, Code: openai.CodeUpstreamCut,
		Message: "the cloud's answer broke off", Cause: err}
}

// relayWhole sends an answer that has come in full.
func (s *Server) relayWhole(c *call, out *output, r *cloudReply, reason cascade.Reason) error {
	s.read(c, r.whole, reason)
	c.heard, c.heardAll = []byte(answerText(r.whole.JSON())), true
	var choices []struct {
		Finish string `json:"finish_reason"`
	}
	c.calledTool = json.Unmarshal(r.whole["choices"], &choices) == nil && len(choices) > 0 && choices[0].Finish == "tool_calls"
	s.seal(c, out, false, r.passed())
	r.whole.Set("weir", s.final(c))
	return out.json(r.whole)
}

// read takes model, usage and weir object from a whole answer or a last chunk.
func (s *Server) read(c *call, body openai.Body, reason cascade.Reason) {
	var model string
	_ = json.Unmarshal(body["model"], &model) // an absent model leaves the header's
	if model == "" {
		model = c.result.Model
	}
	s.merge(c, body["weir"], model, reason)
	var u *openai.Usage
	if json.Unmarshal(body["usage"], &u) == nil && u != nil {
		c.usage = *u
		if c.result.CloudTokens == 0 {
			c.result.CloudTokens = u.CompletionTokens
		}
	}
}

// relayStream sends events on as they come. The cloud's weir object, in the
// last chunk, is completed by the edge's part.
func (s *Server) relayStream(c *call, out *output, r *cloudReply, reason cascade.Reason) error {
	seen := streamSeen{}
	for event := r.first; ; {
		if string(event) == sse.Done {
			return s.endStream(c, out, &seen, reason)
		}
		if e := errorEvent(event); e != nil {
			s.readFailure(c, event, reason)
			return e
		}
		sent, err := s.forward(c, out, event, &seen, reason)
		if err != nil {
			return err
		}
		if err := out.data(sent); err != nil {
			return err
		}
		if event, err = r.events.Next(); err != nil {
			return fmt.Errorf("read the cloud's stream: %w", err)
		}
		r.guard.Progress()
	}
}

type streamSeen struct {
	content, weir bool
	id, model     string
	created       int64
}

// forward returns the event to send: the cloud's own bytes, but for the chunk
// with the weir object.
func (s *Server) forward(c *call, out *output, event []byte, seen *streamSeen, reason cascade.Reason) ([]byte, error) {
	e := upstream.Read(event)
	if e.Bad {
		return nil, errors.New("an event of the cloud's stream cannot be read")
	}
	if !seen.content && e.Visible() {
		seen.content = true
		c.first = s.opt.Now().Sub(c.arrived)
	}
	c.hear(e.Text, e.Finish)
	c.calledTool = c.calledTool || string(e.Finish) == `"tool_calls"`
	if seen.model != "" && !bytes.Contains(event, []byte(`"weir"`)) {
		return event, nil
	}
	body, err := openai.ParseBody(event)
	if err != nil {
		return nil, fmt.Errorf("an event of the cloud's stream: %w", errors.New(err.Error()))
	}
	_ = json.Unmarshal(body["model"], &seen.model) // absent members stay empty
	_ = json.Unmarshal(body["id"], &seen.id)
	_ = json.Unmarshal(body["created"], &seen.created)
	if _, has := body["weir"]; !has {
		return event, nil
	}
	seen.weir = true
	s.read(c, body, reason)
	c.result.TTFTMs = millis(c.first)
	body.Set("weir", s.final(c))
	return body.JSON(), nil
}

// readFailure takes the weir object of the event that ends a broken stream: the
// tokens until then were made and are paid for.
func (s *Server) readFailure(c *call, event []byte, reason cascade.Reason) {
	var last struct {
		Weir json.RawMessage `json:"weir"`
	}
	if json.Unmarshal(event, &last) == nil && len(last.Weir) > 0 {
		s.merge(c, last.Weir, c.result.Model, reason)
	}
}

// endStream ends a complete stream, with a chunk of its own for the weir
// object if the cloud sent none.
func (s *Server) endStream(c *call, out *output, seen *streamSeen, reason cascade.Reason) error {
	if !seen.weir {
		s.merge(c, nil, seen.model, reason)
		c.result.TTFTMs = millis(c.first)
		object := openai.ObjectChatChunk
		if c.kind == upstream.Text {
			object = openai.ObjectCompletion
		}
		raw, err := json.Marshal(reply{ID: seen.id, Object: object, Created: seen.created, Model: seen.model, Choices: []replyChoice{}, Weir: s.final(c)})
		if err != nil {
			return err
		}
		if err := out.data(raw); err != nil {
			return err
		}
	}
	return out.done()
}

// errorEvent returns the error of an event; most events are not looked into.
func errorEvent(event []byte) *openai.Error {
	if !bytes.Contains(event, []byte(`"error"`)) {
		return nil
	}
	e := upstream.Read(event)
	return e.Err(event)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

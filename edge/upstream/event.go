package upstream

import (
	"encoding/json"

	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/openai"
)

// Kind is the endpoint of a request.
type Kind uint8

// The kinds.
const (
	Chat Kind = iota
	Text
)

// Path is the endpoint's path.
func (k Kind) Path() string {
	if k == Text {
		return "/v1/completions"
	}
	return "/v1/chat/completions"
}

// Operation is the name of the GenAI conventions.
func (k Kind) Operation() string {
	if k == Text {
		return "text_completion"
	}
	return "chat"
}

// Piece is what one event adds to an answer: JSON as the server wrote it, nil
// where it is absent, null or empty.
type Piece struct {
	Text     []byte // a string
	Calls    []byte // a list of tool call deltas
	Logprobs []byte // an object
}

// Empty reports whether there is nothing in p.
func (p *Piece) Empty() bool { return p.Text == nil && p.Calls == nil && p.Logprobs == nil }

// Visible reports whether a user sees anything of p.
func (p *Piece) Visible() bool { return p.Text != nil || p.Calls != nil }

// Event is one event of a stream of either kind, of which only the first choice
// is looked at. Its slices point into the event.
type Event struct {
	Piece
	Bad    bool   // not a JSON object
	Fault  []byte // the error member
	Finish []byte // finish_reason with its quotes, nil while it is null
	Usage  []byte // nil while it is absent or null
	Think  bool   // the tokens are reasoning, not the answer
}

// Read reads an event. It allocates nothing.
func Read(data []byte) Event {
	var e Event
	s := jsonscan.Members(data)
	for s.Next() {
		switch {
		case s.Is("choices"):
			for l := jsonscan.Elements(s.Val); l.Next(); {
				e.readChoice(l.Val)
			}
		case s.Is("usage"):
			e.Usage = present(s.Val)
		case s.Is("error"):
			e.Fault = present(s.Val)
		}
	}
	e.Bad = !s.OK()
	return e
}

func present(val []byte) []byte {
	if jsonscan.IsNull(val) {
		return nil
	}
	return val
}

func filled(val []byte) []byte {
	if !jsonscan.Filled(val) {
		return nil
	}
	return val
}

func (e *Event) readChoice(choice []byte) {
	var c Event
	s := jsonscan.Members(choice)
	for s.Next() {
		switch {
		case s.Is("index"):
			if string(s.Val) != "0" {
				return // not ours
			}
		case s.Is("delta"):
			c.readDelta(s.Val)
		case s.Is("text"):
			c.Text = filled(s.Val)
		case s.Is("logprobs"):
			c.Logprobs = filled(s.Val)
		case s.Is("finish_reason"):
			c.Finish = filled(s.Val)
		}
	}
	e.Piece, e.Finish, e.Think = c.Piece, c.Finish, c.Think
}

func (e *Event) readDelta(delta []byte) {
	s := jsonscan.Members(delta)
	for s.Next() {
		switch {
		case s.Is("content"):
			e.Text = filled(s.Val)
		case s.Is("tool_calls"):
			e.Calls = filled(s.Val)
		case s.Is("reasoning"), s.Is("reasoning_content"):
			e.Think = e.Think || filled(s.Val) != nil
		}
	}
}

// Err returns the error that the event carries, or nil.
func (e *Event) Err(data []byte) *openai.Error {
	if e.Bad || e.Fault == nil {
		return nil
	}
	return openai.ParseError(502, data)
}

// JoinLogprobs joins the log-probabilities of pieces into those of a whole
// answer.
func JoinLogprobs(kind Kind, pieces []Piece) json.RawMessage {
	names := []string{"content", "refusal"}
	if kind == Text {
		names = []string{"tokens", "token_logprobs", "top_logprobs", "text_offset"}
	}
	joined := make(map[string]json.RawMessage, len(names))
	for _, name := range names {
		list := []byte{'['}
		for _, p := range pieces {
			list = appendElements(list, p.Logprobs, name)
		}
		joined[name] = append(list, ']')
	}
	if kind == Chat {
		joined["refusal"] = json.RawMessage("null")
	}
	raw, err := json.Marshal(joined)
	if err != nil {
		return nil // a server's bytes that are no JSON: there are no log-probabilities then
	}
	return raw
}

func appendElements(list, logprobs []byte, name string) []byte {
	s := jsonscan.Members(logprobs)
	for s.Next() {
		if !s.Is(name) {
			continue
		}
		for l := jsonscan.Elements(s.Val); l.Next(); {
			if len(list) > 1 {
				list = append(list, ',')
			}
			list = append(list, l.Val...)
		}
	}
	return list
}

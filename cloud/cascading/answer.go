package cascading

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/openai"
)

// AskLogprobs makes a body ask for the log-probabilities of its answer, whole.
func AskLogprobs(b openai.Body, text bool) {
	b.Set("stream", false)
	delete(b, "stream_options")
	if !text {
		b.Set("logprobs", true)
		return
	}
	if raw, ok := b["logprobs"]; !ok || string(raw) == "null" {
		b.Set("logprobs", 0)
	}
}

// Answer is a whole answer of a model server with one choice.
type Answer struct {
	Signals cascade.Signals

	whole  wholeAnswer
	choice wholeChoice
	rest   map[string]json.RawMessage // members of the answer as they came
}

type wholeAnswer struct {
	ID      string        `json:"id"`
	Created int64         `json:"created"`
	Model   string        `json:"model"`
	Usage   *openai.Usage `json:"usage"`
}

type wholeChoice struct {
	Message struct {
		Content *string           `json:"content"`
		Calls   []json.RawMessage `json:"tool_calls"`
	} `json:"message"`
	Text     *string         `json:"text"`
	Logprobs json.RawMessage `json:"logprobs"`
	Finish   *string         `json:"finish_reason"`
}

// Read reads an answer of either kind. An answer without log-probabilities has
// no usable signals.
func Read(data []byte) (*Answer, error) {
	a := &Answer{}
	if err := json.Unmarshal(data, &a.rest); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	if err := json.Unmarshal(data, &a.whole); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	var choices []wholeChoice
	if err := json.Unmarshal(a.rest["choices"], &choices); err != nil {
		return nil, fmt.Errorf("answer: choices: %w", err)
	}
	if len(choices) == 0 {
		return nil, errors.New("answer: there are no choices")
	}
	a.choice = choices[0]
	a.Signals = signals(a.choice.Logprobs)
	return a, nil
}

// signals reads the log-probabilities of a chat or of a text completion.
func signals(raw json.RawMessage) cascade.Signals {
	var lp struct {
		Content []struct {
			Logprob *float64 `json:"logprob"`
		} `json:"content"`
		TokenLogprobs []*float64 `json:"token_logprobs"`
	}
	if json.Unmarshal(raw, &lp) != nil {
		return cascade.Signals{}
	}
	all := lp.TokenLogprobs
	for _, t := range lp.Content {
		all = append(all, t.Logprob)
	}
	var acc cascade.Accumulator
	for _, v := range all {
		if v == nil {
			acc.Missing()
			continue
		}
		acc.Add(*v, math.NaN())
	}
	return acc.Signals()
}

// Empty reports whether a finished answer says nothing.
func (a *Answer) Empty() bool {
	text := a.text()
	return strings.TrimSpace(text) == "" && len(a.choice.Message.Calls) == 0
}

func (a *Answer) text() string {
	switch {
	case a.choice.Message.Content != nil:
		return *a.choice.Message.Content
	case a.choice.Text != nil:
		return *a.choice.Text
	}
	return ""
}

// Whole is the answer as a client gets it: without log-probabilities unless it
// asked for them.
func (a *Answer) Whole(logprobs bool) ([]byte, error) {
	if logprobs {
		return json.Marshal(a.rest)
	}
	var choices []map[string]json.RawMessage
	if err := json.Unmarshal(a.rest["choices"], &choices); err != nil {
		return nil, fmt.Errorf("answer: choices: %w", err)
	}
	for _, c := range choices {
		c["logprobs"] = json.RawMessage("null")
	}
	raw, err := json.Marshal(choices)
	if err != nil {
		return nil, err
	}
	out := make(map[string]json.RawMessage, len(a.rest))
	for k, v := range a.rest {
		out[k] = v
	}
	out["choices"] = raw
	return json.Marshal(out)
}

// Stream says how the answer is streamed.
type Stream struct{ Text, Logprobs, Usage bool }

// Events are the answer as the events of a stream, its last one last: the whole
// text in one piece.
func (a *Answer) Events(s Stream) ([][]byte, error) {
	object := openai.ObjectChatChunk
	if s.Text {
		object = openai.ObjectCompletion
	}
	var events [][]byte
	send := func(choices, usage any) error {
		raw, err := json.Marshal(map[string]any{"id": a.whole.ID, "object": object, "created": a.whole.Created, "model": a.whole.Model, "choices": choices, "usage": usage})
		events = append(events, raw)
		return err
	}
	pieces, err := a.pieces(s)
	if err != nil {
		return nil, err
	}
	for _, p := range pieces {
		if err := send([]any{p}, nil); err != nil {
			return nil, err
		}
	}
	if s.Usage {
		err = send([]any{}, a.whole.Usage)
	}
	return events, err
}

// piece is the choice of one event.
type piece struct {
	Index    int             `json:"index"`
	Delta    map[string]any  `json:"delta,omitempty"`
	Text     *string         `json:"text,omitempty"`
	Logprobs json.RawMessage `json:"logprobs"`
	Finish   *string         `json:"finish_reason"`
}

func (a *Answer) pieces(s Stream) ([]piece, error) {
	var probs json.RawMessage
	if s.Logprobs {
		probs = a.choice.Logprobs
	}
	text, none := a.text(), ""
	if s.Text {
		return []piece{{Text: &text, Logprobs: probs}, {Text: &none, Finish: a.choice.Finish}}, nil
	}
	delta := map[string]any{"role": "assistant", "content": text}
	if len(a.choice.Message.Calls) > 0 {
		calls, err := a.calls()
		if err != nil {
			return nil, err
		}
		delta["tool_calls"] = calls
	}
	return []piece{{Delta: delta, Logprobs: probs}, {Delta: map[string]any{}, Finish: a.choice.Finish}}, nil
}

// calls are the tool calls as a stream has them, each with its index.
func (a *Answer) calls() ([]map[string]any, error) {
	out := make([]map[string]any, len(a.choice.Message.Calls))
	for i, raw := range a.choice.Message.Calls {
		if err := json.Unmarshal(raw, &out[i]); err != nil || out[i] == nil {
			return nil, fmt.Errorf("answer: tool_calls[%d] is no object", i)
		}
		out[i]["index"] = i
	}
	return out, nil
}

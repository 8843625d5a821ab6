package cascading

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/weirhq/weir/internal/jsonscan"
	"github.com/weirhq/weir/internal/logprobs"
	"github.com/weirhq/weir/internal/openai"
)

// AskLogprobs makes a body ask for the log-probabilities of its answer.
func AskLogprobs(b openai.Body, text bool) {
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
	choice wholeChoice
	rest   map[string]json.RawMessage // members of the answer as they came
}

type wholeChoice struct {
	Message struct {
		Content   *string     `json:"content"`
		Reasoning string      `json:"reasoning"`
		Thoughts  string      `json:"reasoning_content"` // the same, of other servers
		Calls     []callDelta `json:"tool_calls"`
	} `json:"message"`
	Text     *string         `json:"text"`
	Finish   string          `json:"finish_reason"`
	Logprobs json.RawMessage `json:"logprobs"`
}

// Read reads an answer of either kind.
func Read(data []byte) (*Answer, error) {
	a := &Answer{}
	if err := json.Unmarshal(data, &a.rest); err != nil {
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
	return a, nil
}

// score adds the answer's tokens. A server that takes reasoning and tool calls out
// of the text tells of all tokens in one list: reasoning comes first, calls last.
func (a *Answer) score(s *logprobs.Scorer) {
	thoughts := a.choice.Message.Reasoning + a.choice.Message.Thoughts
	think, text, thinks := len(thoughts), len(a.text()), false
	for l := logprobs.Of(a.choice.Logprobs); l.Next(); {
		said, _ := jsonscan.AppendText(nil, l.Text) // one that is no text says nothing
		part := logprobs.Text
		thinks = thinks || len(said) > 0 && strings.HasPrefix(thoughts, string(said))
		switch {
		case thinks && think > 0:
			part, think = logprobs.Think, think-len(said)
		case text > 0 || len(a.choice.Message.Calls) == 0:
			text -= len(said)
		default:
			part = logprobs.Calls
		}
		s.Score(&l.Token, part, true)
	}
}

// empty reports whether a finished answer says nothing.
func (a *Answer) empty() bool {
	return strings.TrimSpace(a.text()) == "" && len(a.choice.Message.Calls) == 0
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

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
	acc    cascade.Accumulator
	choice wholeChoice
	rest   map[string]json.RawMessage // members of the answer as they came
}

type wholeChoice struct {
	Message struct {
		Content *string           `json:"content"`
		Calls   []json.RawMessage `json:"tool_calls"`
	} `json:"message"`
	Text     *string         `json:"text"`
	Logprobs json.RawMessage `json:"logprobs"`
}

// Read reads an answer of either kind. An answer without log-probabilities has
// no usable signals.
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
	eachLogprob(a.choice.Logprobs, func(lp float64) {
		if math.IsNaN(lp) {
			a.acc.Missing()
			return
		}
		a.acc.Add(lp, math.NaN())
	})
	return a, nil
}

// Empty reports whether a finished answer says nothing.
func (a *Answer) Empty() bool {
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

package upstream

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/weirhq/weir/cascade"
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

// chunk is what is read of one event of a stream, of either kind.
type chunk struct {
	Choices []chunkChoice   `json:"choices"`
	Usage   *openai.Usage   `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type chunkChoice struct {
	Index int `json:"index"`
	Delta struct {
		Content *string `json:"content"`
	} `json:"delta"`
	Text         *string         `json:"text"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
}

func (c *chunkChoice) text() string {
	switch {
	case c.Delta.Content != nil:
		return *c.Delta.Content
	case c.Text != nil:
		return *c.Text
	}
	return ""
}

// HasContent reports whether a stream's event carries text that a user sees.
// Foreign bytes that are not a chunk have none.
func HasContent(event []byte) bool {
	var c chunk
	if json.Unmarshal(event, &c) != nil {
		return false
	}
	for i := range c.Choices {
		if c.Choices[i].text() != "" {
			return true
		}
	}
	return false
}

// EventError returns the error that an event carries, or nil.
func EventError(event []byte) *openai.Error {
	var c struct {
		Error json.RawMessage `json:"error"`
	}
	if json.Unmarshal(event, &c) != nil || len(c.Error) == 0 || string(c.Error) == "null" {
		return nil
	}
	return openai.ParseError(502, event)
}

// observe adds the log-probabilities of one chunk to acc and returns how many
// tokens they were for.
func observe(acc *cascade.Accumulator, kind Kind, raw json.RawMessage) (int, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	if kind == Text {
		return observeText(acc, raw)
	}
	var lp struct {
		Content []struct {
			Logprob     *float64 `json:"logprob"`
			TopLogprobs []struct {
				Logprob float64 `json:"logprob"`
			} `json:"top_logprobs"`
		} `json:"content"`
	}
	if err := json.Unmarshal(raw, &lp); err != nil {
		return 0, fmt.Errorf("log-probabilities: %w", err)
	}
	for _, t := range lp.Content {
		if t.Logprob == nil {
			acc.Missing()
			continue
		}
		margin := math.NaN()
		if len(t.TopLogprobs) > 1 {
			margin = t.TopLogprobs[0].Logprob - t.TopLogprobs[1].Logprob
		}
		acc.Add(*t.Logprob, margin)
	}
	return len(lp.Content), nil
}

func observeText(acc *cascade.Accumulator, raw json.RawMessage) (int, error) {
	var lp struct {
		TokenLogprobs []*float64 `json:"token_logprobs"`
	}
	if err := json.Unmarshal(raw, &lp); err != nil {
		return 0, fmt.Errorf("log-probabilities: %w", err)
	}
	for _, v := range lp.TokenLogprobs {
		if v == nil {
			acc.Missing()
			continue
		}
		acc.Add(*v, math.NaN())
	}
	return len(lp.TokenLogprobs), nil
}

// Logprobs joins the log-probabilities of all pieces into those of a whole
// answer; null unless asked for.
func (d *Draft) Logprobs(kind Kind, asked bool) json.RawMessage {
	if !asked {
		return nil
	}
	if kind == Text {
		return joinText(d.Pieces)
	}
	joined := struct {
		Content []json.RawMessage `json:"content"`
		Refusal json.RawMessage   `json:"refusal"`
	}{Content: []json.RawMessage{}}
	for _, p := range d.Pieces {
		var lp struct {
			Content []json.RawMessage `json:"content"`
		}
		if json.Unmarshal(p.Logprobs, &lp) == nil { // null and absent add nothing
			joined.Content = append(joined.Content, lp.Content...)
		}
	}
	raw, err := json.Marshal(joined)
	if err != nil {
		return nil
	}
	return raw
}

func joinText(pieces []Piece) json.RawMessage {
	var joined struct {
		Tokens        []json.RawMessage `json:"tokens"`
		TokenLogprobs []json.RawMessage `json:"token_logprobs"`
		TopLogprobs   []json.RawMessage `json:"top_logprobs"`
		TextOffset    []json.RawMessage `json:"text_offset"`
	}
	for _, p := range pieces {
		part := joined
		part.Tokens, part.TokenLogprobs, part.TopLogprobs, part.TextOffset = nil, nil, nil, nil
		if len(p.Logprobs) == 0 || json.Unmarshal(p.Logprobs, &part) != nil {
			continue
		}
		joined.Tokens = append(joined.Tokens, part.Tokens...)
		joined.TokenLogprobs = append(joined.TokenLogprobs, part.TokenLogprobs...)
		joined.TopLogprobs = append(joined.TopLogprobs, part.TopLogprobs...)
		joined.TextOffset = append(joined.TextOffset, part.TextOffset...)
	}
	raw, err := json.Marshal(joined)
	if err != nil {
		return nil
	}
	return raw
}

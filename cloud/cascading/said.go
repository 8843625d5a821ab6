package cascading

import (
	"encoding/json"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/cascade/validate"
	"github.com/weirhq/weir/internal/openai"
)

// callDelta is a tool call, or a part of one.
type callDelta struct {
	Index    int
	Function struct{ Name, Arguments string }
}

// maxCalls bounds the tool calls of an answer that are told apart.
const maxCalls = 128

// Said is what an answer that came at once says, for its check.
func (a *Answer) Said() validate.Answer {
	said := validate.Answer{Text: cascade.AnswerText(a.text()), Cut: a.choice.Finish == openai.FinishLength}
	for _, c := range a.choice.Message.Calls {
		said.Calls = append(said.Calls, validate.ToolCall{Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return said
}

// Said is what the events of a whole stream say, for its check. Events that cannot
// be read say nothing.
func Said(events [][]byte) validate.Answer {
	var said validate.Answer
	for _, data := range events {
		var e struct {
			Choices []struct {
				Delta struct {
					Content string
					Calls   []callDelta `json:"tool_calls"`
				}
				Text   string
				Finish string `json:"finish_reason"`
			}
		}
		if json.Unmarshal(data, &e) != nil || len(e.Choices) == 0 {
			continue
		}
		c := &e.Choices[0]
		said.Text += c.Delta.Content + c.Text
		said.Cut = said.Cut || c.Finish == openai.FinishLength
		for _, d := range c.Delta.Calls {
			for d.Index >= len(said.Calls) && len(said.Calls) < maxCalls {
				said.Calls = append(said.Calls, validate.ToolCall{})
			}
			if d.Index >= 0 && d.Index < len(said.Calls) {
				said.Calls[d.Index].Name += d.Function.Name
				said.Calls[d.Index].Arguments += d.Function.Arguments
			}
		}
	}
	said.Text = cascade.AnswerText(said.Text)
	return said
}

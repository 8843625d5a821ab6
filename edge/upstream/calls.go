package upstream

import (
	"encoding/json"
	"fmt"
)

// maxCalls bounds the tool calls of one answer.
const maxCalls = 128

// Call is a tool call of an answer.
type Call struct {
	ID        string
	Name      string
	Arguments string // JSON, if the model did well
}

// addCalls adds a list of deltas to the calls so far: a delta names its call by
// index, and arguments come in parts.
func addCalls(calls []Call, deltas []byte) ([]Call, error) {
	var parts []struct {
		Index    int    `json:"index"`
		ID       string `json:"id"`
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	}
	if err := json.Unmarshal(deltas, &parts); err != nil {
		return calls, fmt.Errorf("tool calls: %w", err)
	}
	for _, p := range parts {
		if p.Index < 0 || p.Index > len(calls) || p.Index >= maxCalls {
			return calls, fmt.Errorf("tool calls: index %d after %d calls", p.Index, len(calls))
		}
		if p.Index == len(calls) {
			calls = append(calls, Call{})
		}
		c := &calls[p.Index]
		if p.ID != "" {
			c.ID = p.ID
		}
		c.Name += p.Function.Name
		c.Arguments += p.Function.Arguments
	}
	return calls, nil
}

package local

import (
	"encoding/json"
	"net/http"

	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
)

// seal completes the result just before the first byte of the answer. early
// says that the answer goes on: what it costs is not known yet. more are headers
// that are passed on.
func (s *Server) seal(c *call, out *output, early bool, more http.Header) {
	c.first = s.opt.Now().Sub(c.arrived)
	c.result.TTFTMs = millis(c.first)
	c.result.Policy = c.policy.Name
	c.result.EdgeTokens = 0
	if c.draft != nil {
		c.result.EdgeTokens = c.edgeTokens()
	}
	t := &contract.Timing{}
	if c.edgeRuns > 0 {
		t.Add("edge", c.edgeTime)
	}
	if c.cloudSends > 0 {
		t.Add("cloud", c.cloudTime)
	}
	t.Add("total", c.first)
	out.prepare(t, early, more)
}

func (c *call) responseID() string {
	if c.kind == upstream.Text {
		return "cmpl-" + c.op
	}
	return "chatcmpl-" + c.op
}

// reply is a whole answer of the edge, of either kind. Its log-probabilities
// are the worker's own bytes.
type reply struct {
	ID      string           `json:"id"`
	Object  string           `json:"object"`
	Created int64            `json:"created"`
	Model   string           `json:"model"`
	Choices []replyChoice    `json:"choices"`
	Usage   *openai.Usage    `json:"usage,omitempty"`
	Weir    *contract.Result `json:"weir,omitempty"`
}

type replyChoice struct {
	Index        int             `json:"index"`
	Message      *replyMessage   `json:"message,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
}

type replyMessage struct {
	Role      string      `json:"role"`
	Content   *string     `json:"content"`
	Refusal   *string     `json:"refusal"`
	ToolCalls []replyCall `json:"tool_calls,omitempty"`
}

type replyCall struct {
	ID       string        `json:"id"`
	Type     string        `json:"type"`
	Function replyFunction `json:"function"`
}

type replyFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// whole is the draft as one JSON answer.
func (c *call) whole(model string, logprobs json.RawMessage) reply {
	r := reply{ID: c.responseID(), Object: openai.ObjectChat, Created: c.arrived.Unix(), Model: model, Usage: &c.draft.Usage, Weir: &c.result}
	choice := replyChoice{FinishReason: &c.draft.Finish, Logprobs: logprobs}
	if c.kind == upstream.Text {
		r.Object = openai.ObjectCompletion
		choice.Text = &c.draft.Text
	} else {
		choice.Message = &replyMessage{Role: "assistant", Content: &c.draft.Text}
		for _, call := range c.draft.Calls {
			choice.Message.ToolCalls = append(choice.Message.ToolCalls, replyCall{call.ID, "function", replyFunction{call.Name, call.Arguments}})
		}
		if c.draft.Text == "" && len(c.draft.Calls) > 0 {
			choice.Message.Content = nil
		}
	}
	r.Choices = []replyChoice{choice}
	return r
}

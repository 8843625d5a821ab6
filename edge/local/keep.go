package local

import (
	"encoding/json"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/edge/upstream"
	"github.com/weirhq/weir/internal/contract"
	"github.com/weirhq/weir/internal/openai"
)

// answerEdge sends the local answer.
func (s *Server) answerEdge(c *call, out *output, reason cascade.Reason) error {
	out.release()
	u := c.draft.Usage
	c.usage = u
	c.result.Tier, c.result.Model, c.result.Reason = cascade.TierEdge, s.opt.Model, reason
	c.result.CostUSD, c.result.Attempts = s.edgeCost(c), c.edgeRuns+c.cloudSends
	s.seal(c, out)
	if !out.stream {
		return out.json(c.whole(s.opt.Model))
	}
	return c.replay(out, s.opt.Model)
}

// seal completes the result just before the first byte of the answer.
func (s *Server) seal(c *call, out *output) {
	c.first = s.opt.Now().Sub(c.arrived)
	c.result.TTFTMs = millis(c.first)
	c.result.Policy = c.policy.Name
	c.result.EdgeTokens = 0
	if c.draft != nil {
		c.result.EdgeTokens = c.draft.Usage.CompletionTokens
	}
	out.timing = &contract.Timing{}
	if c.edgeRuns > 0 {
		out.timing.Add("edge", c.edgeTime)
	}
	if c.cloudSends > 0 {
		out.timing.Add("cloud", c.cloudTime)
	}
	out.timing.Add("total", c.first)
}

func (c *call) responseID() string {
	if c.kind == upstream.Text {
		return "cmpl-" + c.op
	}
	return "chatcmpl-" + c.op
}

// reply is an answer or a chunk of either kind. Its log-probabilities are the
// worker's own bytes.
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
	Message      *openai.Answer  `json:"message,omitempty"`
	Delta        *openai.Delta   `json:"delta,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
}

func (c *call) newReply(object, model string) reply {
	return reply{ID: c.responseID(), Object: object, Created: c.arrived.Unix(), Model: model, Choices: []replyChoice{}}
}

// whole is the draft as one JSON answer.
func (c *call) whole(model string) reply {
	object := openai.ObjectChat
	if c.kind == upstream.Text {
		object = openai.ObjectCompletion
	}
	r := c.newReply(object, model)
	choice := replyChoice{FinishReason: &c.draft.Finish, Logprobs: c.draft.Logprobs(c.kind, c.req.Logprobs)}
	if c.kind == upstream.Text {
		choice.Text = &c.draft.Text
	} else {
		choice.Message = &openai.Answer{Role: "assistant", Content: c.draft.Text}
	}
	r.Choices = append(r.Choices, choice)
	r.Usage, r.Weir = &c.draft.Usage, &c.result
	return r
}

// replay sends the draft as the stream that the worker sent, with the weir
// object in the last chunk.
func (c *call) replay(out *output, model string) error {
	send := func(choice *replyChoice, usage *openai.Usage, last bool) error {
		object := openai.ObjectChatChunk
		if c.kind == upstream.Text {
			object = openai.ObjectCompletion
		}
		r := c.newReply(object, model)
		if choice != nil {
			r.Choices = append(r.Choices, *choice)
		}
		r.Usage = usage
		if last {
			r.Weir = &c.result
		}
		raw, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return out.data(raw)
	}
	if c.kind == upstream.Chat {
		empty := ""
		if err := send(&replyChoice{Delta: &openai.Delta{Role: "assistant", Content: &empty}}, nil, false); err != nil {
			return err
		}
	}
	for i := range c.draft.Pieces {
		if err := send(c.piece(&c.draft.Pieces[i]), nil, false); err != nil {
			return err
		}
	}
	end := c.piece(&upstream.Piece{})
	if c.kind == upstream.Chat {
		end.Delta = &openai.Delta{}
	}
	end.FinishReason = &c.draft.Finish
	if err := send(end, nil, !c.req.IncludeUsage); err != nil {
		return err
	}
	if c.req.IncludeUsage {
		if err := send(nil, &c.draft.Usage, true); err != nil {
			return err
		}
	}
	return out.sse.Done()
}

func (c *call) piece(p *upstream.Piece) *replyChoice {
	choice := &replyChoice{}
	if c.req.Logprobs {
		choice.Logprobs = p.Logprobs
	}
	if c.kind == upstream.Text {
		choice.Text = &p.Text
	} else {
		choice.Delta = &openai.Delta{Content: &p.Text}
	}
	return choice
}

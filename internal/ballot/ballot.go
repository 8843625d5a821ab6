// Package ballot asks a model whether an answer that it gave is right, and counts
// its yes. One request of one token each: the probability of YES against NO where
// the model server tells those of its likeliest tokens, else several samples.
package ballot

import (
	"encoding/json"

	"github.com/weirhq/weir/internal/openai"
)

// question is version verifier.Prompt. It comes after the answer, so that a server
// that keeps prefixes computes little more than it.
const question = "Is the proposed answer above right and complete? Answer with one word, YES or NO."

// Tokens whose probabilities are asked for: the most that either API promises.
const (
	topChat = 20
	topText = 5
)

// MostAnswer bounds an answer that is asked about, bytes.
const MostAnswer = 64 << 10

// Case is an answer, with the request that it answers.
type Case struct {
	Model   string // as its server calls it
	Text    bool   // a text completion
	Body    openai.Body
	Request *openai.Request // of Body
	Answer  string
	Samples int // 1 to verifier.MostVotes
}

// Ask is the body of the request. Of the client's own it keeps the conversation
// only: its form, tools and sampling are not the question's.
func (c *Case) Ask(way Way) openai.Body {
	b := openai.Body{}
	b.Set("model", c.Model)
	b.Set("max_tokens", 1)
	if c.Text {
		b.Set("prompt", c.Request.Prompt+c.Answer+"\n\n"+question+"\n")
	} else {
		b.Set("messages", c.messages())
	}
	switch {
	case way == Samples:
		b.Set("n", c.Samples)
		b.Set("temperature", 1)
		return b
	case c.Text:
		b.Set("logprobs", topText)
	default:
		b.Set("logprobs", true)
		b.Set("top_logprobs", topChat)
	}
	b.Set("temperature", 0)
	return b
}

// messages are the client's, the answer and the question. An answer that the
// client had begun is one message with its end.
func (c *Case) messages() []json.RawMessage {
	var all []json.RawMessage
	_ = json.Unmarshal(c.Body["messages"], &all) // parsed before
	answer := openai.Message{Role: "assistant", Content: c.Answer}
	if last := len(all) - 1; c.Request.Continue && last >= 0 {
		answer.Content = c.Request.Messages[last].Content + c.Answer
		all = all[:last]
	}
	for _, m := range []openai.Message{answer, {Role: "user", Content: question}} {
		raw, err := json.Marshal(m)
		if err != nil {
			continue // two strings marshal
		}
		all = append(all, raw)
	}
	return all
}

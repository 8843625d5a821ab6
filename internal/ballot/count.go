package ballot

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/weirhq/weir/cascade/verifier"
	"github.com/weirhq/weir/internal/openai"
)

// Errors of Count.
var (
	// ErrNoProbs says that the server tells no probabilities: ask for samples.
	ErrNoProbs = errors.New("the model server tells no log-probabilities of its likeliest tokens")
	// ErrNoSamples says that it gives fewer samples than it was asked for.
	ErrNoSamples = errors.New("the model server gives fewer samples than it was asked for")
	// ErrUnread says that the model said neither yes nor no.
	ErrUnread = errors.New("the model said neither yes nor no")
)

// vote is one choice of the answer.
type vote struct {
	Message struct {
		Content *string `json:"content"`
	} `json:"message"`
	Text     *string `json:"text"`
	Logprobs *struct {
		Content []struct {
			Top []struct {
				Token   string   `json:"token"`
				LogProb *float64 `json:"logprob"`
			} `json:"top_logprobs"`
		} `json:"content"`
		Top []map[string]*float64 `json:"top_logprobs"`
	} `json:"logprobs"`
}

// Count reads the answer to Ask. The usage is what its server reports, zero where
// it does not; it is read whatever the error.
func (c *Case) Count(way Way, data []byte) (v verifier.Votes, used openai.Usage, err error) {
	var a struct {
		Choices []vote        `json:"choices"`
		Usage   *openai.Usage `json:"usage"`
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return v, used, fmt.Errorf("answer on an answer: %w", err)
	}
	if a.Usage != nil {
		used = sane(*a.Usage)
	}
	count := c.weigh
	if way == Samples {
		count = c.poll
	}
	v, err = count(a.Choices)
	return v, used, err
}

// sane is a usage that can be.
func sane(u openai.Usage) openai.Usage {
	if u.PromptTokens < 0 || u.CompletionTokens < 0 {
		return openai.Usage{}
	}
	if d := u.PromptTokensDetails; d != nil && (d.CachedTokens < 0 || d.CachedTokens > u.PromptTokens) {
		u.PromptTokensDetails = nil
	}
	return u
}

// weigh turns the probability of YES against NO into votes.
func (c *Case) weigh(choices []vote) (v verifier.Votes, err error) {
	switch {
	case len(choices) == 0:
		return v, ErrNoProbs
	case choices[0].Logprobs == nil:
		return v, choices[0].untold()
	}
	yes, no, told := 0.0, 0.0, false
	add := func(token string, logprob *float64) {
		if logprob == nil {
			return
		}
		told = true
		switch p := math.Exp(min(0, *logprob)); said(token) {
		case saysYes:
			yes += p
		case saysNo:
			no += p
		}
	}
	l := choices[0].Logprobs
	if len(l.Content) > 0 {
		for _, t := range l.Content[0].Top {
			add(t.Token, t.LogProb)
		}
	}
	if len(l.Top) > 0 {
		for token, logprob := range l.Top[0] {
			add(token, logprob)
		}
	}
	switch {
	case !told:
		return v, choices[0].untold()
	case !(yes+no > 0):
		return v, ErrUnread
	}
	return c.votes(yes / (yes + no)), nil
}

// untold is why a choice tells no probabilities: one that ended at once has no token
// to tell them of.
func (s *vote) untold() error {
	if s.said() == "" {
		return ErrUnread
	}
	return ErrNoProbs
}

// said is the choice's text.
func (s *vote) said() string {
	switch {
	case s.Message.Content != nil:
		return *s.Message.Content
	case s.Text != nil:
		return *s.Text
	}
	return ""
}

// poll counts samples that say yes among those that say either.
func (c *Case) poll(choices []vote) (v verifier.Votes, err error) {
	if len(choices) != c.Samples {
		return v, ErrNoSamples
	}
	yes, no := 0, 0
	for _, s := range choices {
		switch said(s.said()) {
		case saysYes:
			yes++
		case saysNo:
			no++
		}
	}
	if yes+no == 0 {
		return v, ErrUnread
	}
	v = c.votes(float64(yes) / float64(yes+no))
	v.Sampled = true
	return v, nil
}

func (c *Case) votes(yes float64) verifier.Votes {
	return verifier.Votes{Yes: int(math.Round(yes * float64(c.Samples))), Of: c.Samples}
}

// Words that a token may be, or begin.
type word uint8

const (
	saysNeither word = iota
	saysYes
	saysNo
)

// said reads a first token: the word, with what is no letter after it, or a
// beginning of it, as models have tokens of single letters.
func said(token string) word {
	t := strings.ToLower(strings.TrimLeft(token, " \t\r\n\u2581\u0120\"'*"))
	t = t[:len(t)-len(strings.TrimLeft(t, "abcdefghijklmnopqrstuvwxyz"))]
	switch {
	case t == "":
		return saysNeither
	case strings.HasPrefix("yes", t):
		return saysYes
	case strings.HasPrefix("no", t):
		return saysNo
	}
	return saysNeither
}

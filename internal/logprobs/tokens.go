// Package logprobs reads the log-probabilities of answers, of chats and of text
// completions, token by token, and scores them by the part of the answer that a
// token belongs to.
package logprobs

import (
	"math"
	"strconv"

	"github.com/weirhq/weir/internal/jsonscan"
)

// Token is what a model server tells of one: its text is a JSON string, numbers
// are NaN where they are not there.
type Token struct {
	Text            []byte
	LogProb, Margin float64 // Margin: over the second best
}

// List is a walk through the tokens of a choice's logprobs. Its slices point into
// them; it allocates nothing.
type List struct {
	Token       // where the walk is
	chat, bad   bool
	probs, text jsonscan.List
}

// Of begins a walk.
func Of(logprobs []byte) List {
	var l List
	s := jsonscan.Members(logprobs)
	for s.Next() {
		switch {
		case s.Is("content"):
			l.chat = jsonscan.Filled(s.Val)
			if l.chat {
				l.probs = jsonscan.Elements(s.Val)
			}
		case s.Is("token_logprobs") && !l.chat:
			l.probs = jsonscan.Elements(s.Val)
		case s.Is("tokens"):
			l.text = jsonscan.Elements(s.Val)
		}
	}
	l.bad = !s.OK()
	return l
}

// OK reports whether the log-probabilities are an object.
func (l *List) OK() bool { return !l.bad }

// Next goes to the next token and reports whether there is one.
func (l *List) Next() bool {
	if !l.probs.Next() {
		return false
	}
	if l.chat {
		l.Token = read(l.probs.Val)
		return true
	}
	l.Token = Token{LogProb: number(l.probs.Val), Margin: math.NaN()}
	if l.text.Next() {
		l.Text = l.text.Val
	}
	return true
}

// read reads a token of a chat answer.
func read(raw []byte) Token {
	t := Token{LogProb: math.NaN(), Margin: math.NaN()}
	s := jsonscan.Members(raw)
	for s.Next() {
		switch {
		case s.Is("token"):
			t.Text = s.Val
		case s.Is("logprob"):
			t.LogProb = number(s.Val)
		case s.Is("top_logprobs"):
			l := jsonscan.Elements(s.Val)
			if l.Next() {
				best := member(l.Val)
				if l.Next() {
					t.Margin = best - member(l.Val)
				}
			}
		}
	}
	return t
}

// member is the log-probability of an alternative.
func member(top []byte) float64 {
	s := jsonscan.Members(top)
	for s.Next() {
		if s.Is("logprob") {
			return number(s.Val)
		}
	}
	return math.NaN()
}

// number is NaN for anything that is no JSON number.
func number(val []byte) float64 {
	if len(val) == 0 || val[0] != '-' && (val[0] < '0' || val[0] > '9') {
		return math.NaN()
	}
	v, err := strconv.ParseFloat(string(val), 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

package logprobs

import (
	"math"

	"github.com/weirhq/weir/cascade"
)

// Part is where a model server puts a token.
type Part uint8

// The parts.
const (
	Text  Part = iota
	Calls      // a tool call
	Think      // reasoning, as the server marks it
)

// Scorer adds an answer's tokens to its signals. The zero value is ready.
type Scorer struct {
	cascade.Accumulator
	text []byte
}

// Score adds a token and tells its span. shown says that its text is part of the
// answer: the end token, or one that is still held back, adds none.
func (s *Scorer) Score(t *Token, part Part, shown bool) cascade.Span {
	if s.text = s.text[:0]; shown {
		s.text = AppendText(s.text, t.Text)
	}
	tok := cascade.Token{LogProb: t.LogProb, Margin: t.Margin, Entropy: math.NaN(), Span: cascade.SpanThink}
	switch part {
	case Think:
		s.AddToken(tok)
		return cascade.SpanThink
	case Calls:
		return s.AddCall(s.text, tok)
	}
	return s.AddText(s.text, tok)
}

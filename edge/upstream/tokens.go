package upstream

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/weirhq/weir/cascade"
	"github.com/weirhq/weir/internal/jsonscan"
)

// score adds an event's tokens to the signals and returns their number. It leaves
// the log-probabilities of those of the answer in now, NaN where one has none.
func (c *collector) score(e *Event) (n int, err error) {
	c.now.LogProbs = c.now.LogProbs[:0]
	if e.Logprobs == nil {
		return 0, nil
	}
	var texts, probs []byte // lists of a text completion, of chat tokens probs alone
	s := jsonscan.Members(e.Logprobs)
	for s.Next() {
		switch {
		case c.kind == Chat && s.Is("content"), c.kind == Text && s.Is("token_logprobs"):
			probs = s.Val
		case c.kind == Text && s.Is("tokens"):
			texts = s.Val
		}
	}
	if !s.OK() {
		return 0, fmt.Errorf("log-probabilities are no object: %.80q", e.Logprobs)
	}
	text := jsonscan.Elements(texts)
	for l := jsonscan.Elements(probs); l.Next(); n++ {
		t := token{prob: number(l.Val), margin: math.NaN()}
		if c.kind == Chat {
			t = readToken(l.Val)
		} else if text.Next() {
			t.text = text.Val
		}
		c.scoreToken(e, &t)
	}
	return n, nil
}

// scoreToken adds one token. Those of an event that shows nothing add no text:
// the end token, or one that is still held back.
func (c *collector) scoreToken(e *Event, t *token) {
	c.token = c.token[:0]
	if e.Visible() {
		c.token = appendText(c.token, t.text)
	}
	tok := cascade.Token{LogProb: t.prob, Margin: t.margin, Entropy: math.NaN(), Span: cascade.SpanThink}
	switch {
	case e.Think:
		c.acc.AddToken(tok)
		c.span = cascade.SpanThink
	case e.Calls != nil:
		c.span = c.acc.AddCall(c.token, tok)
	default:
		c.span = c.acc.AddText(c.token, tok)
	}
	if c.span == cascade.SpanAnswer {
		c.now.LogProbs = append(c.now.LogProbs, t.prob)
	}
}

// token is what an event tells of one: its text is a JSON string, numbers are NaN
// where they are not there.
type token struct {
	text         []byte
	prob, margin float64 // margin: over the second best
}

// readToken reads a token of a chat answer.
func readToken(raw []byte) token {
	t := token{prob: math.NaN(), margin: math.NaN()}
	s := jsonscan.Members(raw)
	for s.Next() {
		switch {
		case s.Is("token"):
			t.text = s.Val
		case s.Is("logprob"):
			t.prob = number(s.Val)
		case s.Is("top_logprobs"):
			l := jsonscan.Elements(s.Val)
			if l.Next() {
				best := topLogprob(l.Val)
				if l.Next() {
					t.margin = best - topLogprob(l.Val)
				}
			}
		}
	}
	return t
}

// appendText appends what spans are told by: the text of a JSON string in which
// every character that is written as \u and is not ASCII becomes a replacement
// character. Anything else adds nothing. It allocates only to grow dst.
func appendText(dst, val []byte) []byte {
	if len(val) < 2 || val[0] != '"' {
		return dst
	}
	val = val[1 : len(val)-1]
	for i := 0; i < len(val); i++ {
		if val[i] != '\\' || i+1 == len(val) {
			dst = append(dst, val[i])
			continue
		}
		i++
		switch val[i] {
		case 'n', 't', 'r', 'b', 'f':
			dst = append(dst, ' ')
		case 'u':
			dst = utf8.AppendRune(dst, hexRune(val[i+1:]))
			i = min(i+4, len(val))
		default:
			dst = append(dst, val[i])
		}
	}
	return dst
}

// hexRune is the ASCII character of four hexadecimal digits.
func hexRune(digits []byte) rune {
	if len(digits) < 4 {
		return utf8.RuneError
	}
	r := rune(0)
	for _, d := range digits[:4] {
		switch {
		case d >= '0' && d <= '9':
			r = r<<4 | rune(d-'0')
		case d|0x20 >= 'a' && d|0x20 <= 'f':
			r = r<<4 | rune(d|0x20-'a'+10)
		default:
			return utf8.RuneError
		}
	}
	if r >= utf8.RuneSelf {
		return utf8.RuneError
	}
	return r
}

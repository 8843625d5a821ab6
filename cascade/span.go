package cascade

import (
	"bytes"
	"strings"
)

// Span is the kind of text a token belongs to. Only SpanAnswer is scored:
// reasoning is not the answer, and JSON punctuation is nearly free to predict.
type Span uint8

// The spans of an answer.
const (
	SpanAnswer    Span = iota
	SpanThink          // reasoning before the answer
	SpanStructure      // JSON keys and punctuation, tool-call syntax
	SpanProse          // text around a tool call
	spanCount
)

// SpanTokens counts tokens by span.
type SpanTokens [spanCount]int

// Plain reports whether all tokens are of the answer.
func (n *SpanTokens) Plain() bool { return n[SpanThink]+n[SpanStructure]+n[SpanProse] == 0 }

// spanner tells inline reasoning and JSON structure from the answer, token by
// token in constant space. Tokens may cut the text anywhere. The zero value
// reads plain text.
type spanner struct {
	json  bool // the text is JSON: only its values are the answer
	form  jsonForm
	mark  markMatch
	think bool // inside reasoning
	seen  bool // there was some
}

// reading is what a token's text says of it, and of tokens before it.
type reading struct {
	span Span
	// solid says that some of the text is the answer for certain: neither space
	// nor structure, nor held as a mark's beginning.
	solid bool
	// begun says that a mark may have begun in this token, opened that one which
	// had begun before opens reasoning: its tokens are not the answer. closed says
	// that reasoning ends which no mark had opened, as where the prompt opens it.
	begun, opened, closed bool
}

// read takes a token's text, "" for one that adds none.
func (s *spanner) read(text []byte) reading {
	inside, before := s.think, s.mark.n > 0
	r := reading{solid: len(text) == 0 && !inside}
	if !inside && !before && !s.json && bytes.IndexByte(text, '<') < 0 {
		return reading{solid: true}
	}
	for i, b := range text {
		if b != '<' && s.mark.n == 0 {
			r.solid = !s.think && s.answer(b) || r.solid
			continue
		}
		held, whole := s.mark.step(b)
		switch {
		case s.think:
			s.think = whole != markClose
		case whole == markOpen:
			r.opened = r.opened || before
			s.think, s.seen, inside, before = true, true, true, false
		case whole == markClose && !s.seen:
			r = reading{closed: true}
			s.seen, s.form, inside, before = true, jsonForm{}, true, false
		case whole != "":
			r.solid = s.answers(whole, i+1) || r.solid
		default:
			r.solid = s.answers(held, i) || r.solid
			before = before && s.mark.n > 1
			if s.mark.n == 0 {
				r.solid = s.answer(b) || r.solid
			}
		}
	}
	r.begun = s.mark.n > 0 && !s.think && !before
	switch {
	case r.solid || !s.think && s.heldAnswers(len(text)):
	case inside:
		r.span = SpanThink
	case s.json:
		r.span = SpanStructure
	}
	return r
}

// heldAnswers reports whether the last own bytes of what may be a mark's beginning
// are of the answer if it is none.
func (s *spanner) heldAnswers(own int) bool {
	if s.mark.n == 0 {
		return false
	}
	try := *s
	return try.answers(s.mark.held(), own)
}

// answer reports whether a byte outside of reasoning is of the answer.
func (s *spanner) answer(b byte) bool {
	if s.json {
		return s.form.value(b)
	}
	return !isSpace(b)
}

// answers takes text that was held, and reports whether any of its last own bytes,
// which are of this token, is of the answer.
func (s *spanner) answers(text string, own int) (some bool) {
	for i := range len(text) {
		some = s.answer(text[i]) && i >= len(text)-own || some
	}
	return some
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

// The marks of inline reasoning.
const (
	markOpen  = "<think>"
	markClose = "</think>"
)

// markMatch finds the marks in a text, byte by byte.
type markMatch struct {
	n       int // bytes matched so far
	closing bool
}

func (m *markMatch) mark() string {
	if m.closing {
		return markClose
	}
	return markOpen
}

// held is what is matched so far.
func (m *markMatch) held() string { return m.mark()[:m.n] }

// step takes a byte. whole is a mark that it completes; held is what had been
// matched and is text after all.
func (m *markMatch) step(b byte) (held, whole string) {
	mark := m.mark()
	switch {
	case b == mark[m.n]:
		m.n++
	case b == '/' && m.n == 1:
		m.closing, m.n = true, 2
	default:
		held = m.held()
		*m = markMatch{}
		if b == '<' {
			m.n = 1
		}
	}
	if m.n == len(mark) {
		*m = markMatch{}
		return "", mark
	}
	return held, ""
}

// jsonForm tells the values of a JSON text from its keys and punctuation, byte
// by byte. An empty string, list or object is a value by its closing mark. What
// is no JSON counts as values.
type jsonForm struct {
	objects                         uint64 // a bit for each open bracket, the innermost lowest: it is an object
	depth                           int
	text, escaped, key, keys, fresh bool
}

// inside reports whether a bracket or a string is open.
func (j *jsonForm) inside() bool { return j.depth > 0 || j.text }

// value takes a byte and reports whether it is of a value.
func (j *jsonForm) value(b byte) bool {
	if j.text {
		return j.inText(b)
	}
	if isSpace(b) {
		return false
	}
	empty := j.fresh
	j.fresh = false
	switch b {
	case '"':
		j.text, j.key, j.fresh = true, j.keys, true
	case '{', '[':
		j.keys, j.fresh = b == '{', true
		j.objects, j.depth = j.objects<<1, j.depth+1
		if j.keys {
			j.objects |= 1
		}
	case '}', ']':
		j.objects, j.depth, j.keys = j.objects>>1, max(0, j.depth-1), false
		return empty
	case ',':
		j.keys = j.objects&1 == 1
	case ':':
		j.keys = false
	default:
		return true
	}
	return false
}

// inText takes a byte of a string.
func (j *jsonForm) inText(b byte) bool {
	empty := j.fresh
	j.fresh = false
	switch {
	case j.escaped:
		j.escaped = false
	case b == '\\':
		j.escaped = true
	case b == '"':
		j.text = false
		return empty && !j.key
	}
	return !j.key
}

// AnswerText is a finished text without its inline reasoning.
func AnswerText(text string) string {
	if end := strings.Index(text, markClose); end >= 0 && !strings.Contains(text[:end], markOpen) {
		text = text[end+len(markClose):]
	}
	var answer strings.Builder
	for {
		before, rest, thinks := strings.Cut(text, markOpen)
		answer.WriteString(before)
		if !thinks {
			return answer.String()
		}
		_, text, _ = strings.Cut(rest, markClose)
	}
}

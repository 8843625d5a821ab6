package prefix

import (
	"bytes"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// The canonical form of a JSON value does not depend on white space, on the order
// of members, nor on how a string escapes its characters: a gateway writes a
// body anew before it sends it on. Lists and strings have no length in front, so
// that a longer conversation begins as the shorter one did.
const (
	endString = 0xFF // no byte of UTF-8
	endList   = 0xFE
	endObject = 0xFD
)

// sortDepth is how deep in a value the members of objects are put in order:
// each such level reads once more what is inside, and a body may nest thousands.
// Below it their order is that of the body. Schemas of tools nest about ten deep.
const sortDepth = 16

// value writes raw, which must be valid JSON or empty, in canonical form.
func (c *chain) value(raw []byte) {
	s := scanner{raw}
	s.space()
	if len(s.in) == 0 {
		s.in = []byte("null")
	}
	c.any(&s, 1)
}

// any writes the value at the scanner's place, which lies depth deep.
func (c *chain) any(s *scanner, depth int) {
	switch s.peek() {
	case '{':
		c.byte('{')
		s.skip()
		if depth <= sortDepth {
			c.sorted(s, depth)
		} else {
			c.inOrder(s, depth)
		}
		c.byte(endObject)
	case '[':
		c.byte('[')
		s.skip()
		for s.more(']') && !c.full() {
			c.any(s, depth+1)
		}
		c.byte(endList)
	case '"':
		c.byte('"')
		c.text(s.quoted())
		c.byte(endString)
	default:
		c.bytes(s.word())
		c.byte(endString)
	}
}

// member is one member of an object; both are as the body has them.
type member struct{ name, value []byte }

// sorted writes an object's members in order of their names. Where a name stands
// twice the order is that of the body.
func (c *chain) sorted(s *scanner, depth int) {
	var few [16]member
	members := few[:0]
	for s.more('}') {
		members = append(members, member{s.name(), s.raw()})
	}
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	for _, m := range members {
		if c.full() {
			return
		}
		c.text(m.name)
		c.byte(endString)
		c.any(&scanner{m.value}, depth+1)
	}
}

// inOrder writes an object's members as they stand, in one pass.
func (c *chain) inOrder(s *scanner, depth int) {
	for s.more('}') && !c.full() {
		c.text(s.name())
		c.byte(endString)
		c.any(s, depth+1)
	}
}

// text writes the inside of a JSON string without its escapes.
func (c *chain) text(in []byte) {
	for len(in) > 0 && !c.full() {
		at := bytes.IndexByte(in, '\\')
		if at < 0 || at+1 == len(in) {
			c.bytes(in)
			return
		}
		c.bytes(in[:at])
		in = c.escape(in[at+1:])
	}
}

var escapes = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}

// escape writes what an escape stands for; in begins after the backslash.
func (c *chain) escape(in []byte) []byte {
	if in[0] != 'u' {
		c.byte(escapes[in[0]])
		return in[1:]
	}
	r, in := hex4(in[1:])
	if utf16.IsSurrogate(r) {
		second := rune(-1)
		if len(in) >= 2 && in[0] == '\\' && in[1] == 'u' {
			second, _ = hex4(in[2:])
		}
		if r = utf16.DecodeRune(r, second); r != utf8.RuneError {
			_, in = hex4(in[2:])
		}
	}
	var b [utf8.UTFMax]byte
	c.bytes(utf8.AppendRune(b[:0], r))
	return in
}

// hex4 reads four hex digits.
func hex4(in []byte) (rune, []byte) {
	r := rune(0)
	n := min(4, len(in))
	for _, d := range in[:n] {
		r <<= 4
		switch {
		case d <= '9':
			r |= rune(d - '0')
		default:
			r |= rune(d|0x20-'a') + 10
		}
	}
	return r & 0xFFFF, in[n:]
}

// Package jsonscan reads the members of JSON objects in place. Decoding each
// event of a stream into a struct would allocate per token and lose members
// that Weir does not know.
package jsonscan

import (
	"bytes"
	"encoding/json"
)

// Object walks the members of one JSON object. It trusts scalars to be well
// formed and checks structure: strings, brackets, commas.
type Object struct {
	// Key (without its quotes, escapes as they are) and Val of the current
	// member point into the data.
	Key, Val []byte

	b     []byte
	i     int
	bad   bool
	begun bool
	done  bool
}

// Members starts on data, which must hold one object and nothing after it.
func Members(data []byte) Object {
	s := Object{b: data}
	s.space()
	s.bad = !s.eat('{')
	return s
}

// Next moves to the next member. It returns false at the end and on a fault;
// OK tells which.
func (s *Object) Next() bool {
	if s.bad || s.done {
		return false
	}
	s.space()
	if s.eat('}') {
		s.space()
		s.bad = s.i != len(s.b)
		s.done = true
		return false
	}
	if s.begun && !s.eat(',') {
		s.bad = true
		return false
	}
	s.begun = true
	s.space()
	start := s.i
	if !s.str() {
		return false
	}
	s.Key = s.b[start+1 : s.i-1]
	s.space()
	if !s.eat(':') {
		s.bad = true
		return false
	}
	s.space()
	start = s.i
	if !s.value() {
		return false
	}
	s.Val = s.b[start:s.i]
	return true
}

// OK reports whether there was no fault so far.
func (s *Object) OK() bool { return !s.bad }

// Is compares the member's key.
func (s *Object) Is(key string) bool { return string(s.Key) == key }

func (s *Object) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

func (s *Object) eat(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// str moves past a string.
func (s *Object) str() bool {
	if !s.eat('"') {
		s.bad = true
		return false
	}
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '\\':
			s.i += 2
		case '"':
			s.i++
			return true
		default:
			s.i++
		}
	}
	s.i = len(s.b)
	s.bad = true
	return false
}

// value moves past a value. Objects and lists are matched by counting.
func (s *Object) value() bool {
	if s.i >= len(s.b) {
		s.bad = true
		return false
	}
	switch s.b[s.i] {
	case '"':
		return s.str()
	case '{', '[':
		return s.nested()
	}
	start := s.i
	for s.i < len(s.b) && !endsScalar(s.b[s.i]) {
		s.i++
	}
	s.bad = s.bad || s.i == start
	return !s.bad
}

func endsScalar(c byte) bool {
	switch c {
	case ',', ']', '}', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

func (s *Object) nested() bool {
	depth := 0
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case '"':
			if !s.str() {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		s.i++
		if depth == 0 {
			return true
		}
	}
	s.bad = true
	return false
}

// List walks the elements of a JSON list.
type List struct {
	Val []byte // the current element
	s   Object
}

// Elements starts on a list; anything else has no elements.
func Elements(list []byte) List {
	l := List{s: Object{b: list}}
	l.s.space()
	l.s.bad = !l.s.eat('[')
	return l
}

// Next moves to the next element; false at the end and on a fault.
func (l *List) Next() bool {
	s := &l.s
	if s.bad || s.done {
		return false
	}
	s.space()
	if s.eat(']') {
		s.done = true
		return false
	}
	if s.begun {
		if !s.eat(',') {
			s.bad = true
			return false
		}
		s.space()
	}
	s.begun = true
	start := s.i
	if !s.value() {
		return false
	}
	l.Val = s.b[start:s.i]
	return true
}

// First returns the first element of a list, or nil when it is empty or not a
// list.
func First(list []byte) []byte {
	l := Elements(list)
	if !l.Next() {
		return nil
	}
	return l.Val
}

// IsNull reports whether val is null.
func IsNull(val []byte) bool { return string(val) == "null" }

// Filled reports whether val is a non-empty string, list or object.
func Filled(val []byte) bool {
	if len(val) < 2 {
		return false
	}
	switch val[0] {
	case '"':
		return len(val) > 2
	case '[', '{':
		return len(bytes.TrimSpace(val[1:len(val)-1])) > 0
	}
	return false
}

// AppendText appends the text of a JSON string to dst. ok is false, and dst as
// it was, for anything else.
func AppendText(dst, val []byte) (_ []byte, ok bool) {
	if len(val) < 2 || val[0] != '"' {
		return dst, false
	}
	if plain := val[1 : len(val)-1]; bytes.IndexByte(plain, '\\') < 0 {
		return append(dst, plain...), true
	}
	var s string
	if json.Unmarshal(val, &s) != nil {
		return dst, false
	}
	return append(dst, s...), true
}

package chunk

import "bytes"

// scanner walks the members of one JSON object in place. It trusts scalars to
// be well formed and checks structure: strings, brackets, commas.
type scanner struct {
	b  []byte
	i  int
	ok bool // no fault so far
	// key (without quotes) and val of the current member.
	key, val []byte
	begun    bool
	done     bool
}

// scanObject starts on data, which must hold one object and nothing after it.
func scanObject(data []byte) scanner {
	s := scanner{b: data, ok: true}
	s.space()
	if !s.eat('{') {
		s.ok = false
	}
	return s
}

// next moves to the next member. It returns false at the end and on a fault;
// ok tells which.
func (s *scanner) next() bool {
	if !s.ok || s.done {
		return false
	}
	s.space()
	if s.eat('}') {
		s.space()
		s.ok = s.i == len(s.b)
		s.done = true
		return false
	}
	if s.begun && !s.eat(',') {
		s.ok = false
		return false
	}
	s.begun = true
	s.space()
	start := s.i
	if !s.str() {
		return false
	}
	s.key = s.b[start+1 : s.i-1]
	s.space()
	if !s.eat(':') {
		s.ok = false
		return false
	}
	s.space()
	start = s.i
	if !s.value() {
		return false
	}
	s.val = s.b[start:s.i]
	return true
}

func (s *scanner) is(key string) bool { return string(s.key) == key }

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) eat(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// str moves past a string.
func (s *scanner) str() bool {
	if !s.eat('"') {
		s.ok = false
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
	s.ok = false
	return false
}

// value moves past a value. Objects and lists are matched by counting.
func (s *scanner) value() bool {
	if s.i >= len(s.b) {
		s.ok = false
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
	if s.i == start {
		s.ok = false
	}
	return s.ok
}

func endsScalar(c byte) bool {
	switch c {
	case ',', ']', '}', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

func (s *scanner) nested() bool {
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
	s.ok = false
	return false
}

// firstElement returns the first element of a list, or nil when it is empty or
// not a list.
func firstElement(list []byte) []byte {
	s := scanner{b: list, ok: true}
	s.space()
	if !s.eat('[') {
		return nil
	}
	s.space()
	start := s.i
	if s.i >= len(s.b) || s.b[s.i] == ']' || !s.value() {
		return nil
	}
	return s.b[start:s.i]
}

func isNull(val []byte) bool { return string(val) == "null" }

// filled reports whether val is a non-empty string, list or object.
func filled(val []byte) bool {
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

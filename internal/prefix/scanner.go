package prefix

import "bytes"

// scanner walks over valid JSON. On anything else it stops at the end of the
// input at the latest, and what it returns means nothing.
type scanner struct{ in []byte }

func (s *scanner) space() {
	for len(s.in) > 0 && (s.in[0] == ' ' || s.in[0] == '\n' || s.in[0] == '\t' || s.in[0] == '\r') {
		s.in = s.in[1:]
	}
}

// peek is the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if len(s.in) == 0 {
		return 0
	}
	return s.in[0]
}

// skip passes over one byte.
func (s *scanner) skip() {
	if len(s.in) > 0 {
		s.in = s.in[1:]
	}
}

// more says whether a list or object goes on, and passes over what stands
// before its next element or over its end.
func (s *scanner) more(end byte) bool {
	s.space()
	if s.peek() == ',' {
		s.skip()
		s.space()
	}
	if s.peek() == end {
		s.skip()
		return false
	}
	return len(s.in) > 0
}

// quoted returns the inside of the string here.
func (s *scanner) quoted() []byte {
	s.skip()
	for i := 0; i < len(s.in); i++ {
		at := bytes.IndexAny(s.in[i:], `"\`)
		if at < 0 {
			break
		}
		i += at
		if s.in[i] == '"' {
			text := s.in[:i]
			s.in = s.in[i+1:]
			return text
		}
		i++ // what is escaped
	}
	text := s.in
	s.in = nil
	return text
}

// name returns the inside of a member's name and stops before its value.
func (s *scanner) name() []byte {
	name := s.quoted()
	s.space()
	s.skip() // the colon
	s.space()
	return name
}

// word returns the number or literal here. It takes at least one byte, so that
// every loop over a scanner ends.
func (s *scanner) word() []byte {
	n := bytes.IndexAny(s.in, ",]} \n\t\r:")
	switch {
	case n < 0:
		n = len(s.in)
	case n == 0:
		n = 1
	}
	w := s.in[:n]
	s.in = s.in[n:]
	return w
}

// raw returns the value here as it stands.
func (s *scanner) raw() []byte {
	from, depth := s.in, 0
	for len(s.in) > 0 {
		switch s.in[0] {
		case '"':
			s.quoted()
		case '{', '[':
			depth++
			s.skip()
		case '}', ']':
			depth--
			s.skip()
		case ',', ':', ' ', '\n', '\t', '\r':
			s.skip()
		default:
			s.word()
		}
		if depth <= 0 {
			break
		}
	}
	return from[:len(from)-len(s.in)]
}

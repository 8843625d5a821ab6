package store

import "encoding/json"

// Set is a member of a change that may be left alone, set, or cleared with
// null.
type Set[T any] struct {
	Given bool
	To    *T // nil: clear
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Set[T]) UnmarshalJSON(b []byte) error {
	s.Given = true
	return json.Unmarshal(b, &s.To)
}

// MarshalJSON implements json.Marshaler.
func (s Set[T]) MarshalJSON() ([]byte, error) { return json.Marshal(s.To) }

// Holds returns a pointer to what may be set, for schemas.
func (s Set[T]) Holds() any { return new(T) }
